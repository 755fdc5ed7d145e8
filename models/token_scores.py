"""Scores of one text's tokens under a model, as plain arrays."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenScores:
    """Scores of one text's n tokens, float32.

    Attributes:
        logprobs: log p(x_t | x_<t), shape (n,).
        means: mean of log p(z | x_<t) over z drawn from the model, shape (n,), or None if not asked for.
        deviations: standard deviation of the same, shape (n,), or None.
    """

    logprobs: NDArray[np.float32]
    means: NDArray[np.float32] | None = None
    deviations: NDArray[np.float32] | None = None

    @property
    def total(self) -> float:
        """log p(x), nats."""
        # In float64: a ratio is the difference of two such sums, which may each be thousands of nats and nearly equal.
        return float(self.logprobs.sum(dtype=np.float64))

    def at(self, tokens: NDArray[np.bool_]) -> "TokenScores":
        """The scores of some of the tokens, named by an array of shape (n,)."""
        rows = {field.name: getattr(self, field.name) for field in fields(self)}
        return TokenScores(**{name: row[tokens] for name, row in rows.items() if row is not None})
