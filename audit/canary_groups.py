"""What the scores say of canary users, apart from real ones: AUROC by group, blind baselines, bounds and verdict.

A group is a kind, a length and a number of documents (Kandpal et al. 2024, Figure 5). Bounds are taken over all canary
users of a kind together, as was fixed before looking: picking the group that leaks most would have to be paid for.
Scores of different groups are made comparable by taking them from their group's median, which looks at no coin.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.config import AttackConfig
from heldin.audit.assessment import blind_baselines, decision_facts
from heldin.audit.attack_results import estimate_of
from heldin.audit.bootstrap import bootstrap
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig
from heldin.audit.family import evaluate_family, variants_of
from heldin.audit.headline import CANARIES
from heldin.audit.judge import judge
from heldin.audit.results import CanaryFacts, CanaryGroup, DecisionFacts, Judgement
from heldin.audit.scored_users import ScoredUsers
from heldin.audit.sides import Sides
from heldin.bounds.verdict import Assignment, Claim
from heldin.canaries.kinds import Canary, Kind

Array = NDArray[np.float64]

LEAST_PER_SIDE = 2
COINS = Sides(Assignment.COIN, witnessed=True)  # each canary user has its own, whatever the real users have


def canary_results(
    table: ScoredUsers,
    texts: Mapping[str, Sequence[str]],
    canaries: Mapping[str, Canary],
    *,
    training_texts: int,
    trained_on: int,
    attack: AttackConfig,
    audit: AuditConfig,
    decision: DecisionConfig,
    claims: Sequence[Claim],
    populations: int,
    seed: int,
) -> tuple[CanaryFacts, list[Judgement]]:
    """Groups of canary users, the answer for all of them together, and what those of each kind certify.

    Args:
        table: scores of the canary users, held in by an independent fair coin each; the reference alone among them.
        texts: the attacker's texts by canary user.
        canaries: canary user to how it was made.
        training_texts: of canary users that are held in, before any defense on the data side.
        trained_on: those of them that were trained on.
        attack: which attack and aggregation lead.
        audit: false-positive rates, resamples, delta.
        decision: by what the answer is decided.
        claims: to test.
        populations: among which the claims are tested; each pays for all.
        seed: of bootstrap, redraws and bag of words; public.
    """
    scores = table.scores(attack.primary, attack.aggregations[0])
    both_sides = 0 < int(table.member.sum()) < len(table.users)
    blind = blind_baselines(table, texts, COINS, seed=seed) if both_sides else []
    groups = _groups(table, canaries)
    facts = CanaryFacts(
        users=len(canaries),
        held_in=int(table.member.sum()),
        held_out=int((~table.member).sum()),
        replaced=sum(canary.source is not None for canary in canaries.values()),
        training_texts=training_texts,
        trained_on=trained_on,
        attacker_texts=sum(map(len, texts.values())),
        groups=[
            _group(canaries[table.users[rows[0]]], scores[rows], table.member[rows], audit, seed) for rows in groups
        ],
        blind=blind,
        decision=None,
    )
    centred = dict(zip(table.users, _centred(scores, groups).tolist(), strict=True))
    member = dict(zip(table.users, table.member.tolist(), strict=True))
    judgements = []
    for kind in kinds_of(canaries):
        users = [user for user, canary in canaries.items() if canary.kind is kind]
        judgements.append(
            judge(
                {user: centred[user] for user in users},
                {user: member[user] for user in users},
                sides=COINS,
                blind=blind,
                claims=claims,
                delta=audit.delta,
                population=f"{kind.replace('_', '-')} canary users",
                populations=populations,
            )
        )
    answer = _decision(
        table, groups, attack=attack, audit=audit, decision=decision, claims=claims, judgements=judgements, seed=seed
    )
    return facts.model_copy(update={"decision": answer}), judgements


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


def _groups(table: ScoredUsers, canaries: Mapping[str, Canary]) -> list[NDArray[np.intp]]:
    """Rows of the table by kind, length and number of documents, in this order."""
    by_group: dict[tuple[str, int, int], list[int]] = {}
    for row, user in enumerate(table.users):
        canary = canaries[user]
        by_group.setdefault((canary.kind.value, canary.length or 0, canary.documents or 0), []).append(row)
    return [np.array(rows, dtype=np.intp) for _, rows in sorted(by_group.items())]


def _centred(scores: Array, groups: Sequence[NDArray[np.intp]]) -> Array:
    """Scores less the median of their group."""
    found = scores.copy()
    for rows in groups:
        found[rows] -= np.median(scores[rows])
    return found


def _decision(
    table: ScoredUsers,
    groups: Sequence[NDArray[np.intp]],
    *,
    attack: AttackConfig,
    audit: AuditConfig,
    decision: DecisionConfig,
    claims: Sequence[Claim],
    judgements: Sequence[Judgement],
    seed: int,
) -> DecisionFacts | None:
    """The answer for all canary users, whose scores are taken from their group's median; None with too few on a side.

    The coins are redrawn with the groups held fixed; medians look at no coin.
    """
    if min(int(table.member.sum()), int((~table.member).sum())) < LEAST_PER_SIDE:
        return None
    variants = variants_of(table.attacks, attack)
    values = [_centred(table.scores(v.attack, v.aggregation), groups) for v in variants]
    family = evaluate_family(
        variants, values, table.member, sides=COINS, audit=audit, decision=decision, lengths=None, seed=seed
    )
    together = [joined(judgements)] if judgements else []
    return decision_facts(family, decision, sides=COINS, claims=claims, judgements=together, what=CANARIES)


def _group(example: Canary, scores: Array, member: NDArray[np.bool_], audit: AuditConfig, seed: int) -> CanaryGroup:
    held_in, held_out = scores[member], scores[~member]
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
