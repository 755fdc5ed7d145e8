"""A language model behind a completions endpoint, whose API returns token log-probabilities of texts.

With the model's tokenizer, heldin scores exactly the tokens that ``models.logprobs`` scores: it sends token ids in the
same windows, each after the start token. Without the tokenizer, it sends each text after one public character. Either
way, all characters of the text are scored.
"""

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from heldin.base.errors import InputError, ResumableError
from heldin.base.files import text_sha256
from heldin.models.endpoint_answers import (
    OF_PROMPTS,
    Echoed,
    NoLogprobs,
    Style,
    finite,
    reads_alike,
    request_body,
    values_of_text,
    values_of_tokens,
)
from heldin.models.endpoint_client import Connection, RefusedRequest
from heldin.models.loading import PROBE, load_tokenizer
from heldin.models.logprobs import cut_into_windows
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import Framed, start_token, token_lists

COMPLETIONS = "/completions"
# Put before a text, because the first token of a prompt has no probability: a newline, or a letter if the text begins
# with a blank, so that no tokenizer should merge the two. Whether the server does is checked for every text.
BEFORE_TEXT, BEFORE_BLANK = "\n", "A"
SHORT_PROBE = "The quick brown fox"
BYTES_PER_TOKEN = 4  # in English; for estimates only
# Tokens of a request unless the caller names a context. A server holds log-probabilities of a prompt over the whole
# vocabulary, some 6 bytes each: 1.6 GB for 2,048 tokens of 128,000 words, for every request in flight.
LARGEST_CONTEXT = 2048
_LENGTH_KEYS = ("max_model_len", "context_length", "context_window")  # vLLM; Together and OpenRouter; Groq


class NoPromptLogprobs(InputError):
    """The server answers, but returns no log-probabilities of a prompt in any style."""


@dataclass(frozen=True)
class Load:
    """The cost of scoring texts.

    Attributes:
        tokens: number of sent tokens; for scoring, includes a token that a request may have to generate.
        counted: whether the tokenizer counted the tokens; if not, the number is an estimate.
        generated: number of generated tokens; 0 unless texts are continued.
        about: whether the actual number of tokens may differ.
    """

    requests: int
    tokens: int
    counted: bool
    generated: int = 0
    about: bool = False


@dataclass(frozen=True)
class EndpointModel:
    """A model behind an endpoint that, in a test, returned log-probabilities of a prompt.

    Attributes:
        name: the model's name on the server.
        style: style of the requests.
        tokenizer: the model's own tokenizer; None: texts are sent as plain text.
        window: maximum number of tokens of a text in one request; None without a tokenizer.
        leads: the server's tokens for each character that heldin puts before a text; used without a tokenizer.
        fingerprint: hash of every known setting that affects the scores: address, name, style, tokenizer, window. The
            hash does not cover the weights.
    """

    name: str
    connection: Connection
    style: Style
    tokenizer: PreTrainedTokenizerBase | None
    window: int | None
    leads: Mapping[str, tuple[str, ...]]
    fingerprint: str

    @property
    def chunk(self) -> int:
        """Number of texts to score before their scores are saved."""
        # Few enough that a killed run loses little, many enough to keep all requests in flight.
        return 8 * self.connection.endpoint.concurrency

    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """Score every text; see the module docstring for the requests.

        Raises:
            InputError: a text has no tokens; a text is too long for the model, and there is no tokenizer to cut it; or
                an answer lacks a finite log-probability for some token.
            ResumableError: the endpoint has stopped answering.
        """
        if not texts:
            return []
        prompts = prompts_of(self, texts)
        # All windows of all texts at once, so that a long text does not hold up the others.
        bodies = [request_body(self.style, self.name, prompt) for _, prompt in prompts]
        try:
            answers = self.connection.post_all(COMPLETIONS, bodies)
        except RefusedRequest as error:
            longer = (
                ""
                if self.tokenizer
                else " (is a text too long for the model? give --tokenizer, or lower attack.max_characters)"
            )
            raise InputError(f"{error}{longer}") from error
        # Answers come in the order of the prompts, so that windows of a text are joined in order.
        values: list[list[object]] = [[] for _ in texts]
        for (text, prompt), answer in zip(prompts, answers, strict=True):
            try:
                if isinstance(prompt, str):
                    values[text] += _after_lead(self, values_of_text(answer, self.style, prompt), prompt[0], text)
                else:
                    values[text] += values_of_tokens(answer, self.style, prompt)
            except NoLogprobs as error:
                raise InputError(f"endpoint model '{self.name}' returns for text number {text + 1} {error}") from error
        return [token_scores(self, of_text, text) for text, of_text in enumerate(values)]

    def load(self, texts: Sequence[str]) -> Load:
        """Return the cost of scoring ``texts``."""
        # Tokens that a request generates besides what it sends: they are paid for too.
        generated = 0 if self.style is Style.ECHO else 1
        if not texts:
            return Load(0, 0, counted=self.tokenizer is not None)
        prompts = [prompt for _, prompt in prompts_of(self, texts)]
        sizes = [math.ceil(len(p.encode()) / BYTES_PER_TOKEN) if isinstance(p, str) else len(p) for p in prompts]
        return Load(len(prompts), sum(sizes) + generated * len(prompts), counted=self.tokenizer is not None)


