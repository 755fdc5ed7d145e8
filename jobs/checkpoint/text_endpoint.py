"""Audit models behind an endpoint that generates text: test its features, estimate the cost, describe its answers."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from heldin.attacks.access import Access
from heldin.attacks.answering import cut_texts
from heldin.attacks.config import AttackConfig
from heldin.attacks.scoring import AttackTexts
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.bounds.sampling_noise import sampled_auroc
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT
from heldin.jobs.checkpoint.endpoint import Remote, cost_line, require_within_limits, served_facts
from heldin.jobs.checkpoint.opened import OpenedModels
from heldin.models.answers import AnswerStore, Prefix
from heldin.models.endpoint import BYTES_PER_TOKEN, Load, open_endpoint_model
from heldin.models.endpoint_client import Connection
from heldin.models.lifted_endpoint import open_lifted
from heldin.models.model_config import ScoringPrecision
from heldin.models.opening import load_language_model
from heldin.models.sampling import AskedAsChat, asked_as_chat
from heldin.models.score_cache import ScoredModel
from heldin.models.text_answers import PROMPT, Manner, Refusing
from heldin.models.text_endpoint import TextEndpoint, open_text_endpoint, probe_text
from heldin.record.facts import AnswerFacts, EndpointFacts, ModelFacts

_STRONG = 0.9  # AUROC of an attack that nobody would miss, to say what is left of it


def best_level(remote: Remote, name: str, attack: AttackConfig, reporter: Reporter) -> AttackConfig:
    """Return the attacks at the best level of access that the endpoint offers. Sends only public words, no user's text.

    Raises InputError if the endpoint returns neither log-probabilities nor text.
    """
    with Connection(remote.endpoint) as connection:
        if not remote.chat:
            try:
                open_endpoint_model(connection, name, tokenizer=remote.tokenizer, context=remote.context)
            except InputError as error:
                reporter.say(f"the endpoint returns no log-probabilities of a given text: {error}")
                _say_if_lifted(connection, name, remote, reporter)
            else:
                return attack
        model = open_text_endpoint(connection, name, chat=remote.chat)
    # A chat that cannot be begun has no place inside a text at which a next token could be asked for.
    placed = model.manner is not Manner.CHAT
    level = Access.TOP_K if model.offers.top_k and placed else Access.TEXT
    reporter.say(f"level: {level}, the best that this endpoint offers (--access chooses another)")
    kept = attack.model_dump(exclude={"names", "primary", "access"})
    return AttackConfig.model_validate({**kept, "access": [level]})


def _say_if_lifted(connection: Connection, name: str, remote: Remote, reporter: Reporter) -> None:
    """Report that ``logit_bias`` can recover every log-probability, at one or two requests per token."""
    if remote.tokenizer is not None:
        with contextlib.suppress(InputError):
            open_lifted(connection, name, tokenizer=remote.tokenizer, context=remote.context)
            reporter.say(
                "logit_bias gives the log-probability of every token of a text, for one or two requests per token."
                " Choose --access log-probabilities to pay for these requests"
            )


@dataclass(frozen=True)
class ReachedByText(OpenedModels):
    """The models behind the endpoint by name, and whether each model changed during the audit.

    Attributes:
        remote: connection to the models.
        prompt: request that a chat puts before a text that is not a chat.
        models: map from each model's name at the endpoint to the model.
        changed: whether each model changed, by its name at the endpoint; None if the server's answers always differ.
    """

    remote: Remote
    prompt: str
    models: Mapping[str, TextEndpoint]
    changed: dict[str, bool | None]

    def load(self, name: str, precision: ScoringPrecision) -> ScoredModel:
        """Return the model with this name. heldin asks a model on this machine in the same way as the target.

        Raises InputError for a model without a chat template if heldin asks the target in chats.
        """
        if name.startswith(AT_ENDPOINT):
            return self.models[name.removeprefix(AT_ENDPOINT)]
        lm = load_language_model(name, precision=precision, context=self.context, adapter_base=self.adapter_base)
        if not self.remote.chat:
            return lm
        return asked_as_chat(lm, self.prompt, goes_on=all(model.goes_on for model in self.models.values()))

    def pair(self, target: str, reference: str, precision: ScoringPrecision) -> tuple[ScoredModel, ScoredModel]:
        """Return target and reference; the target is behind the endpoint."""
        return self.load(target, precision), self.load(reference, precision)

    def facts_of(self, model: ScoredModel, name: str) -> ModelFacts:
        """Return the record's facts about a model, including its endpoint and its answers."""
        if isinstance(model, AskedAsChat):
            # The prompt is a part of what made its answers.
            return super().facts_of(model.lm, name).model_copy(update={"fingerprint": model.fingerprint})
        if not isinstance(model, TextEndpoint):
            return super().facts_of(model, name)
        conduct = model.conduct
        facts = EndpointFacts(
            url=model.connection.endpoint.base,
            style=model.manner.value,
            tokenizer=None,
            window=None,
            drift=0.0,
            answers=AnswerFacts(
                top_k=model.offers.top_k,
                seed=model.offers.seed,
                temperature=model.offers.temperature,
                samples=conduct.samples,
                refused=conduct.refused,
                repeated=conduct.repeated,
                other_length=conduct.longer + conduct.cut_short,
                same=conduct.same,
                cuts=conduct.prefixes,
                changed=self.changed[model.name],
            ),
        )
        return served_facts(model.name, model.fingerprint, facts)


