"""What the scores say of canary users, apart from real ones: AUROC by group, blind baselines, bounds and verdict.

A group is a kind, a length and a number of documents (Kandpal et al. 2024, Figure 5). Bounds are taken over all canary
users of a kind together, as was fixed before looking: picking the group that leaks most would have to be paid for.
Scores of different groups are made comparable by taking them from their group's median, which looks at no coin.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from attacks.scoring import TextStatistic, user_scores
from audit.attacker import AttackConfig
from audit.bootstrap import bootstrap
from audit.config import AuditConfig
from audit.evaluation import blind_baselines, estimate_of
from audit.judgement import judge
from audit.record_results import CanaryFacts, CanaryGroup, Judgement
from audit.verdict import Assignment, Claim
from canaries.kinds import Canary, Kind

LEAST_PER_SIDE = 2


def canary_results(
    statistics: Sequence[TextStatistic],
    texts: Mapping[str, Sequence[str]],
    member: Mapping[str, bool],
    canaries: Mapping[str, Canary],
    *,
    training_texts: int,
    trained_on: int,
    attack: AttackConfig,
    audit: AuditConfig,
    claims: Sequence[Claim],
    populations: int,
    seed: int,
) -> tuple[CanaryFacts, list[Judgement]]:
    """Groups of canary users, and what those of each kind certify.

    Args:
        statistics: of every text of the canary users in ``member``, the reference alone among the attacks.
        texts: the attacker's texts by canary user.
        member: canary user to whether held in, by an independent fair coin each.
        canaries: canary user to how it was made.
        training_texts: of canary users that are held in, before any defense on the data side.
        trained_on: those of them that were trained on.
        attack: which attack and aggregation lead.
        audit: false-positive rates, resamples, delta.
        claims: to test.
        populations: among which the claims are tested; each pays for all.
        seed: of bootstrap and bag of words; public.
    """
    found = user_scores(statistics, attack.primary, attack.aggregations[0])
    score = dict(zip(found.users, found.values.tolist(), strict=True))
    both_sides = len(set(member.values())) == 2
    blind = blind_baselines(statistics, texts, member, coins=True, seed=seed) if both_sides else []
    by_group: dict[tuple[str, int, int], list[str]] = {}
    for user, canary in canaries.items():
        order = (canary.kind.value, canary.length or 0, canary.documents or 0)
        by_group.setdefault(order, []).append(user)
    facts = CanaryFacts(
        users=len(canaries),
        held_in=sum(member.values()),
        held_out=len(member) - sum(member.values()),
        replaced=sum(canary.source is not None for canary in canaries.values()),
        training_texts=training_texts,
        trained_on=trained_on,
        attacker_texts=sum(map(len, texts.values())),
        groups=[_group(canaries[its[0]], its, score, member, audit, seed) for _, its in sorted(by_group.items())],
        blind=blind,
    )
    centred = _centred(score, list(by_group.values()))
    judgements = []
    for kind in kinds_of(canaries):
        users = [user for user, canary in canaries.items() if canary.kind is kind]
        judgements.append(
            judge(
                {user: centred[user] for user in users},
                {user: member[user] for user in users},
                assignment=Assignment.COIN,
                coins_witnessed=True,
                blind=blind,
                claims=claims,
                delta=audit.delta,
                population=f"{kind.replace('_', '-')} canary users",
                populations=populations,
            )
        )
    return facts, judgements


def kinds_of(canaries: Mapping[str, Canary]) -> list[Kind]:
    """The kinds that there are, each a population of its own."""
    return sorted({canary.kind for canary in canaries.values()})


def joined(judgements: Sequence[Judgement]) -> Judgement:
    """Bounds and verdicts of several populations, each labelled with its own."""
    return Judgement(
        delta=judgements[0].delta,
        bounds=[bound for j in judgements for bound in j.bounds],
        refused=[refused for j in judgements for refused in j.refused],
        verdicts=[verdict for j in judgements for verdict in j.verdicts],
    )


def _centred(score: Mapping[str, float], groups: Sequence[Sequence[str]]) -> dict[str, float]:
    """Scores less the median of their group."""
    middle = {user: float(np.median([score[u] for u in users])) for users in groups for user in users}
    return {user: value - middle[user] for user, value in score.items()}


def _group(
    example: Canary,
    users: Sequence[str],
    score: Mapping[str, float],
    member: Mapping[str, bool],
    audit: AuditConfig,
    seed: int,
) -> CanaryGroup:
    held_in = np.array([score[user] for user in users if member[user]], dtype=np.float64)
    held_out = np.array([score[user] for user in users if not member[user]], dtype=np.float64)
    area = None
    if min(held_in.size, held_out.size) >= LEAST_PER_SIDE:
        area = estimate_of(bootstrap(held_in, held_out, audit.fprs, resamples=audit.resamples, seed=seed).auroc)
    return CanaryGroup(
        kind=example.kind.value,
        length=example.length,
        documents=example.documents,
        held_in=held_in.size,
        held_out=held_out.size,
        auroc=area,
    )
