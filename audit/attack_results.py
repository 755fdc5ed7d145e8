"""What a family of scores reached, as the record keeps it: attacks, and settings of the attacker's dials."""

from audit.attacker import AttackConfig
from audit.bootstrap import Interval
from audit.coarse import LEAST_IN_GROUP, coarse_roc, histogram
from audit.family import Family, FamilyScore
from audit.paired import auroc_difference
from audit.record_results import AttackResult, DialSetting, Difference, Estimate, Histogram, TprAt
from audit.roc import Scores

LEADING_REFERENCE = "the base model"


def attack_results(
    family: Family, sides: list[tuple[Scores, Scores]], fprs: tuple[float, ...], least: int = LEAST_IN_GROUP
) -> list[AttackResult]:
    """Every attack under every aggregation, the leading one first.

    Args:
        family: evaluated.
        sides: scores of held-in and held-out users, for each score of the family.
        fprs: false-positive rates of the table.
        least: users between two points of a curve, and in a bin.
    """
    results = []
    for score, (held_in, held_out) in zip(family.scores, sides, strict=True):
        if score.variant.dial is not None:
            continue
        curve, bins = coarse_roc(held_in, held_out, least), histogram(held_in, held_out, least)
        its = score.evidence
        adjusted = {rate.fpr: rate.adjusted_p for rate in its.rates}
        results.append(
            AttackResult(
                attack=score.variant.attack,
                aggregation=score.variant.aggregation,
                auroc=estimate_of(score.intervals.auroc),
                simultaneous=(its.lower, its.upper),
                adjusted_p=its.adjusted_p,
                tpr_at=[
                    TprAt(fpr=f, estimate=None if i is None else estimate_of(i), adjusted_p=adjusted.get(f))
                    for f, i in score.intervals.tpr_at
                    if f in fprs
                ],
                length_correlation=score.length_correlation,
                roc_fpr=curve.fpr.tolist(),
                roc_tpr=curve.tpr.tolist(),
                histogram=Histogram(edges=list(bins.edges), held_in=list(bins.held_in), held_out=list(bins.held_out)),
            )
        )
    return results


def dial_settings(family: Family, sides: list[tuple[Scores, Scores]], attack: AttackConfig) -> list[DialSetting]:
    """The leading attack with one dial turned at a time, beside the leading setting; nothing where no dial was.

    Args:
        family: evaluated.
        sides: scores of held-in and held-out users, for each score of the family.
        attack: which settings lead.
    """
    leading = family.scores[0]

    def row(dial: str, setting: str, at: int) -> DialSetting:
        score = family.scores[at]
        difference = None if score is leading else auroc_difference(sides[0], sides[at])
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
        value=interval.value,
        mean=interval.mean,
        deviation=interval.deviation,
        lower=interval.lower,
        upper=interval.upper,
        method=interval.method.value,
    )


def _is(score: FamilyScore, attack: str) -> bool:
    return score.variant.attack == attack and score.variant.dial is None


def _difference(of: tuple[float, float, float]) -> Difference:
    return Difference(value=of[0], lower=of[1], upper=of[2])
