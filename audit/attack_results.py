"""The results of a family of scores for the record: attacks, and settings of the attacker's dials.

The module also computes the AUROC for each number of texts per user (Kandpal et al. 2024, Figure 10). It uses cached
statistics, so no model runs.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import get_attack
from heldin.attacks.protocol import AGGREGATIONS, AttackFacts
from heldin.audit.bootstrap import Estimate, Interval
from heldin.audit.coarse import brief
from heldin.audit.decision import RateEvidence
from heldin.audit.family import FamilyScore, ScoreFamily
from heldin.audit.limits import AurocDifference, auroc_difference
from heldin.audit.scored_users import ScoredUsers
from heldin.base.section import Facts
from heldin.bounds.roc import Scores, auroc

LEADING_REFERENCE = "the base model"
DRAWS = 100  # random choices of each user's texts


class TprAt(Facts):
    """True-positive rate at a false-positive rate.

    Attributes:
        fpr: the false-positive rate.
        estimate: the rate; null if there are too few non-members for it.
        adjusted_p: p-value by the randomisation test; null if the rate is not part of the test.
    """

    fpr: float
    estimate: Estimate | None
    adjusted_p: float | None = None


class Histogram(Facts):
    """Number of users by score. The outer bins include everything beyond them; every bin has at least ten users.

    Attributes:
        edges: k + 1 bin edges, ascending.
        held_in: k counts of members.
        held_out: k counts of non-members.
    """

    edges: list[float]
    held_in: list[int]
    held_out: list[int]


class Curve(Facts):
    """Users sorted by one score, in groups of ten or more.

    Attributes:
        fpr: false-positive rates of the ROC curve at the ends of the groups.
        tpr: true-positive rates at the same points.
        histogram: number of users in each group.
        tpr_at: true-positive rates read off the curve.
    """

    fpr: list[float]
    tpr: list[float]
    histogram: Histogram
    tpr_at: list[TprAt]


class AttackResult(Facts):
    """One attack under one aggregation.

    Attributes:
        attack: name of the attack.
        asks: the attack's needs and inputs.
        aggregation: how the scores of a user's texts become one score; "together" if the attack itself gives one score
            per user.
        auroc: AUROC over users.
        simultaneous: 95 % interval of the AUROC, valid for all scores at the same time; null if there was no test.
        adjusted_p: p-value of the AUROC by the randomisation test; null if there was no test.
        length_correlation: rank correlation of the score with the mean length of the user's texts.
        curve: curve of the primary attack and of the attack in the headline; null for other attacks, because the curves
            of many scores together would reveal the members.
    """

    attack: str
    asks: AttackFacts
    aggregation: str
    auroc: Estimate
    simultaneous: tuple[float, float] | None
    adjusted_p: float | None
    length_correlation: float | None
    curve: Curve | None


class DialSetting(Facts):
    """The primary attack with one setting changed.

    Attributes:
        dial: the setting that was changed.
        setting: value of the setting.
        leads: whether this is the setting of the primary attack.
        auroc: AUROC over users.
        difference: AUROC minus the primary attack's AUROC; null for the primary attack, and if no error can be
            estimated (too few users, equal scores, or complete separation).
        adjusted_p: p-value of the AUROC by the randomisation test.
    """

    dial: str
    setting: str
    leads: bool
    auroc: Estimate
    difference: AurocDifference | None
    adjusted_p: float


def attack_results(family: ScoreFamily, fprs: tuple[float, ...], shown: Collection[int]) -> list[AttackResult]:
    """Return the result of every attack under every aggregation, the primary attack first.

    Args:
        fprs: false-positive rates of the table.
        shown: indices of the scores whose curve and true-positive rates are shown; see ``audit.coarse``.
    """
    return [
        AttackResult(
            attack=score.variant.attack,
            asks=get_attack(score.variant.attack).facts(),
            aggregation=score.variant.aggregation,
            auroc=Estimate.of(score.intervals.auroc),
            simultaneous=(brief(score.evidence.lower), brief(score.evidence.upper)),
            adjusted_p=score.evidence.adjusted_p,
            length_correlation=score.length_correlation,
            # k counts the whole family, settings of dials included, as ``shown`` does.
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
        # Groups run from the highest score down, a histogram from the lowest up.
        histogram=Histogram(
            edges=list(groups.edges), held_in=groups.held_in[::-1].tolist(), held_out=groups.held_out[::-1].tolist()
        ),
        tpr_at=[_rate(f, interval, rates.get(f)) for f, interval in score.intervals.tpr_at if f in fprs],
    )


def _rate(fpr: float, interval: Interval | None, evidence: RateEvidence | None) -> TprAt:
    # Too few held-out users for this rate, or so many tied at the top that no threshold reaches it.
    if interval is None or evidence is None:
        return TprAt(fpr=fpr, estimate=None)
    # Value and limits as read off the groups, so that the number and the curve next to it agree.
    shown = replace(interval, value=evidence.value, lower=evidence.lower, upper=evidence.upper)
    return TprAt(fpr=fpr, estimate=Estimate.of(shown), adjusted_p=evidence.adjusted_p)


def dial_settings(family: ScoreFamily, attack: AttackConfig) -> list[DialSetting]:
    """Return the primary attack and its variants with one changed dial.

    The list is empty if the config changes no dial.

    Args:
        attack: the config section, which names the primary settings.
    """
    leading = family.scores[0]

    def sides(at: int) -> tuple[Scores, Scores]:
        values = family.scores[at].values
        return values[family.member], values[~family.member]

    def row(dial: str, setting: str, at: int) -> DialSetting:
        score = family.scores[at]
        # Both settings score the same users, which the interval of their difference takes into account.
        difference = None if score is leading else auroc_difference(sides(0), sides(at))
        return DialSetting(
            dial=dial,
            setting=setting,
            leads=score is leading,
            auroc=Estimate.of(score.intervals.auroc),
            difference=None if difference is None else difference.brief(),
            adjusted_p=score.evidence.adjusted_p,
        )

    rows: list[DialSetting] = []
    of_primary = [i for i, score in enumerate(family.scores) if _is(score, attack.primary)]
    # A dial with one setting was not turned: there is nothing to compare.
    if len(of_primary) > 1:
        rows += [row("aggregation", family.scores[i].variant.aggregation, i) for i in of_primary]
    leads = {"documents": attack.documents[0], "reference": attack.reference or LEADING_REFERENCE}
    turned = [(i, dial) for i, score in enumerate(family.scores) if (dial := score.variant.dial) is not None]
    for name in dict.fromkeys(dial.name for _, dial in turned):
        rows.append(row(name, leads.get(name, "no shadow model"), 0))
        rows += [row(name, dial.setting, i) for i, dial in turned if dial.name == name]
    return rows


def _is(score: FamilyScore, attack: str) -> bool:
    return score.variant.attack == attack and score.variant.dial is None


@dataclass(frozen=True)
class Knowledge:
    """AUROC of an attacker who has at most ``texts`` random texts per user, over draws of the texts.

    The quantiles are not an interval for the AUROC, because the users stay the same and only the texts are drawn.

    Attributes:
        texts: maximum number of texts per user.
        mean: mean over the draws.
        deviation: standard deviation over the draws.
        low: 2.5 % quantile.
        high: 97.5 % quantile.
    """

    texts: int
    mean: float
    deviation: float
    low: float
    high: float


def attacker_knowledge(
    table: ScoredUsers,
    *,
    attack: str,
    aggregation: str = "mean",
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Knowledge]:
    """Return the AUROC for m = 1, 2, 4, ... texts and for all texts.

    Args:
        attack: the attack whose statistics are used.
        aggregation: "mean", "min" or "max" over the attacker's texts.
        draws: number of random choices of texts; within one draw, a larger m adds texts to those of a smaller m.
        seed: public seed of the choices.
    """
    of_user, values = table.texts[attack, None]
    counts = np.bincount(of_user, minlength=len(table.users))
    most = int(counts.max())
    # Powers of two below the largest number of texts, and that number, at which every draw has all texts.
    known = sorted({*(2**i for i in range(most.bit_length()) if 2**i < most), most})
    place = np.arange(of_user.size) - np.repeat(np.cumsum(counts) - counts, counts)  # of a text among its user's
    # By m: which texts are known, and where each user's begin among them; users with fewer than m give all of them.
    chosen = [(place < m, np.cumsum(np.append(0, np.minimum(counts, m)))[:-1]) for m in known]
    generator = np.random.default_rng(seed)
    areas = np.empty((draws, len(known)))
    for draw in range(draws):
        # Sorted by user, in random order within each. One order serves all m, so that more texts include the fewer.
        shuffled = values[np.lexsort((generator.random(values.size), of_user))]
        for j, (taken, starts) in enumerate(chosen):
            areas[draw, j] = auroc(*table.split(AGGREGATIONS[aggregation](shuffled[taken], starts)))
    return [
        Knowledge(m, *(brief(float(v)) for v in (a.mean(), a.std(), *np.quantile(a, [0.025, 0.975]))))
        for m, a in zip(known, areas.T, strict=True)
    ]
