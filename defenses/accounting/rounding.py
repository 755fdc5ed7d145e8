"""The error that rounding may add to a composed loss. The module works on machines without dp-accounting."""

from heldin.base.errors import InputError


def rounding_mass(steps: int) -> float:
    """Return the mass charged for the rounding of a ``steps``-fold FFT power.

    The transform's error in delta grows like steps * 2^-53. Compared with the exact contour integral, the measured
    error is below 0.25 times this mass (docs/theory.md#rounding-of-composed-losses). With the whole mass charged, delta
    is therefore never too low.
    """
    return steps * 2.0**-53


def check_rounding(delta: float, steps: int) -> None:
    """Raise InputError if delta is not well above a whole pair's rounding. A hard cap has no tilted pair."""
    if delta < 4.0 * rounding_mass(steps):
        raise InputError(
            f"delta {delta:g} is too small for {steps} steps with a hard cohort cap, because rounding may reach"
            f" {rounding_mass(steps):.1g}: give a larger delta"
        )
