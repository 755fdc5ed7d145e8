"""Audit models behind a completions endpoint: open them, estimate the cost of scoring, and detect changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from heldin.attacks.access import Access
from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import get_attack
from heldin.attacks.scoring import AttackTexts
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT, EndpointConfig
from heldin.jobs.checkpoint.opened import OpenedModels
from heldin.models.endpoint import (
    BYTES_PER_TOKEN,
    EndpointModel,
    Load,
    probe_now,
    probe_score,
)
from heldin.models.endpoint_client import Connection, Endpoint
from heldin.models.lifted_endpoint import open_scoring_model
from heldin.models.loading import PROBE
from heldin.models.model_config import ScoringPrecision
from heldin.models.opening import load_language_model
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.record.facts import LARGEST_DRIFT, EndpointFacts, ModelFacts
from heldin.stages.measures.measure import named_model


@dataclass(frozen=True)
class Remote:
    """The server of the target, and of every reference whose name begins with ``endpoint:``.

    Attributes:
        endpoint: address and limits of the server.
        tokenizer: tokenizer of the models at the endpoint, by folder or hub name; None: texts are sent as plain text.
        context: number of tokens per request; None: the context length that the server reports, at most 2,048.
        price: price per million tokens, in any currency, for the cost estimate.
        max_tokens_sent: largest allowed number of sent tokens. heldin refuses an audit that needs more.
        chat: whether heldin sends chats to the models at the endpoint.
        price_generated: price per million generated tokens; None: ``price``.
        max_requests, max_price, max_minutes: limits of the audit; heldin refuses an audit that exceeds a limit.
    """

    endpoint: Endpoint
    tokenizer: str | None = None
    context: int | None = None
    price: float | None = None
    max_tokens_sent: int | None = None
    chat: bool = False
    price_generated: float | None = None
    max_requests: int | None = None
    max_price: float | None = None
    max_minutes: float | None = None

    def config(self) -> dict[str, Any]:
        """Return the settings that affect the scores, for the record."""
        return {
            "url": self.endpoint.base,
            "tokenizer": self.tokenizer,
            "context": self.context,
            "chat": self.chat,
        }

    def attacks(self, attack: AttackConfig, reporter: Reporter) -> AttackConfig:
        """Return the attacks that are possible at the endpoint: see ``attacks_at_endpoint``."""
        if Access.LOG_PROBABILITIES not in attack.access:
            return attack
        return attacks_at_endpoint(attack, self.tokenizer, reporter)

    def reached(
        self, names: Sequence[str], texts: AttackTexts, reporter: Reporter, **loading: Any
    ) -> AbstractContextManager["Reached"]:
        """Open the models with these names; see the function ``reached``. ``loading`` applies to models on this
        machine."""
        return reached(self, names, texts, reporter, **loading)


def remote_in(section: EndpointConfig) -> Remote:
    """Return the connection to the target. Raises InputError for an invalid address."""
    # Limits affect no score, and are not recorded (``Remote.config``).
    pace = section.model_dump(include={"requests_per_minute", "concurrency", "timeout", "max_tries"})
    return Remote(
        Endpoint(section.url, section.api_key_env, **pace),
        tokenizer=section.tokenizer,
        context=section.context,
        price=section.price_per_million,
        max_tokens_sent=section.max_tokens_sent,
        chat=section.chat,
        price_generated=section.price_per_million_generated,
        max_requests=section.max_requests,
        max_price=section.max_price,
        max_minutes=section.max_minutes,
    )


def remote_of(kept: Mapping[str, Any]) -> Remote:
    """Rebuild the connection from the output of ``Remote.config``, which suffices to identify the scores."""
    return Remote(Endpoint(kept["url"]), kept["tokenizer"], kept["context"], chat=kept["chat"])


def attacks_at_endpoint(attack: AttackConfig, tokenizer: str | None, reporter: Reporter) -> AttackConfig:
    """Return the attacks that need only log-probabilities of a text's own tokens. Reports the attacks that need more.

    Raises:
        InputError: the primary attack needs more; or an attack needs the text's tokens, and no tokenizer is given.
    """
    unknown = next((name for name in attack.names if get_attack(name).needs_ids), None)
    # Before anything is paid for.
    if unknown is not None and tokenizer is None:
        raise InputError(
            f"attack '{unknown}' needs the tokens of a text, but no endpoint gives tokens: give --tokenizer"
        )
    needing = [name for name in attack.names if get_attack(name).needs_vocabulary]
    # The primary attack is never replaced in silence: its name is what the bounds and the headline speak of.
    if attack.primary in needing:
        raise InputError(
            f"attack '{attack.primary}' needs the whole vocabulary's probabilities, but no endpoint gives these"
            " probabilities: choose the primary attack 'likelihood-ratio'"
        )
    if needing:
        reporter.say(f"left out: {', '.join(needing)}, because no endpoint gives the whole vocabulary's probabilities")
    return attack.model_copy(update={"names": tuple(name for name in attack.names if name not in needing)})


@dataclass(frozen=True)
class Reached(OpenedModels):
    """The models behind the endpoint by name, and the drift of each during scoring, in nats per token.

    Attributes:
        remote: connection to the models.
        models: the endpoint models, by their names at the endpoint.
        drifts: drift of each model's probe score, by its name at the endpoint.
    """

    remote: Remote
    models: Mapping[str, EndpointModel]
    drifts: dict[str, float]

    def load(self, name: str, precision: ScoringPrecision) -> ScoredModel:
        """Return the model with this name, in this precision; ``endpoint:NAME`` is a model behind the endpoint.

        A model on this machine gets windows as long as the endpoint's. Otherwise a ratio of scores would also compare
        different windows.
        """
        if name.startswith(AT_ENDPOINT):
            return self.models[name.removeprefix(AT_ENDPOINT)]
        windows = [*(model.window for model in self.models.values()), self.context]
        window = min((window for window in windows if window is not None), default=None)
        return load_language_model(name, precision=precision, context=window, adapter_base=self.adapter_base)

    def pair(self, target: str, reference: str, precision: ScoringPrecision) -> tuple[ScoredModel, ScoredModel]:
        """Return target and reference; at least one of them is behind the endpoint."""
        return self.load(target, precision), self.load(reference, precision)

    def facts_of(self, model: ScoredModel, name: str) -> ModelFacts:
        """Return the record's facts about a model, including its endpoint and its drift."""
        if not isinstance(model, EndpointModel):
            return super().facts_of(model, name)
        facts = EndpointFacts(
            url=model.connection.endpoint.base,
            style=model.style.value,
            tokenizer=self.remote.tokenizer,
            window=model.window,
            drift=self.drifts[model.name],
        )
        return served_facts(model.name, model.fingerprint, facts)


