"""How a row keeps a document: one column of text, a prompt and its completion, or messages.

All of the text counts, or only the parts with training loss: the completion, or the turns of one role.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.corpus.chat.columns import answered_text
from heldin.corpus.chat.conversation import (
    COMPLETION,
    Conversation,
    RowFormat,
    conversation_of,
    format_of_value,
    sharegpt_name,
)
from heldin.corpus.chat.template import ChatTemplate
from heldin.corpus.document import Counting, Document
from heldin.corpus.sources.rows import LAYOUT, PARTS, SCHEMA, Columns, Record
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = dict[str, Any]
_USER, _ASSISTANT = "\ue000", "\ue001"  # in no text: what stands around them is the template's
_FOR_TEMPLATE = ("tools", "chat_template_kwargs")  # columns that a template reads besides the messages


class KeptColumns(Columns):
    """The columns of records that heldin stored together with the parts of their documents (``with_parts``)."""

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the batches of a source with these columns."""
        return pa.schema([*SCHEMA, *PARTS])

    @property
    def beside(self) -> tuple[str, ...]:
        """The name of the column with the places of turns."""
        return (LAYOUT.name,)

    def record(self, row: dict[str, Any], *, untyped: bool = False) -> tuple[Record, Statement | None]:
        """Return a row as a record of ``schema``; see ``usable_record``."""
        record, wrong = super().record(row, untyped=untyped)
        return {**record, LAYOUT.name: row.get(LAYOUT.name)}, wrong


class Form(Protocol):
    """How a row keeps a document."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns with the text."""
        ...

    def of(self, row: Row) -> str:
        """Return the text as a model reads it. Raises ValueError, with the fault, for a row without text."""
        ...

    def made(self, text: str) -> str:
        """Return a made-up text as a model reads it in a row of ``put``."""
        ...

    def put(self, row: Row, text: str) -> Row:
        """Return the row with its text replaced by a text of ``made``."""
        ...

    def document(self, row: Row) -> Document:
        """Return the text and its parts that count. Raises ValueError if no part that is read counts."""
        ...


@dataclass(frozen=True)
class Plain:
    """A column of text."""

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of text."""
        return (self.column,)

    def of(self, row: Row) -> str:
        """Return the text."""
        return _text(row, self.column)

    def made(self, text: str) -> str:
        """Return the text unchanged."""
        return text

    def put(self, row: Row, text: str) -> Row:
        """Return the row with this text."""
        return {**row, self.column: text}

    def document(self, row: Row) -> Document:
        """Return the text, all of which counts."""
        return Document.of(self.of(row))


@dataclass(frozen=True)
class Completion:
    """A prompt and a completion, both texts, which a model reads in this order.

    Attributes:
        alone: whether only the completion counts.
        most: number of characters of a text that are read.
        room: maximum number of characters of a made-up prompt; None: half of the text.
    """

    prompt: str
    completion: str
    alone: bool = False
    most: int = sys.maxsize
    room: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of prompt and completion."""
        return self.prompt, self.completion

    def of(self, row: Row) -> str:
        """Return prompt and completion, joined."""
        return _text(row, self.prompt) + _text(row, self.completion)

    def made(self, text: str) -> str:
        """Return the text unchanged. ``put`` finds where to split it."""
        return text

    def put(self, row: Row, text: str) -> Row:
        """Return the row with the two halves of the text as prompt and completion."""
        place = _middle(text, self.most, self.room)
        return {**row, self.prompt: text[:place], self.completion: text[place:]}

    def document(self, row: Row) -> Document:
        """Return the document.

        Raises ValueError if no part that is read counts, for example if the completion is empty.
        """
        pair = answered_text(_text(row, self.prompt), _text(row, self.completion))
        counting = Counting.COMPLETION if self.alone else Counting.ALL
        return _read(pair.counting(counting), self.most, f"column '{self.completion}'")

    def within(self, tokens: int, tokenizer: "PreTrainedTokenizerBase") -> "Completion":
        """Return this form with short made-up prompts, so a completion begins within ``tokens`` tokens."""
        return replace(self, room=_room(tokens, ""))


