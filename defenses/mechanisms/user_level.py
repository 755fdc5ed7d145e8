"""The level of plans that protect users and sample them as such: of ULS, and of others that build on it."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from heldin.defenses.accounting.events import Event
from heldin.defenses.choices import Unit
from heldin.defenses.mechanisms.contract import Level, looks_across
from heldin.words.statement import Statement


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
