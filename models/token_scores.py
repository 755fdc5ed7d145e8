"""Scores of a text's tokens under a model, as plain arrays."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CutAnswers:
    """A model's answers to the beginning of a text.

    Attributes:
        continuation: true continuation in the text.
        samples: the model's continuations; empty if none were requested.
        next_logprob: log-probability, in nats, of the true next token, or an upper bound; None if not requested.
    """

    continuation: str
    samples: tuple[str, ...] = ()
    next_logprob: float | None = None


@dataclass(frozen=True)
class TokenScores:
    """Scores of one text's n tokens, float32 unless otherwise stated.

    Attributes:
        logprobs: log p(x_t | x_<t), shape (n,).
        means: mean of log p(z | x_<t) over z drawn from the model, shape (n,); None if not requested.
        deviations: standard deviation of log p(z | x_<t) over z, shape (n,); None if not requested.
        ranks: for each token, how many tokens of the vocabulary are likelier, int32, shape (n,); None if not requested.
            0 is the model's first choice; equal logits have the same rank.
        ids: token ids, int32, shape (n,); None if not requested.
        rejected: for a preference pair, the scores of the rejected answer; all other fields describe the chosen answer.
        answers: the model's answer at each cut of the text; None if not requested. If only answers were requested, n is
            0.
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
        """Return log p(x) in nats; for a pair, the margin log p(chosen) - log p(rejected)."""
        return self.own_total - (0.0 if self.rejected is None else self.rejected.own_total)

    @property
    def own_total(self) -> float:
        """Return log p(x) in nats; for a pair, of the chosen answer."""
        # In float64: a ratio is the difference of two such sums, which may each be thousands of nats and nearly equal.
        return float(self.logprobs.sum(dtype=np.float64))

    @property
    def per_token(self) -> float:
        """Return the mean of log p over tokens, in nats; for a pair, chosen mean minus rejected mean."""
        own = self.own_total / len(self.logprobs)
        return own - (0.0 if self.rejected is None else self.rejected.per_token)

    @property
    def nats(self) -> float:
        """Return the sum of the loss over all tokens, in nats; for a pair, over both answers."""
        return -self.own_total + (0.0 if self.rejected is None else self.rejected.nats)

    @property
    def tokens(self) -> int:
        """Return the number of tokens; for a pair, in both answers."""
        return len(self.logprobs) + (0 if self.rejected is None else self.rejected.tokens)

    @property
    def is_complete(self) -> bool:
        """Return whether there is at least one token; for a pair, at least one in each answer."""
        return bool(len(self.logprobs)) and (self.rejected is None or self.rejected.is_complete)

    @property
    def mean_loss(self) -> float:
        """Return the mean loss per token, in nats; 0 without tokens, because such a text adds nothing to a training
        loss."""
        return self.nats / max(1, self.tokens)

    def at(self, kept: NDArray[np.bool_] | NDArray[np.intp]) -> "TokenScores":
        """Return the scores of some tokens, without answers, chosen by a mask of shape (n,) or by indices.

        Raises ValueError for a pair, because its two answers have different tokens.
        """
        if self.rejected is not None:
            raise ValueError("a pair has the tokens of two texts: read each text's tokens")
        names = (column.name for column in fields(self) if column.name != "answers")
        columns: dict[str, Any] = {name: getattr(self, name) for name in names}
        some: dict[str, Any] = {name: None if values is None else values[kept] for name, values in columns.items()}
        return TokenScores(**some)
