"""The config file of ``heldin plant``: a training file, the audited users, and everything about the later audit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from heldin.attacks.config import AttackConfig
from heldin.attacks.references import NamedReference
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.audit.randomisation import least_redraws
from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.section import ExpandedName, ExpandedPath, JobName, Section
from heldin.canaries.kinds import CanarySpec
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.config import CorpusConfig
from heldin.corpus.forms import KeptColumns
from heldin.corpus.sources.bad_rows import OnBadRows
from heldin.corpus.sources.files import FileCorpus
from heldin.corpus.sources.open import format_named, format_of
from heldin.corpus.sources.rows import Columns
from heldin.corpus.sources.text_files import TextFormat
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT, UserFilter
from heldin.finetune.recipe import Recipe
from heldin.record.release import Release
from heldin.stages.config_files import read_config, with_overrides
from heldin.stages.measures.keys import MeasureKeys
from heldin.stages.run_config import ModelConfig, RunConfig, SplitConfig
from heldin.words.split import ScoredPart
from heldin.words.statement import Statement

_KINDS = ("jsonl", "csv", "parquet")  # formats whose rows can be written again in the same form


class PlantedSplit(Section):
    """The audited users, and the rows that heldin sets aside. Unaudited users are members with all their rows."""

    audit_fraction: float | None = Field(None, gt=0, le=1)
    """Probability that a user is audited. For each user, a separate public coin decides whether the user is audited.
    null: see ``audit_pool``."""
    audit_pool: int | None = Field(None, ge=2)
    """Number of users to audit, chosen at random. If both ``audit_pool`` and ``audit_fraction`` are null, all users are
    audited.
    """
    canaries_only: bool = False
    """Whether to audit only canary users. If true, all real users are members. heldin then adds canary rows, and leaves
    out ``control_rows`` real rows.
    """
    control_rows: int = Field(200, ge=0, le=10_000)
    """With ``canaries_only``: number of real rows to leave out at random, at most a tenth of all rows. To show that the
    model learned, the audit compares training rows with the omitted rows. 0: the audit cannot show that the model
    learned."""
    attacker_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of each audited user's rows to reserve for the attacker and keep out of training; at least one row per
    user."""
    evaluation_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of each audited user's rows to reserve for measuring losses; at least two rows per user."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "PlantedSplit":
        if self.audit_fraction is not None and self.audit_pool is not None:
            raise ValueError("give exactly one of audit_fraction and audit_pool")
        if self.canaries_only and (self.audit_fraction is not None or self.audit_pool is not None):
            raise ValueError("canaries_only audits no real user: leave audit_fraction and audit_pool out")
        return self


