"""From users' texts to statistics: run target and reference models over the texts and apply every attack.

The inputs are users and their texts, without membership and without the defense.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from heldin.attacks.protocol import Attack
from heldin.attacks.table import TextStatistic
from heldin.base.errors import InputError
from heldin.models.score_cache import ScoreCache, ScoredModel
from heldin.models.scored_parts import Spans, scored_tokens
from heldin.models.token_scores import TokenScores

DEFAULT_MAX_CHARACTERS = 4000


class ScoredParts(Protocol):
    """Which parts of a text are scored, where not all of it is."""

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
        found: list[Spans] = []
        for user, texts in self.texts.items():
            for i, text in enumerate(texts):
                most = min(len(text), self.max_characters)
                its = [(begin, min(end, most)) for begin, end in self.parts.of(text) if begin < min(end, most)]
                if not its:
                    raise InputError(f"text {i + 1} of user '{user}': nothing to score in its first {most} characters")
                found.append(its)
        return found


def score_attacks(
    attacks: Sequence[Attack],
    texts: AttackTexts,
    target: ScoredModel,
    reference: ScoredModel | None,
    cache: ScoreCache,
    *,
    advance: Callable[[int], object] | None = None,
) -> list[TextStatistic]:
    """Every attack's statistic of every text.

    Args:
        attacks: which attacks.
        texts: the attacker's texts.
        target: the model under audit.
        reference: a model that was not trained on the audited users; None if no attack needs one.
        cache: of token scores.
        advance: called with the number of (model, text) pairs done.

    Raises:
        InputError: an attack needs a reference and there is none.
    """
    # Before any model runs: a pass over all texts may take hours.
    needing = [attack.name for attack in attacks if attack.needs_reference]
    if needing and reference is None:
        raise InputError(f"attack '{needing[0]}' needs a reference model: name one")
    items, spans = texts.flat(), texts.spans()
    parts = ["".join(text[begin:end] for begin, end in its) for (_, _, text), its in zip(items, spans, strict=True)]
    # All attacks share one pass of the target. Moments are of the target only: no attack asks for the reference's.
    moments = any(attack.needs_moments for attack in attacks)
    target_scores = scores_of(texts, target, cache, moments=moments, advance=advance)
    # Attacks without a reference are handed None in its place and need no case of their own below.
    reference_scores: Sequence[TokenScores | None] = [None] * len(items)
    if needing and reference is not None:
        reference_scores = scores_of(texts, reference, cache, advance=advance)
    return [
        TextStatistic(user, number, attack.name, attack.statistic(text, of_target, of_reference))
        for attack in attacks
        for (user, number, _), text, of_target, of_reference in zip(
            items, parts, target_scores, reference_scores, strict=True
        )
    ]


def scores_of(
    texts: AttackTexts,
    model: ScoredModel,
    cache: ScoreCache,
    *,
    moments: bool = False,
    advance: Callable[[int], object] | None = None,
) -> list[TokenScores]:
    """Scores of the scored tokens of every text, in the order of ``flat``; each is read after all that precedes it.

    Args:
        texts: the texts, and their scored parts.
        model: the model that scores.
        cache: of token scores, which are those of whole texts.
        moments: also mean and deviation over the vocabulary.
        advance: called with the number of texts done.

    Raises:
        InputError: parts of texts are asked of an endpoint without a tokenizer, or see ``ScoreCache.scores``.
    """
    plain = [text for _, _, text in texts.flat()]
    whole = cache.scores(model, plain, moments=moments, advance=advance)
    if texts.parts is None:
        return whole
    if model.tokenizer is None:
        raise InputError(f"endpoint model '{model.name}' does not say where tokens stand: give its --tokenizer")
    chosen = scored_tokens(model.tokenizer, plain, texts.spans())
    return [its.at(tokens) for its, tokens in zip(whole, chosen, strict=True)]
