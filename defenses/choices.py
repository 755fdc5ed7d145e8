"""The choices of a mechanism other than its sampler, as small frozen classes: clip, divisor, data steps.

The fields of a class are the parameters of the choice. All parameters are public constants from the config.
"""

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from heldin.base.errors import InputError
from heldin.base.section import LARGEST, CheckedNames, Count, Many, NotNegative, Positive
from heldin.words.guarantee import NoGuaranteeReason
from heldin.words.statement import Statement

LEAST_CLIP_NORM = 1e-12  # the squares of what a smaller gradient consists of vanish in float32, and so would its norm
ClipNorm: TypeAlias = Annotated[float, Field(ge=LEAST_CLIP_NORM, le=LARGEST, allow_inf_nan=False)]
Rate: TypeAlias = Annotated[float, Field(gt=0.0, le=1.0)]
Unit: TypeAlias = Literal["example", "user", "user-entity"]
DeltaRule: TypeAlias = Literal["units^-1.1", "examples^-1.1"]
Adjacency: TypeAlias = Literal["add_remove", "zero_out", "replace"]


class Choice(CheckedNames):
    """Base class of a choice.

    An unknown key is an error. Invalid fields raise InputError, one line with all problems.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # the type checker keeps the signature made from the fields

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise InputError(f"{type(self).__name__}: " + "; ".join(problems(error, type(self)))) from None


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return each problem as "place: problem".

    For an unknown key, the text has the nearest valid key, or all valid keys.
    """
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(problem["loc"][-1]), list(model.model_fields), n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(model.model_fields)}"
            lines.append(f"unknown key {where} ({hint})")
        elif problem["type"] == "value_error":
            # The exception itself: pydantic's own message puts "Value error, " before it.
            message = str(problem["ctx"]["error"])
            lines.append(f"{where}: {message}" if where else message)
        else:
            lines.append(f"{where}: {problem['msg'].lower()}, got {problem['input']!r:.60}")
    return lines


class ClipQuantile(Choice):
    """The clip norm follows a quantile of the units' norms (Andrew et al. 2021; docs/theory.md#clip-quantile). Each
    step counts the units with a norm of at most the clip norm, adds noise to this count, and scales the clip norm for
    the next step.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    quantile: float = Field(0.5, gt=0.0, lt=1.0)
    """Share of units whose norm should be below the clip norm."""
    rate: Positive = 0.2
    """Learning rate of the clip norm: each step multiplies the clip norm by exp(-rate (share of norms below it -
    quantile)).
    """
    share: float = Field(0.01, gt=0.0, lt=1.0)
    """Share of the privacy budget for counting the units below the clip norm. The noise on gradients becomes 1 / sqrt(1
    - share) times as large."""

    def next_norm(self, norm: float, below: float) -> float:
        """Return the clip norm of the next step, from this step's norm and the noised share of units below it."""
        grown = norm * math.exp(max(-50.0, min(50.0, -self.rate * (below - self.quantile))))
        return min(max(grown, LEAST_CLIP_NORM), LARGEST)


class PlainClip(NamedTuple):
    """Clipping without noise.

    Attributes:
        unit: the clipped unit: each example's gradient, or the gradient of the batch.
        norm: clip norm.
    """

    unit: Literal["example", "batch"]
    norm: float


class ClipKind(Choice):
    """A kind of clipping. The defaults describe a kind that bounds nothing."""

    bounds_units: ClassVar[bool] = False
    """Whether this kind bounds how much one unit contributes to a step."""
    filters: ClassVar[bool] = False
    """Whether this kind leaves out units. If true, the run may halt."""

    @property
    def unit_norm(self) -> float | None:
        """Clip norm of each unit's gradient; None if units are not clipped separately."""
        return None

    @property
    def filter_epsilon(self) -> float:
        """Epsilon of the test that leaves units out; 0 if there is no such test."""
        return 0.0

    def of_units(self) -> "UnitClip":
        """Return this clip. Raises InputError unless each unit's gradient is clipped separately."""
        raise InputError(f"clip '{self._name()}' does not clip each unit separately: use flat or normalised")

    def of_filter(self) -> "ConcentrationFilter":
        """Return this clip. Raises InputError unless the clip leaves units out."""
        raise InputError(f"clip '{self._name()}' does not leave units out: use concentration_filter")

    def _name(self) -> str:
        return str(type(self).model_fields["kind"].default)

    @property
    def plain(self) -> PlainClip | None:
        """Clipping of a run without noise; None if the run does not clip."""
        return None

    @property
    def quantile(self) -> ClipQuantile | None:
        """The quantile that the clip norm follows; None: the clip norm is constant."""
        return None

    def largest(self, above: Callable[[], float]) -> float:
        """Return the largest norm that one sampled member adds to the sum.

        Args:
            above: returns epsilon + ln(T / delta) of AboveThreshold, which the filter of concentration needs.
        """
        return math.inf

    def unprotected(self) -> Statement | None:
        """The reason why this clip gives no guarantee; None if the clip allows a guarantee."""
        return None


