"""Bounds and verdicts of a run or an audit: the primary attack's scores against what was claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heldin.audit.blind import Blind
from heldin.audit.preregistration import Preregistration
from heldin.audit.sides import Sides
from heldin.base.errors import ConstantScores, TooFewUsers
from heldin.bounds.judgement import Judgement, evaluate, nothing_judged
from heldin.bounds.scores import join
from heldin.bounds.verdict import REAL_USERS, Design, Outcome


def judge(
    scores: Mapping[str, float],
    member: Mapping[str, bool],
    fixed: Preregistration,
    *,
    sides: Sides,
    blind: Sequence[Blind],
    subjects: str = REAL_USERS,
    flawed: bool = False,
) -> Judgement:
    """What the primary attack's scores certify, and what they say of each claim.

    The config names the attack and its aggregation before anything is seen: they are pre-registered, so that no
    correction for the other attacks is needed, whose results are for the reader's information.

    Args:
        scores: of every scored user.
        member: user to whether held in.
        fixed: the claims, and delta of the bounds where no claim states one.
        sides: how membership came about.
        blind: baselines; the smallest of their p-values counts, times their number.
        subjects: whom scores and bounds speak of.
        flawed: the comparison is not valid, so that no verdict is passed on the model: a rejection that blind scores
            could make too says nothing against it.

    Raises:
        InputError: a score without membership, a delta that is none, and other mistakes of the caller.
    """
    p_values = [b.p_value for b in blind]
    design = Design(
        sides.assignment,
        coins_witnessed=sides.witnessed,
        blind_p_value=min(1.0, len(p_values) * min(p_values)) if p_values else None,
        attacks=fixed.judged,
        subjects=subjects,
    )
    held_in = {user for user, its in member.items() if its}
    try:
        joined = join(dict(scores), held_in, set(member) - held_in)
        found = evaluate(joined, design, delta=fixed.delta, claims=fixed.claims)
    except (TooFewUsers, ConstantScores) as error:  # a finding, not a failure of the run
        return nothing_judged(len(member), fixed.audit.delta, str(error), subjects)
    if not flawed:
        return found
    return replace(found, verdicts=tuple(replace(v, outcome=Outcome.INCONCLUSIVE) for v in found.verdicts))
