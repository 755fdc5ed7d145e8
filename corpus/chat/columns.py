"""The columns of a source whose rows are turns, and the document made from a row."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from heldin.corpus.chat.conversation import (
    RowFormat,
    column_of_format,
    conversation_of,
    format_of_row,
)
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting, Document, Turn, TurnLayout, forked
from heldin.corpus.sources.rows import LAYOUT, PARTS, SCHEMA, SPANS, Columns, Record, usable_record, value_at
from heldin.words.rows import RowFault
from heldin.words.statement import Statement


@dataclass(frozen=True)
class TurnColumns(Columns):
    """Columns of a source; one of them contains turns.

    Attributes:
        format: any format except the format of texts.
        template: the template that writes messages; None if there are no messages, or if heldin only looks for columns.
        counting: the parts of a row that count.
    """

    format: RowFormat = RowFormat.MESSAGES
    template: ChatTemplate | None = None
    counting: Counting = Counting.ALL

    @classmethod
    def of(
        cls, columns: Columns, form: RowFormat, column: str, template: ChatTemplate | None, counting: Counting
    ) -> "TurnColumns":
        """Return the columns of a source whose rows have this format.

        Args:
            columns: the names of the columns of users, ids and dates.
            form: any format except the format of texts.
            column: the column of the messages, or of the prompt.
            template: the template that writes messages, or None.
            counting: the parts of a row that count.
        """
        return cls(columns.user, column, columns.id, columns.date, None, form, template, counting)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the batches of a source with these columns."""
        return pa.schema([*SCHEMA, *PARTS])

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that a row may have for its template."""
        return ("tools", "chat_template_kwargs", *self.format.prompt_besides)

    def named(self) -> dict[str, str]:
        """Return a map from role to column name, for the roles that have a column."""
        return {**super().named(), **{name: name for name in self.format.answers if name != self.text}}

    def record(self, row: dict[str, Any], *, untyped: bool = False) -> tuple[Record, Statement | None]:
        """Return the record of a row's text, and the row's fault (None if there is none)."""
        roles = {role: name for role, name in self.named().items() if role not in ("text", *self.format.answers)}
        record, wrong = usable_record(row, roles, untyped=untyped)
        if wrong is not None:
            return record, wrong
        if value_at(row, self.text) is None:
            return record, RowFault.NO_TEXT(column=self.text)
        try:
            document = self._document(row)
        except ValueError as error:
            return record, RowFault.OTHER_FORM(reason=str(error))
        if document is None:
            return record, RowFault.NO_TEXT(column=self.text)
        # As rows without text: an attack scores nothing of it, and a training learns nothing.
        if not any(counts for _, counts in document.said()):
            assert document.layout is not None
            whose = ", ".join(dict.fromkeys(turn.role for turn in document.layout.turns))
            return record, RowFault.NOTHING_COUNTS(counting=self.counting, roles=whose)
        checked, wrong = usable_record({"text": document.text}, {"text": "text"})
        record |= {"text": checked.get("text")}
        return with_parts(record, document), wrong

    def _document(self, row: Mapping[str, Any]) -> Document | None:
        conversation = conversation_of(row, self.format, self.text)
        if conversation is None:
            return None
        if not isinstance(conversation, tuple):
            if self.template is None:
                raise ValueError("this row has messages, but the first row has texts: write all rows in one form")
            return self.template.document(conversation).counting(self.counting)
        if self.template is not None:
            raise ValueError(
                "this row has a prompt of text, but the first row has messages: write all rows in one form"
            )
        return answered_text(*conversation).counting(self.counting)


def with_parts(record: Record, document: Document) -> Record:
    """Return the record of a text with the parts of its document, in the columns of a store."""
    parts = None if document.is_plain else [list(part) for part in document.spans]
    return {**record, SPANS.name: parts, LAYOUT.name: None if document.layout is None else asdict(document.layout)}


def answered_text(prompt: str, *answers: str) -> Document:
    """Join a prompt with its completion, or with two answers, without a template. All of the text counts."""
    chosen, *rejected = (_answered(prompt, answer) for answer in answers)
    return forked(chosen, *rejected) if rejected else chosen


def _answered(prompt: str, completion: str) -> Document:
    whole, begin = f"{prompt}{completion}", len(prompt)
    turns = tuple(turn for turn in (Turn("user", 0, begin), Turn("assistant", begin, len(whole))) if turn.end)
    return Document(whole, ((0, len(whole)),), TurnLayout(turns, begin, framed=False))


def columns_to_look_for(row: Mapping[str, Any] | None, columns: Columns, stated: RowFormat | None = None) -> Columns:
    """Return the columns that rows like this one must have. The result cannot read rows. See ``found_format``."""
    form, column = found_format(row, columns, stated)
    return TurnColumns.of(columns, form, column, None, form.counting) if form.has_turns else columns


def found_format(row: Mapping[str, Any] | None, columns: Columns, stated: RowFormat | None) -> tuple[RowFormat, str]:
    """Return the format of a source's rows, and the column of their texts, messages or prompts.

    Args:
        row: the first row of the source; None: no row can be looked at.
        columns: the named columns.
        stated: the format, if somebody stated it.
    """
    if row is None:
        return stated or RowFormat.TEXT, columns.text
    return (stated, column_of_format(stated, row, columns)) if stated is not None else format_of_row(row, columns)