def served_facts(name: str, fingerprint: str, endpoint: EndpointFacts) -> ModelFacts:
    """Return the record's facts about a model behind an endpoint, whose weights are unknown."""
    return ModelFacts(
        name=named_model(name),
        parameters=None,
        fingerprint=fingerprint,
        architecture="language model",
        endpoint=endpoint,
    )


@contextmanager
def reached(
    remote: Remote,
    names: Sequence[str],
    texts: AttackTexts,
    reporter: Reporter,
    *,
    known_as: Callable[[EndpointModel], EndpointModel] = lambda model: model,
    context: int | None = None,
    adapter_base: str | None = None,
) -> Iterator[Reached]:
    """Open the models of ``names``, report the expected cost of scoring at the endpoint, and detect changes.

    Args:
        remote: connection to the endpoint.
        names: models for scoring; ``endpoint:NAME`` is a model behind the endpoint.
        texts: the texts that each model scores.
        reporter: receives cost and changes.
        known_as: maps an opened model to a model with the fingerprint under which its scores are stored.
        context: maximum number of tokens per pass of a model on this machine; None: the model's own limit.
        adapter_base: base of every adapter on this machine, in place of the base in the adapter's config.

    Raises:
        InputError: a model returns no log-probabilities of a prompt, or the audit would send more tokens than allowed.
    """
    # Each once and in order: a target that is also a reference is opened a single time.
    served = dict.fromkeys(name.removeprefix(AT_ENDPOINT) for name in names if name.startswith(AT_ENDPOINT))
    with Connection(remote.endpoint) as connection, closing(ScoreCache(cache_directory() / "scores")) as cache:
        models = {
            name: known_as(open_scoring_model(connection, name, tokenizer=remote.tokenizer, context=remote.context))
            for name in served
        }
        # Before the first text is sent: whoever pays can stop here.
        _say_cost(remote, models, texts.read(), cache, reporter)
        there = Reached(context, adapter_base, remote, models, {})
        for name, model in models.items():  # an earlier try may have left scores in the cache
            there.drifts[name] = _drift(model, cache, reporter)
        # Scoring happens here. If it fails, no second look is taken: its scores are not used.
        yield there
        for name, model in models.items():
            there.drifts[name] = _drift(model, cache, reporter)


