"""User-level sampling (ULS; Charles et al., Algorithm 2), which draws users and clips a user's mean gradient."""

from typing import Any, Literal, Self

from pydantic import model_validator

from heldin.base.section import Count
from heldin.defenses.choices import LocalUpdates
from heldin.defenses.mechanisms.contract import Given
from heldin.defenses.mechanisms.settings import ShuffledDefense, UserRecords
from heldin.defenses.samplers import CappedPoissonSampler, Sampler


class UlsDefense(ShuffledDefense, UserRecords):
    """User-level sampling. Every number is a public constant of the config."""

    kind: Literal["uls"]
    cap: Count | None = None
    """Maximum number of users in a step, only with Poisson sampling; null: no maximum."""
    local: LocalUpdates | None = None
    """Settings of local steps on the records of a sampled user. heldin then clips the model update instead of a
    gradient (DP-FedAvg). Needs Poisson sampling, and no ``cap``.
    """

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cap is not None and self.cuts_a_list:
            raise ValueError(
                "a cohort cap needs Poisson sampling, because no other sampling has an accountant with a cap: set"
                " this sampling, or leave cap out"
            )
        if self.local is not None and (self.cuts_a_list or self.cap is not None):
            raise ValueError("local needs Poisson sampling without a cap: set this sampling, or leave local out")
        if self.local is not None and self.record_selection == "random_chunk":
            raise ValueError("local trains on records: choose another record_selection than 'random_chunk'")
        return self

    @property
    def local_updates(self) -> LocalUpdates | None:
        """The local updates in the config."""
        return self.local

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The keys of a clip quantile and of local updates."""
        return (*(("defense.local",) if self.local is not None else ()), *super().needs_whole_models)

    @property
    def records_of_a_unit(self) -> int | None:
        """The number of a drawn user's records, ``group_size``; None if a step uses all records."""
        return None if self.record_selection == "all" else self.group_size

    def sampled_by(self) -> Sampler:
        """Return the sampler, with the cap if there is one."""
        if self.cap is not None:
            return CappedPoissonSampler.of(self.population, self.cohort, self.cap)
        return super().sampled_by()

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields: users are sampled."""
        return {**super().plan(given), "sampled": "user", "local": self.local}
