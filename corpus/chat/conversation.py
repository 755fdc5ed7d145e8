"""Rows of turns, in the formats of TRL and other tools, and how to find the format of a row.

Messages have a role and a content. ShareGPT calls these ``from`` and ``value``. A prompt with a completion is two
texts, or two lists of messages. A preference pair has a chosen and a rejected answer. Its prompt is a separate column,
or is the common beginning of both answers.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from heldin.base.errors import InputError
from heldin.corpus.document import Counting
from heldin.corpus.sources.rows import Columns, kind_of, value_at

Message = dict[str, Any]


class RowFormat(StrEnum):
    """The way in which a row stores its text."""

    TEXT = "text"
    MESSAGES = "messages"
    CONVERSATIONS = "conversations"
    PROMPT_COMPLETION = "prompt-completion"
    PREFERENCE = "preference"

    @property
    def has_turns(self) -> bool:
        """Whether such rows have turns."""
        return self is not RowFormat.TEXT

    @property
    def has_pairs(self) -> bool:
        """Whether such rows are preference pairs."""
        return self is RowFormat.PREFERENCE

    @property
    def prompt_besides(self) -> tuple[str, ...]:
        """The column of the prompt for formats whose rows may omit the prompt, else an empty tuple."""
        return (PROMPT,) if self.has_pairs else ()

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns with the text after a prompt; empty if rows have no separate prompt."""
        pairs = {RowFormat.PREFERENCE: (CHOSEN, REJECTED)}
        return {**pairs, RowFormat.PROMPT_COMPLETION: (COMPLETION,)}.get(self, ())

    @property
    def counting(self) -> Counting:
        """The parts that count by default."""
        chats = {RowFormat.MESSAGES: Counting.ASSISTANT, RowFormat.CONVERSATIONS: Counting.ASSISTANT}
        return chats.get(self, Counting.COMPLETION if self.answers else Counting.ALL)


