"""The configuration of a run, in YAML, checked by pydantic. heldin reports all errors at once, with nearest keys."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, model_validator

from heldin.attacks.config import AttackConfig
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.section import Count, ExpandedName, JobName, Section, Seed
from heldin.canaries.kinds import CanarySpec
from heldin.corpus.config import CorpusConfig
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.corpus.entities.spans import CATEGORIES, Category
from heldin.corpus.sources.kinds import CorpusSource
from heldin.corpus.split import Audited, SplitRule
from heldin.corpus.user_filter import UserFilter
from heldin.defenses.data_side.contract import DataDefense
from heldin.defenses.mechanisms.kinds import Defense
from heldin.defenses.mechanisms.plain import NoDefense
from heldin.finetune.recipe import Optimizer, Recipe, Select
from heldin.models.model_config import TinyModel
from heldin.record.release import Release
from heldin.stages.config_files import read_config, with_overrides
from heldin.stages.measures.keys import MeasureKeys

KEEPS_DEFAULTS: dict[str, JsonValue] = {"x-keeps-defaults": True}  # what a partial section leaves out is as here
PRETRAINING = Recipe(
    epochs=3, batch_size=16, learning_rate=2e-3, warmup_steps=100, sequence_length=128, select=Select.LAST
)
# Only those that differ from a recipe's own defaults: the others need no help.
_PRETRAINING_FIELDS = {
    field.name: value for field in fields(PRETRAINING) if (value := getattr(PRETRAINING, field.name)) != field.default
}
EXTENDS = "Another config, which this file changes key by key. The path is relative to this file."


class SplitConfig(Section):
    """Settings of membership, and of the records to keep out of training."""

    audited: Audited = Audited.USERS
    """What is audited: users, entities named in records, or users and entities together. A separate coin decides the
    membership of each user or entity. Training uses a record only if every audited user and entity in it is a member.
    Users who are not audited are always members.
    """
    entities: EntitySourceConfig | None = None
    """Source of entities: how heldin finds the people who are named in a record. Use this key if entities are audited
    and the defense has no ``entities`` of its own."""
    categories: tuple[Category, ...] = Field(CATEGORIES, min_length=1)
    """Categories that ``entities`` may find, from Lai et al. (2021), Table I."""
    entity_records: Count = 4
    """heldin audits an entity only if at least this many training records name it."""
    assignment: SplitRule = SplitRule.COIN
    """How members are chosen: by an independent fair coin per user, or as an exact half. With an exact half, heldin
    certifies nothing, and a user-level epsilon is void."""
    audit_pool: Annotated[Count, Field(ge=2)] | None = None
    """Number of users and entities to audit. All other users and entities are members. null: heldin audits all. A fixed
    number voids a user-level epsilon."""
    audit_fraction: float | None = Field(None, gt=0, le=1)
    """Probability that a user is audited. For each user, a separate public coin decides whether the user is audited.
    Users who are not audited are members. null: all users are audited. Unlike ``audit_pool``, this key does not void a
    user-level epsilon."""
    seed: Seed | None = None
    """Seed for the choice of records to keep out of training; null: the seed of the run."""
    attacker_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of each user's records to reserve for the attacker and keep out of training; at least one record."""
    evaluation_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of each user's records to reserve for validation and test; at least one record for each."""

    @model_validator(mode="after")
    def _entities_are_audited(self) -> "SplitConfig":
        if self.audited is Audited.USERS and self.entities is not None:
            raise ValueError(
                "entities needs an audit of entities: set audited to 'entities' or 'both', or leave entities out"
            )
        if self.audit_fraction is not None and (self.audit_pool is not None or self.audited is not Audited.USERS):
            raise ValueError(
                "audit_fraction is only for an audit of users, and replaces audit_pool: leave one of the two keys out"
            )
        return self


class PublicTexts(Section):
    """Texts of public users, who are neither audited nor trained on."""

    source: CorpusSource | None = None
    """Public corpus; null: the run's corpus without its audited users."""
    users: UserFilter = UserFilter(min_records=1)
    """Which users to take from ``source`` or, without ``source``, from the users who are not audited."""
    max_records_per_user: Count | None = None
    """Maximum number of records per user. heldin takes the first records. null: all."""


class SaliencyConfig(PublicTexts):
    """Public users whose gradients pick the layers for adapters (``finetune.lora.targets: auto``)."""

    users: UserFilter = UserFilter(min_records=1, max_users=256)
    """Which users to take from ``source`` or, without ``source``, from the users who are not audited."""
    max_records_per_user: Count | None = 8
    """Maximum number of records per user. heldin takes the first records. null: all."""


