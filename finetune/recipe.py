"""Training hyperparameters, which are public constants, and the schedules that follow from them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION, FEW, LARGEST, MANY, MOST, Count, Few, Many, Positive
from heldin.corpus.document import Counting
from heldin.models.preference_name import PreferenceName


class Optimizer(StrEnum):
    """Optimizers, with torch's defaults for any option that the recipe does not set."""

    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"
    ADAFACTOR = "adafactor"


class Schedule(StrEnum):
    """The learning rate over the steps. All schedules except ``constant`` begin with a linear warm-up."""

    LINEAR = "linear"
    CONSTANT = "constant"
    COSINE = "cosine"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"


class Select(StrEnum):
    """The rule that chooses the final checkpoint.

    The result is the checkpoint with the best validation loss of members (Kandpal et al.), the last checkpoint, or the
    checkpoint with the best loss of separate public users. A user-level guarantee holds only with the last two rules
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


class TrackerName(StrEnum):
    """Names of experiment trackers, as transformers uses them."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


class Truncate(StrEnum):
    """The rule for cutting a record that is longer than a sequence."""

    TURNS = "turns"
    TOKENS = "tokens"


AUTO = "auto"  # layers that a run picks by the gradients of public users


@dataclass(frozen=True, repr=False)
class Lora:
    """Low-rank adapters on linear layers, instead of training all parameters."""

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    rank: Many = 8
    """Rank of the adapters."""
    alpha: Count = 16
    """Scaling of the adapters: alpha / ``rank``, or alpha / sqrt(``rank``) with ``rslora``."""
    targets: tuple[str, ...] | str = "all-linear"
    """Layers that get adapters: a list of names, a regular expression that matches whole names, or "all-linear". auto:
    the layers with the largest gradients of public users (``model.saliency``).
    """
    picked_share: Annotated[float, Field(gt=0, le=1)] = 0.05
    """With ``targets: auto``: share of the linear layers to pick. At least one layer is picked."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropout on the adapters' inputs. Private training needs the value 0."""
    modules_to_save: tuple[str, ...] = ()
    """Names of layers to train in full and to save with the adapters, such as an untied lm_head."""
    rslora: bool = False
    """Whether to use rank-stabilised LoRA, with the scale alpha / sqrt(``rank``)."""
    dora: bool = False
    """Whether to use DoRA, which trains the direction of a weight with adapters and its magnitude with a separate
    vector.
    """

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"finetune.lora.rank is {self.rank}: give at least 1")
        if not 0 <= self.dropout < 1:
            raise InputError(f"finetune.lora.dropout is {self.dropout}: give at least 0 and below 1")
        if not 0 < self.picked_share <= 1:
            raise InputError(f"finetune.lora.picked_share is {self.picked_share}: give more than 0 and at most 1")
        if isinstance(self.targets, str):
            try:
                re.compile(self.targets)
            except re.error as error:
                raise InputError(
                    f"finetune.lora.targets {self.targets!r} is not a regular expression: {error}"
                ) from error

    @property
    def picks(self) -> bool:
        """Whether heldin still has to pick the layers."""
        return self.targets == AUTO

    def __repr__(self) -> str:
        # Names of cached models follow from it: a key is in the name only where it is not its default.
        stated = [f"{key}={getattr(self, key)!r}" for key in ("rank", "alpha", "targets")]
        for key in ("dropout", "modules_to_save", "rslora", "dora"):
            if getattr(self, key):
                stated.append(f"{key}={getattr(self, key)!r}")
        if self.picks:
            stated.append(f"picked_share={self.picked_share!r}")
        return f"Lora({', '.join(stated)})"


