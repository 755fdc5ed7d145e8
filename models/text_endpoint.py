"""A model behind an endpoint that generates text and returns no log-probabilities of given texts.

heldin tests the server's features with a few public words before it sends any user's text.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.answers import Advance, AnswerRequest, AnswerStore, Listed, Prefix, request_key
from heldin.models.endpoint_client import Connection, RefusedRequest
from heldin.models.sampling import seed_of
from heldin.models.text_answers import (
    AS_ENGLISH,
    PREFILL_KEYS,
    Manner,
    Refusing,
    Written,
    body_of,
    listed_in,
    listing_body,
    sampling_body,
    written_in,
)
from heldin.models.token_scores import TokenScores

PROBE = Prefix("The quick brown fox met 12 people on Tuesday. They")
_TOKENS, _TRIES = 8, 4  # of a probe, and how often the same is asked
_SEED = 7


@dataclass(frozen=True)
class Offers:
    """Features of a server, as found by tests.

    Attributes:
        prefill: whether the server continues a partly written answer in a chat.
        top_k: number of next tokens that the server lists with log-probabilities; 0: none.
        seed: whether the same seed gives the same text.
        several: whether one request can return several texts (``n``).
        temperature: whether different seeds gave different texts in a test, so the server samples.
    """

    prefill: bool
    top_k: int
    seed: bool
    several: bool
    temperature: bool

    def line(self) -> str:
        """Return the features as a line for people."""
        words = {True: "yes", False: "no"}
        return (
            f"the server offers: likeliest next tokens {self.top_k or 'no'}, prefilled answers"
            f" {words[self.prefill]}, seed {words[self.seed]}, n {words[self.several]}, temperature"
            f" {words[self.temperature]}"
        )


@dataclass
class Conduct:
    """Counts that describe the server's answers during an audit.

    Attributes:
        samples: number of continuations.
        refused: number of refusals, including texts that a filter withheld.
        repeated: number of continuations that began with the prefix.
        longer: number of continuations with more tokens than requested.
        cut_short: number of continuations that ended because of their length, with fewer tokens than requested.
        several_ignored: number of requests for several texts that returned too few.
        same: number of prefixes with at least two samples, all equal.
        prefixes: number of prefixes with at least two samples.
        identities: number of answers for each reported pair of model name and system name.
    """

    samples: int = 0
    refused: int = 0
    repeated: int = 0
    longer: int = 0
    cut_short: int = 0
    several_ignored: int = 0
    same: int = 0
    prefixes: int = 0
    identities: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class TextEndpoint:
    """A model behind an endpoint that generates text.

    Attributes:
        name: the model's name on the server.
        prompt: request that precedes a text that is not a chat; None: the default request.
        refusing: which texts count as refusals, and how they are scored.
        fingerprint: hash of every known setting that affects the answers.
        conduct: counts that describe the answers.
    """

    name: str
    connection: Connection
    manner: Manner
    offers: Offers
    prompt: str | None
    refusing: Refusing
    fingerprint: str
    conduct: Conduct

    @property
    def tokenizer(self) -> None:
        """None, because the endpoint's tokenizer is unknown; heldin sends texts as plain text."""
        return None

    @property
    def goes_on(self) -> bool:
        """Whether the server continues a partly written answer."""
        return self.manner is not Manner.CHAT

    @property
    def chunk(self) -> int:
        """Number of texts to send together."""
        return 8 * self.connection.endpoint.concurrency

    def score(self, texts: Sequence[str]) -> list[TokenScores]:
        """Raise InputError, because the endpoint returns no log-probabilities of a text."""
        raise InputError(f"endpoint model '{self.name}' gives no log-probabilities of a text: leave this level out")

    def samples(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: AnswerStore, advance: Advance | None = None
    ) -> list[tuple[str, ...]]:
        """Return the continuations of each prefix; stored continuations are not requested again.

        Raises:
            InputError: the server refuses a request for a reason other than its content, or answers without a text.
            ResumableError: the endpoint has stopped answering.
        """
        keys = [sample_key(prefix, asked) for prefix in prefixes]
        requests = self._missing(dict(zip(keys, prefixes, strict=True)), asked, store)
        while requests:
            self._ask(requests, asked, store)
            left = self._missing({key: prefix for key, prefix, _ in requests}, asked, store)
            # Single requests where n was ignored; each round keeps at least one more of each.
            requests = [(key, prefix, numbers[:1]) for key, prefix, numbers in left]
        samples = []
        for key, prefix in zip(keys, prefixes, strict=True):
            kept = store.kept(self.fingerprint, key)
            samples.append(self._usable(prefix, [Written(**kept[number]) for number in range(asked.samples)], asked))
            if advance:
                advance(1)
        return samples

    def next_tokens(
        self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: AnswerStore, advance: Advance | None = None
    ) -> list[Listed]:
        """Return the likeliest next tokens after each prefix. Errors are the same as for ``samples``."""
        count = min(asked.likeliest, self.offers.top_k)
        keys = [request_key(prefix, asked, f"next {count}", without=_OF_SAMPLES) for prefix in prefixes]
        missing = {
            key: prefix
            for key, prefix in zip(keys, prefixes, strict=True)
            if 0 not in store.kept(self.fingerprint, key)
        }
        bodies = [self._body(prefix) | listing_body(self.manner, count) for prefix in missing.values()]

        def keep(number: int, answer: dict[str, Any]) -> None:
            listed = listed_in(answer)
            if listed is None:
                raise InputError(
                    f"endpoint model '{self.name}' does not list the most probable next tokens of text {number + 1}:"
                    " choose another level"
                )
            store.keep(self.fingerprint, [(list(missing)[number], 0, listed)])

        self._each(bodies, keep, lambda number: store.keep(self.fingerprint, [(list(missing)[number], 0, [])]))
        answers: list[Listed] = []
        for key in keys:
            answers.append([(token, value) for token, value in store.kept(self.fingerprint, key)[0]])
            if advance:
                advance(1)
        return answers

    def requests_for(self, prefixes: Sequence[Prefix], asked: AnswerRequest, store: AnswerStore) -> int:
        """Return the number of requests needed for samples that are not in the store."""
        keys = {sample_key(prefix, asked): prefix for prefix in prefixes}
        return len(self._missing(keys, asked, store))

    def _missing(
        self, prefixes: Mapping[bytes, Prefix], asked: AnswerRequest, store: AnswerStore
    ) -> list[tuple[bytes, Prefix, list[int]]]:
        """Return the requests for samples that are not in the store: key, prefix, and the numbers of the samples."""
        requests = []
        for key, prefix in prefixes.items():
            kept = store.kept(self.fingerprint, key)
            numbers = [number for number in range(asked.samples) if number not in kept]
            if numbers and self.offers.several:
                requests.append((key, prefix, numbers))
            else:
                requests += [(key, prefix, [number]) for number in numbers]
        return requests

    def _ask(
        self, requests: Sequence[tuple[bytes, Prefix, list[int]]], asked: AnswerRequest, store: AnswerStore
    ) -> None:
        bodies = []
        for _, prefix, numbers in requests:
            # Of 31 bits, which every server takes.
            seed = (seed_of(asked, prefix) + numbers[0]) % 2**31 if self.offers.seed else None
            bodies.append(self._body(prefix) | sampling_body(asked, seed, len(numbers)))

        def keep(number: int, answer: dict[str, Any]) -> None:
            key, _, numbers = requests[number]
            texts = written_in(answer)[: len(numbers)]
            if not texts:
                raise InputError(
                    f"endpoint model '{self.name}' answers without a text: check that the server has a model that"
                    " writes texts"
                )
            self.conduct.several_ignored += len(texts) < len(numbers)
            self.conduct.identities[_identity(answer)] += 1
            store.keep(self.fingerprint, [(key, each, vars(text)) for each, text in zip(numbers, texts, strict=False)])

        def refused(number: int) -> None:
            key, _, numbers = requests[number]
            text = Written("", True, None, "content_filter")
            store.keep(self.fingerprint, [(key, each, vars(text)) for each in numbers])

        self._each(bodies, keep, refused)

    def _body(self, prefix: Prefix) -> dict[str, Any]:
        return body_of(self.manner, self.name, prefix, self.prompt)

    def _each(
        self,
        bodies: Sequence[dict[str, Any]],
        keep: Callable[[int, dict[str, Any]], None],
        refused: Callable[[int], None],
    ) -> None:
        """Post every body. Store each answer when it arrives."""
        for number, answer in self.connection.post_each(self.manner.path, bodies):
            if not isinstance(answer, RefusedRequest):
                keep(number, answer)
            elif _by_filter(answer):
                refused(number)
            else:
                raise InputError(str(answer)) from answer

    def _usable(self, prefix: Prefix, written: Sequence[Written], asked: AnswerRequest) -> tuple[str, ...]:
        """Return the texts to compare, without a repeated prefix. Updates the counts in ``conduct``."""
        conduct = self.conduct
        conduct.samples += len(written)
        refused = [self.refusing.is_refusal(each) for each in written]
        conduct.refused += sum(refused)
        conduct.longer += sum(each.tokens is not None and each.tokens > asked.tokens for each in written)
        conduct.cut_short += sum(
            each.finished == "length" and each.tokens is not None and each.tokens < asked.tokens for each in written
        )
        texts: list[str] = []
        for each, is_refusal in zip(written, refused, strict=True):
            if is_refusal:
                texts += [""] * self.refusing.empty
                continue
            rest = each.text.lstrip().removeprefix(prefix.text.strip()) if not prefix.turns else each.text
            repeats = not prefix.turns and bool(prefix.text.strip()) and each.text.lstrip() != rest
            conduct.repeated += repeats
            texts.append(rest if repeats else each.text)
        if len(written) > 1:
            conduct.prefixes += 1
            conduct.same += len({each.text for each in written}) == 1
        return tuple(texts) or ("",)