class PretrainConfig(PublicTexts):
    """A tiny GPT-Neo, which heldin trains from scratch on public users, who are not audited."""

    shape: TinyModel = TinyModel()
    """Size and layers of the model."""
    recipe: Recipe = Field(PRETRAINING, json_schema_extra=KEEPS_DEFAULTS)
    """Hyperparameters of pre-training. Pre-training has no validation users, so ``select`` must be last and
    ``patience`` null."""

    @model_validator(mode="before")
    @classmethod
    def _as_pre_training(cls, content: Any) -> Any:
        """Set missing keys of the recipe to the defaults of pre-training instead of the defaults of fine-tuning."""
        recipe = content.get("recipe") if isinstance(content, dict) else None
        # A Recipe given in code is whole; anything else is left to validation, which names what is wrong with it.
        if not isinstance(recipe, dict):
            return content
        # Before validation, when "left out" can still be told from "given with the default of fine-tuning".
        return {**content, "recipe": {**_PRETRAINING_FIELDS, **recipe}}

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "PretrainConfig":
        if self.shape.hidden % self.shape.heads:
            raise ValueError(
                f"shape.hidden {self.shape.hidden} is not a multiple of shape.heads {self.shape.heads}: change one"
                " of the two"
            )
        return self

    @model_validator(mode="after")
    def _pretrains(self) -> "PretrainConfig":
        if self.recipe.looks_at_validation:
            raise ValueError(
                "pre-training has no validation users: set recipe.select to 'last' and recipe.patience to null"
            )
        if self.recipe.loss_on is not None:
            raise ValueError("recipe.loss_on: pre-training counts the loss on all of a text. Leave recipe.loss_on out")
        of_fine_tuning = ("objective", "beta", "label_smoothing", "report_to", "report_unnoised")
        if stated := next((key for key in of_fine_tuning if getattr(self.recipe, key)), None):
            raise ValueError(f"recipe.{stated} is only for fine-tuning: leave recipe.{stated} out")
        return self