@dataclass(frozen=True)
class Chat:
    """Messages, which a chat template writes as a text.

    Attributes:
        columns: the column of the messages (or of ShareGPT turns), or the columns of a prompt and its completion.
        template: the template that writes messages.
        system: content of the system message at the beginning of all rows; None: there is none.
        counted: the parts that count: everything, the completion, or the turns of a role.
        most: number of characters of a text that are read.
        room: maximum number of characters of a made-up first turn; None: half of the text.
    """

    columns: tuple[str, ...]
    template: ChatTemplate
    system: str | None = None
    counted: str = Counting.ALL
    most: int = sys.maxsize
    room: int | None = None

    def of(self, row: Row) -> str:
        """Return the rendered conversation."""
        conversation = self._conversation(row)
        return self.template.text(conversation.messages, conversation)

    def made(self, text: str) -> str:
        """Return a conversation of two turns, made of the halves of the text."""
        before, between, after = self._frame
        place = _middle(text, self.most - len(before) - len(between), self.room)
        return f"{before}{text[:place].strip()}{between}{text[place:].strip()}{after}"

    def put(self, row: Row, text: str) -> Row:
        """Return the row with the two turns, after the system message of all rows, in the row's format."""
        before, between, after = self._frame
        *asked, answered = self._two(*text[len(before) : len(text) - len(after)].split(between, 1))
        parts = [[*asked, answered]] if len(self.columns) == 1 else [asked, [answered]]
        # What the template reads of the row besides would be written into the made-up conversation.
        unread = {name: "[]" if isinstance(row[name], str) else None for name in _FOR_TEMPLATE if name in row}
        written = {name: like_messages(part, row.get(name)) for name, part in zip(self.columns, parts, strict=True)}
        return {**row, **unread, **written}

    def document(self, row: Row) -> Document:
        """Return the document. Raises ValueError if no turn counts, or if the first turn that counts is too late."""
        document = self.template.document(self._conversation(row))
        where = " and ".join(f"'{column}'" for column in self.columns)
        if self.counted in (Counting.ALL, Counting.COMPLETION):
            return _read(document.counting(Counting(self.counted)), self.most, f"column {where}")
        assert document.layout is not None
        spans = tuple((turn.begin, turn.end) for turn in document.layout.turns if turn.role == self.counted)
        return _read(replace(document, spans=spans), self.most, f"the turns of '{self.counted}' in column {where}")

    def with_system(self, rows: Sequence[Row]) -> "Chat":
        """Return this form with the common system message at the beginning of all these rows, if there is one."""
        first = {message["content"] if message["role"] == "system" else None for message in self._first_messages(rows)}
        return replace(self, system=first.pop() if len(first) == 1 else None)

    def within(self, tokens: int, tokenizer: "PreTrainedTokenizerBase") -> "Chat":
        """Return this form with short made-up first turns, so the second turn begins within ``tokens`` tokens."""
        before, between, _ = self._frame
        taken = len(tokenizer(before + between, add_special_tokens=False)["input_ids"])
        return replace(self, room=_room(tokens - taken, ", since the template with its system message is longer"))

    def _conversation(self, row: Row) -> Conversation:
        """Return the messages of a row. Raises ValueError for a row without messages."""
        column, *completion = self.columns
        if completion:
            conversation = conversation_of(
                {**row, COMPLETION: row.get(completion[0])}, RowFormat.PROMPT_COMPLETION, column
            )
        else:
            conversation = conversation_of(row, format_of_value(row.get(column)) or RowFormat.MESSAGES, column)
        if not isinstance(conversation, Conversation):
            raise ValueError(
                f"column '{self.columns[-1]}' contains {'no messages' if conversation is None else 'text'}"
            )
        return conversation

    def _first_messages(self, rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
        return [self._conversation(row).messages[0] for row in rows]

    def _two(self, asked: str, answered: str) -> list[Row]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": asked}, {"role": "assistant", "content": answered}]

    @cached_property
    def _frame(self) -> tuple[str, str, str]:
        """Return the template's text before, between and after two turns."""
        try:
            rendered = self.template.text(self._two(_USER, _ASSISTANT))
        except ValueError as error:
            raise InputError(
                f"the chat template fails on a made-up conversation of two turns ({error}): correct the template"
            ) from error
        before, user, rest = rendered.partition(_USER)
        between, assistant, after = rest.partition(_ASSISTANT)
        if not (user and assistant and between):
            raise InputError(
                "the tokenizer's chat template changes the text of a user's and an assistant's turn: give a template"
                " that writes turns unchanged"
            )
        return before, between, after


def like_messages(messages: list[Row], old: object) -> object:
    """Return messages in the format of an old value: ShareGPT turns, or JSON text if the old value is text."""
    new: list[Row] = messages
    if format_of_value(old) is RowFormat.CONVERSATIONS:
        new = [{"from": sharegpt_name(m["role"], old), "value": m["content"]} for m in messages]
    return json.dumps(new, ensure_ascii=False) if isinstance(old, str) else new


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise ValueError(f"column '{column}' contains {type(value).__name__} instead of text")
    return value


def _read(document: Document, most: int, part: str) -> Document:
    """Return the document. Raises ValueError if no counted part begins within the characters that the attack reads."""
    if not any(begin < min(end, most) for begin, end in document.spans):
        raise ValueError(f"{part} is not in the first {most:,} characters, and the attack reads only these characters")
    return document


def _room(tokens: int, taken: str) -> int:
    """Return a number of characters that certainly needs at most the available tokens. Raises InputError if there is no
    such number."""
    if tokens < 2:
        raise InputError(f"sequence_length leaves no room for the scored part of a row{taken}: raise sequence_length")
    # Each token has a character of its own, but for a few of the rarest characters.
    return tokens - 1


def _middle(text: str, most: int, room: int | None) -> int:
    """Return the place of a blank near the middle of the characters that are read; without a blank, the middle."""
    half = max(1, min(len(text), most) // 2)
    if room is not None and half > room:
        return room
    place = text.rfind(" ", 1, half + 1)
    place = place if place > 0 else text.find(" ", half, most)
    return place if place > 0 else half
