"""Training without a defense, and plans that protect nobody."""

from typing import Any, ClassVar, Literal

from heldin.defenses.choices import Clip, ConstantDivisor, NoClip, Unit
from heldin.defenses.mechanisms.contract import DefenseConfig, Given, Level
from heldin.defenses.samplers import PoissonSampler


class NoDefense(DefenseConfig):
    """Plain training."""

    is_plain: ClassVar[bool] = True

    kind: Literal["none"] = "none"

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields without clipping."""
        return plain_plan(given, NoClip())


def plain_plan(given: Given, clip: Clip) -> dict[str, Any]:
    """Return the fields of a plan without noise."""
    return {
        "unit": "none",
        "sampled": "example",
        # Fields that a mechanism must have: without a unit no accountant reads them.
        "sampler": PoissonSampler(rate=1.0),
        "clip": clip,
        "noise_multiplier": 0.0,
        "steps": given.plain_steps,
        "divisor": ConstantDivisor(value=given.batch_size),
        "record_selection": "all",
        "noise_generator": "none",
        "checkpoint": given.checkpoint,
    }


class PlainLevel(Level):
    """The level of plans that protect nobody. Such plans need no accountant for any sampler or clip."""

    unit: ClassVar[Unit | Literal["none"]] = "none"
    method: ClassVar[str] = "none"
    protects: ClassVar[bool] = False
    counts_users: ClassVar[bool] = True

    def check(self) -> None:
        """Accept every plan."""
