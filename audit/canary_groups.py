"""Results for canary users, separate from real users: AUROC by group, blind baselines, bounds, verdict.

A group is a kind, a length and a number of documents (Kandpal et al. 2024, Figure 5). Bounds use all canary users of a
kind together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import Dial, TextStatistic
from heldin.audit.answer import DecisionFacts, decision_facts
from heldin.audit.blind import Blind, blind_baselines
from heldin.audit.bootstrap import Estimate, bootstrap
from heldin.audit.family import evaluate_family, variants_of
from heldin.audit.preregistration import COINS, Preregistration
from heldin.audit.results import CanaryFacts, CanaryGroup
from heldin.audit.scored_users import ScoredUsers, scored_users
from heldin.bounds.judgement import Judgement, joined
from heldin.canaries.users import Canary
from heldin.words.people import CANARIES
from heldin.words.statement import Statement

Array = NDArray[np.float64]

LEAST_PER_SIDE = 2  # resampling a single user shows no spread


@dataclass(frozen=True)
class PlantedUsers:
    """The canary users of a job.

    Attributes:
        canaries: recipe of each canary user.
        training_texts: number of training texts of canary members, before any data-side defense.
        trained_on: number of training texts of canary members that the data-side defense kept.
        of_real_rows: number of canary users who have only real rows as records.
    """

    canaries: Mapping[str, Canary]
    training_texts: int = 0
    trained_on: int = 0
    of_real_rows: int = 0


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """Scores of canary users, and the groups for comparing them.

    Attributes:
        table: canary users with their scores, including the reference model's score; each has an independent fair coin.
        groups: rows of the table of equal kind, length and number of documents.
        blind: baselines that never saw the audited model; empty if all canary users are in one group.
        centred: for each user, the score of the primary attack minus the median of the user's group.
    """

    table: ScoredUsers
    groups: Sequence[NDArray[np.intp]]
    blind: Sequence[Blind]
    centred: Mapping[str, float]


def canary_scores(
    table: ScoredUsers,
    texts: Mapping[str, Sequence[str]],
    canaries: Mapping[str, Canary],
    fixed: Preregistration,
) -> CanaryScores:
    """Compare canary users within their groups, and run the blind baselines on their texts.

    Args:
        texts: the attacker's texts of each canary user.
    """
    # Independent coins of few canary users may all fall on one side, which leaves nothing to separate.
    both_sides = 0 < int(table.member.sum()) < len(table.users)
    groups = _groups(table, canaries)
    scores = table.scores(fixed.attack.primary, fixed.attack.aggregations[0])
    return CanaryScores(
        table,
        groups,
        blind_baselines(table, texts, of_canaries(fixed)) if both_sides else [],
        dict(zip(table.users, _centred(scores, groups).tolist(), strict=True)),
    )


def of_canaries(fixed: Preregistration) -> Preregistration:
    """Return the choices for canary users, who have independent coins even if real users were split in another way."""
    return replace(fixed, sides=replace(COINS, unmet=fixed.sides.unmet, unshown=fixed.sides.unshown))


def canary_facts(
    scores: CanaryScores,
    texts: Mapping[str, Sequence[str]],
    planted: PlantedUsers,
    fixed: Preregistration,
    judgements: Sequence[Judgement],
    flaws: Sequence[Statement] = (),
) -> CanaryFacts:
    """Return the results of canary users by group, and the answer for all of them together.

    Args:
        texts: the attacker's texts of each canary user.
        judgements: verdicts for each kind. Empty if the record's answer is about canary users: the record then has the
            verdicts.
    """
    table, canaries = scores.table, planted.canaries
    values = table.scores(fixed.attack.primary, fixed.attack.aggregations[0])
    # Of all kinds together no more is promised than to the kind with the highest ceiling.
    promised = max(
        (panel.claims for panel in fixed.panels if panel.kind is not None and not panel.part),
        key=lambda claims: min((claim.ceiling.auroc for claim in claims), default=1.0),
        default=fixed.claims,
    )
    coins = replace(of_canaries(fixed), claims=promised)
    return CanaryFacts(
        users=len(canaries),
        held_in=int(table.member.sum()),
        held_out=int((~table.member).sum()),
        of_real_rows=planted.of_real_rows,
        replaced=sum(canary.source is not None for canary in canaries.values()),
        training_texts=planted.training_texts,
        trained_on=planted.trained_on,
        attacker_texts=sum(len(texts[user]) for user in table.users),
        groups=[
            _group(canaries[table.users[rows[0]]], values[rows], table.member[rows], coins) for rows in scores.groups
        ],
        blind=list(scores.blind) if judgements else [],
        decision=_decision(table, scores.groups, coins, judgements, flaws) if judgements else None,
    )


def kinds_of(canaries: Mapping[str, Canary]) -> list[str]:
    """Return the kinds among the canary users; each kind is judged separately."""
    return sorted({canary.kind for canary in canaries.values()})


def centred_statistics(
    statistics: Sequence[TextStatistic], canaries: Mapping[str, Canary], fixed: Preregistration
) -> list[TextStatistic]:
    """Subtract the median score of each canary user's group, so that all canary users can be judged together.

    Args:
        statistics: statistics of texts; statistics of other users are dropped.
        fixed: the choices fixed before any score was seen; the primary aggregation makes the scores.
    """
    # Which side a user is on plays no part in a median.
    table = scored_users(statistics, dict.fromkeys(sorted(canaries), False))
    median: dict[tuple[str, Dial | None, str], float] = {}
    for attack, dial in table.attacks:
        scores = table.lifted(attack, fixed.attack.aggregations[0], dial)
        for rows in _groups(table, canaries):
            median |= {(attack, dial, table.users[row]): float(np.median(scores[rows])) for row in rows}
    return [
        replace(statistic, value=statistic.value - median[statistic.attack, statistic.dial, statistic.user])
        for statistic in statistics
        if statistic.user in canaries
    ]


def _groups(table: ScoredUsers, canaries: Mapping[str, Canary]) -> list[NDArray[np.intp]]:
    """Return the rows of the table, grouped and sorted by kind, length and number of documents."""
    by_group: dict[tuple[str, int, int], list[int]] = {}
    for row, user in enumerate(table.users):
        canary = canaries[user]
        # 0 where a length or number does not apply: None and numbers cannot be sorted together.
        by_group.setdefault((canary.kind, canary.length or 0, canary.documents or 0), []).append(row)
    return [np.array(rows, dtype=np.intp) for _, rows in sorted(by_group.items())]


def _centred(scores: Array, groups: Sequence[NDArray[np.intp]]) -> Array:
    """Return the scores minus the median of their group."""
    # Length and number of documents may move scores of members and non-members, so users are compared within a group.
    # The median is over held-in and held-out users alike, so it is a function of the scores and looks at no coin.
    centred = scores.copy()
    for rows in groups:
        centred[rows] -= np.median(scores[rows])
    return centred


def _decision(
    table: ScoredUsers,
    groups: Sequence[NDArray[np.intp]],
    fixed: Preregistration,
    judgements: Sequence[Judgement],
    flaws: Sequence[Statement],
) -> DecisionFacts | None:
    """Return the answer for all canary users, from scores minus the group's median; None if there are too few users."""
    if min(int(table.member.sum()), int((~table.member).sum())) < LEAST_PER_SIDE:
        return None
    variants = variants_of(table.attacks, fixed.attack)
    # Centred once, before the redraws: the medians do not depend on who is held in.
    scored = {v: _centred(table.scores(v.attack, v.aggregation, v.dial), groups) for v in variants}
    family = evaluate_family(scored, table.member, fixed)
    # One judgement of all kinds, since all kinds are the scored users here.
    return decision_facts(family, fixed, flaws=flaws, judgements=[joined(judgements)], wording=CANARIES)


def _group(example: Canary, scores: Array, member: NDArray[np.bool_], fixed: Preregistration) -> CanaryGroup:
    held_in, held_out, audit = scores[member], scores[~member], fixed.audit
    area = None
    if min(held_in.size, held_out.size) >= LEAST_PER_SIDE:
        area = Estimate.of(bootstrap(held_in, held_out, audit.fprs, resamples=audit.resamples, seed=fixed.seed).auroc)
    return CanaryGroup(
        kind=example.kind,
        length=example.length,
        documents=example.documents,
        held_in=held_in.size,
        held_out=held_out.size,
        auroc=area,
    )
