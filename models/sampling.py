"""Answers of a model on this machine. The model processes many prefixes at once, and reads each prefix once for all its
samples.

Each draw depends only on the seed and the prefix, not on the rest of the batch. Target and reference use the same
random numbers, which reduces the noise in the difference of their samples.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.answers import Advance, AnswerRequest, AnswerStore, Listed, Prefix, request_key
from heldin.models.arithmetic import true_float32
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import batches_by_length, keeps_logits, stated_batch_size, tokens_per_batch
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import Framed, Ids, started, token_lists

_ROWS = 512  # of a batch at most: more gain nothing on any device
_PREFIXES = 64  # whose answers are written together
_BEFORE = 8  # tokens before the next one, with which it is written as text


def sampled(
    lm: LanguageModel,
    prefixes: Sequence[Prefix],
    asked: AnswerRequest,
    store: AnswerStore,
    advance: Advance | None = None,
) -> list[tuple[str, ...]]:
    """Return the continuations of each prefix, without top-k or top-p, each up to the end-of-text token.

    Args:
        advance: called with the number of prefixes that are done.

    Raises:
        InputError: prefix and continuation do not fit into the model's context, or the model cannot cache the tokens
            that it has read.
    """
    if lm.context <= asked.tokens + 1:
        raise InputError(
            f"attack.sampling.tokens is {asked.tokens}, but the context of '{lm.name}' has {lm.context} tokens, and"
            " the beginning of a text does not fit: lower attack.sampling.tokens"
        )
    keys = [request_key(prefix, asked, "samples", without=("likeliest",)) for prefix in prefixes]

    def answers(missing: Sequence[Prefix]) -> list[Any]:
        return _samples(
            lm, _token_ids(lm, missing, asked.tokens), asked, [seed_of(asked, prefix) for prefix in missing]
        )

    done = _with_store(lm, prefixes, keys, store, answers, advance)
    return [tuple(answer) for answer in done]


def likeliest(
    lm: LanguageModel,
    prefixes: Sequence[Prefix],
    asked: AnswerRequest,
    store: AnswerStore,
    advance: Advance | None = None,
) -> list[Listed]:
    """Return the likeliest next tokens after each prefix, most likely first. Arguments are the same as for
    ``sampled``."""
    keys = [
        request_key(prefix, asked, "next", without=("samples", "tokens", "temperature", "seed")) for prefix in prefixes
    ]

    def answers(missing: Sequence[Prefix]) -> list[Any]:
        return _next_tokens(lm, _token_ids(lm, missing, 1), asked.likeliest)

    return [
        [(token, value) for token, value in answer]
        for answer in _with_store(lm, prefixes, keys, store, answers, advance)
    ]


@dataclass(frozen=True)
class AskedAsChat:
    """A model on this machine that heldin asks in chats, like a target behind a chat endpoint.

    Attributes:
        prompt: request that precedes a text that is not a chat.
        goes_on: whether heldin asks the model to continue a partly written answer, as it asks the target.
    """

    lm: LanguageModel
    prompt: str
    goes_on: bool = True

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.lm.name

    @property
    def fingerprint(self) -> str:
        """Hash of the model and the prompt."""
        return text_sha256("as chat", self.lm.fingerprint, self.prompt)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the model."""
        return self.lm.tokenizer

    @property
    def chunk(self) -> int:
        """Number of texts to continue together."""
        return _PREFIXES

    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """Raise InputError, because a model that answers chats gives no log-probabilities."""
        raise InputError(f"'{self.name}' answers as a chat here, and gives no log-probabilities: leave this level out")

    def samples(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: AnswerStore, advance: Advance | None = None
    ) -> list[tuple[str, ...]]:
        """Return the continuations of each prefix: see ``sampled``."""
        return sampled(self.lm, list(map(self._as_chat, prefixes)), asked, store, advance)

    def next_tokens(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: AnswerStore, advance: Advance | None = None
    ) -> list[Listed]:
        """Return the likeliest next tokens after each prefix: see ``likeliest``."""
        return likeliest(self.lm, list(map(self._as_chat, prefixes)), asked, store, advance)

    def _as_chat(self, prefix: Prefix) -> Prefix:
        turns = prefix.turns or (("user", f"{self.prompt}{prefix.text}"),)
        messages = [{"role": role, "content": words} for role, words in turns]
        ending = {"continue_final_message": True} if prefix.begun else {"add_generation_prompt": True}
        return Prefix(str(self.lm.tokenizer.apply_chat_template(messages, tokenize=False, **ending)), framed=True)


