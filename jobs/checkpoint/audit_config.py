"""The config file of ``heldin audit``. It has the same checks, defaults and keys as a run's config."""

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
    """Base URL of the server's API, such as https://host/v1; requests go to /completions below it."""
    chat: bool = False
    """Whether requests go to /chat/completions, which returns no log-probabilities of a given text."""
    tokenizer: ExpandedName | None = None
    """Folder or hub name of the served models' tokenizer; null: send texts instead of tokens."""
    context: Annotated[Many, Field(ge=3)] | None = None
    """Maximum number of tokens per request; null: the context length that the server reports, at most 2,048."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the API key; null: no key is sent."""
    requests_per_minute: Positive | None = None
    """Maximum number of requests per minute; null: no limit."""
    concurrency: Few = 4
    """Maximum number of requests at the same time."""
    timeout: Positive = 120.0
    """Seconds to wait for an answer before heldin sends the request again."""
    max_tries: Few = 6
    """Maximum number of tries per request, including the first."""
    price_per_million: NotNegative | None = None
    """Price per million tokens, in any currency, for the cost estimate."""
    price_per_million_generated: NotNegative | None = None
    """Price per million generated tokens; null: the same price."""
    max_tokens_sent: int | None = Field(None, ge=0, le=10**12)
    """Refuse an audit that would send and generate more tokens than this; null: no limit."""
    max_requests: int | None = Field(None, ge=0, le=10**12)
    """Refuse an audit of more requests than this; null: no limit."""
    max_price: NotNegative | None = None
    """Refuse an audit that would cost more than this; null: no limit."""
    max_minutes: Positive | None = None
    """Refuse an audit that would take longer than this at the maximum request rate; null: no limit."""

    @model_validator(mode="after")
    def _limits_can_be_known(self) -> "EndpointConfig":
        if self.max_price is not None and self.price_per_million is None:
            raise ValueError("max_price needs the price of a token: set price_per_million")
        if self.max_minutes is not None and self.requests_per_minute is None:
            raise ValueError("max_minutes needs a request rate: set requests_per_minute")
        return self


def _several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class RowsConfig(Section):
    """How heldin reads rows that are turns."""

    format: RowFormat | None = None
    """How rows hold their text: text, messages, conversations, prompt-completion or preference; see corpus.format of a
    run. null: the columns of the first row decide."""
    template: ExpandedPath | None = None
    """File with the chat template that writes messages, in Jinja; null: the template of the audited model's
    tokenizer."""
    template_options: dict[str, str | bool] | None = None
    """Further values for the chat template, such as {date_string: 26 Jul 2024}; null: none."""


