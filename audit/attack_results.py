"""What a family of scores reached, as the record keeps it: attacks, and settings of the attacker's dials."""

from collections.abc import Collection
from dataclasses import replace

from heldin.attacks.config import AttackConfig
from heldin.audit.bootstrap import Interval
from heldin.audit.coarse import brief
from heldin.audit.decision import RateEvidence
from heldin.audit.family import Family, FamilyScore
from heldin.audit.paired import auroc_difference
from heldin.audit.results import AttackResult, Curve, DialSetting, Difference, Estimate, Histogram, TprAt
from heldin.bounds.roc import Scores

LEADING_REFERENCE = "the base model"


def attack_results(family: Family, fprs: tuple[float, ...], shown: Collection[int]) -> list[AttackResult]:
    """Every attack under every aggregation, the leading one first.

    Args:
        family: evaluated.
        fprs: false-positive rates of the table.
        shown: scores by number that stand with their curve and true-positive rates; see ``audit.coarse``.
    """
    return [
        AttackResult(
            attack=score.variant.attack,
            aggregation=score.variant.aggregation,
            auroc=estimate_of(score.intervals.auroc),
            simultaneous=(brief(score.evidence.lower), brief(score.evidence.upper)),
            adjusted_p=score.evidence.adjusted_p,
            length_correlation=score.length_correlation,
            curve=_curve(score, fprs) if k in shown else None,
        )
        for k, score in enumerate(family.scores)
        if score.variant.dial is None
    ]


def _curve(score: FamilyScore, fprs: tuple[float, ...]) -> Curve:
    groups = score.groups
    rates = {rate.fpr: rate for rate in score.evidence.rates}
    return Curve(
        fpr=groups.roc.fpr.tolist(),
        tpr=groups.roc.tpr.tolist(),
        histogram=Histogram(
            edges=list(groups.edges), held_in=groups.held_in[::-1].tolist(), held_out=groups.held_out[::-1].tolist()
        ),
        tpr_at=[_rate(f, interval, rates.get(f)) for f, interval in score.intervals.tpr_at if f in fprs],
    )


def _rate(fpr: float, interval: Interval | None, evidence: RateEvidence | None) -> TprAt:
    if interval is None or evidence is None:
        return TprAt(fpr=fpr, estimate=None)
    its = replace(interval, value=evidence.value, lower=evidence.lower, upper=evidence.upper)
    return TprAt(fpr=fpr, estimate=estimate_of(its), adjusted_p=evidence.adjusted_p)


def dial_settings(family: Family, attack: AttackConfig) -> list[DialSetting]:
    """The leading attack with one dial turned at a time, beside the leading setting; nothing where no dial was.

    Args:
        family: evaluated.
        attack: which settings lead.
    """
    leading = family.scores[0]

    def sides(at: int) -> tuple[Scores, Scores]:
        values = family.scores[at].values
        return values[family.member], values[~family.member]

    def row(dial: str, setting: str, at: int) -> DialSetting:
        score = family.scores[at]
        difference = None if score is leading else auroc_difference(sides(0), sides(at))
        return DialSetting(
            dial=dial,
            setting=setting,
            leads=score is leading,
            auroc=estimate_of(score.intervals.auroc),
            difference=None if difference is None else _difference(difference),
            adjusted_p=score.evidence.adjusted_p,
        )

    rows: list[DialSetting] = []
    of_primary = [i for i, score in enumerate(family.scores) if _is(score, attack.primary)]
    if len(of_primary) > 1:
        rows += [row("aggregation", family.scores[i].variant.aggregation, i) for i in of_primary]
    leads = {"documents": attack.documents[0], "reference": attack.reference or LEADING_REFERENCE}
    turned = [(i, dial) for i, score in enumerate(family.scores) if (dial := score.variant.dial) is not None]
    for name in dict.fromkeys(dial for _, (dial, _) in turned):
        rows.append(row(name, leads.get(name, "no shadow model"), 0))
        rows += [row(name, setting, i) for i, (dial, setting) in turned if dial == name]
    return rows


def estimate_of(interval: Interval) -> Estimate:
    """The interval for the record, labelled an estimate."""
    return Estimate(
        value=brief(interval.value),
        mean=brief(interval.mean),
        deviation=brief(interval.deviation),
        lower=brief(interval.lower),
        upper=brief(interval.upper),
        method=interval.method.value,
    )


def _is(score: FamilyScore, attack: str) -> bool:
    return score.variant.attack == attack and score.variant.dial is None


def _difference(of: tuple[float, float, float]) -> Difference:
    return Difference(value=brief(of[0]), lower=brief(of[1]), upper=brief(of[2]))
