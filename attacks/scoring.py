"""From users' texts to statistics: run target and reference models over the texts and apply every attack.

The inputs are users and their texts, without membership and without the defense.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from heldin.attacks.joint import AnyAttack, JointAttack
from heldin.attacks.protocol import TextStatistic
from heldin.base.errors import InputError
from heldin.models.logprobs import token_ids
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import Spans, scored_tokens

DEFAULT_MAX_CHARACTERS = 4000


class ScoredParts(Protocol):
    """The parts of each text that are scored, if not the whole text is."""

    def of(self, text: str) -> Spans:
        """Parts of a text, in characters. Raises InputError for a text of which nothing is known."""
        ...


@dataclass(frozen=True)
class AttackTexts:
    """The attacker's texts by user, each cut to ``max_characters``.

    Attributes:
        texts: by user.
        max_characters: how many of a text are read.
        parts: which of these are scored; None: all.
    """

    # Cut by characters and not by tokens, so that models with different tokenizers score the same text.

    texts: Mapping[str, Sequence[str]]
    max_characters: int = DEFAULT_MAX_CHARACTERS
    parts: ScoredParts | None = None

    def __post_init__(self) -> None:
        if self.max_characters < 1:
            raise InputError(f"attack.max_characters is {self.max_characters}: it must be at least 1")

    def flat(self) -> list[tuple[str, int, str]]:
        """(user, number of the text, cut text), user by user."""
        return [
            (user, i, text[: self.max_characters]) for user, texts in self.texts.items() for i, text in enumerate(texts)
        ]

    def spans(self) -> list[Spans]:
        """The scored parts of each text of ``flat``, within the cut. Raises InputError for a text with none there."""
        if self.parts is None:
            return [((0, len(text)),) for _, _, text in self.flat()]
        spans: list[Spans] = []
        for number, texts in enumerate(self.texts.values(), start=1):
            for i, text in enumerate(texts):
                most = min(len(text), self.max_characters)
                parts = [(begin, min(end, most)) for begin, end in self.parts.of(text) if begin < min(end, most)]
                if not parts:
                    raise InputError(f"text {i + 1} of user {number}: nothing to score in its first {most} characters")
                spans.append(parts)
        return spans


def score_attacks(
    attacks: Sequence[AnyAttack],
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel | None,
    cache: ScoreCache,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TextStatistic]:
    """Every attack's statistic of every text, or of every user.

    Args:
        texts: the attacker's texts.
        target: the model under audit.
        reference: a model that was not trained on the audited users; None if no attack needs one.
        advance: called with the number of (model, text) pairs done.

    Raises:
        InputError: an attack needs a reference and there is none, or what the target does not give.
    """
    # Before any model runs: a pass over all texts may take hours.
    needing = [attack.name for attack in attacks if attack.needs_reference]
    if needing and reference is None:
        raise InputError(f"attack '{needing[0]}' needs a reference model: name one")
    items, spans = texts.flat(), texts.spans()
    parts = ["".join(text[begin:end] for begin, end in kept) for (_, _, text), kept in zip(items, spans, strict=True)]
    # All attacks share one pass of the target. What some need beside log-probabilities is of the target alone.
    target_scores = scores_of(texts, target, cache, attacks, advance=advance)
    # Attacks without a reference are handed None in its place and need no case of their own below.
    reference_scores: Sequence[TokenScores | None] = [None] * len(items)
    if needing and reference is not None:
        reference_scores = scores_of(texts, reference, cache, advance=advance)
    statistics: list[TextStatistic] = []
    for attack in attacks:
        if isinstance(attack, JointAttack):
            statistics += attack.statistics([user for user, _, _ in items], target_scores, reference_scores)
        else:
            statistics += [
                TextStatistic(user, number, attack.name, attack.statistic(text, of_target, of_reference))
                for (user, number, _), text, of_target, of_reference in zip(
                    items, parts, target_scores, reference_scores, strict=True
                )
            ]
    return statistics


def scores_of(
    texts: AttackTexts,
    model: ScoredModel,
    cache: ScoreCache,
    attacks: Sequence[AnyAttack] = (),
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TokenScores]:
    """Scores of the scored tokens of every text, in the order of ``flat``; each is read after all that precedes it.

    Args:
        texts: the texts, and their scored parts.
        cache: of token scores, which are those of whole texts.
        attacks: that need more than log-probabilities, such as ranks or token ids.

    Raises:
        InputError: parts of texts or token ids are asked of an endpoint without a tokenizer, or see
            ``ScoreCache.scores``.
    """
    plain = [text for _, _, text in texts.flat()]
    joint = [attack for attack in attacks if isinstance(attack, JointAttack)]
    moments, ranks = any(attack.needs_moments for attack in attacks), any(attack.needs_ranks for attack in joint)
    whole = cache.scores(model, plain, moments=moments, ranks=ranks, advance=advance)
    if any(attack.needs_ids for attack in joint):
        whole = _with_ids(model, plain, whole)
    if texts.parts is None:
        return whole
    if model.tokenizer is None:
        raise InputError(f"endpoint model '{model.name}' does not say where tokens stand: give its --tokenizer")
    chosen = list(scored_tokens(model.tokenizer, plain, texts.spans()))
    empty = next((i for i, tokens in enumerate(chosen) if not tokens.any()), None)
    if empty is not None:
        user, number, _ = texts.flat()[empty]
        place = list(texts.texts).index(user) + 1
        raise InputError(f"text {number + 1} of user number {place}: the scored part has no token under '{model.name}'")
    return [scores.at(tokens) for scores, tokens in zip(whole, chosen, strict=True)]


def _with_ids(model: ScoredModel, texts: Sequence[str], scores: Sequence[TokenScores]) -> list[TokenScores]:
    """The scores with the ids of their tokens."""
    if model.tokenizer is None:
        raise InputError(f"the token ids of model '{model.name}' are not known: give --tokenizer")
    ids = token_ids(model.tokenizer, texts)
    # Another number of tokens would put an id beside another token's score.
    if any(len(ids_of_text) != len(of_text.logprobs) for ids_of_text, of_text in zip(ids, scores, strict=True)):
        raise InputError(f"the tokenizer of model '{model.name}' makes other tokens than were scored")
    return [replace(of_text, ids=ids_of_text) for of_text, ids_of_text in zip(scores, ids, strict=True)]
