"""How to train: the public constants of a training run, and what follows from them at each step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from heldin.base.errors import InputError


class Optimizer(StrEnum):
    """Optimizers, with torch's defaults for what the recipe does not name; SGD has momentum 0.9."""

    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"
    ADAFACTOR = "adafactor"


class Select(StrEnum):
    """Which checkpoint is the result: the best by validation loss of held-in users (Kandpal et al.), or the last.

    Or the best by the loss of separate public users, which a user-level guarantee outlives
    (docs/theory.md#rules-of-a-private-step).
    """

    BEST = "best"
    BEST_PUBLIC = "best_public"
    LAST = "last"


class Precision(StrEnum):
    """Arithmetic of the forward and backward pass; weights and optimizer stay in fp32."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters on the linear layers in place of training all parameters."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # of a config that holds one

    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] | str = "all-linear"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"finetune.lora.rank is {self.rank}: it must be at least 1")


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of one training run; the defaults are those of Kandpal et al. (2024), Appendix D.1.

    Attributes:
        epochs: passes over the records.
        batch_size: records per optimizer step.
        micro_batch: records per forward pass, the batch's gradients being summed over micro-batches; None: all.
        learning_rate: peak, reached after ``warmup_steps`` (a tenth of a short run), then decaying linearly to zero.
        sequence_length: tokens of a record that are trained on, the end-of-text token included; the rest is cut off.
        evaluations: how often the evaluation callback runs, evenly over the run, the last time after the last step.
        checkpoint_every: steps between resumable checkpoints.
        patience: stop when so many evaluations in a row have brought no better validation loss; None: never.
        group_by_length: draw batches of records of like length, in random order, to save padding.
        seed: of initialisation of adapters and of the order of records; public.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # of a config that holds one

    epochs: float = 10.0
    batch_size: int = 8
    micro_batch: int | None = None
    optimizer: Optimizer = Optimizer.ADAM
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    warmup_steps: int = 200
    sequence_length: int = 512
    evaluations: int = 10
    checkpoint_every: int = 200
    select: Select = Select.BEST
    patience: int | None = None
    group_by_length: bool = True
    precision: Precision = Precision.AUTO
    lora: Lora | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "sequence_length", "evaluations", "checkpoint_every"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"finetune.{name} is {value}: it must be positive and finite")
        for name in ("weight_decay", "warmup_steps", "seed"):
            value = getattr(self, name)
            if not 0 <= value < 2**31:
                raise InputError(f"finetune.{name} is {value}: it must be at least 0 and below 2^31")
        if self.patience is not None and self.patience < 1:
            raise InputError(
                f"finetune.patience is {self.patience}: it must be at least 1, or null to train to the end"
            )
        if self.micro_batch is not None and self.micro_batch < 1:
            raise InputError(f"finetune.micro_batch is {self.micro_batch}: it must be at least 1, or null for no limit")

    @property
    def keeps_best(self) -> bool:
        """Whether the result is the best checkpoint, not the last."""
        return self.select is not Select.LAST

    @property
    def looks_at_validation(self) -> bool:
        """Whether the model that comes out depends on a validation loss."""
        return self.keeps_best or self.patience is not None

    def stops_after(self, losses: Sequence[float]) -> bool:
        """Whether training ends after these validation losses, one of each evaluation so far."""
        if self.patience is None or not losses:
            return False
        best = min(range(len(losses)), key=lambda i: losses[i])
        return len(losses) - 1 - best >= self.patience

    def steps(self, records: int) -> int:
        """Optimizer steps for a number of records: at least one."""
        per_epoch = -(-records // self.batch_size)
        return max(1, round(self.epochs * per_epoch))

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Learning rate of step 0..steps-1: linear warm-up, then linear decay that would reach zero at ``steps``."""
        warmup = min(self.warmup_steps, steps // 10)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        return self.learning_rate * (steps - step) / (steps - warmup)

    def evaluation_steps(self, steps: int) -> list[int]:
        """Numbers of completed steps after which to evaluate; the last is ``steps``."""
        times = min(self.evaluations, steps)
        return sorted({round(steps * (i + 1) / times) for i in range(times)})
