"""Example-level sampling for users (ELS; Charles et al., Algorithm 1), with at most G records per user."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from heldin.defenses.mechanisms.contract import Given
from heldin.defenses.mechanisms.settings import ShuffledDefense, UserRecords
from heldin.defenses.mechanisms.user_level import UserLevel

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism


class ElsDefense(ShuffledDefense, UserRecords):
    """Example-level sampling with at most ``group_size`` records per user. The guarantee covers users."""

    kind: Literal["els"]

    @property
    def units(self) -> int | None:
        """The public number of users."""
        return self.protected_users

    @model_validator(mode="after")
    def _whole_records(self) -> "ElsDefense":
        if self.record_selection == "random_chunk":
            raise ValueError(
                "record_selection 'random_chunk' cuts a sampled user's text: use kind 'uls', or another"
                " record_selection"
            )
        return self

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields: records are sampled, and users are protected.

        The guarantee is for a user with up to G sampled members (docs/theory.md#poisson-accounting).
        """
        return {**super().plan(given), "sampled": "example"}


class CappedUserLevel(UserLevel):
    """The level of users with at most ``group_size`` records. heldin samples the records one by one."""

    method: ClassVar[str] = "els"
    caps_users: ClassVar[bool] = True

    @classmethod
    def covers(cls, mechanism: "Mechanism") -> bool:
        """Return whether users are protected and records are sampled."""
        return super().covers(mechanism) and not mechanism.samples_users

    @property
    def members(self) -> int:
        """The maximum number of a user's records, ``group_size``."""
        return self.mechanism.group_size
