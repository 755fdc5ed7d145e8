"""The config file of ``heldin audit``, with the checks, defaults and keys of a run's config."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from heldin.attacks.access import Access
from heldin.attacks.config import AttackConfig, Levels, one_of, with_attacks_of_levels
from heldin.attacks.kinds import ATTACKS, DEFAULT_ATTACKS
from heldin.attacks.protocol import AGGREGATIONS
from heldin.attacks.sampling import SamplingConfig
from heldin.audit.decision import AuditConfig, DecisionConfig
from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.kinds import NameOfKind
from heldin.base.section import Count, ExpandedName, ExpandedPath, Few, Many, NotNegative, Positive, Section, Seed
from heldin.bounds.design import Assignment
from heldin.corpus.chat.columns import columns_to_look_for, found_format
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.document import Counting
from heldin.corpus.sources.bad_rows import OnBadRows
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns, Source
from heldin.corpus.sources.text_files import TextFormat
from heldin.models.model_config import PrecisionChoice
from heldin.record.release import Release
from heldin.stages.measures.keys import MeasureKeys

AT_ENDPOINT = "endpoint:"  # prefix of a reference that is served where the target is


class EndpointConfig(Section):
    """A model behind an OpenAI-compatible endpoint."""

    url: ExpandedName
    """Base URL of the server's API, such as https://host/v1. heldin sends requests to /completions under this URL."""
    chat: bool = False
    """Whether to send requests to /chat/completions, which cannot return log-probabilities of a given text."""
    tokenizer: ExpandedName | None = None
    """Folder or hub name of the tokenizer that the served models use. null: heldin sends texts instead of tokens."""
    context: Annotated[Many, Field(ge=3)] | None = None
    """Maximum number of tokens per request; null: the context length that the server reports, but at most 2,048."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: heldin sends no key."""
    requests_per_minute: Positive | None = None
    """Maximum number of requests per minute; null: no limit."""
    concurrency: Few = 4
    """Maximum number of requests at the same time."""
    timeout: Positive = 120.0
    """Seconds to wait for an answer before heldin sends the request again."""
    max_tries: Few = 6
    """Maximum number of attempts per request, including the first."""
    price_per_million: NotNegative | None = None
    """Price per million tokens, in any currency, for the cost estimate."""
    price_per_million_generated: NotNegative | None = None
    """Price per million generated tokens; null: ``price_per_million``."""
    max_tokens_sent: int | None = Field(None, ge=0, le=10**12)
    """Maximum number of tokens to send and generate. heldin refuses an audit that needs more. null: no limit."""
    max_requests: int | None = Field(None, ge=0, le=10**12)
    """Maximum number of requests. heldin refuses an audit that needs more. null: no limit."""
    max_price: NotNegative | None = None
    """Maximum cost, in the currency of the price. heldin refuses an audit that costs more. null: no limit."""
    max_minutes: Positive | None = None
    """Maximum number of minutes. heldin refuses an audit that takes longer at the maximum request rate. null: no limit.
    """

    @model_validator(mode="after")
    def _limits_can_be_known(self) -> "EndpointConfig":
        if self.max_price is not None and self.price_per_million is None:
            raise ValueError("max_price needs the price of tokens: set price_per_million")
        if self.max_minutes is not None and self.requests_per_minute is None:
            raise ValueError("max_minutes needs a request rate: set requests_per_minute")
        return self


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class RowsConfig(Section):
    """Settings for chats and for prompts with completions."""

    format: RowFormat | None = None
    """Format of the rows: text, messages, conversations, prompt-completion or preference; see corpus.format of a run.
    null: heldin detects the format from the columns of the first row.
    """
    template: ExpandedPath | None = None
    """File with a chat template in Jinja, which turns messages into text; null: the template of the audited model's
    tokenizer.
    """
    template_options: dict[str, str | bool] | None = None
    """Values to pass to the chat template, such as {date_string: 26 Jul 2024}; null: none."""