PROMPT, COMPLETION, CHOSEN, REJECTED = "prompt", "completion", "chosen", "rejected"  # names of columns, as TRL has them
# What a template may be handed besides role and content. A template that does not write it would lose it in silence.
_WRITTEN = ("name", "tool_calls", "reasoning_content", "thinking")
_OURS = ("tools", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize")  # heldin hands these
_OF_PYTHON = re.compile(r"""\s*\[\s*\{\s*['"](role|content|from|value)['"]""")  # text of a list of messages
_SHAREGPT = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bing", "bard"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}


@dataclass(frozen=True)
class Conversation:
    """The messages of a row.

    Attributes:
        messages: the messages, each with role and content; at least one.
        asked: number of messages in the prompt; None if the row has no separate prompt.
        rejected: for a preference pair, the messages of the prompt and the rejected answer; None for other rows.
        tools: JSON schemas of the tools that the assistant may call; None: no tools.
        options: further values of the row for the template.
    """

    messages: Sequence[Message]
    asked: int | None = None
    rejected: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """Names of all parts that the template must write in addition to roles and contents."""
        kept = [name for name in _WRITTEN if any(message.get(name) for message in self.messages)]
        return [*kept, *(["tools"] if self.tools else [])]

    def without(self, name: str) -> "Conversation":
        """Return the conversation without one of ``fields``."""
        kept = [{key: value for key, value in message.items() if key != name} for message in self.messages]
        return replace(self, messages=kept, tools=None if name == "tools" else self.tools)


def format_of_row(row: Mapping[str, Any], columns: Columns) -> tuple[RowFormat, str]:
    """Return the format of a row, and the column of its text or messages, or of its prompt.

    Args:
        row: the row, by column name.
        columns: the named columns; ``text`` names the column of texts, which may contain messages.
    """
    named = value_at(row, columns.text)
    # Of a pair its column of chosen answers may be named, as that of messages is.
    if columns.text == CHOSEN and REJECTED in row:
        return RowFormat.PREFERENCE, CHOSEN
    if columns.text in row or named is not None:
        return format_of_value(named) or RowFormat.TEXT, columns.text
    for name in (RowFormat.MESSAGES, RowFormat.CONVERSATIONS):
        if (form := format_of_value(row.get(name))) is not None:
            return form, str(name)
        if name in row and not row[name]:  # an empty row is one of its form
            return name, str(name)
    if {CHOSEN, REJECTED} <= row.keys():
        return RowFormat.PREFERENCE, CHOSEN
    if {PROMPT, COMPLETION} <= row.keys():
        return RowFormat.PROMPT_COMPLETION, PROMPT
    return RowFormat.TEXT, columns.text


def column_of_format(form: RowFormat, row: Mapping[str, Any], columns: Columns) -> str:
    """Return the column to read for a stated format.

    For messages and conversations, the column is ``columns.text`` if the row has that column in this format, else the
    format's usual column.
    """
    if form.answers:
        return CHOSEN if form is RowFormat.PREFERENCE else PROMPT
    if not form.has_turns:
        return columns.text
    named = value_at(row, columns.text)
    is_there = columns.text in row or named is not None
    # A row may have a text besides the messages that are asked for.
    return columns.text if is_there and (format_of_value(named) or form not in row) else str(form)


def form_besides(row: Mapping[str, Any], column: str) -> RowFormat | None:
    """Return another format in which the row also has turns; None if there is no other format.

    Args:
        row: the row, by column name.
        column: the column that heldin reads.
    """
    for form in (RowFormat.MESSAGES, RowFormat.CONVERSATIONS):
        if form != column and format_of_value(row.get(form)) is not None:
            return form
    for form, first in ((RowFormat.PREFERENCE, CHOSEN), (RowFormat.PROMPT_COMPLETION, PROMPT)):
        if {first, *form.answers} <= row.keys() and column != first:
            return form
    return None


def format_of_value(value: object) -> RowFormat | None:
    """Return the format of a value that is a list of messages, or such a list as text; None for any other value."""
    first = _listed(value)
    if isinstance(first, str) and (key := _OF_PYTHON.match(first)):
        return RowFormat.MESSAGES if key[1] in ("role", "content") else RowFormat.CONVERSATIONS
    if not isinstance(first, list) or not first or not isinstance(first[0], dict):
        return None
    if {"role", "content"} <= first[0].keys():
        return RowFormat.MESSAGES
    return RowFormat.CONVERSATIONS if {"from", "value"} <= first[0].keys() else None


def _listed(value: object) -> object:
    """Return the list in a JSON text, because CSV files and some Parquet files store messages as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def is_of_texts(row: Mapping[str, Any], form: RowFormat, column: str) -> bool:
    """Return whether a row's prompt and answers are texts, not messages. A missing prompt counts as text.

    Args:
        row: the row, by column name.
        form: a format with answers.
        column: the column of the prompt, or of the chosen answer.
    """
    prompt = row.get(_prompt_in(form, column))
    parts = [row.get(name) for name in form.answers]
    parts += [prompt] if prompt is not None or form is not RowFormat.PREFERENCE else []
    return all(isinstance(part, str) and format_of_value(part) is None for part in parts)


def _prompt_in(form: RowFormat, column: str) -> str:
    return PROMPT if form is RowFormat.PREFERENCE else column


def conversation_of(row: Mapping[str, Any], form: RowFormat, column: str) -> Conversation | tuple[str, ...] | None:
    """Return a row's messages, or its prompt and answers if they are texts; None for a row without any turn.

    Args:
        row: the row, by column name.
        form: any format except the format of texts.
        column: the column of the messages, or of the prompt.

    Raises:
        ValueError: the row has a fault, which the message states.
    """
    asked, rejected = None, None
    if form.answers:
        prompt, answers = row.get(_prompt_in(form, column)), [row.get(name) for name in form.answers]
        if is_of_texts(row, form, column):
            return _texts(prompt, list(map(str, answers)))
        before, *after = _before_and_after(_listed(prompt), answers, form.answers, column)
        if not all(after):
            return None
        messages, asked = [*before, *after[0]], len(before)
        rejected = [*before, *after[1]] if len(after) > 1 else None
    elif form is RowFormat.CONVERSATIONS:
        messages = [_of_sharegpt(turn, column) for turn in _turns(value_at(row, column), column)]
    else:
        messages = _messages(value_at(row, column), column)
    if not messages:
        return None
    tools = _listed(row.get("tools"))
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ValueError("column 'tools' does not contain a list of JSON schemas")
    options = row.get("chat_template_kwargs") or {}
    if not isinstance(options, Mapping):
        raise ValueError("column 'chat_template_kwargs' does not contain an object")
    if taken := sorted({*options} & {*_OURS}):
        raise ValueError(f"column 'chat_template_kwargs' sets '{taken[0]}', which heldin sets itself: remove this key")
    return Conversation(messages, asked, rejected, _without_nulls(tools) or None, _without_nulls(options))


def _texts(prompt: str | None, answers: Sequence[str]) -> tuple[str, ...] | None:
    """Return the prompt and the answers. As in TRL, a missing prompt is the common beginning of both answers."""
    if not all(text.strip() for text in answers):
        return None
    _require_two(answers)
    if prompt is not None:
        return (prompt, *answers)
    # The blank before the first word that differs belongs to the answers.
    common = answers[0][: _alike(*answers)].removesuffix(" ")
    return (common, *(text[len(common) :] for text in answers))


def _alike(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return the number of equal items at the beginning of both sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def _before_and_after(prompt: Any, answers: Sequence[Any], names: Sequence[str], column: str) -> list[list[Message]]:
    """Return the messages of the prompt, and the messages of each answer."""
    after = [_messages(value, name) for value, name in zip(answers, names, strict=True)]
    _require_two(after)
    # A prompt of text beside answers of messages is the first of these messages, as some data sets have it.
    if len(after) == 1 or isinstance(prompt, list):
        return [_messages(prompt, column if len(after) == 1 else PROMPT), *after]
    alike = _alike(*after)
    before = after[0][:alike]
    if isinstance(prompt, str) and not any(message["content"].strip() == prompt.strip() for message in before):
        raise ValueError(
            "the prompt is text, but the answers are messages that do not begin with the prompt: write prompt and"
            " answers in one form"
        )
    return [before, *(messages[alike:] for messages in after)]


def _require_two(answers: Sequence[Any]) -> None:
    if len(answers) > 1 and answers[0] == answers[1]:
        raise ValueError("'chosen' and 'rejected' are the same, so the row states no preference: leave the row out")


def _without_nulls(value: Any) -> Any:
    """Remove null values from objects, because Parquet gives every object the keys of all other objects."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _turns(value: object, column: str) -> list[Any]:
    turns = _listed(value)
    if isinstance(turns, str) and _OF_PYTHON.match(turns):
        raise ValueError(
            f"column '{column}' contains a list that is not JSON, because pandas writes lists to CSV as Python"
            " code. Write each cell with json.dumps, or save JSON lines or Parquet"
        )
    if not isinstance(turns, list):
        raise ValueError(f"column '{column}' contains {kind_of(value)} instead of a list of messages")
    return turns


def _messages(value: object, column: str) -> list[Message]:
    return [_message(turn, column) for turn in _turns(value, column)]


def _message(turn: object, column: str) -> Message:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise ValueError(f"a message in column '{column}' has no role")
    message = _without_nulls(turn)
    content = message.get("content", "" if message.get("tool_calls") else None)
    if isinstance(content, list):
        content = _joined(content, column)
    if not isinstance(content, str):
        raise ValueError(f"a message of '{turn['role']}' in column '{column}' has no content")
    return {**message, "content": content}


def _joined(parts: list[Any], column: str) -> str:
    """Join a content that is a list of parts into a text. Raises ValueError for a part that is not text."""
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    kinds = [part.get("type", "text") if isinstance(part, dict) else kind_of(part) for part in texts]
    other = next((kind for kind in kinds if kind != "text"), None)
    if other is not None:
        raise ValueError(f"a message in column '{column}' has a part of type '{other}', but heldin reads only text")
    return "".join(str(part.get("text", "")) for part in texts)


def _of_sharegpt(turn: object, column: str) -> Message:
    if not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or not isinstance(turn.get("value"), str):
        raise ValueError(f"a turn in column '{column}' has no 'from' and 'value' with text")
    role = _SHAREGPT.get(turn["from"].lower())
    if role is None:
        raise ValueError(f"a turn in column '{column}' is from '{turn['from']}': use one of {', '.join(_SHAREGPT)}")
    return {"role": role, "content": turn["value"]}


def sharegpt_name(role: str, like: object) -> str:
    """Return the ShareGPT name of a role: the name that other turns of the row use, else the usual name."""
    turns = _listed(like)
    theirs = (turn.get("from") for turn in turns if isinstance(turn, dict)) if isinstance(turns, list) else ()
    same = (name for name in theirs if isinstance(name, str) and _SHAREGPT.get(name.lower()) == role)
    usual = (name for name, its_role in _SHAREGPT.items() if its_role == role)
    return next(same, next(usual))


def require_format(stated: str) -> RowFormat:
    """Return the format with this name. Raises InputError if there is none."""
    try:
        return RowFormat(stated)
    except ValueError:
        raise InputError(f"format is '{stated}': choose from {', '.join(RowFormat)}") from None
