"""User-level sampling (ULS; Charles et al., Algorithm 2): users are drawn, and a user's mean gradient is clipped."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from heldin.base.section import Count
from heldin.defenses.accounting.events import Event
from heldin.defenses.choices import LocalUpdates, Unit
from heldin.defenses.mechanisms.contract import Given, Level, looks_across
from heldin.defenses.mechanisms.settings import ShuffledDefense, UserRecords
from heldin.defenses.samplers import CappedPoissonSampler, Sampler
from heldin.words.statement import Statement


class UlsDefense(ShuffledDefense, UserRecords):
    """User-level sampling; every number is a public constant of the config."""

    kind: Literal["uls"]
    cap: Count | None = None
    """Hard cap on the users in a step, only with Poisson sampling; null: no cap."""
    local: LocalUpdates | None = None
    """A drawn user's own steps, whose model difference is clipped in place of a gradient (DP-FedAvg); only with Poisson
    sampling without a cap."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cap is not None and self.cuts_a_list:
            raise ValueError("a cap goes with Poisson sampling only: no other accountant exists")
        if self.local is not None and (self.cuts_a_list or self.cap is not None):
            raise ValueError("local goes with Poisson sampling without a cap only")
        if self.local is not None and self.record_selection == "random_chunk":
            raise ValueError("local trains on records: choose another record_selection than 'random_chunk'")
        return self

    @property
    def local_updates(self) -> LocalUpdates | None:
        """As the config says."""
        return self.local

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """Local updates too."""
        return (*(("defense.local",) if self.local is not None else ()), *super().needs_whole_models)

    @property
    def records_of_a_unit(self) -> int | None:
        """``group_size``, or all."""
        return None if self.record_selection == "all" else self.group_size

    def sampled_by(self) -> Sampler:
        """With the cap, if any."""
        if self.cap is not None:
            return CappedPoissonSampler.of(self.population, self.cohort, self.cap)
        return super().sampled_by()

    def plan(self, given: Given) -> dict[str, Any]:
        """Users are sampled."""
        return {**super().plan(given), "sampled": "user", "local": self.local}


class UserLevel(Level):
    """A user is protected, who is sampled as such: one member, however many records.

    Their mean gradient is clipped as one.
    """

    unit: ClassVar[Unit | Literal["none"]] = "user"
    method: ClassVar[str] = "uls"
    counts_users: ClassVar[bool] = True

    @property
    def user_event(self) -> Event:
        """The event: a user is the unit."""
        return self.event

    def reasons(self) -> Sequence[Statement]:
        """Steps that look at several users' records."""
        return looks_across(self.mechanism)
