"""An attack on the tokens that the reference model finds least likely."""

from typing import ClassVar

import numpy as np

from heldin.attacks.protocol import TextAttack, Uses
from heldin.base.errors import InputError
from heldin.models.token_scores import TokenScores


class Surprise(TextAttack):
    """Mean log-likelihood ratio over a fifth of the tokens: those that the reference finds least likely."""

    uses: ClassVar[Uses] = Uses.MODEL
    needs_reference: ClassVar[bool] = True
    compares_tokens: ClassVar[bool] = True

    def statistic(self, text: str, target: TokenScores, reference: TokenScores | None) -> float:
        """Return the mean difference in nats; higher means more likely a member."""
        if reference is None:
            raise InputError(f"attack '{self.name}' needs a reference model: give a reference model")
        rare = np.argsort(reference.logprobs)[: max(1, len(reference.logprobs) // 5)]
        return float((target.logprobs[rare] - reference.logprobs[rare]).mean(dtype=np.float64))
