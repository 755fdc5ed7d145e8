"""Claims as people who write Python state them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from heldin.base.errors import InputError
from heldin.bounds.claims import parse_claim
from heldin.bounds.claims import plan_claim as _plan_claim
from heldin.bounds.verdict import Claim, stated_claim

Stated = Claim | str | tuple[float, float]
_FORM = 'give a list of claims, such as [(8, 1e-6)] or ["epsilon=8,delta=1e-6"]'


def claim(epsilon: float, delta: float) -> Claim:
    """(epsilon, delta)-DP per user under add/remove, to be tested. Raises InputError for numbers out of range.

    >>> str(claim(8, 1e-6).label)
    'epsilon 8 at delta 1e-06'
    """
    return stated_claim(epsilon, delta)


def plan_claim(path: str | Path) -> Claim:
    """The accountant's whole curve of a plan.json. Raises InputError for a plan without a guarantee for users."""
    return _plan_claim(Path(path))


def claims_of(stated: Sequence[Stated]) -> tuple[Claim, ...]:
    """Claims stated as ``Claim``, "epsilon=8,delta=1e-6" or (8, 1e-6). Raises InputError for a malformed one."""
    # The letters of one text, or the two numbers of one pair, would each be taken for a claim.
    if isinstance(stated, str | Claim) or not isinstance(stated, Iterable):
        given = f"the claim '{stated.label}' alone" if isinstance(stated, Claim) else repr(stated)
        raise InputError(f"claims = {given}: {_FORM}")
    return tuple(_claim_of(claim) for claim in stated)


def _claim_of(claim: Stated) -> Claim:
    if isinstance(claim, Claim):
        return claim
    if isinstance(claim, str):
        return parse_claim(claim)
    try:
        epsilon, delta = map(float, claim)
    except (TypeError, ValueError):
        raise InputError(f"claims: {claim!r} is no claim: {_FORM}") from None
    return stated_claim(epsilon, delta)
