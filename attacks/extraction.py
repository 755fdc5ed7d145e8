"""Whether a model that is sampled would emit a person's own words: (n, p)-discoverable extraction.

Hayes et al. (2024, arXiv:2410.19482) define (n, p)-discoverable extraction. A text z = (prefix, suffix) is extractable
under a sampling method if, with probability at least p, one or more of n independent continuations of the prefix equal
the suffix. With p_z the probability that one continuation is the suffix, the condition is 1 - (1 - p_z)^n >= p. The
probabilities of the suffix's tokens give p_z exactly, so heldin samples nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from heldin.base.section import MOST, Count, Many, Positive, Section


class ExtractionConfig(Section):
    """Settings of extraction. The attacker knows a prefix of each text, and samples until the model writes the
    following suffix.
    """

    prefix: Many = 50
    """Number of tokens in the prefix, which the attacker gives to the model."""
    suffix: Many = 50
    """Number of tokens in the suffix, which the model must reproduce exactly."""
    temperature: Positive = 1.0
    """Sampling temperature."""
    top_k: Count | None = 40
    """Number of most probable tokens from which the model samples. Ties for the last place are included. null: all
    tokens.
    """
    queries: tuple[Annotated[int, Field(le=MOST)], ...] = Field((1, 100, 10_000), min_length=1)
    """Numbers of queries for each prefix. Each query samples one continuation."""
    probability: float = Field(0.5, gt=0, lt=1)
    """Threshold for the probability that at least one query returns the suffix. A text counts as emitted if its
    probability is at least this threshold."""
    texts_per_user: Count | None = None
    """Maximum number of texts per user; null: all texts."""
    first_tokens: Annotated[Many, Field(ge=2)] | None = None
    """Number of tokens at the beginning of each text from which heldin takes prefix and suffix. null: the tokens that
    training sees (finetune.sequence_length, or sequence_length of a planted set). In the audit of a checkpoint, null
    means all tokens."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> "ExtractionConfig":
        if list(self.queries) != sorted(set(self.queries)) or self.queries[0] < 1:
            raise ValueError(
                f"queries is {list(self.queries)}: give different whole numbers from 1, in ascending order"
            )
        if self.first_tokens is not None and self.first_tokens < self.length:
            raise ValueError(
                f"first_tokens is {self.first_tokens}, too few for a window of prefix + suffix = {self.length}"
                " tokens: raise first_tokens"
            )
        return self

    @property
    def length(self) -> int:
        """Number of tokens in a window."""
        return self.prefix + self.suffix


@dataclass(frozen=True, eq=False)
class TextProbabilities:
    """The probability of each text's suffix, for n texts. Its file is owner-only, because it names users.

    Attributes:
        users: the author of each text, n names.
        target: log-probability, in nats, of the suffix after its prefix under the audited model, float64, shape (n,).
            Minus infinity if sampling never draws a token of the suffix; NaN for a text that is too short for a window.
        reference: log-probability under the reference model, as in ``target``; None if the models' tokens differ.
        in_others: whether another person's training text contains the suffix, shape (n,); None if the training texts
            are unknown.
        in_public: whether a public text contains the suffix; None if there are no public texts.
    """

    users: Sequence[str]
    target: NDArray[np.float64]
    reference: NDArray[np.float64] | None
    in_others: NDArray[np.bool_] | None
    in_public: NDArray[np.bool_] | None


def least_logprob(queries: int, probability: float) -> float:
    """Return the lowest log-probability of one draw, in nats, with which ``queries`` draws emit the suffix.

    The ``queries`` draws emit the suffix with probability at least ``probability``. The solution of 1 - (1 - p_z)^n >=
    p is p_z >= 1 - (1 - p)^(1/n).
    """
    return math.log(-math.expm1(math.log1p(-probability) / queries))
