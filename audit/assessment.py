"""Everything that scores and membership say together: the answer, attacks, blind baselines, bounds and verdicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heldin.attacks.config import AttackConfig
from heldin.attacks.table import REFERENCE_ALONE
from heldin.audit.attack_results import attack_results, dial_settings
from heldin.audit.blind import BlindResult, bag_of_words, reference_alone
from heldin.audit.coarse import brief, significant
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig, Evidence, decide
from heldin.audit.family import Family, family_of
from heldin.audit.headline import USERS, Wording, headline, notes
from heldin.audit.judge import judge
from heldin.audit.knowledge import attacker_knowledge
from heldin.audit.results import AttackResult, Blind, DecisionFacts, DialSetting, Judgement, Knowledge
from heldin.audit.scored_users import ScoredUsers
from heldin.audit.sides import Sides
from heldin.bounds.verdict import BLIND_OTHERWISE, BLIND_UNDER_COINS, Claim


@dataclass(frozen=True)
class Results:
    """The statistical part of a record."""

    decision: DecisionFacts
    attacks: list[AttackResult]
    blind: list[Blind]
    judgement: Judgement
    knowledge: list[Knowledge]
    dials: list[DialSetting]


def results_of(
    table: ScoredUsers,
    texts: Mapping[str, Sequence[str]],
    *,
    sides: Sides,
    attack: AttackConfig,
    audit: AuditConfig,
    decision: DecisionConfig,
    claims: Sequence[Claim],
    seed: int,
    populations: int = 1,
    beside: Sequence[Judgement] = (),
    flaws: Sequence[str] = (),
    advance: Callable[[int], object] | None = None,
) -> Results:
    """Evaluate and test every attack, run the blind baselines, judge the claims by the leading attack, and decide.

    Args:
        table: scores and membership; the reference alone among the attacks.
        texts: the attacker's texts by user.
        sides: how membership came about.
        attack: which attack and aggregation lead.
        audit: false-positive rates, resamples, delta.
        decision: by what the answer is decided.
        claims: to test.
        seed: of bootstrap, redraws and halving; public.
        populations: see ``judge``.
        beside: verdicts on the claims by other populations of the same training, which the answer must not pass over.
        flaws: why the comparison is not valid, as far as is known beforehand.
        advance: called with 1 after every part; there are ``parts_of`` of them.
    """
    step = advance or (lambda _: None)
    lengths = np.array([np.mean([len(text) for text in texts[user]]) for user in table.users])
    family = family_of(
        table, attack, sides=sides, audit=audit, decision=decision, lengths=lengths, seed=seed, advance=advance
    )
    blind = blind_baselines(table, texts, sides, seed=seed)
    flawed = [*flaws, *blind_flaws(blind, sides), *empty_scores(family)]
    step(1)
    judgement = judge(
        dict(zip(table.users, family.scores[0].values.tolist(), strict=True)),
        dict(zip(table.users, table.member.tolist(), strict=True)),
        sides=sides,
        blind=blind,
        claims=claims,
        delta=audit.delta,
        populations=populations,
        flawed=bool(flawed),
    )
    step(1)
    knowledge = attacker_knowledge(table, attack=attack.primary, aggregation=attack.aggregations[0], seed=seed)
    step(1)
    decided = decision_facts(
        family,
        decision,
        sides=sides,
        flaws=flawed,
        claims=claims,
        judgements=[judgement, *beside],
        said=[line for b in blind if sides.witnessed and b.separates for line in [blind_by_chance(b)]],
    )
    return Results(
        decision=decided,
        attacks=attack_results(family, audit.fprs, shown_of(decided)),
        blind=blind,
        judgement=judgement,
        knowledge=knowledge,
        dials=dial_settings(family, attack),
    )


def decision_facts(
    family: Family,
    by: DecisionConfig,
    *,
    sides: Sides,
    flaws: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    judgements: Sequence[Judgement] = (),
    said: Sequence[str] = (),
    what: Wording = USERS,
) -> DecisionFacts:
    """The answer for the record.

    Args:
        family: evaluated and tested.
        by: the thresholds.
        sides: how membership came about.
        flaws: why the comparison is not valid.
        claims: what was promised.
        judgements: the verdicts on the claims, those of the scored users first.
        said: lines that stand beneath the headline besides those that the evidence gives.
        what: is told apart.
    """
    test, member = family.test, family.member
    margins = dict(zip(test.fprs, test.tpr_margins, strict=True))
    rejecting = [v for j in judgements for v in j.verdicts if v.exit_code]
    gravest = min(rejecting, key=lambda v: v.exit_code, default=None)
    scored = judgements[0].verdicts[0].population if judgements and judgements[0].verdicts else None
    ceilings = [claim.ceiling for claim in claims]
    fprs = sorted({rate.fpr for score in family.scores for rate in score.evidence.rates})
    evidence = Evidence(
        users=int(member.size),
        held_out=int((~member).sum()),
        scores=tuple(score.evidence for score in family.scores),
        auroc_p=test.auroc_p,
        tpr_p=test.tpr_p,
        reversed_p=test.reversed_p,
        auroc_margin=test.auroc_margin,
        tpr_margin=margins.get(by.fpr),
        exact=sides.witnessed,
        flaws=tuple(flaws),
        ceiling=min((ceiling.auroc for ceiling in ceilings), default=None),
        ceiling_rates=tuple((f, min(ceiling.tpr_at(f) for ceiling in ceilings)) for f in fprs) if ceilings else (),
        violated=gravest.standing if gravest else None,
        violated_by=gravest.population if gravest and gravest.population != scored else None,
    )
    decided = decide(evidence, by)
    shown_tpr = None if decided.excluded_tpr is None else brief(decided.excluded_tpr)
    decided = replace(decided, excluded_auroc=brief(decided.excluded_auroc), excluded_tpr=shown_tpr)
    lengths = [score.length_correlation for score in family.scores]
    return DecisionFacts(
        headline=headline(evidence, decided, by, what),
        notes=[*notes(evidence, by, lengths, what), *said],
        decision=decided,
        by=by,
        scores=len(family.scores),
        law=test.law,
        auroc_p=test.auroc_p,
        tpr_p=test.tpr_p,
        reversed_p=test.reversed_p,
    )


def shown_of(facts: DecisionFacts) -> set[int]:
    """Numbers of the scores whose curves a record may show: the leading one and the one that the headline names."""
    strongest = facts.decision.strongest
    return {0} if strongest is None else {0, strongest}


def empty_scores(family: Family) -> list[str]:
    """Where all users have one score, such as of texts that are all the same, nothing is compared."""
    leading = family.scores[0]
    if np.ptp(leading.values) > 0:
        return []
    return [f"{leading.variant.label} gives every user the same score: are these the users' texts?"]


def parts_of(scores: int) -> int:
    """How often ``advance`` is called for a family of so many scores."""
    return scores + 4


def blind_baselines(table: ScoredUsers, texts: Mapping[str, Sequence[str]], sides: Sides, *, seed: int) -> list[Blind]:
    """The reference model alone and the bag of words; alarm at 1e-4 where heldin drew the sides, else at 0.01."""
    level = BLIND_UNDER_COINS if sides.witnessed else BLIND_OTHERWISE
    member = dict(zip(table.users, table.member.tolist(), strict=True))
    results: list[BlindResult | None] = [bag_of_words(texts, member, seed=seed)]
    if REFERENCE_ALONE in table.texts:
        results.insert(0, reference_alone(*table.sides(REFERENCE_ALONE)))
    return [
        Blind(
            name=r.name, auroc=brief(r.auroc), p_value=significant(r.p_value), level=level, separates=r.p_value < level
        )
        for r in results
        if r is not None
    ]


def blind_flaws(blind: Sequence[Blind], sides: Sides) -> list[str]:
    """Where the sides are asserted, groups that differ by themselves say nothing of the model."""
    return [
        f"the two groups differ even without the audited model ({b.name}: AUROC {b.auroc:.2f}, p = {b.p_value:.1g})"
        for b in blind
        if b.separates and not sides.witnessed
    ]


def blind_by_chance(blind: Blind) -> str:
    """Where heldin drew the sides, a blind baseline that separates them is chance, or the coins leaked."""
    return (
        f"The blind baseline '{blind.name}' separates the groups without the audited model (AUROC {blind.auroc:.2f}, p"
        f" = {blind.p_value:.1g}). heldin drew the sides, so that this is chance, once in ten thousand audits, or the"
        " draw has leaked: keep the answer, and look who could see the ledger."
    )
