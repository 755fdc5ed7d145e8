"""The level of a plan: the protection that follows from its fields."""

from typing import TYPE_CHECKING

from heldin.defenses.mechanisms.banded import BandedLevel
from heldin.defenses.mechanisms.contract import Level
from heldin.defenses.mechanisms.els import CappedUserLevel
from heldin.defenses.mechanisms.example import ExampleLevel
from heldin.defenses.mechanisms.filtered import FilteredLevel
from heldin.defenses.mechanisms.plain import PlainLevel
from heldin.defenses.mechanisms.text_sampling import TextLevel
from heldin.defenses.mechanisms.two_level import PairLevel
from heldin.defenses.mechanisms.user_level import UserLevel

if TYPE_CHECKING:
    from heldin.defenses.mechanism import Mechanism

# The first that covers a plan is its level.
_LEVELS: tuple[type[Level], ...] = (
    PlainLevel,
    BandedLevel,
    FilteredLevel,
    PairLevel,
    TextLevel,
    ExampleLevel,
    CappedUserLevel,
    UserLevel,
)


def level_of(mechanism: "Mechanism") -> Level:
    """Return the level of a plan."""
    return next(level for level in _LEVELS if level.covers(mechanism))(mechanism)
