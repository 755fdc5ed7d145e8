"""Filtered descent (Asi & Liu; Chua et al., Algorithm 3) with full batches; it may halt and release no model."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from heldin.base.errors import InputError
from heldin.base.section import Positive
from heldin.defenses.choices import ConcentrationFilter, ConstantDivisor
from heldin.defenses.mechanisms.contract import Given
from heldin.defenses.mechanisms.settings import UserRecords
from heldin.defenses.mechanisms.user_level import UserLevel
from heldin.defenses.samplers import FullBatchSampler

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism


class FilterDefense(UserRecords):
    """Asi & Liu's filtered descent (Chua et al., Algorithm 3) with full batches. The run may halt without a model."""

    may_halt: ClassVar[bool] = True

    kind: Literal["filter"]
    target_epsilon: Positive
    """Epsilon per user, from which heldin computes the noise."""
    tau: Positive
    """Largest distance allowed between the gradients of most users. If the distance is larger in a step, the run halts.
    """

    @property
    def calibrated_to(self) -> float:
        """The target epsilon."""
        return self.target_epsilon

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The defense's key, because the filter compares whole gradients of all users."""
        return (f"defense.kind {self.kind}",)

    def retraining_problem(self, documents: int | None) -> str:
        """Return the problem: the trainings are add/remove neighbours, but the epsilon is for replacement.

        See docs/theory.md#filtered-descent.
        """
        return (
            "defense 'filter' protects a user who is replaced, and may halt, but independent training runs add or leave"
            " out a user: choose another defense"
        )

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields: all users are in every step."""
        return {
            **super().plan(given),
            "adjacency": "replace",
            "sampled": "user",
            "sampler": FullBatchSampler(population=self.population),
            # Half of epsilon pays AboveThreshold, the other half the Gaussian steps
            # (docs/theory.md#filtered-descent, accounting).
            "clip": ConcentrationFilter(tau=self.tau, above_epsilon=self.target_epsilon / 2),
            "noise_multiplier": 1.0,
            "divisor": ConstantDivisor(value=self.population),
        }


class FilteredLevel(UserLevel):
    """The level of users who are in every step and may be replaced by another user."""

    method: ClassVar[str] = "filter"

    @classmethod
    def covers(cls, mechanism: "Mechanism") -> bool:
        """Return whether a plan has a filter or full batches, with any unit. ``check`` refuses all units except one."""
        return mechanism.clip.filters or mechanism.sampler.full_batch

    def check(self) -> None:
        """Raise InputError for a filter without full batches, and for any other unit or adjacency."""
        super().check()
        plan = self.mechanism
        if plan.clip.filters != plan.sampler.full_batch:
            raise InputError(
                "the concentration filter needs full batches, and full batches need the concentration filter: use"
                " both or neither"
            )
        if (plan.unit, plan.samples_users, plan.adjacency) != (self.unit, True, "replace"):
            raise InputError(
                "the concentration filter protects sampled users under replace adjacency: sample users, with replace"
                " adjacency"
            )
