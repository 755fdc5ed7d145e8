"""Forms of a row with a document: one column of text, a prompt and its completion, or chat messages.

Of the text all counts, or the parts that training counts the loss on: the completion, or the turns of one role.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.corpus.document import Document, Spans
from heldin.models.tokens import token_places

Row = dict[str, Any]
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_USER, _ASSISTANT = "\ue000", "\ue001"  # in no text: what stands around them is the template's


class Form(Protocol):
    """How a row holds a document."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the text."""
        ...

    def of(self, row: Row) -> str:
        """Return the text, as a model reads it. Raises ValueError, saying what is wrong, for a row without one."""
        ...

    def made(self, text: str) -> str:
        """Return a made-up text as it stands, as a model reads it, in a row that ``put`` makes of it."""
        ...

    def put(self, row: Row, text: str) -> Row:
        """Return the row with a text that ``made`` returned instead of the row's text."""
        ...

    def document(self, row: Row) -> Document:
        """Return the text with its parts that count. Raises ValueError for a row of which nothing that is read does."""
        ...


@dataclass(frozen=True)
class Plain:
    """A column of text."""

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column."""
        return (self.column,)

    def of(self, row: Row) -> str:
        """Return the text."""
        return _text(row, self.column)

    def made(self, text: str) -> str:
        """Return the text as it is."""
        return text

    def put(self, row: Row, text: str) -> Row:
        """Return the row with this text."""
        return {**row, self.column: text}

    def document(self, row: Row) -> Document:
        """Return the text, of which all counts."""
        return Document.of(self.of(row))


@dataclass(frozen=True)
class Completion:
    """A prompt and a completion, which a model reads one after the other.

    Attributes:
        alone: whether the completion alone counts.
        most: characters of a text that are read.
        room: characters of a made-up prompt, at most; None: half of the text.
    """

    prompt: str
    completion: str
    alone: bool = False
    most: int = sys.maxsize
    room: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Both columns."""
        return self.prompt, self.completion

    def of(self, row: Row) -> str:
        """Prompt and completion."""
        return _text(row, self.prompt) + _text(row, self.completion)

    def made(self, text: str) -> str:
        """Return the text as it is: ``put`` finds where to part it."""
        return text

    def put(self, row: Row, text: str) -> Row:
        """Return the row with the halves of the text."""
        place = _middle(text, self.most, self.room)
        return {**row, self.prompt: text[:place], self.completion: text[place:]}

    def document(self, row: Row) -> Document:
        """Return the text. Raises ValueError where nothing that counts is read, such as of an empty completion."""
        text = self.of(row)
        begin = len(_text(row, self.prompt)) if self.alone else 0
        return _read(text, ((begin, len(text)),), self.most, f"column '{self.completion}'")

    def within(self, tokens: int, tokenizer: PreTrainedTokenizerBase) -> "Completion":
        """Return the same, with made-up prompts so short that a completion begins within so many tokens."""
        return replace(self, room=_room(tokens, ""))


