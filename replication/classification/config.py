"""The config of a study of text classification: labelled texts, an encoder, and the mechanisms to compare."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from heldin.base.config_errors import checked
from heldin.base.section import DATACLASS_SECTION, Count, ExpandedPath, Few, JobName, Many, Section, Seed
from heldin.corpus.sources.files import FileCorpus
from heldin.corpus.sources.rows import Columns, Source
from heldin.defenses.data_side.contract import DataDefense
from heldin.defenses.mechanisms.kinds import Defense
from heldin.defenses.mechanisms.plain import NoDefense
from heldin.defenses.mechanisms.settings import UserRecords
from heldin.finetune.recipe import Recipe, Select
from heldin.stages.config_files import read_config, with_overrides

PRETRAINING = Recipe(epochs=10, batch_size=32, learning_rate=1e-3, warmup_steps=100, select=Select.LAST)
FINETUNE = Recipe(epochs=3, batch_size=32, learning_rate=1e-3, warmup_steps=20, select=Select.LAST)


def _require_for_encoders(recipe: Recipe) -> None:
    """Raise ValueError for settings that recipes of runs support and this study does not."""
    if recipe.looks_at_validation:
        raise ValueError("this study has no validation texts: set select to 'last' and patience to null")
    if recipe.sequence_length != Recipe().sequence_length:
        raise ValueError("this study cuts texts to encoder.context tokens: leave sequence_length out")
    if recipe.lora is not None:
        raise ValueError("lora is only for language models: set lora to null")


@dataclass(frozen=True)
class EncoderShape:
    """A pre-trained encoder, or the shape of a tiny encoder."""

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    base: ExpandedPath | None = None
    """Folder of a pre-trained encoder, such as BERT-Base-Uncased, with safetensors weights and its tokenizer; null:
    heldin pre-trains an encoder of this shape on public texts.
    """
    kind: Literal["distilbert", "bert"] = "distilbert"
    """Architecture of the encoder."""
    vocabulary: Annotated[Many, Field(ge=257)] = 4096
    """Size of the vocabulary without [CLS] and [MASK]. heldin learns the vocabulary from the public texts."""
    context: Annotated[Many, Field(ge=4)] = 64
    """Maximum number of tokens that the model reads, including [CLS]."""
    hidden: Many = 128
    """Width of the hidden layers, a multiple of ``heads``."""
    layers: Few = 2
    """Number of transformer layers."""
    heads: Few = 2
    """Number of attention heads in each layer."""


class LabelledFile(Section):
    """Labelled texts without users."""

    kind: Literal["jsonl", "csv", "parquet"] = "jsonl"
    """Format of the file."""
    path: ExpandedPath
    """Path of the file. JSON-lines and CSV files may be compressed (.gz, .zst)."""
    text: str = "text"
    """Column with texts."""
    label: str = "label"
    """Column with labels, as names or whole numbers."""

    def source(self) -> Source:
        """Return the source of the file. The label takes the place of the user."""
        return FileCorpus(kind=self.kind, path=self.path, columns=Columns(user=self.label, text=self.text)).source()


class Contender(Section):
    """A mechanism to compare, with the training settings that differ between mechanisms."""

    defense: Defense = NoDefense()
    """Defense during this training run; see ``defense`` in the config of a run."""
    data_defenses: tuple[DataDefense, ...] = ()
    """Steps to apply to the training texts, such as de-identification."""
    finetune: Recipe | None = None
    """Keys of ``finetune`` that differ for this training run; null: none."""

    @model_validator(mode="after")
    def _can_be_run(self) -> "Contender":
        defense = self.defense
        if defense.may_halt or defense.measured_clip is not None:
            raise ValueError(
                f"defense '{defense.kind}' is not for this study, or lacks clip_norm: choose another defense, or"
                " give clip_norm"
            )
        if isinstance(defense, UserRecords) and defense.record_selection not in ("all", "random"):
            raise ValueError(
                "this study supports no other record selection: set defense.record_selection to random or all"
            )
        if any(not (step := d.declared()).record_local and not step.slots_only for d in self.data_defenses):
            raise ValueError("data_defenses: choose steps that look at one text only, or random caps")
        if self.finetune:
            _require_for_encoders(self.finetune)
        return self


class ClassificationConfig(Section):
    """A study of text classification."""

    name: JobName
    """Name of the study, made of letters, digits, dots, underscores and hyphens."""
    seed: Seed = 0
    """Public seed for the assignment of texts to users, the test set and the initial weights."""
    data: LabelledFile
    """The labelled texts."""
    test_texts: Count = 1000
    """Number of test texts, drawn at random. No training text equals a test text."""
    public_users: Count = 200
    """Number of pseudo-users whose texts pre-train the encoder, without labels."""
    users: Count = 400
    """Number of pseudo-users whose labelled texts train the classifiers."""
    texts_per_user: float = Field(15.0, ge=1, le=1e6)
    """Mean number of texts per pseudo-user."""
    spread: float = Field(2.0, ge=0, le=1e6)
    """Standard deviation of the number of texts per pseudo-user. Each pseudo-user has at least one text."""
    encoder: EncoderShape = EncoderShape()
    """Shape of a new encoder, or the folder of a pre-trained encoder."""
    pretraining: Recipe = PRETRAINING
    """Recipe for pre-training, in which the encoder predicts masked tokens. Each epoch masks different tokens."""
    finetune: Recipe = FINETUNE
    """Recipe for training the classifier, the same for all mechanisms."""
    contenders: dict[str, Contender] = Field(min_length=1)
    """The mechanisms to compare, by name."""

    @model_validator(mode="before")
    @classmethod
    def _what_recipes_leave_out(cls, content: Any) -> Any:
        """Fill in this study's defaults in recipes, and the common recipe in the recipe of each contender."""
        if not isinstance(content, dict):
            return content
        filled = dict(content)
        for name, default in (("pretraining", PRETRAINING), ("finetune", FINETUNE)):
            if isinstance(its := content.get(name), dict):
                filled[name] = {**asdict(default), **its}
        common, contenders = filled.get("finetune", asdict(FINETUNE)), content.get("contenders")
        if isinstance(contenders, dict) and isinstance(common, dict):
            filled["contenders"] = {
                name: {**its, "finetune": {**common, **its["finetune"]}}
                if isinstance(its, dict) and isinstance(its.get("finetune"), dict)
                else its or {}
                for name, its in contenders.items()
            }
        return filled

    @model_validator(mode="after")
    def _nothing_is_chosen_by_validation(self) -> "ClassificationConfig":
        _require_for_encoders(self.pretraining)
        _require_for_encoders(self.finetune)
        if self.pretraining.epochs % 1 or self.pretraining.epochs < 1:
            raise ValueError(
                "pretraining.epochs is not a whole number, but every epoch masks each text once: give a whole number"
            )
        if self.encoder.base is not None and (
            replace(self.encoder, base=None, context=EncoderShape.context) != EncoderShape()
            or "pretraining" in self.model_fields_set
        ):
            raise ValueError(
                "encoder.base is pre-trained: remove pretraining, and all keys of encoder except base and context"
            )
        if self.encoder.hidden % self.encoder.heads:
            raise ValueError(
                f"encoder.hidden {self.encoder.hidden} is not a multiple of encoder.heads: change one of the two"
            )
        return self


def load_classification(path: Path, overrides: Sequence[str] = ()) -> ClassificationConfig:
    """Read a study's config, and apply ``a.b=value`` overrides. Raises InputError with a list of all errors."""
    return checked(ClassificationConfig, with_overrides(read_config(path), overrides), str(path))