def asked_as_chat(lm: LanguageModel, prompt: str, *, goes_on: bool) -> AskedAsChat:
    """Return the model in the form that answers chats. Raises InputError if the model has no chat template."""
    if lm.tokenizer.chat_template is None:
        raise InputError(
            f"the target answers as a chat, but the reference '{lm.name}' has no chat template, so their texts are"
            " not comparable. Choose a chat model as reference, or a model behind the endpoint (endpoint:NAME)"
        )
    return AskedAsChat(lm, prompt, goes_on)


def _with_store(
    lm: LanguageModel,
    prefixes: Sequence[Prefix],
    keys: Sequence[bytes],
    store: AnswerStore,
    answers: Callable[[Sequence[Prefix]], list[Any]],
    advance: Advance | None,
) -> list[Any]:
    """Return an answer for each prefix, from the store if possible; equal requests are answered only once."""
    kept = {key: store.kept(lm.fingerprint, key).get(0) for key in dict.fromkeys(keys)}
    missing = {key: prefix for key, prefix in zip(keys, prefixes, strict=True) if kept[key] is None}
    if advance:
        advance(sum(kept[key] is not None for key in keys))
    # Of like length together, so that little is padded.
    todo = sorted(missing, key=lambda key: len(missing[key].text))
    for begin in range(0, len(todo), _PREFIXES):
        chunk = todo[begin : begin + _PREFIXES]
        made = answers([missing[key] for key in chunk])
        store.keep(lm.fingerprint, [(key, 0, answer) for key, answer in zip(chunk, made, strict=True)])
        kept.update(zip(chunk, made, strict=True))
        if advance:
            advance(sum(key in set(chunk) for key in keys))
    return [kept[key] for key in keys]


