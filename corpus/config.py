"""The corpus section of a config: the source of the texts, their format, and the audited users."""

from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError, model_validator

from heldin.base.errors import InputError
from heldin.base.section import ExpandedPath, Section
from heldin.corpus.chat.conversation import RowFormat
from heldin.corpus.chat.opening import RowReading
from heldin.corpus.document import Counting
from heldin.corpus.sources.bad_rows import OnBadRows
from heldin.corpus.sources.contract import SourceConfig
from heldin.corpus.sources.kinds import SOURCES, CorpusSource
from heldin.corpus.sources.package import OfPackage
from heldin.corpus.sources.rows import Source
from heldin.corpus.sources.sentences import Sentences
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT, UserFilter

_OF_SOURCE: TypeAdapter[SourceConfig] = TypeAdapter(CorpusSource)


class CorpusConfig(Section):
    """The texts and the audited users. A preset gives the defaults of ``users``."""

    source: CorpusSource
    """Source and format of the texts."""
    aliases: ExpandedPath | None = None
    """YAML file that lists each person's aliases. All aliases of a person count as one user. null: each name is one
    user.
    """
    format: RowFormat | None = None
    """Format of the rows. text: a column of text. messages: a list of messages with role and content. conversations: a
    list of turns with from and value. prompt-completion: the columns prompt and completion, as text or messages.
    preference: the columns chosen and rejected, and a prompt. null: heldin detects the format from the columns of the
    first row. If the column with the messages has another name, give this name in ``columns.text``."""
    turns: Counting | None = None
    """Turns of a chat that heldin uses for deduplication, caps, statistics and canary users. null: the turns in
    finetune.loss_on. heldin searches all turns for entities, because the model reads all turns."""
    template: ExpandedPath | None = None
    """File with a chat template in Jinja, which turns messages into text; null: the template of the base model's
    tokenizer.
    """
    template_options: dict[str, str | bool] | None = None
    """Values to pass to the chat template, such as {date_string: 26 Jul 2024} or {enable_thinking: false}; null: none.
    """
    text_unit: Literal["record", "sentence"] = "record"
    """What counts as one record of the run: a record of the source, or a sentence."""
    bad_rows: OnBadRows = OnBadRows.SKIP_EMPTY
    """Rows to skip and count. skip-empty: rows without text. skip: all unusable rows. strict: none. At any other
    unusable row, heldin stops with an error."""
    public_validation: UserFilter | None = None
    """Users who are neither audited nor in training. If finetune.select is best_public, heldin chooses the checkpoint
    with the lowest loss on texts by these users. null: no such users."""
    users: UserFilter = UserFilter(min_records=20)
    """Users whose texts heldin uses for training and for the audit. Each user needs at least 4 records: one each for
    training, attacker, validation and test. Each preset has its own default for ``min_records``."""

    def opened(self, reading: RowReading) -> Source:
        """Return the source of the run's records, with rows read as ``reading`` states.

        Raises InputError if sentences are requested and rows are turns.
        """
        if reading.has_turns and self.text_unit == "sentence":
            raise InputError("'text_unit: sentence' cuts texts, but the rows are turns. Leave corpus.text_unit out")
        source = (self.source.reading(reading.columns) if reading.has_turns else self.source).source()
        if (origin := SOURCES.origin(self.source.kind)) is not None:
            source = OfPackage(source, origin)
        return Sentences(source) if self.text_unit == "sentence" else source

    @model_validator(mode="before")
    @classmethod
    def _users_of_the_source(cls, content: Any) -> Any:
        """Fill in the missing keys of ``users`` from the source."""
        # Before the fields are checked: afterwards, a default of ``users`` looks like a number that was stated.
        stated = content.get("users", {}) if isinstance(content, dict) else None
        if not isinstance(stated, dict):
            return content
        try:
            source = _OF_SOURCE.validate_python(content.get("source"))
        except ValidationError:  # told with its place, when the fields are checked
            return content
        least = source.min_records()
        return content if least is None else {**content, "users": {"min_records": least, **stated}}

    @property
    def spans(self) -> str | None:
        """Column with the parts of a text that count; None: all of every text counts."""
        return self.source.named_columns().spans

    @model_validator(mode="after")
    def _sentences_of_whole_texts(self) -> "CorpusConfig":
        if self.spans is not None and self.text_unit == "sentence":
            raise ValueError(
                "'text_unit: sentence' cuts whole texts: leave source.columns.spans out, or set 'text_unit: record'"
            )
        return self

    @model_validator(mode="after")
    def _enough_to_split(self) -> "CorpusConfig":
        # Here and not in ``UserFilter``, which also serves users who are not split.
        if self.users.min_records < MIN_RECORDS_TO_SPLIT:
            raise ValueError(f"users.min_records is {self.users.min_records}: give at least {MIN_RECORDS_TO_SPLIT}")
        return self