class UnitClip(ClipKind, ABC):
    """Clipping of each unit's gradient separately.

    Attributes:
        norm: clip norm C; the clip norm of the first step if the norm follows a quantile.
        follows: the quantile; None: the clip norm is constant.
    """

    bounds_units: ClassVar[bool] = True
    rescales: ClassVar[bool]
    """Whether heldin divides the sum of clipped gradients by the clip norm."""

    norm: ClipNorm
    follows: ClipQuantile | None = None

    def of_units(self) -> "UnitClip":
        """Return this clip."""
        return self

    @abstractmethod
    def scaled(self, norm: float) -> tuple[float, float]:
        """Return the factor of the clipped sum, and the sensitivity of the result, at a clip norm."""

    @property
    def unit_norm(self) -> float:
        """The clip norm C."""
        return self.norm

    @property
    def quantile(self) -> ClipQuantile | None:
        """The quantile; None if the clip norm is constant."""
        return self.follows

    def with_norm(self, norm: float) -> Self:
        """Return this clipping with another, constant norm."""
        return type(self)(norm=norm)


class FlatClip(UnitClip):
    """Clipping that scales each unit's gradient down to at most ``norm``. The noise on the sum has standard deviation s
    * norm."""

    rescales: ClassVar[bool] = False

    kind: Literal["flat"] = "flat"

    @property
    def plain(self) -> PlainClip:
        """Clipping of each example's gradient."""
        return PlainClip("example", self.norm)

    def scaled(self, norm: float) -> tuple[float, float]:
        """Return the factor of the clipped sum, and the sensitivity of the result, at a clip norm."""
        return 1.0, norm

    def largest(self, above: Callable[[], float]) -> float:
        """Return the clip norm."""
        return self.norm


class NormalisedClip(UnitClip):
    """Clipping like FlatClip, then division by ``norm`` (De et al. 2022).

    The sensitivity is 1, and the noise deviation s.
    """

    rescales: ClassVar[bool] = True

    kind: Literal["normalised"] = "normalised"

    def scaled(self, norm: float) -> tuple[float, float]:
        """Return the factor of the clipped sum, and the sensitivity of the result, at a clip norm."""
        return 1.0 / norm, 1.0

    def largest(self, above: Callable[[], float]) -> float:
        """Return 1, because the clipped sum is divided by the norm before the noise is added."""
        return 1.0


class BatchClip(ClipKind):
    """Clipping of the batch's mean gradient as a whole (Kandpal et al., D.3). One unit may change the result by 2 C."""

    kind: Literal["batch"] = "batch"
    norm: ClipNorm

    @property
    def plain(self) -> PlainClip:
        """Clipping of the batch's gradient."""
        return PlainClip("batch", self.norm)

    def unprotected(self) -> Statement:
        """The reason: one unit may change a step by twice the norm."""
        return NoGuaranteeReason.BATCH_CLIPPED()


class ConcentrationFilter(ClipKind):
    """The filter of Asi & Liu leaves out distant users, and halts the run unless most users are close together.

    Attributes:
        kind: name in configs and plans.
        tau: largest distance allowed between most users' gradients.
        above_epsilon: epsilon that AboveThreshold may spend over the run (half the budget in Chua et al., Algorithm 3).
    """

    bounds_units: ClassVar[bool] = True
    filters: ClassVar[bool] = True

    kind: Literal["concentration_filter"] = "concentration_filter"
    tau: Positive
    above_epsilon: Positive

    def of_filter(self) -> "ConcentrationFilter":
        """Return this clip."""
        return self

    @property
    def filter_epsilon(self) -> float:
        """Epsilon of AboveThreshold."""
        return self.above_epsilon

    def largest(self, above: Callable[[], float]) -> float:
        """Return tau sqrt(8 (epsilon + ln(T / delta))) (Chua et al., Algorithm 3, line 14)."""
        return self.tau * math.sqrt(8.0 * above())


class NoClip(ClipKind):
    """No clipping."""

    kind: Literal["none"] = "none"

    def unprotected(self) -> Statement:
        """The reason: no norm is bounded."""
        return NoGuaranteeReason.NO_CLIPPING()


