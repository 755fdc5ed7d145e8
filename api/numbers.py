"""Claims, bounds and verdicts from arrays of scores, and a forecast of the epsilon that an audit can certify."""

import difflib
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from heldin.base.arguments import numbers_named, require_number
from heldin.base.errors import InputError
from heldin.bounds.csv_scores import bound_scores
from heldin.bounds.design import Design, assignment_named
from heldin.bounds.judgement import Judgement
from heldin.bounds.plan_claims import plan_claim as _plan_claim
from heldin.bounds.power import Power
from heldin.bounds.power import power as _power
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Claim, parse_claim, stated_claim

Stated = Claim | str | tuple[float, float]
_FORM = 'give a list of claims, such as [(8, 1e-6)] or ["epsilon=8,delta=1e-6"]'


def claim(epsilon: float, delta: float) -> Claim:
    """Return the claim of (epsilon, delta)-DP per user under add/remove. Raises InputError for numbers out of range.

    >>> str(claim(8, 1e-6).label)
    'epsilon 8 at delta 1e-06'
    """
    return stated_claim(epsilon, delta)


def plan_claim(path: str | Path) -> Claim:
    """Return the accountant's curve of a plan.json. Raises InputError for a plan without a guarantee for users."""
    return _plan_claim(Path(path))


def claims_of(stated: Sequence[Stated]) -> tuple[Claim, ...]:
    """Return claims from ``Claim``, "epsilon=8,delta=1e-6" or (8, 1e-6). Raises InputError for any other form."""
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
        raise InputError(f"{claim!r} in claims is not a claim: {_FORM}") from None
    return stated_claim(epsilon, delta)


# A typed dict and not ``Any``, so that a type checker catches a misspelt option.
class DesignOptions(TypedDict, total=False):
    """The design of the audit behind the scores; see ``bounds.design.Design``."""

    independent_trainings: bool
    reference_on_one_side: bool
    blind_p_value: float | None
    guesses: int | None
    thresholds: tuple[float, ...]
    attacks: int
    alpha: float
    gaussian: bool


def bound(
    scores: ArrayLike,
    member: ArrayLike,
    *,
    assignment: str = "unknown",
    users: Sequence[str] | None = None,
    higher_is: str = "member",
    delta: float | None = None,
    claims: Sequence[Stated] = (),
    **design: Unpack[DesignOptions],
) -> Judgement:
    """Return lower bounds on epsilon per user, and a verdict on each claim, from the scores of any tool.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> member = rng.random(1000) < 0.5
    >>> found = bound(rng.normal(2.0 * member), member, assignment="coin", claims=["epsilon=1,delta=1e-5"])
    >>> found.verdict.outcome.value, found.verdict.standing.value, found.exit_code
    ('contradicted', 'certified', 3)

    Args:
        scores: one score for each user, shape (m,).
        member: whether each user is a member, shape (m,).
        assignment: rule that chose the members: coin (an independent fair coin for each user), fixed (any other known
            way) or unknown.
        users: names that error messages use, shape (m,); None: row numbers.
        higher_is: the group that a higher score indicates: member or non-member.
        delta: delta of the bounds; None: the delta of the first claim.
        claims: claims to test, each a ``Claim``, "epsilon=8,delta=1e-6" or (8, 1e-6).
        design: other choices that you fixed before you saw the scores (the keys of ``DesignOptions``).

    Returns:
        The bounds that are valid for the design, the refused bounds with reasons, and the verdicts.

    Raises:
        InputError: a score is not finite or has no membership, delta is missing, or a word is unknown.
        TooFewUsers: there are too few users for any bound.
    """
    unknown = next((name for name in design if name not in DesignOptions.__annotations__), None)
    if unknown is not None:
        known = [*DesignOptions.__annotations__, *(set(inspect.signature(bound).parameters) - {"design"})]
        near = difflib.get_close_matches(unknown, known, n=1)
        raise InputError(f"bound has no argument '{unknown}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    for name, number in (("delta", delta), ("alpha", design.get("alpha")), ("guesses", design.get("guesses"))):
        if number is not None:
            require_number(name, number, whole=name == "guesses")
    if not isinstance(design.get("thresholds", ()), Sequence):
        raise InputError(f"thresholds is {design['thresholds']!r}: give a list of numbers")
    if np.ma.isMaskedArray(scores) or np.iscomplexobj(scores):
        raise InputError(
            "scores is a masked array, so some users are hidden: give plain real numbers, one for each user"
        )
    try:
        values, held_in = np.asarray(scores, dtype=np.float64), np.asarray(member)
    except (TypeError, ValueError) as error:
        raise InputError(f"scores are not numbers ({error}): give one number for each user") from None
    if not values.size:
        raise InputError("scores is empty: give one score for each user")
    # Converted to bool, a NaN, a 2 or the text "False" would all become held in, and a label lost in silence moves a
    # bound.
    if held_in.dtype != np.bool_ and not np.isin(held_in, (0, 1)).all():
        raise InputError(
            "member has another value than True or 1 (member) and False or 0 (non-member): give one of these"
            " values for each score"
        )
    names = None if users is None else tuple(map(str, users))
    labelled = LabelledScores(values, held_in.astype(np.bool_), names)
    # The coins are certified on the caller's word, and the judgement says so: heldin did not flip them
    # (docs/theory.md#conditions-of-one-run).
    stated = Design(assignment_named(assignment), coins_stated=True, **design)
    return bound_scores(labelled, stated, higher_is=higher_is, delta=delta, claims=claims_of(claims))


@numbers_named
def power(users: int, auroc: float, *, delta: float = 1e-5, claims: Sequence[Stated] = ()) -> Power:
    """Forecast, before an audit, the epsilons that the audit could certify and the claims that it could contradict.
    Coins choose the members.

    >>> found = power(500, 0.75)
    >>> round(found.largest.paid, 1)
    4.7

    Args:
        users: number of users, members and non-members together.
        auroc: AUROC that you expect the attack to reach.
        delta: delta of the bounds.
        claims: claims to forecast, each considered separately.

    Raises:
        InputError: there are too few or too many users, or the AUROC is outside [0.5, 1).
    """
    return _power(users, auroc, delta, claims=claims_of(claims))