class ModelConfig(Section):
    """The model before fine-tuning: an existing model, or a model that heldin pre-trains."""

    base: ExpandedName | None = None
    """Hub name or folder of a causal language model (safetensors). Give either ``base`` or ``pretrain``."""
    revision: str | None = None
    """Branch, tag or commit of the model on the hub; null: the newest commit."""
    pretrain: PretrainConfig | None = None
    """Settings of a tiny model that heldin pre-trains and uses instead of ``base``."""
    saliency: SaliencyConfig | None = None
    """Public users whose gradients decide which layers get adapters; only for ``finetune.lora.targets: auto``."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "ModelConfig":
        if (self.base is None) == (self.pretrain is None):
            raise ValueError("give exactly one of 'base' (a hub name or folder) and 'pretrain'")
        return self


class PreviousConfig(Section):
    """An earlier release, which was trained on texts of the same people."""

    plan: ExpandedName
    """Folder of the earlier run, folder of its export, or plan.json in either folder."""
    times: Count = 1
    """Number of earlier releases under this plan."""

    @model_validator(mode="before")
    @classmethod
    def _a_path_alone(cls, content: Any) -> Any:
        return {"plan": content} if isinstance(content, str) else content


class RunConfig(MeasureKeys):
    """One run, from the corpus to the report."""

    name: JobName
    """Name of the run, made of letters, digits, dots, underscores and hyphens. heldin writes the results to runs/NAME,
    or to --out."""
    seed: Seed = 0
    """Seed for public choices, such as the sample of users and the records to keep out of training. Membership coins
    and noise use a secret key instead.
    """
    corpus: CorpusConfig
    """The texts and their users."""
    split: SplitConfig = SplitConfig()
    """How members are chosen, and which records are kept out of training."""
    model: ModelConfig
    """The model before fine-tuning."""
    finetune: Recipe = Recipe()
    """Settings for fine-tuning."""
    defense: Defense = NoDefense()
    """Defense during training: none, clipping only, or a differentially private mechanism."""
    previous: tuple[PreviousConfig, ...] | None = None
    """Earlier releases about the same people, each as a path or {plan: PATH, times: N}. []: there were no earlier
    releases. null: not stated. The report and the model card list these releases, and state one epsilon for all
    releases together."""
    data_defenses: tuple[DataDefense, ...] = ()
    """Steps such as deduplication and caps, which heldin applies to the training records in this order."""
    canaries: tuple[CanarySpec, ...] = ()
    """Canary users to plant. For each canary user, a separate coin decides whether the user is a member."""
    attack: AttackConfig = AttackConfig()
    """Attacks to run, and the attacker's texts and access."""
    audit: AuditConfig = AuditConfig()
    """Settings for intervals, bounds and rates."""
    decision: DecisionConfig = DecisionConfig()
    """Thresholds that decide the answer."""
    release: Release | None = None
    """Planned release: the people who get the model, and their access to it. null: not stated."""

    @model_validator(mode="after")
    def _sequence_fits(self) -> "RunConfig":
        # For a named base model the context is known only once its config was read (``stages.train.training``).
        pretrain = self.model.pretrain
        if pretrain is None:
            return self
        for where, recipe in (("finetune", self.finetune), ("model.pretrain.recipe", pretrain.recipe)):
            if recipe.sequence_length > pretrain.shape.context:
                raise ValueError(
                    f"{where}.sequence_length = {recipe.sequence_length} is above model.pretrain.shape.context ="
                    f" {pretrain.shape.context}: lower {where}.sequence_length"
                )
        return self

    @model_validator(mode="after")
    def _can_be_measured(self) -> "RunConfig":
        shape = self.model.pretrain.shape if self.model.pretrain else None
        # For a named base model the context is known only once it was loaded (``MeasureOptions.check``).
        limits = {"finetune.sequence_length": self.finetune.sequence_length}
        limits |= {"model.pretrain.shape.context": shape.context} if shape else {}
        for name, options in self.measures.items():
            options.check_lengths(limits)
            if options.needs_canaries and not self.canaries:
                raise ValueError(
                    f"measures.{name} needs canary users: add some under canaries, or remove measures.{name}"
                )
        return self

    @model_validator(mode="after")
    def _attackers_models(self) -> "RunConfig":
        if self.model.pretrain is None and any(r.fresh_seed is not None for r in self.attack.references):
            raise ValueError(
                "attack.references: 'pretrained' repeats model.pretrain, but this key is not set. Set"
                " model.pretrain, or remove 'pretrained'"
            )
        if self.model.pretrain and self.model.pretrain.recipe.seed in [r.fresh_seed for r in self.attack.references]:
            raise ValueError(
                "attack.references: 'pretrained' with the seed of the base model would give the base model again."
                " Give another seed"
            )
        # A halted training leaves no model, and which ones halt depends on who
        # is in them: those left would be a selection.
        if self.attack.shadow_models and self.defense.may_halt:
            raise ValueError("the filter may halt the training of a shadow model: set attack.shadow_models to 0")
        return self

    @model_validator(mode="after")
    def _can_be_spread(self) -> "RunConfig":
        if self.model.pretrain is not None and self.model.pretrain.recipe.shard is not None:
            raise ValueError("model.pretrain.recipe.shard: a tiny model is pre-trained whole. Set this key to null")
        if self.finetune.shard is None:
            return self
        whole = {
            "finetune.lora": self.finetune.lora is not None,
            "finetune.optimizer adafactor": self.finetune.optimizer is Optimizer.ADAFACTOR,
            **dict.fromkeys(self.defense.needs_whole_models, True),
            "attack.shadow_models": bool(self.attack.shadow_models),
        }
        if wanting := [name for name, there in whole.items() if there]:
            raise ValueError(
                f"{wanting[0]} needs whole models in every process, but finetune.shard splits the model: leave one"
                " of the two out"
            )
        return self

    def entity_sources(self) -> Iterator[tuple[str, EntitySourceConfig]]:
        """Yield every source of entities in the config, with its key."""
        yield from (("data_defenses", d.searched_by) for d in self.data_defenses if d.searched_by is not None)
        if self.defense.searched_by is not None:
            yield "defense.entities", self.defense.searched_by
        if self.split.entities is not None:
            yield "split.entities", self.split.entities

    @model_validator(mode="after")
    def _entities_are_known(self) -> "RunConfig":
        if self.split.audited is Audited.USERS:
            return self
        known = self.defense.searched_by is not None
        if known and self.split.entities is not None:
            raise ValueError(
                "split.entities: the audited entities come from defense.entities. Leave split.entities out"
            )
        if not known and self.split.entities is None:
            raise ValueError(
                f"split.audited '{self.split.audited}' needs the people that each record names: set split.entities"
            )
        caps = self.defense.caps
        if caps and self.split.entity_records > caps[1]:
            raise ValueError(
                f"split.entity_records is {self.split.entity_records}, but defense.entity_cap keeps only {caps[1]}"
                " records that name an entity: lower split.entity_records"
            )
        # Drawn after the coins: without a held-out record another of its author takes its place.
        if self.defense.protects_named and any(step.most_records for step in self.data_defenses):
            raise ValueError(
                "data_defenses: with a cap after the entities' coins, a coin would decide about records that do"
                " not name the entity. Use defense.group_size and defense.entity_cap"
            )
        return self

    @model_validator(mode="after")
    def _gold_is_of_the_corpus(self) -> "RunConfig":
        corpus = self.corpus.source
        # A record that the file does not have would stop the run only when its texts are searched.
        for where, source in self.entity_sources():
            if source.kind != "gold":
                continue
            if not corpus.has_gold(source.path):
                raise ValueError(
                    f"{where}: gold columns need a corpus of kind 'iob' from the same file. Set corpus.source to"
                    " this file"
                )
            if self.corpus.text_unit == "sentence" or self.canaries:
                raise ValueError(
                    f"{where}: gold columns cover only the records of their file. Leave canaries and corpus.text_unit"
                    " out"
                )
        return self

    @model_validator(mode="after")
    def _nothing_compares_texts(self) -> "RunConfig":
        if not self.defense.protects_named:
            return self
        # The table of docs/theory.md#caps-and-fixed-incidence: no epsilon holds with these, under either adjacency.
        for step in (step.declared() for step in self.data_defenses):
            if not (step.record_local or step.slots_only):
                raise ValueError(
                    f"data_defenses: {step.name} compares texts, so one record decides about others. Defense"
                    f" '{self.defense.kind}' does not allow this: remove the step, or choose random records"
                )
        return self

    @model_validator(mode="after")
    def _somebody_chooses(self) -> "RunConfig":
        # Users whom the mechanism protects may not choose the checkpoint (docs/theory.md#rules-of-a-private-step).
        if self.finetune.select is Select.BEST_PUBLIC and self.corpus.public_validation is None:
            raise ValueError(
                "finetune.select 'best_public' needs the loss of public users: set corpus.public_validation"
            )
        return self

    @model_validator(mode="after")
    def _somebody_picks(self) -> "RunConfig":
        picks = self.finetune.lora is not None and self.finetune.lora.picks
        if picks and self.model.saliency is None:
            raise ValueError(
                "finetune.lora.targets 'auto' picks layers by the gradients of public users: name these users in"
                " model.saliency"
            )
        if self.model.saliency is not None and not picks:
            raise ValueError(
                "model.saliency picks layers for adapters, but finetune.lora.targets is not auto: set"
                " finetune.lora.targets to auto, or leave model.saliency out"
            )
        return self

    @model_validator(mode="after")
    def _adapters_without_dropout(self) -> "RunConfig":
        lora = self.finetune.lora
        clips = self.defense.noise_generator() is not None or self.defense.clips_plainly is not None
        if lora is not None and lora.dropout and clips:
            raise ValueError(
                f"finetune.lora.dropout is {lora.dropout}, but clipped gradients are computed without dropout: set"
                " finetune.lora.dropout to 0"
            )
        return self

    @model_validator(mode="after")
    def _substrings_are_trained_on(self) -> "RunConfig":
        longest = max((spec.longest_mark() for spec in self.canaries), default=0)
        if longest >= self.finetune.sequence_length:
            raise ValueError(
                f"canaries: training would cut off a substring of {longest} tokens, because"
                f" finetune.sequence_length is {self.finetune.sequence_length}. Lower lengths"
            )
        return self


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML config. Merges the config with the config in ``extends``, if there is one, and applies ``a.b=value``
    overrides.

    Raises:
        InputError: the file does not exist, is invalid YAML, or has errors; the message lists all of them.
    """
    content = read_config(path)
    if "variants" in content and "corpus" not in content:
        raise InputError(f"{path}: the file has variants, so it describes a sweep. Run it with heldin sweep {path}")
    return parse_config(with_overrides(content, overrides), str(path))


def parse_config(content: Mapping[str, Any], where: str) -> RunConfig:
    """Check the content of a config; ``where`` names the file in errors. Raises InputError with a list of all
    errors."""
    return checked(RunConfig, content, where)