def seed_of(asked: AnswerRequest, prefix: Prefix) -> int:
    """Return the seed of the samples after a prefix."""
    digest = hashlib.blake2b(f"{asked.seed} {prefix.text}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def _token_ids(lm: LanguageModel, prefixes: Sequence[Prefix], room: int) -> list[list[int]]:
    """Return the tokens of each prefix after the start token. For a long prefix, these are only the last tokens."""
    texts = [Framed(prefix.text) if prefix.framed else prefix.text for prefix in prefixes]
    rows = []
    for text, ids in zip(texts, token_lists(lm.tokenizer, texts), strict=True):
        before, behind = started(text, ids, lm.start_token)
        most = lm.context - room - 1
        rows.append([before, *(behind[-most:] if most else [])])
    return rows


def _batches(lm: LanguageModel, rows: Sequence[Ids], room: int, samples: int) -> list[list[int]]:
    most = max(1, min(stated_batch_size() or _ROWS, _ROWS) // samples)
    budget = max(1, tokens_per_batch(lm.model) // samples)
    return list(batches_by_length([len(row) + room for row in rows], max_tokens=budget, most=most, free=budget))


@torch.inference_mode()
def _samples(lm: LanguageModel, rows: Sequence[Ids], asked: AnswerRequest, seeds: Sequence[int]) -> list[list[str]]:
    texts: list[list[str]] = [[] for _ in rows]
    for batch in _batches(lm, rows, asked.tokens, asked.samples):
        uniform = torch.stack(
            [torch.rand(asked.samples, asked.tokens, generator=torch.Generator().manual_seed(seeds[i])) for i in batch]
        )
        with true_float32():
            drawn = _drawn_tokens(lm, [rows[i] for i in batch], uniform.flatten(0, 1), asked)
        ended = [_up_to_end(ids, lm.tokenizer.eos_token_id) for ids in drawn.tolist()]
        written = lm.tokenizer.batch_decode(ended, skip_special_tokens=True)
        for place, i in enumerate(batch):
            texts[i] = written[place * asked.samples : (place + 1) * asked.samples]
    return texts


def _drawn_tokens(lm: LanguageModel, rows: Sequence[Ids], uniform: torch.Tensor, asked: AnswerRequest) -> torch.Tensor:
    """Draw tokens after each row, shape (B k, T), by inverting the distribution function at ``uniform`` (B k, T).

    The model reads each row once. heldin then repeats the model's cache for the k samples of the row.
    """
    ids, mask = _padded(lm, rows)
    places = (mask.cumsum(1) - 1).clamp(min=0)  # (B, L)
    read = _pass(lm, ids, mask, places, None)
    cache = read.past_key_values
    if not hasattr(cache, "batch_repeat_interleave"):
        raise InputError(
            f"'{lm.name}' ({lm.architecture}) cannot cache the text that precedes a token, so sampling would take"
            " hours: leave level text out"
        )
    cache.batch_repeat_interleave(asked.samples)
    mask, place = (tensor.repeat_interleave(asked.samples, 0) for tensor in (mask, places[:, -1:]))
    logits = read.logits[:, -1].repeat_interleave(asked.samples, 0)  # (B k, V)
    uniform, end = uniform.to(lm.device), lm.tokenizer.eos_token_id
    drawn, ended = [], torch.zeros(len(logits), dtype=torch.bool, device=lm.device)
    for step in range(asked.tokens):
        below = (logits.float() / asked.temperature).softmax(-1).cumsum(-1)
        token = torch.searchsorted(below, uniform[:, step : step + 1] * below[:, -1:], right=True)
        token = token.clamp(max=below.shape[1] - 1)  # (B k, 1)
        drawn.append(token)
        if end is not None:
            ended |= token[:, 0] == end
            if bool(ended.all()):
                break
        if step + 1 < asked.tokens:
            mask = torch.cat([mask, torch.ones_like(token)], dim=1)
            place = place + 1
            logits = _pass(lm, token, mask, place, cache).logits[:, -1]
    return torch.cat(drawn, dim=1)


@torch.inference_mode()
def _next_tokens(lm: LanguageModel, rows: Sequence[Ids], count: int) -> list[list[tuple[str, float]]]:
    listed: list[list[tuple[str, float]]] = [[] for _ in rows]
    for batch in _batches(lm, rows, 1, 1):
        ids, mask = _padded(lm, [rows[i] for i in batch])
        with true_float32():
            logits = _pass(lm, ids, mask, (mask.cumsum(1) - 1).clamp(min=0), None).logits[:, -1]
        values, tokens = logits.float().log_softmax(-1).topk(min(count, logits.shape[1]))
        for i, of_row, ids_of_row in zip(batch, values.tolist(), tokens.tolist(), strict=True):
            before = list(rows[i][-_BEFORE:])
            start = lm.tokenizer.decode(before)
            # With some tokens before it, because a token alone may lose the blank that it begins with.
            words = [lm.tokenizer.decode([*before, token])[len(start) :] for token in ids_of_row]
            listed[i] = list(zip(words, of_row, strict=True))
    return listed


def _padded(lm: LanguageModel, rows: Sequence[Ids]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask, shape (B, L), padded on the left, so all rows end at the same position."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), lm.start_token)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, longest - len(tokens) :] = torch.tensor(list(tokens))
        mask[row, longest - len(tokens) :] = 1
    return ids.to(lm.device), mask.to(lm.device)


def _pass(lm: LanguageModel, ids: torch.Tensor, mask: torch.Tensor, places: torch.Tensor, cache: Any) -> Any:
    """Run one pass over ids (B, L) that follow the tokens in ``cache``."""
    settings: dict[str, Any] = {"logits_to_keep": 1} if keeps_logits(lm) else {}
    if "position_ids" in inspect.signature(lm.model.forward).parameters:
        settings["position_ids"] = places
    return lm.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **settings)


def _up_to_end(ids: Sequence[int], end: int | None) -> list[int]:
    return list(ids[: ids.index(end)] if end is not None and end in ids else ids)
