"""A tokenizer's chat template, which makes a text from messages, and the place of each turn in the text.

The template's own generation marks show the assistant's parts. Without marks, TRL's training variant of the template
shows these parts, if the variant writes the same text. Otherwise, heldin finds the parts from the lengths of the texts
of fewer messages. heldin refuses a text if it cannot find the turns exactly.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldin.base.errors import InputError
from heldin.base.files import existing, text_sha256
from heldin.corpus.chat.conversation import Conversation, Message
from heldin.corpus.document import Document, Spans, Turn, TurnLayout, forked

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_MARKS = range(0xE000, 0xF8FF)  # private characters: what stands before one that no message has is the template's
_DATE = "strftime_now"  # a template that writes today's date would make other texts of the same rows tomorrow
ASSISTANT = "assistant"
_THOUGHTS = "</think>"
_PROBE = [{"role": role, "content": role} for role in ("user", ASSISTANT, "user", ASSISTANT)]
# ChatML, with marks around what the assistant writes.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class MaskFrom(StrEnum):
    """How heldin finds the assistant's parts of a text."""

    MARKS = "marks"
    VARIANT = "variant"
    POSITIONS = "positions"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Attributes:
        source: the template, in Jinja.
        special: the tokenizer's special tokens by name, such as bos_token.
        options: further values for the template.
        variant: the same template with generation marks; None: there is no such variant.
    """

    source: str
    special: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    variant: str | None = None

    @classmethod
    def of(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        name: str,
        *,
        file: Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> "ChatTemplate":
        """Return the template of a tokenizer, or the template in a file.

        Args:
            tokenizer: tokenizer whose special tokens the template may write.
            name: name of the tokenizer's model, for the error.
            file: a template in Jinja; None: the tokenizer's template.
            options: further values for the template.

        Raises:
            InputError: there is no template, or it writes today's date.
        """
        own = tokenizer.chat_template
        source = existing(file).read_text(encoding="utf-8") if file is not None else own
        if isinstance(source, dict):
            source = source.get("default")
        if not source:
            raise InputError(
                f"the tokenizer of '{name}' has no chat template: name a file with a template (--template, or the key"
                " 'template' in a config)"
            )
        if _DATE in source and not {"date_string"} & set(options or ()):
            raise InputError(
                f"the chat template of '{name}' writes today's date: give the date of the training, such as"
                f" template_options: {{date_string: 26 Jul 2024}}"
            )
        special = {key: str(token) for key, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
        return cls(source, special, options or {}, _variant_of(tokenizer, source) if file is None else None)

    @property
    def mask_from(self) -> MaskFrom:
        """How heldin finds the assistant's parts, according to a test with two questions and two answers."""
        if _GENERATION.search(self.source):
            return MaskFrom.MARKS
        return MaskFrom.VARIANT if self.variant is not None and self.is_as_in_trl else MaskFrom.POSITIONS

    @property
    def is_as_in_trl(self) -> bool:
        """Whether TRL's variant of the template, if there is one, writes the same text.

        TRL trains on the variant's text if only the assistant's turns have a loss.
        """
        if self.variant is None:
            return True
        try:
            return self.text(_PROBE) == self._written(self.variant, _PROBE, None)[0]
        except ValueError:
            return False

    def fingerprint(self) -> str:
        """Hash of all inputs that decide texts and turns."""
        return text_sha256(self.source, repr(sorted(self.special.items())), repr(self.options), repr(self.variant))

    def text(self, messages: Sequence[Message], given: Conversation | None = None, *, prompt: bool = False) -> str:
        """Return the text of messages.

        Args:
            messages: the messages, at least one.
            given: conversation with the tools and options for the template.
            prompt: whether the text ends where the assistant's turn begins.

        Raises:
            ValueError: the template refuses the messages.
        """
        return self._written(self.source, messages, given, prompt=prompt)[0]

    def document(self, conversation: Conversation) -> Document:
        """Return the text of a conversation with the places of its turns. All of the text counts.

        Raises:
            ValueError: the template refuses the messages or omits a part of them, or a turn cannot be found in the
                text.
        """
        if conversation.rejected is not None:
            both = (conversation.messages, conversation.rejected)
            return forked(*(self.document(replace(conversation, messages=m, rejected=None)) for m in both))
        messages = conversation.messages
        text, marked = self._marked(conversation)
        for name in conversation.fields:
            if self.text(messages, conversation) == self._without(conversation, name):
                raise ValueError(
                    f"the chat template does not write '{name}' of the row. Give the template of the model that is"
                    " trained on this row (--template, or the key 'template' in a config)"
                )
        self._require_written(messages, text)
        if marked is not None and not marked and any(m["role"] == ASSISTANT and m["content"] for m in messages):
            raise ValueError(
                "the generation marks of the chat template contain no text of the assistant: correct the template"
            )
        places = [] if marked is None else [Turn(ASSISTANT, begin, end) for begin, end in marked]
        ends = self._ends(conversation, text)
        for number, message in enumerate(messages):
            if marked is None or message["role"] != ASSISTANT:
                places.append(Turn(message["role"], *self._place(conversation, number, text, ends)))
        turns = _in_order(places)
        asked = None if conversation.asked is None else self._completion(conversation, text)
        return Document(text, ((0, len(text)),), TurnLayout(turns, asked))

    def _written(
        self,
        source: str,
        messages: Sequence[Message],
        given: Conversation | None,
        *,
        prompt: bool = False,
        marks: bool = False,
    ) -> tuple[str, Spans]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        options = {**self.special, **self.options, **(given.options if given else {})}
        try:
            (text,), places = render_jinja_template(
                [list(messages)],
                tools=None if given is None or given.tools is None else list(given.tools),
                chat_template=source,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=marks,
                **options,
            )
        except (TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise ValueError(f"the chat template rejects the messages ({error})") from error
        return text, tuple((begin, end) for begin, end in places[0]) if marks else ()

    def _marked(self, conversation: Conversation) -> tuple[str, Spans | None]:
        """Return the text, and the parts inside generation marks; None if no marks can be used."""
        messages = conversation.messages
        if _GENERATION.search(self.source):
            return self._written(self.source, messages, conversation, marks=True)
        text = self.text(messages, conversation)
        if self.variant is not None:
            try:
                same, places = self._written(self.variant, messages, conversation, marks=True)
            except ValueError:
                return text, None
            if same == text:
                return text, places
        return text, None

    def _without(self, conversation: Conversation, name: str) -> str | None:
        """Return the text without a field; None if the template refuses such messages."""
        less = conversation.without(name)
        try:
            return self.text(less.messages, less)
        except ValueError:
            return None

    @staticmethod
    def _require_written(messages: Sequence[Message], text: str) -> None:
        for message in messages:
            # Some templates leave out what an assistant thought, which stands before what it said.
            spoken = message["content"].rpartition(_THOUGHTS)[2]
            if any(line.strip() not in text for line in spoken.splitlines()):
                raise ValueError(f"the chat template leaves out the content of '{message['role']}'")

    def _ends(self, conversation: Conversation, text: str) -> list[int | None]:
        """Return where each turn ends in the text; None if the messages up to the turn do not give its beginning."""
        messages, ends = conversation.messages, list[int | None]()
        for number in range(1, len(messages)):
            try:
                before = self.text(messages[:number], conversation)
            except ValueError:  # such as a system message alone, which some templates write into the next turn
                ends.append(None)
            else:
                ends.append(len(before) if text.startswith(before) else None)
        return [*ends, len(text)]

    def _place(self, conversation: Conversation, number: int, text: str, ends: Sequence[int | None]) -> tuple[int, int]:
        """Return the places where the words of a turn begin, after the template's header, and where the turn ends.

        Raises ValueError if the text does not show the place.
        """
        messages, end = conversation.messages, ends[number]
        if end is None:
            return self._amid(conversation, number, text)
        if messages[number]["role"] == ASSISTANT and number:
            try:
                before = self.text(messages[:number], conversation, prompt=True)
            except ValueError:
                before = None
            # A template that does not let the assistant begin writes no more than without that.
            if before is not None and text.startswith(before) and len(before) != ends[number - 1]:
                return min(len(before), end), end
        last = next((end for end in reversed(ends[:number]) if end is not None), 0)
        mark = _mark_for(messages)
        header = self.text([*messages[:number], {**messages[number], "content": mark}], conversation)
        begin = header.find(mark)
        if not (last <= begin <= end and text.startswith(header[:begin])):
            raise _unknown(messages[number])
        return begin, end

    def _amid(self, conversation: Conversation, number: int, text: str) -> tuple[int, int]:
        """Return the place of a turn that the template writes differently if another turn follows.

        A mark replaces its words for the search.
        """
        messages, mark = conversation.messages, _mark_for(conversation.messages)
        marked = [*messages[:number], {**messages[number], "content": mark}, *messages[number + 1 :]]
        before, there, after = self.text(marked, conversation).partition(mark)
        if not (there and text.startswith(before) and text.endswith(after) and len(before) + len(after) <= len(text)):
            raise _unknown(messages[number])
        # The words are followed by what ends the same turn where it is the last.
        alone = self.text(marked[: number + 1], conversation).partition(mark)[2]
        return len(before), len(text) - len(after) + (len(alone) if after.startswith(alone) else 0)

    def _completion(self, conversation: Conversation, text: str) -> int:
        """Return where the prompt ends and the assistant's turn begins in the text."""
        prompt = self.text(conversation.messages[: conversation.asked], conversation, prompt=True)
        pairs = enumerate(zip(prompt, text, strict=False))
        return next((place for place, (before, after) in pairs if before != after), min(len(prompt), len(text)))


def _mark_for(messages: Sequence[Message]) -> str:
    """Return a character that no message contains."""
    taken = set().union(*(message["content"] for message in messages))
    return next(mark for mark in map(chr, _MARKS) if mark not in taken)


def _unknown(message: Message) -> ValueError:
    return ValueError(
        f"the part of the text with the turn of '{message['role']}' is unknown: give the template with generation"
        " marks (template)"
    )


def _in_order(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return the turns in order of place. Raises ValueError if two turns overlap."""
    ordered = sorted(turns, key=lambda turn: turn.begin)
    for before, after in itertools.pairwise(ordered):
        if after.begin < before.end:
            raise ValueError("the chat template merges two turns into one part of the text")
    return tuple(ordered)


@lru_cache(maxsize=16)
def _variant_of(tokenizer: "PreTrainedTokenizerBase", source: str) -> str | None:
    """Return TRL's variant of a template with generation marks; None without TRL or without a variant."""
    if _GENERATION.search(source):
        return None
    try:
        from trl.chat_template_utils import get_training_chat_template
    except ImportError:
        return None
    try:
        variant = get_training_chat_template(tokenizer)
    except Exception:  # of TRL, which raises what it finds for a template that it does not know
        return None
    return variant if isinstance(variant, str) else None
