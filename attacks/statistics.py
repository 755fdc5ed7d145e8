"""The statistics that need one text at a time: likelihood ratio, loss, zlib and Min-K%++."""

import zlib
from enum import StrEnum
from typing import ClassVar

import numpy as np

from heldin.attacks.protocol import TextAttack, Uses
from heldin.base.errors import InputError
from heldin.models.token_scores import TokenScores


class Scale(StrEnum):
    """Whether log-probabilities are summed over the text (as in the paper) or averaged over its tokens."""

    SEQUENCE = "sequence"
    TOKEN = "token"


def _log_likelihood(scores: TokenScores, scale: Scale) -> float:
    # A sum gives long texts more weight in a user's mean; a mean over tokens does not, but depends on the tokenizer.
    return scores.total if scale is Scale.SEQUENCE else scores.per_token


class LikelihoodRatio(TextAttack):
    """log p_theta(x) - log p_ref(x): the user-inference statistic (Kandpal et al. 2024, equation 4).

    The statistic of a preference pair is the margin of the chosen over the rejected answer against the reference
    (PREMIA, Feng et al. 2024, arXiv 2407.06443).

    Attributes:
        scale: whether the ratio is per text or per token.
    """

    uses: ClassVar[Uses] = Uses.MODEL
    needs_reference: ClassVar[bool] = True
    of_pairs: ClassVar[bool] = True
    scale: ClassVar[Scale] = Scale.SEQUENCE

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the log-likelihood ratio in nats, per text or per token of each model."""
        if reference is None:
            raise InputError(f"attack '{self.name}' needs a reference model: give a reference model")
        # Per token, each model divides by its own number of tokens: with two tokenizers these differ, and the
        # difference is no likelihood ratio of the text. ``per_text`` is for that case.
        return _log_likelihood(target, self.scale) - _log_likelihood(reference, self.scale)


class PerToken(LikelihoodRatio):
    """The likelihood ratio per token. Means over the tokens of two different tokenizers do not compare, unlike sums."""

    compares_tokens: ClassVar[bool] = True
    scale: ClassVar[Scale] = Scale.TOKEN


class Loss(TextAttack):
    """The negative loss, log p_theta(x) per token, with no reference (Yeom et al. 2018)."""

    uses: ClassVar[Uses] = Uses.MODEL
    of_pairs: ClassVar[bool] = True

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the mean token log-probability, in nats."""
        return _log_likelihood(target, Scale.TOKEN)


class Zlib(TextAttack):
    """log p_theta(x) divided by the text's zlib-compressed size in bits (Carlini et al. 2021, section 5.1)."""

    uses: ClassVar[Uses] = Uses.MODEL

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the log-probability in nats per compressed bit; never positive."""
        # zlib writes a header even for one character, so the size is never 0. Numerator and denominator both grow with
        # the text, so that its length cancels.
        return target.total / (8 * len(zlib.compress(text.encode("utf-8"))))


class MinKPlusPlus(TextAttack):
    """Mean of the lowest ``fraction`` of z-scored token log-probabilities (Zhang et al. 2025, Min-K%++, equation 3).

    Attributes:
        fraction: share of the tokens, in (0, 1].
    """

    uses: ClassVar[Uses] = Uses.MODEL
    needs_moments: ClassVar[bool] = True

    def __init__(self, name: str, fraction: float = 0.2) -> None:
        super().__init__(name)
        if not 0 < fraction <= 1:
            raise InputError(
                f"the fraction of min-k++ is {fraction}, outside (0, 1]: give a number above 0 and at most 1"
            )
        self.fraction = fraction

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the mean z-score of the least likely tokens, at least one token."""
        if target.means is None or target.deviations is None:
            raise InputError(
                f"attack '{self.name}' needs the mean and deviation of log-probabilities over the vocabulary, but"
                " the model does not report these numbers: leave this attack out"
            )
        # A deviation of zero means that the model is certain: the log-probability then equals its mean.
        # The root of the smallest float32, because an unlikely token's difference divided by the smallest one itself
        # would be minus infinity.
        scale = np.maximum(target.deviations, np.finfo(np.float32).tiny ** 0.5)
        # (tokens,), least likely first
        z = np.sort((target.logprobs - target.means) / scale)
        # A text of fewer tokens than 1 / fraction still has one that is least likely.
        return float(z[: max(1, int(self.fraction * len(z)))].mean(dtype=np.float64))
