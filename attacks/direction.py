"""The direction of an attack: whether texts that the target finds likelier get a higher score."""

import math
from dataclasses import dataclass

import numpy as np

from heldin.attacks.access import Access
from heldin.attacks.protocol import Attack, TextStatistic
from heldin.models.token_scores import CutAnswers, TokenScores

_TOKENS = 12  # a multiple of three


@dataclass(frozen=True)
class MadeTexts:
    """One text for each of several users, with made-up scores.

    Attributes:
        owners: the users.
        texts: their texts.
        target: scores under the target.
        reference: scores under the reference model.
    """

    owners: tuple[str, ...]
    texts: tuple[str, ...]
    target: tuple[TokenScores, ...]
    reference: tuple[TokenScores, ...]

    def under(self, attack: Attack) -> list[TextStatistic]:
        """Return the attack's statistics. The attack gets only the scores that it declares as needed."""
        return attack.statistics(
            self.owners,
            self.texts,
            [_needed(attack, scores) for scores in self.target],
            [_of_reference(attack, scores) for scores in self.reference],
        )


def made_texts(logprobs: "list[list[float]]", words: str = "The river opens the letter on day 7.") -> MadeTexts:
    """Make one user with one text for each list of the target's log-probabilities.

    All log-probabilities of the reference are -4.
    """
    return MadeTexts(
        tuple(f"user {number}" for number in range(len(logprobs))),
        tuple(words for _ in logprobs),
        tuple(_scores(values) for values in logprobs),
        tuple(_scores([-4.0] * len(values)) for values in logprobs),
    )


def scores_the_likelier_higher(attack: Attack) -> bool:
    """Return whether a text ranks higher if the target finds it likelier than the reference and than other texts.

    All else is equal. Half of the tokens are as likely as under the reference, so statistics that are shares can grow.
    """
    likely, unlikely = [-1.0, -1.0, -5.0], [-3.0, -4.5, -5.5]
    times = _TOKENS // 3
    high, low, _ = made_texts([likely * times, unlikely * times, [-4.0] * _TOKENS]).under(attack)
    return high.value > low.value


def _scores(logprobs: list[float]) -> TokenScores:
    values = np.asarray(logprobs, dtype=np.float32)
    ranks, ids = np.ones(values.size, dtype=np.int32), np.arange(values.size, dtype=np.int32)
    answers = _answers(float(values.mean()))
    return TokenScores(values, np.full_like(values, -5.0), np.full_like(values, 2.0), ranks, ids, answers=answers)


def _answers(mean: float) -> tuple[CutAnswers, ...]:
    """Return the answers at the one cut of a text. Likelier texts share more words with the samples."""
    words = ["opens", "the", "letter", "that", "came", "on", "day", "seven"]
    own = round(len(words) * math.exp(mean / 4))
    samples = (" ".join(words[:own]), " ".join(words[: own // 2]))
    return (CutAnswers(" ".join(words), samples, mean),)


def _of_reference(attack: Attack, scores: TokenScores) -> TokenScores | None:
    if not attack.needs_reference:
        return None
    return TokenScores(scores.logprobs) if attack.access is Access.LOG_PROBABILITIES else _needed(attack, scores)


def _needed(attack: Attack, scores: TokenScores) -> TokenScores:
    if attack.access is not Access.LOG_PROBABILITIES:
        return TokenScores(scores.logprobs[:0], answers=scores.answers)
    return TokenScores(
        scores.logprobs,
        scores.means if attack.needs_moments else None,
        scores.deviations if attack.needs_moments else None,
        scores.ranks if attack.needs_ranks else None,
        scores.ids if attack.needs_ids else None,
    )