@contextmanager
def reached_by_text(
    remote: Remote,
    names: Sequence[str],
    texts: AttackTexts,
    attack: AttackConfig,
    reporter: Reporter,
    *,
    context: int | None = None,
    adapter_base: str | None = None,
) -> Iterator[ReachedByText]:
    """Open the models of ``names`` behind the endpoint, report the expected cost, and watch for changes.

    Args:
        names: models to ask; ``endpoint:NAME`` is a model behind the endpoint.
        texts: texts to cut and continue.
        context: maximum number of tokens per pass of a model on this machine; None: the model's own limit.
        adapter_base: base of every adapter on this machine, instead of the base in the adapter's config.

    Raises:
        InputError: a model generates no text, a text of a user cannot be cut, or a limit is exceeded.
    """
    sampling = attack.sampling
    served = dict.fromkeys(name.removeprefix(AT_ENDPOINT) for name in names if name.startswith(AT_ENDPOINT))
    with Connection(remote.endpoint) as connection, closing(AnswerStore(cache_directory() / "answers")) as store:
        models = {
            name: open_text_endpoint(
                connection,
                name,
                chat=remote.chat,
                prompt=sampling.prompt,
                refusing=Refusing(sampling.refusals == "empty", sampling.refusal_beginnings),
            )
            for name in served
        }
        for model in models.values():
            reporter.say(model.offers.line())
            _require_offered(model, attack, reporter)
        prompt = PROMPT if sampling.prompt is None else sampling.prompt
        _say_cost(remote, list(models.values()), texts, attack, store, reporter)
        before = {name: probe_text(model) for name, model in models.items()}
        there = ReachedByText(context, adapter_base, remote, prompt, models, {})
        yield there
        for name, model in models.items():
            there.changed[name] = _changed(model, before[name])
            for line in _conduct_lines(model, sampling.samples, there.changed[name]):
                reporter.say(line)


def _require_offered(model: TextEndpoint, attack: AttackConfig, reporter: Reporter) -> None:
    """Check, before sending any user's text, that the server has the features that the levels of access need."""
    if Access.TOP_K in attack.access and not model.offers.top_k:
        raise InputError(
            f"endpoint model '{model.name}' does not list the most probable next tokens, but level top-k needs this"
            " list: choose level text"
        )
    if Access.TEXT in attack.access and attack.sampling.samples > 1 and not model.offers.temperature:
        reporter.say(
            f"endpoint model '{model.name}' gave the same text for different seeds, so it seems to ignore the"
            " temperature. Further samples add no information: set attack.sampling.samples to 1 to save money"
        )


def _say_cost(
    remote: Remote,
    models: Sequence[TextEndpoint],
    texts: AttackTexts,
    attack: AttackConfig,
    store: AnswerStore,
    reporter: Reporter,
) -> None:
    asked, requests, sent, generated = attack.sampling.asked(), 0, 0, 0
    shares = []
    for level in attack.access:
        cut = cut_texts(texts, level, attack.sampling, models)
        prefixes = [each.prefix for _, _, cuts in cut for each in cuts]
        shares.append(_share_sent(texts, [cuts[-1].prefix for _, _, cuts in cut]))
        for model in models:
            if level is Access.TEXT:
                counts = [model.requests_for([prefix], asked, store) for prefix in prefixes]
                generated += asked.tokens * sum(
                    asked.samples if model.offers.several and count else count for count in counts
                )
            else:
                counts = [1] * len(prefixes)
                generated += len(prefixes)
            requests += sum(counts)
            sent += sum(count * _tokens_of(prefix) for count, prefix in zip(counts, prefixes, strict=True))
    load = Load(requests, sent, counted=False, generated=generated)
    reporter.say(cost_line(remote, load, 0))
    reporter.say(f"sent: the last cuts send {100 * max(shares):.0f} % of the characters of all texts")
    if Access.TEXT in attack.access:
        reaches = sampled_auroc(_STRONG, asked.samples)
        reporter.say(
            f"power: {asked.samples} samples of each cut lower an attack's AUROC from {_STRONG:g}, with unlimited"
            f" samples, to {reaches:.2f} (heldin power --access text explains this limit)"
        )
    require_within_limits(remote, load)


def _tokens_of(prefix: Prefix) -> int:
    words = [text for _, text in prefix.turns] or [prefix.text]
    return math.ceil(sum(len(text.encode()) for text in words) / BYTES_PER_TOKEN)


def _share_sent(texts: AttackTexts, longest: Sequence[Prefix]) -> float:
    total = sum(len(document.text) for _, _, document in texts.flat())
    return min(1.0, sum(len(prefix.text) for prefix in longest) / max(1, total))


def _changed(model: TextEndpoint, before: str | None) -> bool | None:
    if len(model.conduct.identities) > 1:
        return True
    after = probe_text(model)
    return None if before is None or after is None else before != after


def _conduct_lines(model: TextEndpoint, samples: int, changed: bool | None) -> Iterator[str]:
    """Yield lines about the server's answers, for the person who pays for the requests."""
    conduct, name = model.conduct, f"endpoint model '{model.name}'"
    if conduct.refused:
        yield f"{name} or a filter refused {conduct.refused:,} of {conduct.samples:,} continuations"
    if conduct.repeated:
        yield f"{name} repeated the beginning in {conduct.repeated:,} continuations, and heldin removed it"
    if other := conduct.longer + conduct.cut_short:
        yield f"{name} gave {other:,} continuations whose length differs from the request"
    if conduct.several_ignored:
        yield (
            f"{name} gave fewer texts than n in {conduct.several_ignored:,} answers, and heldin asked for the others"
            " one by one"
        )
    if conduct.prefixes and conduct.same > conduct.prefixes / 2:
        yield (
            f"{name} gave {samples} equal texts at {conduct.same:,} of {conduct.prefixes:,} cuts, so it seems to"
            " ignore the temperature"
        )
    if changed:
        yield f"{name} changed during the audit: it now answers public words differently"
    if changed is None:
        yield f"{name} answers public words differently each time, so a change of the model cannot be noticed"
