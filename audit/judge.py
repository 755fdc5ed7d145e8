"""Bounds and verdicts of a run or an audit: the primary attack's scores against what was claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heldin.attacks.statistics import get_attack
from heldin.audit.blind import Blind
from heldin.audit.preregistration import Preregistration
from heldin.base.errors import ConstantScores, TooFewUsers
from heldin.bounds.design import Design
from heldin.bounds.judgement import Judgement, evaluate, nothing_judged
from heldin.bounds.scores import join
from heldin.bounds.verdict import Outcome
from heldin.words import Statement
from heldin.words.evidence import REAL_USERS


def judge(
    scores: Mapping[str, float],
    member: Mapping[str, bool],
    fixed: Preregistration,
    *,
    blind: Sequence[Blind],
    subjects: Statement = REAL_USERS,
    flawed: bool = False,
) -> Judgement:
    """Return the bounds that the primary attack's scores certify, and a verdict on each claim.

    The config names the attack and its aggregation before anything is seen. They are pre-registered, so no correction
    for the other attacks is needed; the results of those are for information only.

    Args:
        scores: score of every scored user.
        fixed: how membership was decided, the claims, and delta of the bounds if no claim states one.
        subjects: the people whom scores and bounds are about.
        flawed: whether the comparison is not valid, so that no verdict is passed on the model.

    Raises:
        InputError: a score without membership, an invalid delta, and other mistakes of the caller.
    """
    p_values, sides = [b.p_value for b in blind], fixed.sides
    design = Design(
        sides.assignment,
        coins_witnessed=sides.witnessed,
        blind_p_value=min(1.0, len(p_values) * min(p_values)) if p_values else None,  # Bonferroni over the baselines
        # Groups of people tested side by side are paid for as attacks are: each gets its share of alpha.
        attacks=fixed.judged,
        subjects=subjects,
        unmet=sides.unmet,
        uses=get_attack(fixed.attack.primary).uses,
    )
    held_in = {user for user, inside in member.items() if inside}
    try:
        # By name: a user without a score, or with one and no membership, is refused and not dropped.
        joined = join(dict(scores), held_in, set(member) - held_in)
        judgement = evaluate(joined, design, delta=fixed.delta, claims=fixed.claims)
    except (TooFewUsers, ConstantScores) as error:  # a finding, not a failure of the run
        return nothing_judged(len(member), fixed.delta, error.statement, subjects)
    if not flawed:
        return judgement
    # blind scores could have made the same rejection, so it says nothing against the model
    return replace(judgement, verdicts=tuple(replace(v, outcome=Outcome.INCONCLUSIVE) for v in judgement.verdicts))