class CheckpointAttacks(Section):
    """The attacks to run, and the part of each text that they score."""

    access: Levels = (Access.LOG_PROBABILITIES,)
    """Access of the attackers to the model: log-probabilities of given texts, the top-k next tokens, or the text that
    the model writes. If you list several levels, heldin computes one answer per level and divides the error probability
    equally among the levels. The main answer is for the access level set in ``release``."""
    names: tuple[Annotated[str, NameOfKind(ATTACKS)], ...] = DEFAULT_ATTACKS
    """Attacks to run; by default, every attack that the levels in ``access`` permit."""
    primary: Annotated[str, NameOfKind(ATTACKS)] = "likelihood-ratio"
    """The primary attack, which must be in ``names``; by default, the first attack of the strongest access level."""
    aggregations: tuple[Annotated[str, one_of(AGGREGATIONS)], ...] = ("mean", "min", "max")
    """Ways to combine the scores of a user's texts into one score. The first entry is the primary aggregation."""
    turns: Counting | None = None
    """Turns to score in a chat, or in a prompt with completion: all turns, the user's or the assistant's turns, or the
    completion. Choose the turns on which training computed the loss. null: the assistant's turns, or the completion."""
    max_characters: Count = 4000
    """Maximum number of characters to score in each text, counted from the beginning."""
    precision: PrecisionChoice | None = None
    """Precision of models on this machine during scoring; see attack.precision of a run. auto: for all models, the
    precision in which the audited model's weights are stored. null: fp32, or auto if fp32 needs too much memory."""
    sampling: SamplingConfig = SamplingConfig()
    """Settings for attackers who cannot see log-probabilities of given texts."""

    @model_validator(mode="before")
    @classmethod
    def _of_levels(cls, content: Any) -> Any:
        return with_attacks_of_levels(content)

    @model_validator(mode="after")
    def _known(self) -> "CheckpointAttacks":
        try:
            # The same checks as in a run's config, so that they are written once.
            self.config(None)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        return self

    def config(self, reference: str | None) -> AttackConfig:
        """Return these attacks as the attack section of a run's config, with this primary reference."""
        precision = "fp32" if self.precision in (None, "auto") else self.precision
        return AttackConfig(**{**self.model_dump(), "precision": precision}, reference=reference)