@dataclass(frozen=True)
class Chat:
    """Chat messages, as the tokenizer's chat template writes them.

    Attributes:
        column: a list of messages, each with role and content.
        tokenizer: with a chat template.
        system: content of the system message that all rows begin with; None: there is none.
        role: whose turns alone count; None: all of the text does.
        most: characters of a text that are read.
        room: characters of a made-up first turn, at most; None: half of the text.
    """

    column: str
    tokenizer: PreTrainedTokenizerBase
    system: str | None = None
    role: str | None = None
    most: int = sys.maxsize
    room: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column."""
        return (self.column,)

    def of(self, row: Row) -> str:
        """Return the conversation, rendered."""
        return self._rendered(self._messages(row))

    def made(self, text: str) -> str:
        """Return a conversation of two turns: the halves of the text."""
        before, between, after = self._frame
        place = _middle(text, self.most - len(before) - len(between), self.room)
        return f"{before}{text[:place].strip()}{between}{text[place:].strip()}{after}"

    def put(self, row: Row, text: str) -> Row:
        """Return the row with the two turns, under the system message that all rows share."""
        before, between, after = self._frame
        turns = text[len(before) : len(text) - len(after)].split(between, 1)
        return {**row, self.column: self._two(*turns)}

    def document(self, row: Row) -> Document:
        """Return the conversation. Raises ValueError if no turn that counts is there, or the first is too late."""
        messages = self._messages(row)
        text = self._rendered(messages)
        if self.role is None:
            return _read(text, ((0, len(text)),), self.most, f"column '{self.column}'")
        spans = self._marked(messages) if self._marks_turns else self._between(messages, text)
        return _read(text, spans, self.most, f"the turns of '{self.role}' in column '{self.column}'")

    def with_system(self, rows: Sequence[Row]) -> "Chat":
        """Return the same, with the system message that all of these rows begin with, if they do."""
        first = {
            messages[0]["content"] if messages[0]["role"] == "system" else None
            for row in rows
            if isinstance(messages := row.get(self.column), list) and messages and _is_message(messages[0])
        }
        return replace(self, system=first.pop() if len(first) == 1 else None)

    def within(self, tokens: int, tokenizer: PreTrainedTokenizerBase) -> "Chat":
        """Return the same, with made-up first turns so short that the second begins within so many tokens."""
        before, between, _ = self._frame
        taken = len(tokenizer(before + between, add_special_tokens=False)["input_ids"])
        return replace(self, room=_room(tokens - taken, ", since the template with its system message is longer"))

    def _messages(self, row: Row) -> list[Row]:
        messages = row.get(self.column)
        if not isinstance(messages, list) or not messages:
            raise ValueError(f"column '{self.column}' holds no list of messages")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ValueError(f"a message without a role in column '{self.column}'")
            if not isinstance(message.get("content"), str):
                raise ValueError(f"a message without text content in column '{self.column}'")
        return messages

    def _two(self, asked: str, answered: str) -> list[Row]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": asked}, {"role": "assistant", "content": answered}]

    @cached_property
    def _frame(self) -> tuple[str, str, str]:
        """Return what the template writes before, between and after two turns."""
        rendered = self._rendered(self._two(_USER, _ASSISTANT))
        before, user, rest = rendered.partition(_USER)
        between, assistant, after = rest.partition(_ASSISTANT)
        if not (user and assistant and between):
            raise InputError(
                "the tokenizer's chat template does not write a user's and an assistant's turn as they are"
            )
        return before, between, after

    @property
    def _marks_turns(self) -> bool:
        """Check if the template marks the assistant's turns, so that trainers take these marks for their labels."""
        return self.role == "assistant" and _GENERATION.search(str(self.tokenizer.chat_template)) is not None

    def _marked(self, messages: list[Row]) -> Spans:
        """Parts whose tokens transformers' own mask of the assistant's turns holds."""
        encoded = self.tokenizer.apply_chat_template(
            messages,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            return_tensors=None,
            tokenizer_kwargs={"return_offsets_mapping": True},
        )
        begins, ends = token_places(encoded["offset_mapping"])
        mask = encoded["assistant_masks"]
        spans, before = [], 0
        for begin, end, counts in zip(begins.tolist(), ends.tolist(), mask, strict=True):
            # Tokens that share a character, such as the bytes of one, are one part.
            if counts and max(begin, before) < end:
                spans.append((max(begin, before), end))
                before = end
        return tuple(spans)

    def _between(self, messages: list[Row], whole: str) -> Spans:
        """Return the parts from where the template lets the role begin to the end of the turn."""
        places = []
        for i, message in enumerate(messages):
            if message["role"] != self.role:
                continue
            asked = message["role"] == "assistant"
            # Of no message at all most templates make nothing, and some an error.
            before = self._rendered(messages[:i], prompt=asked) if i else ""
            turn = self._rendered(messages[: i + 1])
            if not (whole.startswith(turn) and turn.startswith(before)):
                raise ValueError(
                    f"the chat template writes a turn in column '{self.column}' otherwise where another follows, so"
                    " that it is not known which part of the text it is"
                )
            places.append((len(before), len(turn)))
        return tuple(places)

    def _rendered(self, messages: list[Row], *, prompt: bool = False) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        except (TemplateError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the chat template refuses the messages in column '{self.column}' ({error})") from error
        return text


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and {"role", "content"} <= message.keys()


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise ValueError(f"column '{column}' holds {type(value).__name__}, not text")
    return value


def _read(text: str, spans: Spans, most: int, part: str) -> Document:
    """Return the document, if any part that counts begins within the characters that are read."""
    if not any(begin < min(end, most) for begin, end in spans):
        raise ValueError(f"nothing of {part} is in the first {most:,} characters, which the attack reads")
    return Document(text, spans)


def _room(tokens: int, taken: str) -> int:
    """Return how many characters surely take fewer tokens than these. Raises InputError if there is no room."""
    if tokens < 2:
        raise InputError(f"sequence_length leaves no room for what is scored of a row{taken}: raise it")
    # Each token has a character of its own, but for a few of the rarest characters.
    return tokens - 1


def _middle(text: str, most: int, room: int | None) -> int:
    """Before a blank near the middle, or of the characters that are read; the middle itself where there is none."""
    half = max(1, min(len(text), most) // 2)
    if room is not None and half > room:
        return room
    place = text.rfind(" ", 1, half + 1)
    place = place if place > 0 else text.find(" ", half, most)
    return place if place > 0 else half