class CheckpointAttacks(Section):
    """The attacks to run, and how much of each text they score."""

    access: Levels = (Access.LOG_PROBABILITIES,)
    """What the attackers see of the model: log-probabilities of given texts, the top-k next tokens, or the text that
    the model writes. If several levels are given, each has an answer, and they share the error probability equally.
    ``release`` decides which answer counts."""
    names: tuple[Annotated[str, NameOfKind(ATTACKS)], ...] = DEFAULT_ATTACKS
    """Attacks to run; by default those of each level in ``access``."""
    primary: Annotated[str, NameOfKind(ATTACKS)] = "likelihood-ratio"
    """The primary attack; must be one of ``names``, by default the first of the strongest level."""
    aggregations: tuple[Annotated[str, one_of(AGGREGATIONS)], ...] = ("mean", "min", "max")
    """Ways to combine the scores of a user's texts into one score; the first one is the primary aggregation."""
    turns: Counting | None = None
    """Turns that are scored, if rows are turns: all, those of user or assistant, or the completion. Give the turns on
    which training counted the loss. null: the assistant's turns, or the completion."""
    max_characters: Count = 4000
    """Number of characters to score of each text, from its beginning."""
    precision: PrecisionChoice | None = None
    """Precision in which models are loaded here to be scored; see attack.precision of a run. auto: the precision of the
    target's stored weights, for all models. null: fp32, or auto if there is not enough memory for fp32."""
    sampling: SamplingConfig = SamplingConfig()
    """Requests of attackers who see less than log-probabilities of given texts."""

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
    """One audit of a model that somebody else trained."""

    name: str = Field("audit", pattern=r"^[^/\x00-\x1f]*[^/.\x00-\x1f][^/\x00-\x1f]*$")
    """Name of the audit, for the report. Results go to runs/ and this name, or to --out."""
    model: ExpandedName
    """Folder or hub name of the model, which may be a LoRA adapter; with ``endpoint``, its name on the server."""
    reference: Annotated[
        tuple[ExpandedName, ...],
        BeforeValidator(_several, json_schema_input_type=str | tuple[str, ...]),
        Field(min_length=1),
    ]
    """Models that were not trained on these users, such as the base model. The first one leads; the others are shown
    beside it. endpoint:NAME is a model at the same endpoint."""
    held_in: ExpandedPath
    """File with texts of users the model was trained on."""
    held_out: ExpandedPath
    """File with texts of users it was not trained on."""
    columns: Columns = Columns()
    """Columns of the files."""
    format: TextFormat = TextFormat()
    """How JSON and CSV files are written."""
    rows: RowsConfig = RowsConfig()
    """How rows that are turns are read."""
    bad_rows: OnBadRows = OnBadRows.SKIP_EMPTY
    """Which rows are skipped and counted. skip-empty: rows without text. skip: all rows that cannot be used. strict:
    none. The first other row that cannot be used is an error."""
    max_users: Annotated[Count, Field(ge=4)] | None = None
    """Maximum number of users, drawn by ``seed`` from both groups together; null: all."""
    max_texts_per_user: Count | None = None
    """Maximum number of scored texts per user, taking the first ones; null: all."""
    context: Annotated[Many, Field(ge=3)] | None = None
    """Largest number of tokens in one pass of a model that is loaded here; null: the model's own limit, which BLOOM and
    Mamba do not state."""
    adapter_base: ExpandedName | None = None
    """Base model of every adapter among the models, by folder or hub name; null: the one that the adapter's config
    names."""
    assignment: Assignment = Assignment.UNKNOWN
    """How users came to be held in or out. coin: an independent fair coin for each user. fixed: any other known way,
    such as an exact half or one of each pair. unknown: you do not know."""
    training: ExpandedPath | None = None
    """The model's training data, with the same columns: the audit counts which users and texts are in it. null: the
    audit does not check."""
    texts: Literal["fresh", "training"] | None = None
    """Without ``training``: whether the held-in texts are fresh or were trained on, as you declare; null: not known."""
    claims: tuple[str, ...] = ()
    """Claims to test, such as epsilon=8,delta=1e-6."""
    plan: ExpandedPath | None = None
    """A plan.json whose privacy curve is tested as a further claim."""
    attack: CheckpointAttacks = CheckpointAttacks()
    """The attacks to run."""
    audit: AuditConfig = AuditConfig()
    """Settings of intervals, bounds and rates."""
    decision: DecisionConfig = DecisionConfig()
    """Thresholds that decide the answer."""
    release: Release | None = None
    """To whom the model will be given, for the report; null: not stated."""
    seed: Seed = 0
    """Public seed of bootstrap and redraws."""
    endpoint: EndpointConfig | None = None
    """The server that runs the model, if it is not loaded here."""

    @model_validator(mode="after")
    def _can_be_measured(self) -> "CheckpointConfig":
        for name, options in self.measures.items():
            # At top-k the whole vocabulary decides which tokens are drawn at all.
            if options.needs_weights and self.endpoint is not None:
                raise ValueError(
                    f"measures.{name} needs the whole vocabulary's probabilities, for top-k sampling, which no"
                    f" endpoint gives: remove measures.{name}, or audit models on this machine"
                )
            if options.of_training_texts and self.texts == "fresh":
                raise ValueError(
                    f"measures.{name} needs training texts, but the held-in texts are declared fresh: remove"
                    f" measures.{name}, or give training texts"
                )
            if options.needs_canaries:
                raise ValueError(
                    f"measures.{name} needs canary users, which an audit of two files does not have: remove"
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
                "attack.access (--access) includes log-probabilities, but a chat endpoint gives none for a given"
                " text: choose top-k or text, or leave endpoint.chat (--chat) out"
            )
        if by_probabilities and len(levels) > 1:
            raise ValueError(
                "attack.access (--access) lists log-probabilities with other levels, but behind an endpoint each is"
                " a separate audit: give log-probabilities alone, or leave log-probabilities out"
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
                "attack.precision (--dtype) is for models on this machine, but every model is behind the"
                " endpoint: leave it out"
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