_POSITIVE = {
    "epochs": MANY,
    "batch_size": MOST,
    "learning_rate": LARGEST,
    "sequence_length": MOST,
    "evaluations": FEW,
    "checkpoint_every": MOST,
}


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of one training run. The defaults are from Kandpal et al. (2024), Appendix D.1."""

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    epochs: Annotated[Positive, Field(le=MANY)] = 10.0
    """Number of passes over the records. Private training uses ``defense.steps`` instead."""
    batch_size: Count = 8
    """Number of records per optimizer step. Private training uses ``defense.cohort`` instead."""
    micro_batch: Count | None = None
    """Maximum number of records in one forward pass. If a batch is larger, heldin accumulates gradients. null: no
    limit."""
    optimizer: Optimizer = Optimizer.ADAM
    """Optimizer. Optimizer settings without a key keep PyTorch's defaults."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum, only for sgd."""
    learning_rate: Positive = 5e-5
    """Peak learning rate."""
    schedule: Schedule = Schedule.LINEAR
    """Learning-rate schedule after the warm-up. linear: falls linearly to zero. cosine: falls to zero as half a cosine.
    constant_with_warmup: stays at the peak. constant: stays at the peak in every step, without warm-up.
    """
    weight_decay: Annotated[float, Field(ge=0, lt=2**31)] = 0.0
    """Weight decay of the optimizer."""
    warmup_steps: Annotated[int, Field(ge=0, le=MOST)] = 200
    """Number of steps of linear warm-up. heldin uses at most a tenth of the run's steps."""
    sequence_length: Count = 512
    """Maximum number of tokens per record in training, including the end-of-text token. heldin cuts off the rest."""
    truncate: Truncate = field(default=Truncate.TURNS, repr=False)  # what it does is in the tokens
    """Where to cut a chat that is too long. turns: after the last turn that fits, or at ``sequence_length`` if no
    scored turn fits. tokens: at ``sequence_length``. Plain texts are always cut at ``sequence_length``.
    """
    loss_on: Counting | None = field(default=None, repr=False)
    """Part of a chat, or of a prompt with completion, on which training computes the loss: all, the turns of one role,
    or the completion. null: the assistant's turns of a chat, the completion of a prompt, or the whole text.
    """
    objective: PreferenceName | None = field(default=None, repr=False)  # what it does is in the records
    """Loss for preference pairs. dpo: direct preference optimisation with the sigmoid loss; the reference is the model
    before training. orpo: the loss on the chosen answer plus an odds-ratio term. null: dpo for pairs. For all other
    rows, the loss is the cross entropy of the tokens."""
    beta: Positive | None = field(default=None, repr=False)
    """Beta of dpo, or weight of the odds-ratio term of orpo; null: 0.1. Only for preference pairs."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = field(default=0.0, repr=False)
    """Share of preference pairs for which dpo assumes that the two answers are swapped."""
    evaluations: Few = 10
    """Number of evenly spaced evaluations during training. The last evaluation follows the last step. Each evaluation
    measures losses and AUROC."""
    checkpoint_every: Count = 200
    """Number of steps between resumable checkpoints."""
    select: Select = Select.BEST
    """Checkpoint to keep as the result. best: lowest loss on members' validation records. best_public: lowest loss on
    texts of public users (corpus.public_validation). last: the last checkpoint. A user-level epsilon needs best_public
    or last.
    """
    patience: Count | None = None
    """Training stops after this many evaluations in a row without a lower validation loss. null: training never
    stops early."""
    group_by_length: bool = True
    """Whether to batch records of similar length together, which saves padding. The order of the batches stays random.
    """
    precision: Precision = Precision.AUTO
    """Precision of the forward and backward pass; weights and optimizer stay in fp32. auto: bf16 on a GPU that supports
    bf16, else fp32.
    """
    checkpointing: bool = field(default=False, repr=False)  # names of cached models follow from the representation
    """Whether to use gradient checkpointing, which saves memory and takes about a third more time."""
    shard: Annotated[Few, Field(ge=2)] | None = field(default=None, repr=False)
    """Number of processes among which to shard the model (PyTorch FSDP2). Start the processes with torchrun. null: each
    process has a full copy.
    """
    report_to: tuple[TrackerName, ...] = field(default=(), repr=False)  # changes no weight
    """Trackers that receive losses, epsilon, throughput, the answer and the report. heldin sends numbers that depend on
    membership only after the audit has computed its answer."""
    report_unnoised: bool = field(default=False, repr=False)
    """Whether trackers on other machines may receive un-noised numbers from private training."""
    lora: Lora | None = None
    """Settings for training low-rank adapters (LoRA) only; null: train all parameters."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Public seed for the adapters' initial weights, dropout and the order of records."""

    def __post_init__(self) -> None:
        # Again, with messages in the config's words: code that builds a recipe does not go through pydantic.
        for name, most in _POSITIVE.items():
            value = getattr(self, name)
            if not 0 < value <= most:
                raise InputError(f"finetune.{name} is {value}: give a number above 0 and at most {most:,}")
        if not 0 <= self.momentum < 1 or (self.momentum and self.optimizer is not Optimizer.SGD):
            raise InputError(
                f"finetune.momentum is {self.momentum} with {self.optimizer}: give at least 0 and below 1 with sgd,"
                " and leave momentum out with other optimizers"
            )
        for name in ("weight_decay", "warmup_steps", "seed"):
            value = getattr(self, name)
            if not 0 <= value < 2**31:
                raise InputError(f"finetune.{name} is {value}: give at least 0 and below 2^31")
        if self.patience is not None and self.patience < 1:
            raise InputError(f"finetune.patience is {self.patience}: give at least 1, or null to train to the end")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise InputError(f"finetune.micro_batch is {self.micro_batch}: give at least 1, or null for no limit")

    @property
    def keeps_best(self) -> bool:
        """Return whether the result is the best checkpoint, rather than the last."""
        return self.select is not Select.LAST

    @property
    def looks_at_validation(self) -> bool:
        """Return whether the resulting model depends on a validation loss."""
        return self.keeps_best or self.patience is not None

    def stops_after(self, losses: Sequence[float]) -> bool:
        """Return whether training stops after these validation losses, one for each evaluation so far."""
        if self.patience is None or not losses:
            return False
        best = min(range(len(losses)), key=lambda i: losses[i])  # the first of equal losses: a tie is no better
        return len(losses) - 1 - best >= self.patience

    def steps(self, records: int) -> int:
        """Return the number of optimizer steps for this many records, at least one."""
        per_epoch = -(-records // self.batch_size)
        return max(1, round(self.epochs * per_epoch))

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step (0 to steps - 1). A decaying rate would be zero at ``steps``."""
        warmup = 0 if self.schedule is Schedule.CONSTANT else min(self.warmup_steps, steps // 10)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup  # the first step is not wasted on a rate of zero
        left = (steps - step) / (steps - warmup)
        match self.schedule:
            case Schedule.LINEAR:
                return self.learning_rate * left
            case Schedule.COSINE:
                return self.learning_rate * (1 - math.cos(math.pi * left)) / 2
            case Schedule.CONSTANT | Schedule.CONSTANT_WITH_WARMUP:
                return self.learning_rate

    def evaluation_steps(self, steps: int) -> list[int]:
        """Return the numbers of completed steps after which heldin evaluates the model. The last number is
        ``steps``."""
        times = min(self.evaluations, steps)
        return sorted({round(steps * (i + 1) / times) for i in range(times)})
