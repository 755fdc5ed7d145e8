"""Extraction: would a model that is sampled from emit a person's own words? (n, p)-discoverable extraction.

Hayes et al. (2024, arXiv:2410.19482): a text z = (prefix, suffix) is (n, p)-discoverably extractable under a way of
sampling if at least one of n independent continuations of the prefix is the suffix with probability at least p, which
is 1 - (1 - p_z)^n >= p with p_z the probability of one. The probabilities of the suffix's tokens give p_z exactly, so
that nothing is sampled.
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
    """How the model is asked for users' training texts: one window of each text, a prefix and the suffix that follows
    it."""

    prefix: Many = 50
    """Number of tokens that the attacker knows, and gives to the model."""
    suffix: Many = 50
    """Number of tokens after the prefix that the model would have to emit."""
    temperature: Positive = 1.0
    """Temperature of sampling."""
    top_k: Count | None = 40
    """Number of most probable tokens that sampling draws from, plus tokens that tie with the last of them; null: all
    tokens."""
    queries: tuple[Annotated[int, Field(le=MOST)], ...] = Field((1, 100, 10_000), min_length=1)
    """Numbers of queries: how often the attacker may sample a continuation of one prefix."""
    probability: float = Field(0.5, gt=0, lt=1)
    """A text counts as emitted after a number of queries if, with this probability, at least one query returns its
    suffix."""
    texts_per_user: Count | None = None
    """Maximum number of texts per user; null: all."""
    first_tokens: Annotated[Many, Field(ge=2)] | None = None
    """Number of tokens, from the beginning of a text, that contain its window. null: as many as training sees
    (finetune.sequence_length, or sequence_length of a planted set), or all tokens in the audit of a checkpoint."""

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
        """Tokens of a window."""
        return self.prefix + self.suffix


@dataclass(frozen=True, eq=False)
class TextProbabilities:
    """The probability of each text's suffix, for n texts; owner-only, since it names users.

    Attributes:
        users: whose text it is, n names.
        target: log-probability of the suffix after its prefix under the audited model, nats, float64, shape (n,); minus
            infinity where a token is not among those that are drawn, NaN for a text that is too short for a window.
        reference: the same under the reference model; None where its tokens are others.
        in_others: whether the suffix also stands in a training text that is not this person's, shape (n,); None where
            the training texts are not known.
        in_public: whether it stands in a public text; None where there are none.
    """

    users: Sequence[str]
    target: NDArray[np.float64]
    reference: NDArray[np.float64] | None
    in_others: NDArray[np.bool_] | None
    in_public: NDArray[np.bool_] | None


def least_logprob(queries: int, probability: float) -> float:
    """The least log-probability of one draw at which so many draws emit the suffix with this probability, nats.

    1 - (1 - p_z)^n >= p solved for p_z: 1 - (1 - p)^(1/n).
    """
    return math.log(-math.expm1(math.log1p(-probability) / queries))
