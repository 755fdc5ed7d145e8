"""Objectives of preference tuning: a record is a prompt with a chosen and a rejected answer.

The two rows of a pair are consecutive in a batch. Each row has the loss of the pair, so a mean over rows is a mean over
pairs. The log-probability of an answer is the sum over its counted tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from heldin.base.errors import InputError
from heldin.models.objective import TokenBatch, row_losses, target_counts
from heldin.models.preference_name import BETA, PreferenceName
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import IGNORED


@dataclass(frozen=True)
class DirectPreference:
    """Direct preference optimisation with the sigmoid loss (Rafailov et al. 2023, arXiv 2305.18290, equation 7).

    With label smoothing e, the loss is (1 - e) times the loss of the pair, plus e times the loss of the swapped pair
    (conservative DPO, Mitchell 2023).

    Attributes:
        beta: strength of the pull towards the reference; larger values keep the model closer to the reference.
        label_smoothing: assumed share of pairs with a wrong preference, at least 0 and below 0.5.
    """

    name: ClassVar[PreferenceName] = PreferenceName.DPO
    rows: ClassVar[int] = 2
    needs_reference: ClassVar[bool] = True

    beta: float = BETA
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError(f"finetune.beta is {self.beta}: give a number above 0")
        if not 0 <= self.label_smoothing < 0.5:
            raise InputError(f"finetune.label_smoothing is {self.label_smoothing}: give at least 0 and below 0.5")

    def validation_loss(self, target: Sequence[TokenScores], reference: Sequence[TokenScores]) -> float:
        """Return the mean loss over all pairs."""
        margins = [scores.total - before.total for scores, before in zip(target, reference, strict=True)]
        return float(self.loss_of(torch.tensor(margins, dtype=torch.float64)).mean())

    def losses(self, model: Callable[..., Any], batch: TokenBatch, *, once: bool = False) -> Tensor:
        """Return for each row the loss of its pair, (B,)."""
        ratios = -row_losses(model, batch, once=once) - batch.reference
        return _of_pairs(self.loss_of(ratios[0::2] - ratios[1::2]))

    def loss_of(self, margins: Tensor) -> Tensor:
        """Return the loss of pairs.

        Args:
            margins: log-ratio of model to reference for the chosen answer, minus the log-ratio for the rejected answer,
                (P,), nats.
        """
        right = F.logsigmoid(self.beta * margins)
        return -(1 - self.label_smoothing) * right - self.label_smoothing * F.logsigmoid(-self.beta * margins)


@dataclass(frozen=True)
class OddsRatioPreference:
    """The loss on the chosen answer plus an odds ratio against the rejected answer, without a reference (ORPO).

    Hong et al. 2024, arXiv 2403.07691, equations 4 to 7; likelihoods are means over an answer's counted tokens.

    Attributes:
        beta: weight of the odds ratio (lambda in the paper).
    """

    name: ClassVar[PreferenceName] = PreferenceName.ORPO
    rows: ClassVar[int] = 2
    needs_reference: ClassVar[bool] = False
    label_smoothing: ClassVar[float] = 0.0

    beta: float = BETA

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise InputError(f"finetune.beta is {self.beta}: give a number above 0")

    def validation_loss(self, target: Sequence[TokenScores], reference: Sequence[TokenScores]) -> float:
        """Return the mean loss over all pairs."""
        chosen = torch.tensor([scores.own_total / len(scores.logprobs) for scores in target], dtype=torch.float64)
        differences = torch.tensor([scores.per_token for scores in target], dtype=torch.float64)
        return float(self.loss_of(chosen, chosen - differences).mean())

    def losses(self, model: Callable[..., Any], batch: TokenBatch, *, once: bool = False) -> Tensor:
        """Return for each row the loss of its pair, (B,)."""
        means = -row_losses(model, batch, once=once) / target_counts(batch)
        losses = self.loss_of(means[0::2], means[1::2])
        # Without a token of both answers there is nothing to compare.
        complete = (batch.targets != IGNORED).any(1).view(-1, 2).all(1)
        return _of_pairs(torch.where(complete, losses, 0.0))

    def loss_of(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """Return the loss of pairs from the mean log-probability per token of each answer, (P,), nats."""
        odds = chosen - rejected - (_log_of_rest(chosen) - _log_of_rest(rejected))
        return -chosen - self.beta * F.logsigmoid(odds)


def _log_of_rest(logarithm: Tensor) -> Tensor:
    """Return log(1 - p) from log p; a log p above -1e-6 counts as -1e-6, so the result is finite."""
    return torch.log(-torch.expm1(logarithm.clamp_max(-1e-6)))


def _of_pairs(losses: Tensor) -> Tensor:
    return losses.repeat_interleave(2)


Preference = DirectPreference | OddsRatioPreference


def preference_objective(name: PreferenceName, beta: float, label_smoothing: float) -> Preference:
    """Return the objective with this name. Raises InputError for an invalid value."""
    if name is PreferenceName.DPO:
        return DirectPreference(beta, label_smoothing)
    if label_smoothing:
        raise InputError(
            f"finetune.label_smoothing is {label_smoothing}, but {name} has no label smoothing: leave this key out"
        )
    return OddsRatioPreference(beta)
