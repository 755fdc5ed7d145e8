"""Every panel of a job judged: the subjects whom the answer is about, and those beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heldin.attacks.protocol import TextStatistic
from heldin.audit.assessment import parts_of, results_of
from heldin.audit.canary_groups import (
    CanaryScores,
    PlantedUsers,
    canary_facts,
    canary_scores,
    centred_statistics,
    of_canaries,
)
from heldin.audit.family import variants_of
from heldin.audit.judge import judge
from heldin.audit.preregistration import Panel, Preregistration
from heldin.audit.results import Results
from heldin.audit.scored_users import ScoredUsers, scored_users
from heldin.base.progress import Reporter
from heldin.bounds.judgement import Judgement
from heldin.words import Statement


def judge_panels(
    statistics: Sequence[TextStatistic],
    texts: Mapping[str, Sequence[str]],
    member: Mapping[str, bool],
    fixed: Preregistration,
    reporter: Reporter,
    *,
    planted: PlantedUsers | None = None,
    flaws: Sequence[Statement] = (),
) -> tuple[Results, ScoredUsers]:
    """Join scores with membership, and judge real users and each further panel; this is where scores meet roles.

    Without real users the answer is about canary users, by scores minus their group's median.

    Args:
        statistics: of every text of the scored users.
        texts: the attacker's texts by user.
        member: whether each scored user is held in, canary users included; its order is that of all results.
        planted: the canary users among them; None: there are none.
        flaws: reasons why the comparison is not valid.

    Returns:
        The results, and the scores of those whom the answer is about.
    """
    canaries = {} if planted is None else planted.canaries
    real = {user: held_in for user, held_in in member.items() if user not in canaries}
    of_them = {user: member[user] for user in sorted(canaries)}
    alone = bool(canaries) and not real
    leading = centred_statistics(statistics, canaries, fixed) if alone else statistics
    table = scored_users(leading, of_them if alone else real)
    parts = parts_of(len(variants_of(table.attacks, fixed.attack))) + bool(canaries)
    with reporter.track("statistics", parts, "parts") as advance:
        # Canary users first: a claim that they violate is violated for the training, and the answer must say so.
        judgements: list[Judgement] = []
        facts = None
        if planted is not None and canaries:
            own_texts = {user: texts[user] for user in of_them}
            compared = canary_scores(scored_users(statistics, of_them), own_texts, canaries, fixed)
            kinds = [panel for panel in fixed.panels if panel.kind is not None and not panel.part]
            judgements = [_judged(panel, statistics, member, fixed, compared, flaws) for panel in kinds]
            facts = canary_facts(compared, own_texts, planted, fixed, [] if alone else judgements, flaws)
            advance(1)
        judgements += [_judged(panel, statistics, member, fixed, None, flaws) for panel in fixed.panels if panel.part]
        results = results_of(
            table,
            {user: texts[user] for user in table.users},
            fixed,
            beside=judgements,
            flaws=flaws,
            advance=advance,
        )
    return results.model_copy(update={"canaries": facts}), table


def _judged(
    panel: Panel,
    statistics: Sequence[TextStatistic],
    member: Mapping[str, bool],
    fixed: Preregistration,
    canaries: CanaryScores | None,
    flaws: Sequence[Statement],
) -> Judgement:
    """Test a panel's claims by the leading attack.

    Args:
        canaries: scores within groups, for canary users of a kind; None: scores are compared as they are.
    """
    if canaries is not None:
        fixed, scores = of_canaries(fixed), canaries.centred
    else:
        scores = _leading_scores(panel, statistics, member, fixed)
    judged = judge(
        {user: scores[user] for user in panel.users},
        {user: member[user] for user in panel.users},
        replace(fixed, claims=panel.claims),
        blind=[] if canaries is None else canaries.blind,
        subjects=panel.subjects,
        flawed=bool(flaws),
    )
    if not panel.part:
        return judged
    # Bounds would be about a part of those whom the other panel's bounds are about.
    return replace(judged, delta=fixed.delta, bounds=(), refused=() if judged.verdicts else judged.refused)


def _leading_scores(
    panel: Panel, statistics: Sequence[TextStatistic], member: Mapping[str, bool], fixed: Preregistration
) -> dict[str, float]:
    users = set(panel.users)
    if not users:
        return {}
    table = scored_users([s for s in statistics if s.user in users], {user: member[user] for user in panel.users})
    scores = table.scores(fixed.attack.primary, fixed.attack.aggregations[0]).tolist()
    return dict(zip(table.users, scores, strict=True))