def open_endpoint_model(
    connection: Connection, name: str, *, tokenizer: str | None = None, context: int | None = None
) -> EndpointModel:
    """Find out how the endpoint returns log-probabilities of a prompt, by sending a few public words.

    Args:
        tokenizer: folder or hub name of the model's tokenizer; None: texts are sent as plain text.
        context: number of tokens per request; None: as the server reports, at most 2,048. Used only with a tokenizer.

    Raises:
        InputError: the server returns no log-probabilities of a prompt, the tokenizer does not match the model's, or
            the context length is unknown.
    """
    if tokenizer is None:
        # Sent as a text would be, so that a server which changes leading blanks is found out here.
        style, _ = _style_of(connection, name, BEFORE_TEXT + SHORT_PROBE)
        leads = {lead: _tokens_of(connection, name, style, lead) for lead in (BEFORE_TEXT, BEFORE_BLANK)}
        # The server may exchange the weights under the same name; ``probe_now`` exists to notice that.
        key = text_sha256("endpoint", connection.endpoint.base, name, style, "text")
        return EndpointModel(name, connection, style, None, None, leads, key)
    loaded = load_tokenizer(tokenizer)
    window = window_at(connection, name, context)
    words, ids = _fitting(PROBE, loaded, window)
    prompt = [start_token(loaded, tokenizer), *ids]
    style, as_ids = _style_of(connection, name, prompt)
    # The same words as text and as ids must give the same tokens, or the tokenizer is another model's.
    as_text = connection.post(COMPLETIONS, request_body(style, name, words))
    try:
        alike = reads_alike(as_ids, as_text, style, prompt)
    except NoLogprobs:
        alike = False
    if not alike:
        raise InputError(
            f"the tokenizer '{tokenizer}' is not the tokenizer of '{name}', because the server splits the same"
            " words into other tokens: give the model's own tokenizer"
        )
    key = text_sha256(
        "endpoint", connection.endpoint.base, name, style, tokenizer_hash(loaded), str(prompt[0]), str(window)
    )
    return EndpointModel(name, connection, style, loaded, window, {}, key)


def probe_score(scores: TokenScores) -> float:
    """Return the mean log-probability of the probe text's tokens, in nats. A changed model gives another mean."""
    return scores.total / len(scores.logprobs)


def probe_now(model: EndpointModel) -> float:
    """Return ``probe_score`` of a new answer from the server."""
    return probe_score(model.score([PROBE])[0])


def prompts_of(model: EndpointModel, texts: Sequence[str]) -> list[tuple[int, str | list[int]]]:
    """Return pairs of a text's number and a prompt, in order. A text in several windows has several prompts.

    Raises InputError for a text without tokens, or for a chat if there is no tokenizer.
    """
    # Sent whole: without the tokenizer there is no telling where to cut.
    if model.tokenizer is None or model.window is None:
        if any(isinstance(text, Framed) for text in texts):
            raise InputError(
                f"heldin sends chats to '{model.name}' as tokens, and needs the model's tokenizer for this: give"
                " --tokenizer"
            )
        return [(i, (BEFORE_BLANK if text[:1].isspace() else BEFORE_TEXT) + text) for i, text in enumerate(texts)]
    start = start_token(model.tokenizer, model.name)
    windows = cut_into_windows(texts, token_lists(model.tokenizer, texts), start, model.window)
    return [(w.text, [w.start, *w.tokens]) for w in windows]


def _fitting(text: str, tokenizer: PreTrainedTokenizerBase, window: int) -> tuple[str, list[int]]:
    """Return the longest beginning of the text, in whole words and at least one, that fits the window, and its
    tokens."""
    words = text.split(" ")
    # Cut between words, because cut tokens may not be those that the server makes of the same text.
    for count in range(len(words), 0, -1):
        ids = tokenizer(" ".join(words[:count]), add_special_tokens=False)["input_ids"]
        if len(ids) <= window or count == 1:
            break
    return " ".join(words[:count]), list(ids)


def _after_lead(model: EndpointModel, echoed: Echoed, lead: str, text: int) -> Sequence[object]:
    """Return the values of the text's own tokens, without the values of the character that heldin put before it."""
    tokens = model.leads[lead]
    # Merged with the lead, the text's first token would be dropped with it: its beginning would not be scored.
    if echoed.tokens[: len(tokens)] != tokens:
        raise InputError(
            f"the server joins text number {text + 1} with the {lead!r} before it, so the first token of the text"
            " has no separate probability: give --tokenizer"
        )
    return echoed.values[len(tokens) :]


