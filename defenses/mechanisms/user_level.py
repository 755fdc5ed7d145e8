"""The level of plans that protect and sample users: ULS, and mechanisms that build on it."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from heldin.defenses.accounting.events import Event
from heldin.defenses.choices import Unit
from heldin.defenses.mechanisms.contract import Level, looks_across
from heldin.words.statement import Statement


class UserLevel(Level):
    """The level of users who are sampled as one member, with any number of records.

    heldin clips a user's mean gradient as a whole.
    """

    unit: ClassVar[Unit | Literal["none"]] = "user"
    method: ClassVar[str] = "uls"
    counts_users: ClassVar[bool] = True

    @property
    def user_event(self) -> Event:
        """The event, because a user is the unit."""
        return self.event

    def reasons(self) -> Sequence[Statement]:
        """Return the reason for no guarantee if data steps use several users' records."""
        return looks_across(self.mechanism)