_OF_SAMPLES = ("samples", "tokens", "temperature", "seed", "likeliest")


def sample_key(prefix: Prefix, asked: AnswerRequest) -> bytes:
    """Return the key of stored samples. Requests that differ only in the number of samples share the key."""
    return request_key(prefix, asked, "samples", without=("samples", "likeliest"))


def open_text_endpoint(
    connection: Connection, name: str, *, chat: bool, prompt: str | None = None, refusing: Refusing = AS_ENGLISH
) -> TextEndpoint:
    """Test the server's features with a few public words, and return the model.

    Raises InputError if the server generates no text for this model.
    """
    manner = Manner.CHAT if chat else Manner.COMPLETIONS
    first = _text(_probed(connection, name, manner, seed=_SEED))
    again = _text(_probed(connection, name, manner, seed=_SEED))
    others = [_text(_probed(connection, name, manner, seed=_SEED + 1 + i)) for i in range(_TRIES - 1)]
    prefill = chat and _offers_prefill(connection, name)
    manner = Manner.PREFILLED if prefill else manner
    offers = Offers(
        prefill=prefill,
        top_k=_offered_top_k(connection, name, manner),
        # With one text for all seeds nothing is shown.
        seed=first == again and len({first, *others}) > 1,
        several=_offers_several(connection, name, manner),
        temperature=len({first, again, *others}) > 1,
    )
    # Not what was seen of seeds: a refusal may hide it, and samples that were paid for would be asked for again.
    key = text_sha256("text endpoint", connection.endpoint.base, name, manner, prompt or "")
    return TextEndpoint(name, connection, manner, offers, prompt, refusing, key, Conduct())


