"""Banded noise for users: ULS with noise that partly cancels over steps (docs/theory.md#banded-noise).

Users are divided into groups, and each step draws from the next group. With b groups, a user is in at most one of b
consecutive steps. The noise of these steps may be correlated at no cost in epsilon.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from heldin.base.errors import InputError
from heldin.base.section import Many
from heldin.defenses.accounting.bands import best_bands
from heldin.defenses.choices import PREFIX_SUMS, Workload
from heldin.defenses.mechanisms.contract import Given
from heldin.defenses.mechanisms.settings import SampledDefense, UserRecords
from heldin.defenses.mechanisms.user_level import UserLevel
from heldin.defenses.samplers import BandedPoissonSampler
from heldin.words.guarantee import GuaranteeCondition
from heldin.words.statement import Statement

_REFUSED = {
    "cap": (
        "with a cohort cap, a user's contribution depends on other users, and banded noise has no accountant for"
        " this case"
    ),
    "local": "local updates with banded noise have no proof",
    "clip_quantile": "the noise of a step is used in later steps too, so the clip norm must be constant",
    "sampler": "banded noise always draws users by Poisson coins",
    "tau": "the concentration filter compares all users in every step",
}


class BandedDefense(SampledDefense, UserRecords):
    """User-level sampling in groups. The noise is correlated over as many steps as there are groups of users.

    Every number is a public constant of the config.
    """

    kind: Literal["banded"]
    bands: Many | Literal["auto"] = "auto"
    """Number of groups of users, b. Each step draws users from the next group, with b times the probability of "uls".
    The noise of b consecutive steps is correlated. 1: the same as "uls". auto: the power of two with the smallest error
    at ``target_epsilon``, computed from public constants only."""
    workload: Workload = PREFIX_SUMS
    """Momentum and weight decay of the optimizer for which ``bands: auto`` minimises the error; by default, plain SGD.
    """

    @model_validator(mode="before")
    @classmethod
    def _refused(cls, values: Any) -> Any:
        given = values if isinstance(values, Mapping) else {}
        problems = [f"{key}: {why}. Remove {key}, or use kind: uls" for key, why in _REFUSED.items() if key in given]
        if problems:
            raise ValueError("; ".join(problems))
        return values

    @model_validator(mode="after")
    def _auto_has_a_target(self) -> Self:
        if self.bands == "auto" and self.target_epsilon is None:
            raise ValueError("'bands: auto' compares noise at one epsilon: give target_epsilon, or a number of bands")
        if self.workload != PREFIX_SUMS and self.bands != "auto":
            raise ValueError("workload is only for 'bands: auto': leave workload out, or set 'bands: auto'")
        return self

    @property
    def settled_bands(self) -> int:
        """The number of bands, which follows from public constants."""
        if self.bands != "auto":
            return self.bands
        assert self.target_epsilon is not None
        delta, _ = self.settled_delta()
        return best_bands(self.population, self.cohort, self.steps, self.target_epsilon, delta, self.workload).bands

    @property
    def carries_noise(self) -> bool:
        """Whether there is more than one band."""
        return self.settled_bands > 1

    @property
    def records_of_a_unit(self) -> int | None:
        """The number of a drawn user's records, ``group_size``; None if a step uses all records."""
        return None if self.record_selection == "all" else self.group_size

    def sampled_by(self) -> BandedPoissonSampler:
        """Return Poisson coins for the users of a step's group."""
        return BandedPoissonSampler.of(self.population, self.cohort, self.settled_bands)

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields; users are sampled."""
        return {**super().plan(given), "sampled": "user"}


class BandedLevel(UserLevel):
    """The level of every user, as with ULS. The number of rounds is the number of steps of a user's group."""

    method: ClassVar[str] = "banded"

    @classmethod
    def covers(cls, mechanism: Any) -> bool:
        """Return whether users are drawn in groups."""
        return isinstance(mechanism.sampler, BandedPoissonSampler)

    def check(self) -> None:
        """Raise InputError for the same plans as ULS, and for combinations that the proof does not cover."""
        plan = self.mechanism
        if plan.unit != "user" or not plan.samples_users:
            raise InputError(
                f"banded noise protects sampled users, not unit {plan.unit} with sampled {plan.sampled}: set unit and"
                " sampled to user, or use Poisson sampling"
            )
        super().check()
        if plan.clip.filters:
            raise InputError(
                f"heldin cannot account for banded noise with the concentration filter, because {_REFUSED['tau']}:"
                " remove tau, or use kind: uls"
            )
        if plan.clip_quantile is not None:
            raise InputError(
                f"heldin cannot account for banded noise with a clip quantile, because {_REFUSED['clip_quantile']}:"
                " set clip_norm instead of clip_quantile, or use kind: uls"
            )
        if plan.divisor.constant is None:
            raise InputError(
                "banded noise with the realised cohort as divisor has no accountant: set the divisor to a constant"
            )
        if plan.declared is not None:
            raise InputError(
                "the step of a package adds noise of the package, not heldin's banded noise: choose another sampling"
            )

    def conditions(self, refilling: Sequence[Statement]) -> Sequence[Statement]:
        """Return the condition about the groups, with the conditions of the user level."""
        return (*super().conditions(refilling), GuaranteeCondition.BANDED(bands=self.mechanism.sampler.groups))
