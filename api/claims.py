"""Claims as people who write Python state them."""

from collections.abc import Sequence
from pathlib import Path

from heldin.bounds.claims import parse_claim
from heldin.bounds.claims import plan_claim as _plan_claim
from heldin.bounds.verdict import Claim, stated_claim

Stated = Claim | str | tuple[float, float]


def claim(epsilon: float, delta: float) -> Claim:
    """(epsilon, delta)-DP per user under add/remove, to be tested. Raises InputError for numbers out of range.

    >>> claim(8, 1e-6).label
    'epsilon 8 at delta 1e-06'
    """
    return stated_claim(epsilon, delta)


def plan_claim(path: str | Path) -> Claim:
    """The accountant's whole curve of a plan.json. Raises InputError for a plan without a guarantee for users."""
    return _plan_claim(Path(path))


def claims_of(stated: Sequence[Stated]) -> tuple[Claim, ...]:
    """Claims stated as ``Claim``, "epsilon=8,delta=1e-6" or (8, 1e-6). Raises InputError for a malformed one."""
    return tuple(
        its if isinstance(its, Claim) else parse_claim(its) if isinstance(its, str) else stated_claim(*its)
        for its in stated
    )
