"""Scores of one text's tokens under a model, as plain arrays."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CutAnswers:
    """What a model answered to the beginning of a text.

    Attributes:
        continuation: what truly follows.
        samples: what the model wrote instead, each time; empty if it was not asked to.
        next_logprob: log-probability of the true next token, nats, or an upper bound of it; None if not asked for.
    """

    continuation: str
    samples: tuple[str, ...] = ()
    next_logprob: float | None = None


@dataclass(frozen=True)
class TokenScores:
    """Scores of one text's n tokens, float32 unless otherwise stated.

    Attributes:
        logprobs: log p(x_t | x_<t), shape (n,).
        means: mean of log p(z | x_<t) over z drawn from the model, shape (n,), or None if not asked for.
        deviations: standard deviation of the same, shape (n,), or None.
        ranks: number of tokens of the vocabulary that the model finds likelier, int32, shape (n,), or None if not asked
            for. 0 is the model's first choice; equal logits share a rank.
        ids: token ids, int32, shape (n,), or None if not asked for.
        rejected: of a preference pair, the scores of the rejected answer beside these of the chosen one.
        answers: what the model answered at each cut of the text; None if it was not asked. Where nothing else was, n is
            zero.
    """

    logprobs: NDArray[np.float32]
    means: NDArray[np.float32] | None = None
    deviations: NDArray[np.float32] | None = None
    ranks: NDArray[np.int32] | None = None
    ids: NDArray[np.int32] | None = None
    rejected: "TokenScores | None" = None
    answers: tuple[CutAnswers, ...] | None = None

    @property
    def total(self) -> float:
        """log p(x), nats; of a pair the margin log p(chosen) - log p(rejected)."""
        return self.own_total - (0.0 if self.rejected is None else self.rejected.own_total)

    @property
    def own_total(self) -> float:
        """log p(x), nats; of a pair that of the chosen answer."""
        # In float64: a ratio is the difference of two such sums, which may each be thousands of nats and nearly equal.
        return float(self.logprobs.sum(dtype=np.float64))

    @property
    def per_token(self) -> float:
        """The mean of log p over tokens, nats; of a pair the difference of the means of its answers."""
        own = self.own_total / len(self.logprobs)
        return own - (0.0 if self.rejected is None else self.rejected.per_token)

    @property
    def nats(self) -> float:
        """The loss of all tokens, of a pair of both answers."""
        return -self.own_total + (0.0 if self.rejected is None else self.rejected.nats)

    @property
    def tokens(self) -> int:
        """Number of tokens, of a pair of both answers."""
        return len(self.logprobs) + (0 if self.rejected is None else self.rejected.tokens)

    @property
    def is_complete(self) -> bool:
        """Return whether there is a token, of a pair one of each answer."""
        return bool(len(self.logprobs)) and (self.rejected is None or self.rejected.is_complete)

    @property
    def mean_loss(self) -> float:
        """Mean loss of the tokens, nats; 0 without any, as such a text adds nothing to a training's loss."""
        return self.nats / max(1, self.tokens)

    def at(self, kept: NDArray[np.bool_] | NDArray[np.intp]) -> "TokenScores":
        """The same scores of some of the tokens, by mask of shape (n,) or by index; answers are left out.

        Raises ValueError for a pair, whose answers have tokens of their own.
        """
        if self.rejected is not None:
            raise ValueError("a pair has the tokens of two texts: read each text's tokens")
        names = (column.name for column in fields(self) if column.name != "answers")
        columns: dict[str, Any] = {name: getattr(self, name) for name in names}
        some: dict[str, Any] = {name: None if values is None else values[kept] for name, values in columns.items()}
        return TokenScores(**some)
