"""Where the text of a training row stands: in one column, in a prompt and its completion, or in chat messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.jobs.planted.config import PlantColumns

Row = dict[str, Any]
_USER, _ASSISTANT = "\ue000", "\ue001"  # in no text: what stands around them is the template's


class RowText(Protocol):
    """How a row holds its text."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the text."""
        ...

    def of(self, row: Row) -> str:
        """The text, as a model reads it. Raises ValueError, saying what is wrong, for a row without one."""
        ...

    def made(self, text: str) -> str:
        """A made-up text as it stands, as a model reads it, in a row that ``put`` makes of it."""
        ...

    def put(self, row: Row, text: str) -> Row:
        """The row with a text that ``made`` returned in the place of its own."""
        ...


@dataclass(frozen=True)
class Plain:
    """A column of text."""

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def of(self, row: Row) -> str:
        """The text."""
        return _text(row, self.column)

    def made(self, text: str) -> str:
        """The text as it is."""
        return text

    def put(self, row: Row, text: str) -> Row:
        """The row with this text."""
        return {**row, self.column: text}


@dataclass(frozen=True)
class Completion:
    """A prompt and its completion, which a model reads one after the other."""

    prompt: str
    completion: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Both columns."""
        return self.prompt, self.completion

    def of(self, row: Row) -> str:
        """Prompt and completion."""
        return _text(row, self.prompt) + _text(row, self.completion)

    def made(self, text: str) -> str:
        """The text as it is: ``put`` finds where to part it."""
        return text

    def put(self, row: Row, text: str) -> Row:
        """The row with the halves of the text."""
        place = _middle(text)
        return {**row, self.prompt: text[:place], self.completion: text[place:]}


@dataclass(frozen=True)
class Chat:
    """Chat messages, as the tokenizer's chat template writes them.

    Attributes:
        column: a list of messages, each with role and content.
        tokenizer: with a chat template.
        system: content of the system message that all rows begin with; None: there is none.
    """

    column: str
    tokenizer: PreTrainedTokenizerBase
    system: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def of(self, row: Row) -> str:
        """The conversation, rendered."""
        messages = row.get(self.column)
        if not isinstance(messages, list) or not messages:
            raise ValueError(f"column '{self.column}' holds no list of messages")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ValueError(f"a message without a role in column '{self.column}'")
            if not isinstance(message.get("content"), str):
                raise ValueError(f"a message without text content in column '{self.column}'")
        return self._rendered(messages)

    def made(self, text: str) -> str:
        """A conversation of two turns: the halves of the text."""
        before, between, after = self._frame
        place = _middle(text)
        return f"{before}{text[:place].strip()}{between}{text[place:].strip()}{after}"

    def put(self, row: Row, text: str) -> Row:
        """The row with the two turns, under the system message that all rows share."""
        before, between, after = self._frame
        turns = text[len(before) : len(text) - len(after)].split(between, 1)
        return {**row, self.column: self._two(*turns)}

    def with_system(self, rows: Sequence[Row]) -> "Chat":
        """The same, with the system message that all of these rows begin with, if they do."""
        first = {
            messages[0]["content"] if messages[0]["role"] == "system" else None
            for row in rows
            if isinstance(messages := row.get(self.column), list) and messages and _is_message(messages[0])
        }
        return Chat(self.column, self.tokenizer, first.pop() if len(first) == 1 else None)

    def _two(self, asked: str, answered: str) -> list[Row]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": asked}, {"role": "assistant", "content": answered}]

    @cached_property
    def _frame(self) -> tuple[str, str, str]:
        """What the template writes before, between and after two turns."""
        rendered = self._rendered(self._two(_USER, _ASSISTANT))
        before, user, rest = rendered.partition(_USER)
        between, assistant, after = rest.partition(_ASSISTANT)
        if not (user and assistant and between):
            raise InputError(
                "the tokenizer's chat template does not write a user's and an assistant's turn as they are"
            )
        return before, between, after

    def _rendered(self, messages: list[Row]) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False)
        except (TemplateError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the chat template refuses the messages in column '{self.column}' ({error})") from error
        return text


def row_text(columns: PlantColumns, tokenizer: PreTrainedTokenizerBase) -> RowText:
    """How the rows of a training set hold their text. Raises InputError for messages without a chat template."""
    if columns.messages is not None:
        if tokenizer.chat_template is None:
            raise InputError(
                "columns.messages: the reference's tokenizer has no chat template: name the model whose template the"
                " training uses, or write the texts into a column"
            )
        return Chat(columns.messages, tokenizer)
    if columns.prompt is not None and columns.completion is not None:
        return Completion(columns.prompt, columns.completion)
    return Plain(columns.text)


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and {"role", "content"} <= message.keys()


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise ValueError(f"column '{column}' holds {type(value).__name__}, not text")
    return value


def _middle(text: str) -> int:
    """Before a blank near the middle; the middle itself where there is none."""
    half = max(1, len(text) // 2)
    place = text.rfind(" ", 1, half + 1)
    place = place if place > 0 else text.find(" ", half)
    return place if place > 0 else half