class CheckpointConfig(MeasureKeys):
    """Settings of one audit of a model that is already trained."""

    name: str = Field("audit", pattern=r"^[^/\x00-\x1f]*[^/.\x00-\x1f][^/\x00-\x1f]*$")
    """Name of the audit, for the report. heldin writes the results to runs/NAME, or to --out."""
    model: ExpandedName
    """Folder or hub name of the model or LoRA adapter. With ``endpoint``: name of the model on the server."""
    reference: Annotated[
        tuple[ExpandedName, ...],
        BeforeValidator(_several, json_schema_input_type=str | tuple[str, ...]),
        Field(min_length=1),
    ]
    """Models that were not trained on these users, such as the base model. The first model is the primary reference.
    The report also shows results with the other models. endpoint:NAME is a model at the same endpoint."""
    held_in: ExpandedPath
    """File with texts by members: users in the model's training data."""
    held_out: ExpandedPath
    """File with texts by non-members: users who are not in the training data."""
    columns: Columns = Columns()
    """Names of the columns in the files of texts."""
    format: TextFormat = TextFormat()
    """Encoding and layout of JSON and CSV files."""
    rows: RowsConfig = RowsConfig()
    """Settings for chats and for prompts with completions."""
    bad_rows: OnBadRows = OnBadRows.SKIP_EMPTY
    """Rows to skip and count. skip-empty: rows without text. skip: all unusable rows. strict: none. At any other
    unusable row, heldin stops with an error."""
    max_users: Annotated[Count, Field(ge=4)] | None = None
    """Maximum number of audited users. heldin draws these users at random from members and non-members together. null:
    all.
    """
    max_texts_per_user: Count | None = None
    """Maximum number of scored texts per user. heldin takes the first texts. null: all."""
    context: Annotated[Many, Field(ge=3)] | None = None
    """Maximum number of tokens that a model on this machine reads at once. null: the limit in the model's config or
    tokenizer. Set this key for models that state no limit, such as some BLOOM and Mamba models."""
    adapter_base: ExpandedName | None = None
    """Folder or hub name of the base model for all adapters in this audit. null: the base model in each adapter's
    config."""
    assignment: Assignment = Assignment.UNKNOWN
    """How users became members or non-members. coin: by an independent fair coin for each user. fixed: in another
    known way, such as an exact half or one of each pair. unknown: you do not know."""
    training: ExpandedPath | None = None
    """File with the model's training data, with the same columns as ``held_in``. heldin counts how many audited users
    and texts occur in this file. null: no count."""
    texts: Literal["fresh", "training"] | None = None
    """Without ``training``: state whether training used the members' texts. fresh: not used. training: used. null: not
    known."""
    claims: tuple[str, ...] = ()
    """Claims to test, such as epsilon=8,delta=1e-6."""
    plan: ExpandedPath | None = None
    """Path of a plan.json. heldin also tests the privacy curve of this plan as a claim."""
    attack: CheckpointAttacks = CheckpointAttacks()
    """The attacks to run."""
    audit: AuditConfig = AuditConfig()
    """Settings for intervals, bounds and rates."""
    decision: DecisionConfig = DecisionConfig()
    """Thresholds that decide the answer."""
    release: Release | None = None
    """Planned release: the people who get the model, and their access to it. null: not stated."""
    seed: Seed = 0
    """Public seed for the bootstrap, the randomisation test and the sample of users."""
    endpoint: EndpointConfig | None = None
    """Server that runs the model, if the model is not on this machine."""

    @model_validator(mode="after")
    def _can_be_measured(self) -> "CheckpointConfig":
        for name, options in self.measures.items():
            # At top-k the whole vocabulary decides which tokens are drawn at all.
            if options.needs_weights and self.endpoint is not None:
                raise ValueError(
                    f"measures.{name} needs the whole vocabulary's probabilities for top-k sampling, but no"
                    f" endpoint gives these probabilities: remove measures.{name}, or audit models on this machine"
                )
            if options.of_training_texts and self.texts == "fresh":
                raise ValueError(
                    f"measures.{name} needs training texts, but the members' texts are declared fresh: remove"
                    f" measures.{name}, or give training texts"
                )
            if options.needs_canaries:
                raise ValueError(
                    f"measures.{name} needs canary users, but an audit of two files has no canary users: remove"
                    f" measures.{name}"
                )
        return self

    @model_validator(mode="after")
    def _endpoint_gives_what_is_asked(self) -> "CheckpointConfig":
        if self.endpoint is None or not self.names_access:
            return self
        levels, by_probabilities = self.attack.access, Access.LOG_PROBABILITIES in self.attack.access
        if by_probabilities and self.endpoint.chat:
            raise ValueError(
                "attack.access (--access) includes log-probabilities, but a chat endpoint gives no"
                " log-probabilities of a given text: choose top-k or text, or leave endpoint.chat (--chat) out"
            )
        if by_probabilities and len(levels) > 1:
            raise ValueError(
                "attack.access (--access) lists log-probabilities with other levels, but an audit of an endpoint"
                " has either log-probabilities or other levels: give only log-probabilities, or leave"
                " log-probabilities out"
            )
        return self

    @property
    def names_access(self) -> bool:
        """Whether the config sets the attackers' level of access, or sets attacks that determine this level."""
        return bool({"access", "names", "primary"} & self.attack.model_fields_set) or self.endpoint is None

    @model_validator(mode="after")
    def _has_models_to_load(self) -> "CheckpointConfig":
        served = self.endpoint is not None and all(name.startswith(AT_ENDPOINT) for name in self.reference)
        if served and self.attack.precision not in (None, "fp32"):
            raise ValueError(
                "attack.precision (--dtype) is for models on this machine, but every model is behind the endpoint:"
                " leave this key out"
            )
        return self

    def sources(self) -> dict[str, Source]:
        """Return the sources of the files of texts; see ``text_sources``."""
        first = open_source(self.held_in, self.columns, self.format).first_row()
        for path in (self.held_out, self.training):
            if first is not None and path is not None:
                self._require_same_form(first, path)
        columns = columns_to_look_for(first, self.columns, self.rows.format)
        return text_sources(self.held_in, self.held_out, self.training, columns, self.format)

    def _require_same_form(self, first: Mapping[str, Any], path: Path) -> None:
        """Raise InputError if the first row of another file differs in form or text column from the members' file."""
        row = open_source(path, self.columns, self.format).first_row()
        form, column = found_format(first, self.columns, self.rows.format)
        other, its_column = found_format(row, self.columns, self.rows.format)
        differs = (form, column) != (other, its_column)
        # A column that is missing altogether is named with those that are there, when the file is looked at.
        if row is not None and differs and its_column in row and column not in row:
            raise InputError(
                f"'{path}' has rows of format {other} (column '{its_column}'), but '{self.held_in}' has format {form}"
                f" (column '{column}'): write all files in one format, with the same columns"
            )

    def files(self) -> list[Path]:
        """Return every file named in the config."""
        return [path for path in (self.held_in, self.held_out, self.training, self.plan) if path is not None]


def text_sources(
    held_in: Path, held_out: Path, training: Path | None, columns: Columns, form: TextFormat
) -> dict[str, Source]:
    """Return the sources of an audit's files, under the keys "held-in", "held-out" and, if given, "training".

    Raises InputError for a file that no source can read.
    """
    sources = {"held-in": open_source(held_in, columns, form), "held-out": open_source(held_out, columns, form)}
    if training is not None:
        # Without ids and dates: a training file need not have those columns.
        sources["training"] = open_source(training, replace(columns, id=None, date=None), form)
    return sources


def parse_checkpoint(
    content: Mapping[str, Any], where: str, options: Mapping[str, str] | None = None
) -> CheckpointConfig:
    """Check the content of an audit's config; arguments and errors are the same as for
    ``base.config_errors.checked``."""
    return checked(CheckpointConfig, content, where, options)