def token_scores(model: EndpointModel, values: Sequence[object], text: int) -> TokenScores:
    """Return the values as scores. Raises InputError if there are none, or a value is not a finite log-probability."""
    if not values:
        raise InputError(f"text number {text + 1} has no tokens: remove texts with only blanks or unknown characters")
    logprobs = finite(values)
    if logprobs is None:
        raise InputError(
            f"endpoint model '{model.name}' gives text number {text + 1} a probability that is not finite: check the"
            " server"
        )
    return TokenScores(logprobs)


def _style_of(connection: Connection, name: str, prompt: str | list[int]) -> tuple[Style, dict[str, Any]]:
    """Return the first style in which the server returns log-probabilities of a prompt. Also return its answer."""
    refusals: list[str] = []
    # For a text only an echo says which tokens the server made of it.
    for style in OF_PROMPTS if not isinstance(prompt, str) else (Style.ECHO, Style.ECHO_AND_ONE):
        try:
            answer = connection.post(COMPLETIONS, request_body(style, name, prompt))
            if isinstance(prompt, str):
                values: Sequence[object] = values_of_text(answer, style, prompt).values[1:]
            else:
                values = values_of_tokens(answer, style, prompt)
        except RefusedRequest as error:
            if error.status == 404:  # no such address or model: another style would not help
                listed = _listed_if_asked_once(connection)
                if name in listed:  # so that address and name are right
                    raise InputError(
                        f"'{connection.endpoint.base}' lists the model '{name}' but has no {COMPLETIONS} (HTTP"
                        " 404). This server answers only chats, and returns no log-probabilities of a given text:"
                        " give --chat to audit the texts that the model writes"
                    ) from error
                raise InputError(f"{error}{_listed_instead(listed, name)}") from error
            refusals.append(f"asked for {style}: {error}")
        except NoLogprobs as error:
            refusals.append(f"asked for {style}, it returns {error}")
        else:
            if values and finite(values) is not None:
                return style, answer
            refusals.append(f"asked for {style}, it returns values that are not log-probabilities")
    hint = "; with --tokenizer prompt_logprobs are tried too" if isinstance(prompt, str) else ""
    raise NoPromptLogprobs(
        f"'{connection.endpoint.base}' returns no log-probabilities of a prompt for model '{name}', but an audit"
        f" needs these numbers ({'; '.join(refusals)}{hint}). Serve the model with completions that accept echo"
        " with logprobs, or prompt_logprobs as in vLLM"
    )


def _tokens_of(connection: Connection, name: str, style: Style, lead: str) -> tuple[str, ...]:
    """Return the server's tokens for the character that heldin puts before a text."""
    try:
        answer = connection.post(COMPLETIONS, request_body(style, name, lead))
        tokens = values_of_text(answer, style, lead).tokens
    except (NoLogprobs, RefusedRequest) as error:
        raise InputError(
            f"'{connection.endpoint.base}' does not echo {lead!r} alone ({error}): give --tokenizer"
        ) from error
    if not tokens:
        raise InputError(f"'{connection.endpoint.base}' returns no tokens for {lead!r}: give --tokenizer")
    return tokens


def window_at(connection: Connection, name: str, context: int | None) -> int:
    """Return the maximum number of tokens of a text in one request.

    Args:
        context: number of tokens per request; None: as in the server's list of models, at most 2,048.

    Raises InputError if the context is unknown, or too short for a text.
    """
    # Less the start token and one generated token.
    window = (context or min(_stated_context(connection, name), LARGEST_CONTEXT)) - 2
    if window < 1:
        raise InputError(f"a context of {window + 2} tokens leaves no room for a text: give at least 3")
    return window


def _stated_context(connection: Connection, name: str) -> int:
    """Return the context length in tokens, from the server's list of models."""
    listed = _listed(connection)
    for key in _LENGTH_KEYS:
        length = listed.get(name, {}).get(key)
        if isinstance(length, int) and length > 0:
            return length
    raise InputError(
        f"'{connection.endpoint.base}' does not report the context length of model"
        f" '{name}'{_listed_instead(listed, name)}: give --context"
    )


def _listed_if_asked_once(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return ``_listed``, tried once, as a hint; empty on any error."""
    try:
        return _listed(connection, tries=1)
    except (InputError, ResumableError):
        return {}


def _listed(connection: Connection, *, tries: int | None = None) -> dict[str, dict[str, Any]]:
    """Return the entry of each model in the server's list of models, by name; empty if there is no list."""
    try:
        listed = connection.get("/models", tries=tries).get("data")
    except RefusedRequest:
        return {}
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}


def _listed_instead(listed: Mapping[str, object], name: str) -> str:
    """Return a hint that names models in the server's list, if this model is missing from the list."""
    if not listed or name in listed:
        return ""
    near = difflib.get_close_matches(name, listed, n=1)
    some = near or sorted(listed)[:3]
    return (
        f"; the server's list has no '{name}', but"
        f" {' and '.join(map(repr, some))}{' and others' * (len(listed) > len(some))}"
    )


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of how a tokenizer divides texts into tokens."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    # The whole tokenizer where it can be had: equal vocabularies with other merges cut a text otherwise.
    return text_sha256(fast.to_str() if fast else json.dumps(tokenizer.get_vocab(), sort_keys=True))