class DivisorKind(Choice):
    """The divisor of the noised sum."""

    @property
    def constant(self) -> float | None:
        """The public constant; None if the divisor depends on private data."""
        return None


class ConstantDivisor(DivisorKind):
    """Division of the noised sum by this public constant."""

    kind: Literal["constant"] = "constant"
    value: Positive

    @property
    def constant(self) -> float:
        """The constant."""
        return self.value


class RealisedCohortDivisor(DivisorKind):
    """Division of the noised sum by the number of drawn units, which depends on private data and coins."""

    kind: Literal["realised_cohort"] = "realised_cohort"


class DataStep(Choice):
    """A data-side step, and the data that it depends on (docs/theory.md#rules-of-the-data).

    Attributes:
        name: description of the step.
        user_local: whether the kept records of a user depend only on that user's records.
        record_local: whether keeping a record depends only on that record.
        slots_only: whether the kept records depend only on slots (ids, authors and named entities), and on no text.
    """

    name: Statement
    user_local: bool
    record_local: bool
    slots_only: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "DataStep":
        # What looks at one record only looks at one user only, so that a record-local step is user-local too.
        if self.record_local and not self.user_local:
            raise ValueError(f"data step {self.name} is declared record-local but not user-local: declare both")
        return self


Clip: TypeAlias = Annotated[
    FlatClip | NormalisedClip | BatchClip | ConcentrationFilter | NoClip, Field(discriminator="kind")
]
Divisor: TypeAlias = Annotated[ConstantDivisor | RealisedCohortDivisor, Field(discriminator="kind")]
RecordSelection: TypeAlias = Literal[
    "all", "random", "longest", "shortest", "highest_perplexity", "lowest_perplexity", "random_chunk"
]


class LocalUpdates(Choice):
    """Several steps of SGD on the records of a drawn user. heldin clips the resulting change of the model, and uses
    this change in place of the gradient.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    learning_rate: Positive
    """Learning rate of the local steps. The step on the noised sum over users uses finetune.learning_rate."""
    batch_size: Count = 8
    """Number of records in each local step. heldin divides the summed gradient by this number."""
    epochs: Count = 1
    """Number of passes over the user's records."""


class Workload(Choice):
    """How the optimizer uses the noised gradients, for the choice of ``bands: auto``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Momentum of sgd. This value must equal finetune.momentum. For Adam, use 0.9 as an approximation."""
    decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Fraction by which each step shrinks the weights: learning rate times weight decay."""


PREFIX_SUMS = Workload()


class WeightCaps(Choice):
    """Weights of Lai et al. (2021), Algorithm 1, lines 3 and 4: min(records / cap, 1), for each user and entity."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    user: Count
    """Smallest number of records at which a user has weight 1."""
    entity: Count
    """Smallest number of records with an entity at which the entity has weight 1."""


class TwoLevel(Choice):
    """Sampling of entities in addition to users (Lai et al. 2021, Algorithm 1; docs/theory.md#two-level-sampling).

    Attributes:
        entity_rate: probability q_e that a recognised entity is in a step.
        extended_rate: probability q_s that a record without an entity is in a step; 0 excludes such records (estimator
            f_E).
        rule: whether a step uses a record only if all of its entities are drawn, or if any entity is drawn.
        holders: K, maximum number of other users whose records name an entity; epsilon is stated for this number.
        weight_caps: weights that count records, which void the guarantee; None: constant weights.
        claimed_noise: z, if the plan claims the epsilon of the paper's accountant; None: the plan claims the actual
            guarantee.
        sensitive_share: share of records with a recognised entity, which the paper's claim for f_E+ uses.
    """

    entity_rate: Rate
    extended_rate: Annotated[float, Field(ge=0.0, le=1.0)]
    rule: Literal["all", "any"]
    holders: Many
    weight_caps: WeightCaps | None = None
    claimed_noise: NotNegative | None = None
    sensitive_share: Rate | None = None

    @model_validator(mode="after")
    def _claim_is_whole(self) -> "TwoLevel":
        if self.claimed_noise is not None and self.extended_rate > 0 and self.sensitive_share is None:
            raise ValueError(
                "the paper's claim for records without an entity needs sensitive_share: give sensitive_share"
            )
        return self


class NoiseGenerator(StrEnum):
    """The generator of the noise. The value is the name in plan and report."""

    PHILOX = "Philox keyed per step by HMAC-SHA-256 (counter-based, not cryptographic)"
    SECURE = "AES-256-CTR keyed per step by HMAC-SHA-256 (cryptographic)"
