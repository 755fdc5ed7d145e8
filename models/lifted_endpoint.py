"""Log-probabilities of given texts from a server that lists only the likeliest next tokens and accepts ``logit_bias``.

A bias multiplies a token's odds against every other token. heldin therefore lifts an unlisted token together with a
listed token above all others. The difference of their log-probabilities does not change, so the listed token's value
without a bias gives the other token's value (Morris et al. 2023, arXiv 2311.13647, section 4). If the server lists a
token without a bias, heldin needs no second request.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.endpoint import (
    COMPLETIONS,
    SHORT_PROBE,
    EndpointModel,
    Load,
    NoPromptLogprobs,
    open_endpoint_model,
    prompts_of,
    token_scores,
    tokenizer_hash,
    window_at,
)
from heldin.models.endpoint_answers import Style
from heldin.models.endpoint_client import Connection, RefusedRequest
from heldin.models.loading import load_tokenizer
from heldin.models.text_answers import Manner, listed_in, listing_body
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import start_token

BIAS = 50.0  # lifts any token above all others: no model gives one less than e^-50 of the likeliest
# Nats by which two answers about one token may differ: 16-bit arithmetic moves a log-probability by some hundredths.
AGREE = 0.05
_COUNTS = (20, 5, 2)  # listed next tokens that servers give at most; one leaves none to compare with
_UNKNOWN = "\ufffd"  # how a token that is a part of a character is written
_TRIES = 16  # biases of one token, until its log-probability can be read from its odds
_READABLE = (math.log(0.02), math.log(0.98))  # log-probabilities from which odds follow without loss of digits

Tops = Mapping[str, float]


@dataclass(frozen=True)
class LiftedEndpoint(EndpointModel):
    """A model behind an endpoint whose listed log-probabilities changed with ``logit_bias`` in a test.

    Attributes:
        count: number of next tokens that the server lists.
        own_words: token ids by written form; contains only written forms that belong to a single token.
    """

    count: int
    own_words: Mapping[str, int]

    @property
    def chunk(self) -> int:
        """Number of texts to score before their scores are saved: one, because each text takes many requests."""
        return 1

    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """Score every text, with one or two requests per token.

        Raises:
            InputError: a text has no tokens, or the server's answers contradict each other.
            ResumableError: the endpoint has stopped answering.
        """
        values: list[list[object]] = [[] for _ in texts]
        for text, prompt in prompts_of(self, texts):
            values[text] += self._logprobs_of(prompt, text)
        return [token_scores(self, of_text, text) for text, of_text in enumerate(values)]

    def load(self, texts: Sequence[str]) -> Load:
        """Return the cost of scoring ``texts`` with two requests per token, which is almost always an overestimate."""
        sizes = [len(prompt) for _, prompt in prompts_of(self, texts)] if texts else []
        requests = 2 * sum(size - 1 for size in sizes)
        sent = sum(size * (size - 1) for size in sizes)  # twice 1 + 2 + ... + size - 1
        return Load(requests, sent, counted=True, generated=requests, about=True)

    def _logprobs_of(self, prompt: str | list[int], text: int) -> list[float]:
        """Return the log-probabilities of ``prompt[1:]``."""
        assert not isinstance(prompt, str)
        before = [prompt[:end] for end in range(1, len(prompt))]
        plain = self._listed([self._body(ids) for ids in before])
        values = [self._as_listed(tops, token) for tops, token in zip(plain, prompt[1:], strict=True)]
        missing = [place for place, value in enumerate(values) if value is None]
        beside = [self._known(before[place], plain[place]) for place in missing]
        pairs = [(prompt[place + 1], self.own_words[word]) for place, (word, _) in zip(missing, beside, strict=True)]
        lifted = self._listed(
            [self._body(before[place], *pair) for place, pair in zip(missing, pairs, strict=True)],
        )
        for place, (word, known), tops in zip(missing, beside, lifted, strict=True):
            try:
                values[place] = logprob_beside(word, known, tops)
            except ValueError as error:
                raise InputError(
                    f"endpoint model '{self.name}' contradicts itself at token {place + 1} of text number {text + 1}"
                    f" ({error}): choose level top-k or text (--access)"
                ) from error
        return [value for value in values if value is not None]

    def _known(self, ids: Sequence[int], tops: Tops) -> tuple[str, float]:
        """Return a token's written form and log-probability. Takes the likeliest listed token with a unique written
        form."""
        listed = [word for word in tops if word in self.own_words]
        if listed:
            word = max(listed, key=lambda each: tops[each])
            return word, tops[word]
        word = next(iter(self.own_words))
        return word, self._by_odds(ids, word)

    def _by_odds(self, ids: Sequence[int], word: str) -> float:
        """Return the log-probability of a token that is listed only with a bias, from its odds under a medium bias."""
        low, high = 0.0, BIAS
        for _ in range(_TRIES):
            bias = (low + high) / 2
            (tops,) = self._listed([self._body(ids, self.own_words[word], bias=bias)])
            value = tops.get(word, -math.inf)
            if _READABLE[0] <= value <= _READABLE[1]:
                odds = value - math.log(-math.expm1(value)) - bias  # their logarithm
                return odds - math.log1p(math.exp(odds))
            low, high = (low, bias) if value > _READABLE[1] else (bias, high)
        raise InputError(
            f"endpoint model '{self.name}' lists a token that logit_bias does not lift, or always lists it as certain"
        )

    def _as_listed(self, tops: Tops, token: int) -> float | None:
        """Return the listed log-probability of a token; None if it is not listed, or shares its written form."""
        return next((value for word, value in tops.items() if self.own_words.get(word) == token), None)

    def _body(self, ids: Sequence[int], *lifted: int, bias: float = BIAS) -> dict[str, Any]:
        return _body_of(self.name, list(ids), self.count, lifted, bias)

    def _listed(self, bodies: Sequence[dict[str, Any]]) -> list[Tops]:
        return [_tops(answer) for answer in self.connection.post_all(COMPLETIONS, bodies)]


def logprob_beside(word: str, known: float, lifted: Tops) -> float:
    """Return the log-probability, in nats, of a token that ``logit_bias`` lifted together with a known token.

    Args:
        word: written form of the known token, which no other token has.
        known: log-probability of the known token without a bias.
        lifted: the two likeliest next tokens and their log-probabilities under the bias.

    Raises ValueError if the known token is not one of the two, or if other tokens are as likely.
    """
    (other,) = [value for each, value in lifted.items() if each != word][:1] or [-math.inf]
    if word not in lifted or math.isinf(other):
        raise ValueError("it lists other tokens than the two that logit_bias lifts")
    # Lifted so far, the two share all probability: a list that does not move with the bias has less on them.
    if abs(np.logaddexp(other, lifted[word])) > AGREE:
        raise ValueError("the log-probabilities that it lists do not move with logit_bias")
    return min(known + other - lifted[word], 0.0)


def open_scoring_model(
    connection: Connection, name: str, *, tokenizer: str | None = None, context: int | None = None
) -> EndpointModel:
    """Open a model that returns log-probabilities of texts, either of a prompt, or of next tokens with ``logit_bias``.

    Arguments and errors are the same as for ``open_endpoint_model``. Only ``logit_bias`` needs a tokenizer.
    """
    try:
        return open_endpoint_model(connection, name, tokenizer=tokenizer, context=context)
    except NoPromptLogprobs as error:
        if tokenizer is None:
            raise
        try:
            return open_lifted(connection, name, tokenizer=tokenizer, context=context)
        except InputError as lifted:
            raise NoPromptLogprobs(f"{error}. logit_bias does not help either: {lifted}") from lifted


def open_lifted(connection: Connection, name: str, *, tokenizer: str, context: int | None = None) -> LiftedEndpoint:
    """Test with a few public words whether ``logit_bias`` reveals the log-probabilities of unlisted tokens.

    Args:
        tokenizer: folder or hub name of the model's tokenizer.
        context: number of tokens per request; None: as the server reports, at most 2,048.

    Raises InputError if the server lists fewer than two next tokens or ignores the bias, or if the tokenizer does not
    match the model's.
    """
    loaded = load_tokenizer(tokenizer)
    window = window_at(connection, name, context)
    start, own_words = start_token(loaded, tokenizer), _own_words(loaded)
    ids = loaded(SHORT_PROBE, add_special_tokens=False)["input_ids"]
    count, tops = _most_listed(connection, name, [start, *ids])
    if not _reads_alike(connection, name, count, tops, ids):
        raise InputError(
            f"the tokenizer '{tokenizer}' is not the tokenizer of '{name}', because the same words, sent as text and"
            " as tokens, have different continuations. Give the model's own tokenizer"
        )
    # Two tokens whose log-probabilities are known, of which the less likely is lifted above the other.
    words = [word for word in sorted(tops, key=lambda word: -tops[word]) if word in own_words][:2]
    if len(words) < 2:
        raise InputError(f"'{name}' lists fewer than two next tokens that the tokenizer '{tokenizer}' writes alike")
    first, second = words
    answers = []
    for lifted in ((own_words[second], own_words[first]), (own_words[second],)):
        try:
            answer = _tops(connection.post(COMPLETIONS, _body_of(name, [start, *ids], count, lifted)))
        except RefusedRequest as error:
            raise InputError(f"the endpoint refuses logit_bias ({error})") from error
        answers.append(answer)
    try:
        value = logprob_beside(first, tops[first], answers[0])
    except ValueError as error:
        raise InputError(str(error)) from error
    # Lifted together, both keep their distance; the second alone is next to certain.
    if abs(value - tops[second]) > AGREE or abs(answers[1].get(second, -math.inf)) > AGREE:
        raise InputError("logit_bias lifts other tokens than the given tokens, or lifts them unequally")
    key = text_sha256(
        "endpoint", connection.endpoint.base, name, Style.LIFTED, tokenizer_hash(loaded), str(start), str(window)
    )
    return LiftedEndpoint(name, connection, Style.LIFTED, loaded, window, {}, key, count, own_words)


def _own_words(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    words = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    often = Counter(words)
    return {word: token for token, word in enumerate(words) if often[word] == 1 and _UNKNOWN not in word}


def _body_of(
    name: str, ids: str | list[int], count: int, lifted: Sequence[int] = (), bias: float = BIAS
) -> dict[str, Any]:
    # Of two that are lifted no third is listed, since one that is written alike could hide either.
    listed = listing_body(Manner.COMPLETIONS, len(lifted) if len(lifted) > 1 else count)
    asked = {"model": name, "prompt": ids, **listed}
    return {**asked, "logit_bias": {str(token): bias for token in lifted}} if lifted else asked


def _tops(answer: Mapping[str, Any]) -> Tops:
    return dict(listed_in(answer) or ())


def _most_listed(connection: Connection, name: str, ids: list[int]) -> tuple[int, Tops]:
    refusal = ""
    for count in _COUNTS:
        try:
            tops = _tops(connection.post(COMPLETIONS, _body_of(name, ids, count)))
        except RefusedRequest as error:
            refusal = f" ({error})"
            continue
        if len(tops) > 1:
            return count, tops
    raise InputError(f"'{name}' lists fewer than two next tokens when the prompt is token ids{refusal}")


def _reads_alike(connection: Connection, name: str, count: int, tops: Tops, ids: list[int]) -> bool:
    """Return whether the server reads the public words as these tokens, with or without a start token."""
    as_text = _tops(connection.post(COMPLETIONS, _body_of(name, SHORT_PROBE, count)))
    if _alike(as_text, tops):
        return True
    return _alike(as_text, _tops(connection.post(COMPLETIONS, _body_of(name, ids, count))))


def _alike(first: Tops, second: Tops) -> bool:
    shared = first.keys() & second.keys()
    return len(shared) > 1 and all(abs(first[word] - second[word]) <= AGREE for word in shared)
