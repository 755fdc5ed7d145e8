"""Requests to a server that generates text, and the content of its answers: texts, refusals, likeliest next tokens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from heldin.models.answers import AnswerRequest, Prefix
from heldin.models.endpoint_answers import finite

PROMPT = "Continue this text. Write only what comes next.\n\n"
PREFILL_KEYS = {"continue_final_message": True, "add_generation_prompt": False}
# How English models write that they will not: at the beginning of an answer.
_REFUSAL = re.compile(
    r"\W*(i'?m (very |so )?sorry|sorry[,. ]|i apologi[sz]e|i can(no|')t (help|assist|continue|comply|provide|do)|"
    r"i am (unable|not able)|i'?m (unable|not able)|as an ai\b)",
    re.IGNORECASE,
)


class Manner(StrEnum):
    """The type of request by which heldin gets a text from a server."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    PREFILLED = "chat, answer begun"

    @property
    def path(self) -> str:
        """URL path for requests."""
        return "/completions" if self is Manner.COMPLETIONS else "/chat/completions"


@dataclass(frozen=True)
class Refusing:
    """Rules for refusals: which of a server's texts are refusals, and how a refusal is scored.

    Attributes:
        empty: whether a refusal is scored as an empty text; if not, heldin does not score the refusal.
        beginnings: beginnings of refusals, in upper or lower case; None: refusals of English models.
    """

    empty: bool = True
    beginnings: tuple[str, ...] | None = None

    def is_refusal(self, written: "Written") -> bool:
        """Return whether the server reports a refusal, or the text begins like a refusal."""
        if written.refused:
            return True
        if self.beginnings is None:
            return _REFUSAL.match(written.text.replace("\u2019", "'")) is not None
        text = written.text.lstrip().casefold()
        return any(text.startswith(beginning.casefold()) for beginning in self.beginnings)


AS_ENGLISH = Refusing()


@dataclass(frozen=True)
class Written:
    """A generated text.

    Attributes:
        text: text from the server; empty if the server reports a refusal.
        refused: whether the server reports a refusal or a text withheld by a filter.
        tokens: number of generated tokens; None if the server reports no number.
        finished: the server's word for the reason why the text ended.
    """

    text: str
    refused: bool
    tokens: int | None
    finished: str | None


def body_of(manner: Manner, model: str, prefix: Prefix, prompt: str | None) -> dict[str, Any]:
    """Return the part of a request that contains the text to continue."""
    if manner is Manner.COMPLETIONS:
        return {"model": model, "prompt": prefix.text}
    messages = [{"role": role, "content": words} for role, words in prefix.turns]
    if messages:
        return {"model": model, "messages": messages, **(PREFILL_KEYS if prefix.begun else {})}
    asked = PROMPT if prompt is None else prompt
    if manner is Manner.PREFILLED:
        begun = {"role": "assistant", "content": prefix.text}
        messages = [{"role": "user", "content": asked.strip()}, begun]
        return {"model": model, "messages": messages, **PREFILL_KEYS}
    return {"model": model, "messages": [{"role": "user", "content": f"{asked}{prefix.text}"}]}


def sampling_body(asked: AnswerRequest, seed: int | None, count: int) -> dict[str, Any]:
    """Return the part of a request that contains the sampling settings.

    Args:
        seed: seed of the sampling; None if the server accepts none.
        count: number of texts per request; 1 is omitted, because some servers refuse the key.
    """
    settings: dict[str, Any] = {"max_tokens": asked.tokens, "temperature": asked.temperature}
    return {**settings, **({} if seed is None else {"seed": seed}), **({} if count == 1 else {"n": count})}


def listing_body(manner: Manner, count: int) -> dict[str, Any]:
    """Return the part of a request that asks for the likeliest next tokens."""
    listed = {"logprobs": count} if manner is Manner.COMPLETIONS else {"logprobs": True, "top_logprobs": count}
    # At temperature 1: some servers divide by it first.
    return {"max_tokens": 1, "temperature": 1, **listed}


def written_in(answer: Mapping[str, Any]) -> list[Written]:
    """Return the texts of an answer; empty if there are none."""
    choices = answer.get("choices")
    usage = answer.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    if not isinstance(choices, list):
        return []
    # The count is of all choices together.
    tokens = counted if isinstance(counted, int) and len(choices) == 1 else None
    return [written for choice in choices if (written := _written(choice, tokens)) is not None]


def _written(choice: object, tokens: int | None) -> Written | None:
    if not isinstance(choice, Mapping):
        return None
    message = choice.get("message")
    content = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    declined = isinstance(message, Mapping) and bool(message.get("refusal"))
    finished = choice.get("finish_reason")
    if declined or finished == "content_filter":
        return Written("", True, tokens, finished)
    return Written(content, False, tokens, finished) if isinstance(content, str) else None


def listed_in(answer: Mapping[str, Any]) -> list[tuple[str, float]] | None:
    """Return the likeliest next tokens in an answer, most likely first; None if the answer lists none."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return None
    pairs = _of_chat(logprobs.get("content")) or _of_completion(logprobs.get("top_logprobs"))
    if not pairs or finite([value for _, value in pairs]) is None:
        return None
    # Once each: a server may add the drawn token to those that it lists.
    return sorted(set(pairs), key=lambda pair: -pair[1])


def _of_chat(content: object) -> list[tuple[str, Any]]:
    if not isinstance(content, list) or not content or not isinstance(content[0], Mapping):
        return []
    listed = content[0].get("top_logprobs")
    entries: Sequence[object] = listed if isinstance(listed, list) else ()
    return [(str(entry.get("token")), entry.get("logprob")) for entry in entries if isinstance(entry, Mapping)]


def _of_completion(top: object) -> list[tuple[str, Any]]:
    first = top[0] if isinstance(top, list) and top else None
    return list(first.items()) if isinstance(first, Mapping) else []
