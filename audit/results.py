"""Everything that scores and membership say together: attacks, blind baselines, bounds and verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from attacks.scoring import TextStatistic, user_scores
from audit.attacker import AttackConfig
from audit.config import AuditConfig
from audit.dials import dials
from audit.evaluation import blind_baselines, evaluate_attacks
from audit.judgement import judge
from audit.knowledge import attacker_knowledge
from audit.record_results import AttackResult, Blind, DialSetting, Judgement, KnowledgePoint
from audit.verdict import Assignment, Claim


@dataclass(frozen=True)
class Results:
    """The statistical part of a record."""

    attacks: list[AttackResult]
    blind: list[Blind]
    judgement: Judgement
    knowledge: list[KnowledgePoint]
    dials: list[DialSetting]


def results_of(
    statistics: Sequence[TextStatistic],
    texts: Mapping[str, Sequence[str]],
    member: Mapping[str, bool],
    *,
    attack: AttackConfig,
    audit: AuditConfig,
    assignment: Assignment,
    coins_witnessed: bool,
    claims: Sequence[Claim],
    seed: int,
    populations: int = 1,
) -> Results:
    """Evaluate every attack, run the blind baselines, and judge the claims by the primary attack.

    Args:
        statistics: of every text of the users in ``member``, the reference alone among the attacks.
        texts: the attacker's texts by user.
        member: user to whether held in.
        attack: which attack and aggregation lead.
        audit: false-positive rates, resamples, delta.
        assignment: how membership was decided.
        coins_witnessed: whether heldin itself drew the coins.
        claims: to test.
        seed: of bootstrap and halving; public.
        populations: see ``judge``.
    """
    attacks = evaluate_attacks(
        statistics,
        member,
        primary=attack.primary,
        aggregations=attack.aggregations,
        fprs=audit.fprs,
        resamples=audit.resamples,
        seed=seed,
    )
    coins = assignment is Assignment.COIN and coins_witnessed
    blind = blind_baselines(statistics, texts, member, coins=coins, seed=seed)
    primary = user_scores(statistics, attack.primary, attack.aggregations[0])
    judgement = judge(
        dict(zip(primary.users, primary.values.tolist(), strict=True)),
        member,
        assignment=assignment,
        coins_witnessed=coins_witnessed,
        blind=blind,
        claims=claims,
        delta=audit.delta,
        populations=populations,
    )
    knowledge = attacker_knowledge(
        statistics, member, attack=attack.primary, aggregation=attack.aggregations[0], seed=seed
    )
    settings = dials(statistics, member, attack=attack, resamples=audit.resamples, seed=seed)
    return Results(attacks, blind, judgement, [KnowledgePoint(**asdict(point)) for point in knowledge], settings)
