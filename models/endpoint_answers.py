"""Ask an OpenAI-compatible server for the log-probabilities of a prompt, and read its answer.

Servers use two styles. ``echo`` with ``logprobs`` returns the prompt with its tokens (OpenAI's completions, vLLM,
SGLang). vLLM's ``prompt_logprobs`` returns a table by token id for each position. In both styles, the first token of a
prompt has no probability.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

CERTAIN = 1e-3  # a log-probability may be above 0 by a rounding error
INFINITE = -9998.0  # vLLM writes -9999 for minus infinity, which JSON cannot say


class Style(StrEnum):
    """The form of a request. Some servers refuse to generate zero tokens, so one form asks for one token."""

    ECHO = "echo"
    ECHO_AND_ONE = "echo, one token generated"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LIFTED = "logit_bias"  # one token at a time: models.lifted_endpoint


# The temperature must be 1: some servers divide the prompt's logits by it too.
OF_PROMPTS: Mapping[Style, Mapping[str, Any]] = {
    Style.ECHO: {"max_tokens": 0, "temperature": 1, "echo": True, "logprobs": 1},
    Style.ECHO_AND_ONE: {"max_tokens": 1, "temperature": 1, "echo": True, "logprobs": 1},
    Style.PROMPT_LOGPROBS: {"max_tokens": 1, "temperature": 1, "prompt_logprobs": 1},
}


class NoLogprobs(Exception):
    """An answer without usable log-probabilities of the prompt. The message completes "the server returns ..."."""


@dataclass(frozen=True)
class Echoed:
    """A prompt as echoed by the server: its tokens as strings, and a value for each token (None for the first)."""

    tokens: tuple[str, ...]
    values: tuple[object, ...]


def request_body(style: Style, model: str, prompt: str | Sequence[int]) -> dict[str, Any]:
    """Return the body of a request for a prompt's log-probabilities."""
    return {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt), **OF_PROMPTS[style]}


def values_of_tokens(answer: Mapping[str, Any], style: Style, prompt: Sequence[int]) -> Sequence[object]:
    """Return the log-probabilities of ``prompt[1:]``, without a check of each value.

    Raises NoLogprobs unless the answer has a value for each of these tokens.
    """
    choice = _choice(answer)
    stated = _stated_count(answer)
    # A server that adds its own start token would shift every value by one token.
    if stated is not None and stated != len(prompt):
        raise NoLogprobs(f"that it read {stated} tokens where {len(prompt)} were sent")
    if style is not Style.PROMPT_LOGPROBS:
        return _prompt_part(choice, style, len(prompt)).values[1:]
    entries = choice.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise NoLogprobs(f"no prompt_logprobs but {_named(choice)}")
    # One too few or too many, and each value would be taken for another token's.
    if len(entries) != len(prompt):
        raise NoLogprobs(f"{len(entries)} prompt_logprobs for a prompt of {len(prompt)} tokens")
    return [_entry(entry, token) for entry, token in zip(entries[1:], prompt[1:], strict=True)]


def values_of_text(answer: Mapping[str, Any], style: Style, prompt: str) -> Echoed:
    """Return the echo of a prompt sent as text.

    Raises NoLogprobs if the answer has no echo with log-probabilities, or the echo is another text.
    """
    choice = _choice(answer)
    echoed = _prompt_part(choice, style, _stated_count(answer))
    text = choice.get("text")
    if not isinstance(text, str) or not text.startswith(prompt):
        raise NoLogprobs("the echo of another text than was sent (cut, or with its blanks changed)")
    return echoed


def reads_alike(as_ids: Mapping[str, Any], as_text: Mapping[str, Any], style: Style, prompt: Sequence[int]) -> bool:
    """Return whether the server splits a text into the token ids that heldin sent for the text.

    Args:
        as_ids: the server's answer to the ids.
        as_text: the server's answer to the text.
        style: style of the request.
        prompt: the sent ids: a start token and the text's tokens.

    Raises:
        NoLogprobs: an answer has no log-probabilities of the prompt.
    """
    # The server may put a start token of its own before the text, hence the one extra entry.
    count = len(prompt) - 1
    if style is Style.PROMPT_LOGPROBS:
        entries = _choice(as_text).get("prompt_logprobs")
        if not isinstance(entries, list) or not count <= len(entries) <= count + 1:
            return False
        pairs = list(zip(entries[-count:], prompt[1:], strict=True))
        # Each table holds the prompt's own token, so a missing id means that the server read another token.
        return all(entry is None or (isinstance(entry, dict) and str(token) in entry) for entry, token in pairs)
    ours = _prompt_part(_choice(as_ids), style, len(prompt)).tokens[1:]
    theirs = _prompt_part(_choice(as_text), style, _stated_count(as_text)).tokens
    return count <= len(theirs) <= count + 1 and theirs[-count:] == ours


def finite(values: Sequence[object]) -> NDArray[np.float32] | None:
    """Return the values as log-probabilities, shape (n,); None if a value is not a finite log-probability."""
    good = [
        # JSON has true and numbers in quotes too; Python would count true as 1.
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and INFINITE < v <= CERTAIN
        for v in values
    ]
    return np.array(values, dtype=np.float32) if all(good) else None


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    # With several choices it would be unclear which one echoes the prompt.
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise NoLogprobs(f"no single choice but {_named(answer)}")
    return choices[0]


def _stated_count(answer: Mapping[str, Any]) -> int | None:
    """Return the number of prompt tokens that the server reports; None if it reports no number."""
    usage = answer.get("usage")
    stated = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return stated if isinstance(stated, int) else None


def _prompt_part(choice: Mapping[str, Any], style: Style, count: int | None) -> Echoed:
    """Return the prompt's tokens and values, without a generated token. ``count`` is the number of the prompt's tokens,
    if known."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        raise NoLogprobs(f"no logprobs but {_named(choice)}")
    values, tokens = logprobs.get("token_logprobs"), logprobs.get("tokens")
    if not isinstance(values, list) or not isinstance(tokens, list) or len(values) != len(tokens):
        raise NoLogprobs(f"logprobs without as many token_logprobs as tokens, but with {_named(logprobs)}")
    # A generated token stands behind the prompt's and is no part of the text.
    generated = 0 if style is Style.ECHO else 1
    if count is None:
        count = len(values) - generated
    # A first value of null marks the prompt's first token; otherwise only the exact number shows that none is missing.
    first_is_null = bool(values) and values[0] is None
    if not (len(values) == count + generated or (first_is_null and count <= len(values) <= count + 1)):
        raise NoLogprobs(f"{len(values)} token_logprobs for a prompt of {count} tokens")
    return Echoed(tuple(map(str, tokens[:count])), tuple(values[:count]))


def _entry(entry: object, token: int) -> object:
    """Return the value of ``token`` in a table by token id."""
    value = entry.get(str(token)) if isinstance(entry, dict) else None
    if value is None:
        raise NoLogprobs(f"prompt_logprobs without the token {token} that was sent")
    return value.get("logprob") if isinstance(value, dict) else value


def _named(content: Mapping[str, Any]) -> str:
    """Return the names of the non-null entries, for error messages."""
    names = sorted(str(name) for name, value in content.items() if value is not None)
    return ", ".join(names[:8]) or "nothing"
