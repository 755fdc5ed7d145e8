"""What rounding may add to a composed loss. Without dp-accounting, which a machine that only trains need not have."""

from heldin.base.errors import InputError


def rounding_mass(steps: int) -> float:
    """Mass charged for the rounding of a ``steps``-fold FFT power.

    The transform's error in delta grows like steps * 2^-53. Measured against the exact contour integral it stays below
    0.25 times that (docs/theory.md#rounding-of-composed-losses), so charging all of it never leaves delta too low.
    """
    return steps * 2.0**-53


def check_rounding(delta: float, steps: int) -> None:
    """Raise InputError if delta is not well above the rounding of a whole pair; a hard cap has no tilted one."""
    if delta < 4.0 * rounding_mass(steps):
        raise InputError(
            f"delta {delta:g} is too small for {steps} steps with a hard cohort cap, for which rounding may reach"
            f" {rounding_mass(steps):.1g}: ask for a larger delta"
        )