def cost_line(remote: Remote, load: Load, scored: int) -> str:
    """Return one line about the number, size and price of the requests before heldin sends them."""
    rough = "" if load.counted else f" (estimated, {BYTES_PER_TOKEN} bytes each)"
    made = f" and {load.generated:,} generated" if load.generated else ""
    about = "about " if load.about else ""
    parts = [f"{about}{load.requests:,} requests with {load.tokens:,} tokens{rough}{made}"]
    price, minutes = price_of(remote, load), minutes_of(remote, load)
    if price is not None:
        parts.append(f"{price:,.2f} at {remote.price:g} per million tokens")
    if minutes is not None:
        parts.append(f"at least {minutes:,.1f} minutes at {remote.endpoint.requests_per_minute:g} requests per minute")
    if scored:
        parts.append(f"{scored:,} scores of texts are already in the cache")
    return f"cost: users' texts go to '{remote.endpoint.base}': {', '.join(parts)}"


def price_of(remote: Remote, load: Load) -> float | None:
    """Return the price of the requests; None if no price is stated."""
    if remote.price is None:
        return None
    generated = remote.price if remote.price_generated is None else remote.price_generated
    return load.tokens / 1e6 * remote.price + load.generated / 1e6 * generated


def minutes_of(remote: Remote, load: Load) -> float | None:
    """Return the shortest possible duration of the requests, in minutes; None without a rate limit."""
    rate = remote.endpoint.requests_per_minute
    return None if rate is None else load.requests / rate


def require_within_limits(remote: Remote, load: Load) -> None:
    """Raise InputError if the requests exceed a limit on tokens, requests, price or time."""
    tokens = load.tokens + load.generated
    if remote.max_tokens_sent is not None and tokens > remote.max_tokens_sent:
        raise InputError(
            f"the audit would send {tokens:,} tokens, above --max-tokens-sent {remote.max_tokens_sent:,}: raise this"
            " limit, or score fewer texts or characters"
        )
    limits = (
        ("max_requests", "requests", load.requests, remote.max_requests),
        ("max_price", "of price", price_of(remote, load), remote.max_price),
        ("max_minutes", "minutes", minutes_of(remote, load), remote.max_minutes),
    )
    for key, unit, value, most in limits:
        if value is not None and most is not None and value > most:
            raise InputError(
                f"the audit needs {value:,.6g} {unit}, above endpoint.{key} {most:,.6g}: raise this limit, or audit"
                " fewer users, texts or samples"
            )


def _sum(loads: Sequence[Load]) -> Load:
    requests, tokens, generated = (sum(getattr(x, key) for x in loads) for key in ("requests", "tokens", "generated"))
    return Load(requests, tokens, all(x.counted for x in loads), generated, any(x.about for x in loads))


def _say_cost(
    remote: Remote, models: Mapping[str, EndpointModel], texts: Sequence[str], cache: ScoreCache, reporter: Reporter
) -> None:
    # Only what the cache lacks is paid for: after an interruption that is the rest.
    missing = {name: cache.missing(model, texts) for name, model in models.items()}
    load = _sum([model.load(missing[name]) for name, model in models.items()])
    # Equal texts are sent once: the cache is by text.
    scored = len(models) * len(set(texts)) - sum(map(len, missing.values()))
    reporter.say(cost_line(remote, load, scored))
    require_within_limits(remote, load)


def _drift(model: EndpointModel, cache: ScoreCache, reporter: Reporter) -> float:
    """Return the drift of the probe text's score since the model's first text, in nats per token; report a large
    drift."""
    # The probe's first score is in the cache since this model's first text, maybe from an earlier call; the other is
    # asked of the server now, past the cache.
    drift = abs(probe_now(model) - probe_score(cache.scores(model, [PROBE])[0]))
    if drift > LARGEST_DRIFT:
        reporter.say(
            f"endpoint model '{model.name}' has changed since its first scores: the score of a probe text moved by"
            f" {drift:.2g} nats per token, so the scores mix two models. Set another HELDIN_CACHE_DIR, and score"
            " again"
        )
    return drift
