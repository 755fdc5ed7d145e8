"""Bounds and verdict of a run or an audit, for its record: the primary attack's scores against what was claimed."""

from collections.abc import Mapping, Sequence

from heldin.audit.results import REAL_USERS, Blind, Bound, Judgement, RefusedBound, VerdictFacts
from heldin.audit.sides import Sides
from heldin.base.errors import InputError
from heldin.bounds.catalogue import BoundResult, evaluate
from heldin.bounds.scores import join
from heldin.bounds.verdict import Claim, Design, Outcome


def judge(
    scores: Mapping[str, float],
    member: Mapping[str, bool],
    *,
    sides: Sides,
    blind: Sequence[Blind],
    claims: Sequence[Claim],
    delta: float,
    population: str = REAL_USERS,
    populations: int = 1,
    flawed: bool = False,
) -> Judgement:
    """What the primary attack's scores certify, and what they say of each claim.

    The attack and its aggregation are named in the config before anything is seen, so that no price is paid for the
    other attacks, whose results are for the reader's information.

    Args:
        scores: of every scored user.
        member: user to whether held in.
        sides: how membership came about.
        blind: baselines; the smallest of their p-values counts, times their number.
        claims: to test; none gives bounds only.
        delta: of the bounds, where no claim states one.
        population: whom scores and bounds speak of.
        populations: how many are judged side by side; bounds and verdicts of each pay for all (Bonferroni).
        flawed: the comparison is not valid, so that no verdict is passed on the model.
    """
    p_values = [b.p_value for b in blind]
    design = Design(
        sides.assignment,
        coins_witnessed=sides.witnessed,
        blind_p_value=min(1.0, len(p_values) * min(p_values)) if p_values else None,
        attacks=populations,
    )
    held_in = {user for user, its in member.items() if its}
    try:
        joined = join(dict(scores), held_in, set(member) - held_in)
        result = evaluate(joined, design, delta=claims[0].delta if claims else delta, claims=claims)
        return judgement_of(result, population, split_to_blame=flawed)
    except InputError as error:  # too few users, or scores that say nothing: a finding, not a failure of the run
        refused = RefusedBound(name="all bounds", reason=str(error), population=population)
        return Judgement(delta=delta, bounds=[], refused=[refused], verdicts=[])


def judgement_of(result: BoundResult, population: str, *, split_to_blame: bool = False) -> Judgement:
    """The result for the record. A rejection that blind scores could make too says nothing against the model."""
    return Judgement(
        delta=result.delta,
        bounds=[
            Bound(
                name=b.name,
                epsilon_lower=b.epsilon_lower,
                level=b.level,
                standing=b.standing.value,
                coverage=b.coverage,
                population=population,
            )
            for b in result.bounds
        ],
        refused=[RefusedBound(name=r.name, reason=r.reason, population=population) for r in result.refused],
        verdicts=[
            VerdictFacts(
                claim=v.claim,
                outcome=Outcome.INCONCLUSIVE.value if split_to_blame else v.outcome.value,
                standing=v.standing.value,
                reason=v.reason,
                max_certifiable_epsilon=v.max_certifiable_epsilon,
                warnings=list(v.warnings),
                exit_code=0 if split_to_blame else v.exit_code,
                population=population,
            )
            for v in result.verdicts
        ],
    )
