"""Statistics for an attacker who sees only the text that a model writes, or only its likeliest next tokens.

Each statistic is a mean over the cuts of a text (``attacks.cuts``), minus the mean under the reference model.
"""

import re
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from heldin.attacks.access import Access
from heldin.attacks.protocol import TextAttack, Uses
from heldin.base.errors import InputError
from heldin.models.token_scores import CutAnswers, TokenScores

_WORD = re.compile(r"\w+")
RUN = 3  # words of an n-gram whose coverage is measured


class CutAttack(TextAttack):
    """A statistic of the answers at each cut of a text."""

    uses: ClassVar[Uses] = Uses.MODEL
    needs_reference: ClassVar[bool] = True

    @abstractmethod
    def of_cut(self, answers: CutAnswers) -> float:
        """Return the statistic of one cut under one model."""

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the mean over cuts under the target, minus the mean under the reference."""
        if reference is None:
            raise InputError(f"attack '{self.name}' needs a reference model: give a reference model")
        return self.under(target) - self.under(reference)

    def under(self, scores: TokenScores) -> float:
        """Return the mean over cuts under one model. Raises InputError if the model's answers are missing."""
        if not scores.answers:
            raise InputError(f"attack '{self.name}' needs answers at the cuts of a text: leave this attack out")
        return sum(map(self.of_cut, scores.answers)) / len(scores.answers)


class Coverage(CutAttack):
    """The largest share of the true continuation's n-grams that occur in one sample (Hallinan et al. 2025)."""

    access: ClassVar[Access] = Access.TEXT

    def of_cut(self, answers: CutAnswers) -> float:
        """Return the largest share over the samples."""
        return max(covered(answers), default=0.0)


class MeanCoverage(CutAttack):
    """The mean share of the true continuation's n-grams that occur in a sample (Hallinan et al. 2025)."""

    access: ClassVar[Access] = Access.TEXT

    def of_cut(self, answers: CutAnswers) -> float:
        """Return the mean share over the samples."""
        return sum(covered(answers)) / max(1, len(answers.samples))


class LongestRun(CutAttack):
    """The longest run of words of the true continuation that occurs in a sample."""

    access: ClassVar[Access] = Access.TEXT

    def of_cut(self, answers: CutAnswers) -> float:
        """Return the number of words in the run."""
        true = words_of(answers.continuation)
        return float(max((_longest_run(true, words_of(sample)) for sample in answers.samples), default=0))


class Samia(CutAttack):
    """Mean ROUGE-1 recall of the samples, times the zlib-compressed bytes of the continuation (Kaneko et al. 2024)."""

    access: ClassVar[Access] = Access.TEXT

    def of_cut(self, answers: CutAnswers) -> float:
        """Return the mean share of the continuation's words (with repetitions) that a sample has, times the bytes."""
        true = Counter(words_of(answers.continuation))
        shared = [(true & Counter(words_of(sample))).total() for sample in answers.samples]
        recall = sum(shared) / max(1, len(shared)) / max(1, true.total())
        return recall * len(zlib.compress(answers.continuation.encode()))


class NextWord(CutAttack):
    """The log-probability of the true next token. If it is not among the likeliest tokens, an upper bound is used."""

    access: ClassVar[Access] = Access.TOP_K

    def of_cut(self, answers: CutAnswers) -> float:
        """Return the log-probability or its upper bound, in nats."""
        if answers.next_logprob is None:
            raise InputError(f"attack '{self.name}' needs the most probable next tokens: leave this attack out")
        return answers.next_logprob


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and without punctuation."""
    return _WORD.findall(text.casefold())


def covered(answers: CutAnswers) -> list[float]:
    """Return, for each sample, the share of the continuation's n-grams that occur in it."""
    true = _runs(words_of(answers.continuation))
    return [sum(run in within for run in true) / max(1, len(true)) for within in map(_set_of_runs, answers.samples)]


def _runs(words: Sequence[str]) -> list[tuple[str, ...]]:
    # A continuation that has fewer words is one run by itself.
    size = max(1, min(RUN, len(words)))
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def _set_of_runs(sample: str) -> set[tuple[str, ...]]:
    words = words_of(sample)
    return {tuple(words[i : i + size]) for size in range(1, RUN + 1) for i in range(len(words) - size + 1)}


def _longest_run(true: Sequence[str], sample: Sequence[str]) -> int:
    """Return the length of the longest common run. It uses the length of the run that ends at each pair of words."""
    longest, before = 0, [0] * (len(sample) + 1)
    for word in true:
        ending = [0] * (len(sample) + 1)
        for i, other in enumerate(sample):
            if word == other:
                ending[i + 1] = before[i] + 1
        longest, before = max(longest, *ending), ending
    return longest
