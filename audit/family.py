"""All scores of an audit's family: each configured attack under each aggregation, and each setting of a dial.

The module computes AUROCs and true-positive rates of all scores, with intervals, and tests them together by redrawing
the assignment.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heldin.attacks.config import AttackConfig
from heldin.attacks.kinds import get_attack
from heldin.attacks.protocol import AGGREGATIONS, NO_ATTACKS, TOGETHER, Dial, label_of
from heldin.audit.bootstrap import BootstrapResult, bootstrap_each
from heldin.audit.coarse import LEAST_IN_GROUP, ScoreGroups, brief, grouped
from heldin.audit.decision import RateEvidence, ScoreEvidence
from heldin.audit.limits import auroc_limits, tpr_at_most
from heldin.audit.preregistration import Preregistration
from heldin.audit.randomisation import FamilyTest, randomisation_test
from heldin.audit.scored_users import ScoredUsers
from heldin.base.errors import InputError

Array = NDArray[np.float64]
_LOW_FPRS = (0.01, 0.05, 0.1)  # at which identifying a person means something


@dataclass(frozen=True)
class ScoreVariant:
    """An attack with one aggregation, and with at most one changed dial.

    Attributes:
        aggregation: how the scores of a user's texts become one score.
        dial: the dial that was changed and its setting; None: the primary settings.
    """

    attack: str
    aggregation: str
    dial: Dial | None = None

    @property
    def label(self) -> str:
        """The name shown to readers."""
        return label_of(self.attack, self.aggregation, self.dial)


@dataclass(frozen=True, eq=False)
class FamilyScore:
    """One score of every user, and its results.

    Attributes:
        variant: the attack, aggregation and dial that give the score.
        values: scores of the users, shape (n,).
        groups: the users, grouped by the score; only such groups may leave this machine.
        intervals: bootstrap intervals of AUROC and TPRs.
        evidence: the part of the results that the decision uses.
        length_correlation: rank correlation with the length of texts; None if scores or lengths do not vary.
    """

    variant: ScoreVariant
    values: Array
    groups: ScoreGroups
    intervals: BootstrapResult
    evidence: ScoreEvidence
    length_correlation: float | None


@dataclass(frozen=True, eq=False)
class ScoreFamily:
    """All scores of an audit.

    Attributes:
        scores: the scores, the primary score first.
        test: the test of all scores together.
        member: whether each user is a member, shape (n,).
    """

    scores: tuple[FamilyScore, ...]
    test: FamilyTest
    member: NDArray[np.bool_]


def variants_of(attacks: Sequence[tuple[str, Dial | None]], config: AttackConfig) -> list[ScoreVariant]:
    """Return the variants whose scores make up the family, the primary variant first.

    Args:
        attacks: attack and changed dial of each available statistic.
        config: the section with the primary attack, the primary aggregation and all aggregations.
    """
    unknown = set(config.aggregations) - set(AGGREGATIONS)
    if unknown:
        raise InputError(f"unknown aggregation '{unknown.pop()}': choose from {', '.join(AGGREGATIONS)}")
    # Dials of the primary attack only: every further score widens the family for which all are adjusted.
    turned = [dial for name, dial in attacks if name == config.primary and dial is not None]
    # What never looks at the audited model is no attack: in the family, a difference in people would read as a leak.
    plain = [name for name, dial in attacks if dial is None and name not in (*NO_ATTACKS, config.primary)]
    # Nor is one of a stronger attacker.
    plain = [name for name in plain if get_attack(name).access in config.level.covers]
    variants = [
        ScoreVariant(name, aggregation)
        for name in (config.primary, *plain)
        for aggregation in ((TOGETHER,) if get_attack(name).of_users else config.aggregations)
    ]
    return [*variants, *(ScoreVariant(config.primary, variants[0].aggregation, dial) for dial in turned)]


def evaluate_family(
    scored: Mapping[ScoreVariant, Array],
    member: NDArray[np.bool_],
    fixed: Preregistration,
    *,
    lengths: Array | None = None,
    least: int = LEAST_IN_GROUP,
    advance: Callable[[int], object] | None = None,
) -> ScoreFamily:
    """Evaluate scores and test them together.

    Args:
        scored: values of each of K scores, shape (n,); the first score is the primary one.
        member: whether each user is a member, shape (n,).
        fixed: how membership was decided, false-positive rates, numbers of resamples and redraws, and their seed.
        lengths: mean characters of each user's texts, shape (n,), or None.
        least: minimum number of users in a group of a curve.
        advance: called with 1 after each score, and once after the test.

    Raises:
        InputError: there are no members or no non-members.
    """
    step, audit, decision = advance or (lambda _: None), fixed.audit, fixed.decision
    table = np.array(list(scored.values()), dtype=np.float64)  # (K, n)
    # The second family: low rates, and the rate of the decision.
    low = sorted({*(f for f in audit.fprs if f <= max(_LOW_FPRS)), decision.fpr})
    # All scores at once, before any is looked at by itself: p-values are adjusted for the whole family.
    test = randomisation_test(table, member, law=fixed.sides.law, fprs=low, redraws=decision.redraws, seed=fixed.seed)
    step(1)
    limits = auroc_limits(table[:, member], table[:, ~member])
    # Intervals also at these rates, whatever the config reports.
    rates = sorted({*audit.fprs, *low, *_LOW_FPRS})
    intervals = bootstrap_each(
        table[:, member], table[:, ~member], rates, resamples=audit.resamples, seed=fixed.seed, advance=advance
    )
    scores = []
    for k, (variant, row, interval) in enumerate(zip(scored, table, intervals, strict=True)):
        groups = grouped(row[member], row[~member], least)
        # Rates that ties hide from the report stay in the test, which was fixed before any score was seen.
        adjusted = dict(zip(test.fprs, test.tpr_adjusted[k].tolist(), strict=True))
        evidence = ScoreEvidence(
            name=variant.label,
            auroc=float(limits.auroc[k]),
            lower=float(limits.lower[k]),
            upper=float(limits.upper[k]),
            at_most=float(limits.at_most[k]),
            adjusted_p=float(test.auroc_adjusted[k]),
            tpr_p=min(adjusted.values(), default=1.0),
            rates=_rates(row, groups, interval, adjusted),
        )
        scores.append(FamilyScore(variant, row, groups, interval, evidence, _with_length(row, lengths)))
    return ScoreFamily(tuple(scores), test, member)


def family_of(
    table: ScoredUsers,
    fixed: Preregistration,
    *,
    lengths: Array | None = None,
    advance: Callable[[int], object] | None = None,
) -> ScoreFamily:
    """Evaluate all scores of a table together; see ``evaluate_family``.

    Args:
        fixed: attacks, false-positive rates, numbers of resamples and redraws, and their seed.
        lengths: mean characters of each user's texts, shape (n,), or None.
        advance: called with 1 after each score, and once after the test.
    """
    variants = variants_of(table.attacks, fixed.attack)
    scored = {variant: table.scores(variant.attack, variant.aggregation, variant.dial) for variant in variants}
    return evaluate_family(scored, table.member, fixed, lengths=lengths, advance=advance)


def _rates(
    values: Array, groups: ScoreGroups, intervals: BootstrapResult, adjusted: Mapping[float, float]
) -> tuple[RateEvidence, ...]:
    """Return the rates of one score, read off the groups. Rates below the share of ties at the top cannot be shown."""
    members, tied = int(groups.held_in.sum()), float((values == values.max()).mean())
    rates = []
    for f, i in intervals.tpr_at:
        if i is not None and tied <= max(f, 1 / values.size):
            # Off the groups, not the whole curve: an exact rate would be about single users (audit.coarse).
            value = brief(groups.tpr(f))
            # An interval of the whole curve, below which that of the groups may lie: widened to hold the value shown.
            lower, upper = min(value, brief(i.lower, 2)), max(value, brief(i.upper, 2))
            rates.append(
                RateEvidence(f, value, lower, upper, tpr_at_most(i.value, i.at_most, f, members), adjusted.get(f))
            )
    return tuple(rates)


def _with_length(values: Array, lengths: Array | None) -> float | None:
    """Return Spearman's correlation; None if values or lengths do not vary."""
    if lengths is None or np.ptp(values) == 0 or np.ptp(lengths) == 0:
        return None
    return float(stats.spearmanr(values, lengths).statistic)