class PlantColumns(Section):
    """The columns of the training set. The text is a column, a prompt with a completion, or a list of messages."""

    user: str | None = "user"
    """Column with user names. null: each row counts as a separate user. Without user names, set split.canaries_only to
    true. The audit then makes no statement about people with several rows.
    """
    text: str = "text"
    """Column with texts, if neither ``prompt`` nor ``messages`` is given."""
    prompt: str | None = None
    """Column with prompts, as text or messages."""
    completion: str | None = None
    """Column with the completions of the prompts."""
    rejected: str | None = None
    """Column with rejected answers, as in DPO. heldin makes up the rejected answers of canary users."""
    messages: str | None = None
    """Column with chat messages (role and content), or with ShareGPT turns (from and value). The chat template turns
    messages into text."""
    id: str | None = None
    """Column with unique row ids; null: heldin makes ids from user and text."""
    date: str | None = None
    """Column with dates; null: no dates."""
    drop: tuple[str, ...] = ()
    """Columns to omit from the planted training set, such as people's names."""

    @model_validator(mode="after")
    def _one_text(self) -> "PlantColumns":
        if (self.prompt is None) != (self.completion is None):
            raise ValueError("columns: give both prompt and completion, or neither")
        if self.messages is not None and self.prompt is not None:
            raise ValueError("columns: give either prompt and completion, or messages")
        if self.rejected is not None and self.prompt is None:
            raise ValueError("columns: rejected needs prompt, and completion for the chosen texts: give both")
        kept = [*self.others().values(), *self.text_columns, *([] if self.rejected is None else [self.rejected])]
        if both := sorted({*kept} & {*self.drop}):
            raise ValueError(
                f"columns.drop leaves out '{both[0]}', which another key of columns uses: remove it from one of them"
            )
        return self

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns that contain the text."""
        if self.messages is not None:
            return (self.messages,)
        return (self.text,) if self.prompt is None or self.completion is None else (self.prompt, self.completion)

    def others(self) -> dict[str, str]:
        """Return column names by role, for the columns that do not contain the text."""
        roles = {"user": self.user, "id": self.id, "date": self.date}
        return {role: name for role, name in roles.items() if name is not None}


class PlantConfig(MeasureKeys):
    """The training set to plant, and all settings of the audit, which heldin fixes before it draws a coin."""

    name: JobName = "planted"
    """Name of the audit, made of letters, digits, dots, underscores and hyphens. heldin writes the results to
    runs/NAME, or to --out."""
    training: ExpandedPath
    """The training set: a JSON or CSV file (also .gz, .zst), a Parquet file, or a folder from save_to_disk."""
    dataset_split: str | None = None
    """Split of a folder with several splits, such as train."""
    copied_splits: tuple[str, ...] = ()
    """Other splits, such as test, to copy unchanged, including real names. Nobody may train on these splits."""
    evidence: Literal["callback", "declared"]
    """What shows that the model was trained on the planted rows. callback: a log that heldin.AuditCallback or
    heldin.watch_training wrote; without this log, nothing is certified. declared: a statement by the person in
    --declared-by.
    """
    unseen: ExpandedPath | None = None
    """File with rows that no training run uses, such as a test set. It must have the same columns as the training set.
    To show that the model learned, the audit compares training rows with these rows. This comparison also works if the
    model was trained on the original file. null: heldin leaves out split.control_rows instead."""
    columns: PlantColumns = PlantColumns()
    """Names of the columns. heldin replaces user names and ids in the planted training set.
    """
    format: TextFormat = TextFormat()
    """Encoding and layout of a JSON or CSV file. The planted file has the same encoding and layout."""
    template: ExpandedPath | None = None
    """File with a chat template in Jinja, which turns messages into text; null: the template of the reference's
    tokenizer.
    """
    template_options: dict[str, str | bool] | None = None
    """Values to pass to the chat template, such as {date_string: 26 Jul 2024}; null: none."""
    bad_rows: OnBadRows = OnBadRows.SKIP_EMPTY
    """Rows to leave out and count. skip-empty: rows without text. skip: all unusable rows. strict: none. At any other
    unusable row, heldin stops with an error."""
    score: Literal["all", "completion", "turns"] = "all"
    """Part of a row to score: the whole row, the completion, or the turns of ``role``. Choose the part on which
    training computes the loss.
    """
    role: str = "assistant"
    """With ``score: turns``: role whose turns are scored."""
    users: UserFilter = UserFilter(min_records=10)
    """Users who may be audited. Each user needs at least 4 rows: one for training, one for the attacker, and two to
    measure losses.
    """
    split: PlantedSplit = PlantedSplit()
    """Which users are audited, and which rows are kept out of training."""
    reference: ExpandedName
    """Hub name or folder of a model that was not trained on these users: the model before fine-tuning. The attacks use
    this model as the primary reference, and heldin uses it to make canary users."""
    revision: str | None = None
    """Branch, tag or commit of the reference model on the hub; null: the newest commit."""
    sequence_length: int = Field(512, ge=2)
    """Number of tokens per row that training will use. heldin inserts canary substrings only within these tokens."""
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
    looks: int = Field(1, ge=1, le=100)
    """Number of checkpoints that you will audit. heldin divides the error probability among these audits."""
    seed: int = Field(0, ge=0)
    """Seed for public choices. Membership coins use a secret key instead."""

    @model_validator(mode="after")
    def _can_be_written(self) -> "PlantConfig":
        if self.format.field is not None:
            raise ValueError(
                "format.field: heldin plant writes only rows, without other keys. Write the training set as JSON lines"
            )
        return self

    @model_validator(mode="after")
    def _attack_can_be_done(self) -> "PlantConfig":
        named = all(reference.model_name for reference in self.attack.references)
        if self.attack.shadow_models or not named:
            raise ValueError(
                "attack: shadow models and trained references need heldin's own training. Leave shadow_models out,"
                " and give references by hub name or folder"
            )
        if self.attack.turns is not None:
            raise ValueError("attack.turns: the key 'score' sets the scored turns. Leave attack.turns out")
        if self.attack.reference is not None:
            raise ValueError(
                "attack.reference: the key 'reference' sets the first reference. Leave attack.reference out"
            )
        return self

    @model_validator(mode="after")
    def _columns_have_what_is_scored(self) -> "PlantConfig":
        if self.score == "completion" and self.columns.completion is None:
            raise ValueError("score is completion: give columns.prompt and columns.completion")
        if self.score == "turns" and self.columns.messages is None:
            raise ValueError("score is turns: give columns.messages")
        if self.role != "assistant" and self.score != "turns":
            raise ValueError("role needs score: turns. Set score to turns, or leave role out")
        return self

    @model_validator(mode="after")
    def _canaries_fit(self) -> "PlantConfig":
        apart = self.columns.messages is not None or self.columns.prompt is not None
        for section in self.canaries:
            if section.named_only:
                raise ValueError(
                    f"canaries: {section.kind} is for audits of entities. Use heldin run, or choose another kind"
                )
            if section.replaces_users and apart:
                raise ValueError(f"canaries: {section.kind} needs a column of text. Choose unseen_token or rare_phrase")
            if section.replaces_users and self.split.canaries_only:
                raise ValueError(
                    f"canaries: {section.kind} replaces real users, but canaries_only keeps every real user in"
                    " training. Choose another kind"
                )
        return self

    @model_validator(mode="after")
    def _somebody_is_audited(self) -> "PlantConfig":
        if self.users.min_records < MIN_RECORDS_TO_SPLIT:
            raise ValueError(f"users.min_records is {self.users.min_records}: give at least {MIN_RECORDS_TO_SPLIT}")
        if self.split.canaries_only and not self.canaries:
            raise ValueError("split.canaries_only needs canary users: add some under canaries")
        if self.columns.user is None and not self.split.canaries_only:
            raise ValueError(
                "columns.user is null, and without users only canary users can be audited: set split.canaries_only"
            )
        return self

    @model_validator(mode="after")
    def _run_can_be_done(self) -> "PlantConfig":
        if (self.dataset_split or self.copied_splits) and self.training.is_file():
            raise ValueError("dataset_split and copied_splits need a folder that save_to_disk wrote: leave both out")
        # What a run refuses is refused here, not after the coins.
        self.run_config(Path("records"))
        return self

    @property
    def in_parts(self) -> bool:
        """Return whether a row has turns, so its text has parts: a prompt and a completion, or messages."""
        return self.columns.messages is not None or self.columns.prompt is not None

    @property
    def scored_part(self) -> Statement | None:
        """Return which part of a text is scored; None: the whole text."""
        match self.score:
            case "all":
                return None
            case "completion":
                return ScoredPart.COMPLETION()
            case "turns":
                return ScoredPart.TURNS(role=self.role)

    def run_config(self, records: Path) -> RunConfig:
        """Return the config of a run that has the same users, set-aside rows, canary users and coins.

        Args:
            records: the copy of the training set's records (``TrainingSet.copy_records``).
        """
        id_, date = ("id" if self.columns.id else None), ("date" if self.columns.date else None)
        columns = KeptColumns(id=id_, date=date, spans="spans") if self.in_parts else Columns(id=id_, date=date)
        source = FileCorpus(kind="parquet", path=records, columns=columns)
        # Each look pays its share; more redraws, that the smallest p-value stays below the levels.
        by, looks = self.decision, self.looks
        shared = {"auroc_level": by.auroc_level / looks, "tpr_level": by.tpr_level / looks}
        redraws = max(by.redraws * looks, *(least_redraws(level) for level in shared.values()))
        return RunConfig(
            name=self.name,
            seed=self.seed,
            corpus=CorpusConfig(source=source, format=RowFormat.TEXT, users=self.users),
            split=SplitConfig(**self.split.model_dump(exclude={"canaries_only", "control_rows"})),
            model=ModelConfig(base=self.reference, revision=self.revision),
            finetune=Recipe(sequence_length=self.sequence_length),
            canaries=self.canaries,
            attack=self.attack,
            measures=self.measures,
            audit=self.audit,
            decision=DecisionConfig.model_validate({**by.model_dump(), **shared, "redraws": redraws}),
            release=self.release,
        )


def is_dataset(path: Path) -> bool:
    """Return whether the training set is a folder of ``save_to_disk``. Raises InputError if ``plant`` cannot read
    it."""
    if path.is_dir():
        return True
    form = format_of(path)
    if form is not None and form.kind in _KINDS:
        return False
    endings = ", ".join(end for kind in _KINDS for end in format_named(kind).endings)
    raise InputError(
        f"'{path}': a training set is a file ({endings}), or a folder that save_to_disk wrote. Write other corpora to"
        " a file with heldin corpus build --out"
    )


def load_plant(config: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> PlantConfig:
    """Read a YAML file, or take the content of one, and apply ``a.b=value`` overrides.

    Raises InputError with a list of all errors.
    """
    content = config if isinstance(config, Mapping) else read_config(config)
    checked = parse_plant(with_overrides(content, overrides), "config" if isinstance(config, Mapping) else str(config))
    # The audit may be asked for from another folder. Other kinds of references are refused above.
    names = [reference.model_name for reference in checked.attack.references if reference.model_name]
    further = [NamedReference(kind="named", name=_resolved(name)) for name in names]
    named: dict[str, object] = {
        "training": checked.training.resolve(),
        "unseen": None if checked.unseen is None else checked.unseen.resolve(),
        "reference": _resolved(checked.reference),
        "attack": checked.attack.model_copy(update={"references": tuple(further)}) if further else checked.attack,
    }
    return checked.model_copy(update=named)


def _resolved(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def parse_plant(content: Mapping[str, Any], where: str) -> PlantConfig:
    """Check the content of a file; ``where`` is its name in errors. Raises InputError with a list of all errors."""
    return checked(PlantConfig, content, where)