def probe_text(model: TextEndpoint) -> str | None:
    """Return the model's text after public words, with a seed or at temperature 0; None if two requests differ."""
    seeded = model.offers.seed
    asked = AnswerRequest(1, 2 * _TOKENS, 1.0 if seeded else 0.0, 1, _SEED)
    body = body_of(model.manner, model.name, PROBE, model.prompt)
    body |= sampling_body(asked, _SEED if seeded else None, 1)
    texts = {_text(model.connection.post(model.manner.path, body)) for _ in range(2)}
    return texts.pop() if len(texts) == 1 else None


def _probed(connection: Connection, name: str, manner: Manner, *, seed: int, count: int = 1) -> dict[str, Any]:
    asked = AnswerRequest(count, _TOKENS, 1.0, 1, seed)
    body = body_of(manner, name, PROBE, None) | sampling_body(asked, seed, count)
    try:
        return connection.post(manner.path, body)
    except RefusedRequest as error:
        raise _explained(connection, name, manner, error) from error


def _explained(connection: Connection, name: str, manner: Manner, error: RefusedRequest) -> InputError:
    base, other = connection.endpoint.base, "leave --chat out" if manner is not Manner.COMPLETIONS else "give --chat"
    if error.status == 404:
        try:
            listed = connection.get("/models", tries=1).get("data")
        except RefusedRequest:
            listed = None
        names = [entry.get("id") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        if name in names:
            return InputError(f"'{base}' lists the model '{name}' but has no {manner.path} (HTTP 404): {other}")
        if names:
            return InputError(
                f"'{base}' answers {manner.path} with HTTP 404, and its list has no '{name}', but '{names[0]}'"
                f"{' and others' * (len(names) > 1)}: give --model as the server lists it, or {other}"
            )
        return InputError(
            f"'{base}' has no {manner.path} or no model '{name}' (HTTP 404): check the address, which ends with /v1,"
            f" and the model's name, or {other}"
        )
    if "template" in str(error).lower() and manner is not Manner.COMPLETIONS:
        return InputError(f"'{name}' has no chat template on the server, and cannot answer chats: {other}")
    return InputError(str(error))


def _offers_prefill(connection: Connection, name: str) -> bool:
    """Return whether the server continues a partly written answer without inserting tokens that end the answer."""
    body = body_of(Manner.PREFILLED, name, PROBE, None) | {"max_tokens": 1, "temperature": 1}
    plain = {key: value for key, value in body.items() if key not in PREFILL_KEYS}
    try:
        counts = [_prompt_tokens(connection.post(Manner.PREFILLED.path, each)) for each in (body, plain)]
    except RefusedRequest:
        return False
    begun, ended = counts
    return begun is not None and ended is not None and begun < ended


def _prompt_tokens(answer: Mapping[str, Any]) -> int | None:
    usage = answer.get("usage")
    stated = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return stated if isinstance(stated, int) else None


def _offers_several(connection: Connection, name: str, manner: Manner) -> bool:
    try:
        return len(written_in(_probed(connection, name, manner, seed=_SEED, count=2))) == 2
    except InputError:
        return False


def _offered_top_k(connection: Connection, name: str, manner: Manner) -> int:
    for count in (20, 5, 1):
        try:
            answer = connection.post(manner.path, body_of(manner, name, PROBE, None) | listing_body(manner, count))
        except RefusedRequest:
            continue
        return min(count, len(listed_in(answer) or ()))
    return 0


def _text(answer: Mapping[str, Any]) -> str:
    texts = written_in(answer)
    return texts[0].text if texts else ""


def _identity(answer: Mapping[str, Any]) -> str:
    return json.dumps([answer.get("model"), answer.get("system_fingerprint")])


def _by_filter(error: RefusedRequest) -> bool:
    """Return whether a server refuses a request because of its content."""
    quoted = str(error).lower()
    return error.status in (400, 403, 422, 451) and any(word in quoted for word in ("content_filter", "content policy"))
