"""Bounds from independent trainings: Clopper-Pearson limits at one threshold that is fixed before its test.

Every training has its own key, and includes the worst-case user by an independent fair coin, so the scores are
independent given the coins (docs/theory.md#independent-trainings). The threshold is fixed beforehand, or the first
quarter of the trainings chooses the threshold and the others test it. At level alpha / 2 each, the limits TPR >= lower
and FPR <= upper hold together with confidence 1 - alpha. Both directions of Kairouz, Oh, Viswanath 2015, Theorem 2.1,
then hold as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import TooFewUsers
from heldin.bounds import verdict
from heldin.bounds.bands import both_bands
from heldin.bounds.design import Assignment, Design
from heldin.bounds.judgement import Bound, Judgement, RefusedBound, evaluate
from heldin.bounds.power import trainings_reach
from heldin.bounds.roc import epsilon_of_rates, rate_at_least, rate_at_most
from heldin.bounds.scores import LabelledScores
from heldin.bounds.thresholds import Counts, counts_at, limits
from heldin.bounds.verdict import Claim, Standing
from heldin.words.evidence import Refusal, Subjects

Array = NDArray[np.float64]

PILOT = 0.25  # of the trainings; docs/replication.md#retraining compares it with a half and with ROC bands
BOUND = "Clopper-Pearson, one threshold"  # as reports print it
COVERAGE = 0.995  # lowest of 2,000 simulated audits a mechanism: tests/bounds/test_trainings.py, -m slow
WORST_CASE_USER = "worst-case user"
_COIN = Assignment.COIN


@dataclass(frozen=True)
class ThresholdTest:
    """The test at a threshold, and its result.

    Attributes:
        pilot: number of trainings that chose the threshold and are not tested; 0 if the threshold was fixed beforehand.
        threshold: lowest score of a training that counts as "with the user". None if the first quarter has too few
            trainings of a group, so ROC bands over all trainings are the test.
        counts: counts of the tested trainings at the threshold; None without a threshold.
        epsilon: lower bound that this test certifies at 95 %. The test was chosen before looking.
        reach: epsilon that the tested trainings would have certified if the scores had separated them perfectly.
        judgement: every bound that the design supports, and the verdicts.
    """

    pilot: int
    threshold: float | None
    counts: Counts | None
    epsilon: float
    reach: float
    judgement: Judgement


def pilot_size(member: NDArray[np.bool_], threshold: float | None) -> int:
    """Return how many of the first trainings choose the threshold; the number depends only on coins.

    The number is 0 with a threshold fixed beforehand, or if the first quarter has fewer than two trainings of a group.
    """
    # By coins alone: a size that looked at scores would be chosen, and have to be paid for.
    first = member[: int(PILOT * member.size)]
    return 0 if threshold is not None or min(first.sum(), (~first).sum()) < 2 else int(first.size)


def forecast(member: NDArray[np.bool_], threshold: float | None, delta: float, claims: Sequence[Claim]) -> list[str]:
    """Return lines that state the best possible result with these coins. Read them before you pay for the trainings.

    Args:
        member: the coins, shape (runs,).
        threshold: threshold fixed before looking, or None.

    Raises:
        TooFewUsers: there are too few trainings to certify anything, even with perfect separation.
    """
    pilot = pilot_size(member, threshold)
    # Which threshold the pilot will pick does not matter here, only that it will be one.
    design = _design(threshold if pilot == 0 else 0.0)
    n1, n0 = int(member[pilot:].sum()), int((~member[pilot:]).sum())
    paid = replace(design, alpha=design.alpha / max(1, len(claims)))
    try:
        most = verdict.max_certifiable_epsilon(n1, n0, delta, design)
        verdict.max_certifiable_epsilon(n1, n0, delta, paid)  # claims pay for each other
    except TooFewUsers as error:
        raise TooFewUsers(Refusal.TOO_FEW_TRAININGS(trainings=member.size, reason=error.statement)) from error
    how = f"the first {pilot} pick the threshold" if pilot else "all are tested"
    lines = [f"power: {how}, so {n1} with and {n0} without the user can certify at most epsilon {most:.3g}"]
    for claim in claims:
        could = "could" if verdict.could_reject(n1, n0, claim, paid) else "could not"
        lines.append(f"power: they {could} contradict {claim.label}")
    return lines


def reach_line(runs: int) -> str:
    """State the largest epsilon that the trainings can certify.

    This epsilon is 3.28 for 200 trainings (docs/theory.md#independent-trainings).
    """
    most = trainings_reach(runs - runs // 2, runs // 2)
    return (
        f"power: {runs} training runs, half of them with the worst-case user, can certify at most epsilon {most:.2f}"
        " per user, if a threshold fixed beforehand separates all of them"
    )


def certify(
    scores: Array, member: NDArray[np.bool_], *, threshold: float | None, delta: float, claims: Sequence[Claim] = ()
) -> ThresholdTest:
    """Return bounds and verdicts from scores of independent trainings in the order of their numbers.

    Args:
        scores: scores of the trainings, shape (runs,); higher means more likely with the worst-case user.
        member: whether each training includes the user, decided by an independent fair coin, shape (runs,).
        threshold: threshold fixed before looking; None: the first quarter of the trainings chooses the threshold.
        claims: claims to test, each at 5 % divided by the number of claims.

    Raises:
        InputError: a score is not finite.
        ConstantScores: all scores are equal.
        TooFewUsers: there are too few trainings of a group.
    """
    pilot = pilot_size(member, threshold)
    # Before anything is split: a score that is not finite must be found also among the pilot.
    everything = LabelledScores(scores, member)
    if threshold is None and not pilot:
        result = evaluate(everything, _design(None), delta=delta, claims=claims)
        # The bands share alpha and hold together, so the better one may be quoted.
        epsilon = max(band.epsilon(delta) for band in both_bands(everything) if band is not None)
        return ThresholdTest(0, None, None, epsilon, result.verdict.max_certifiable_epsilon, result)
    # The first ones pick, the others are tested: no training is on both sides of this line.
    at = pick_threshold(scores[:pilot], member[:pilot], delta) if threshold is None else threshold
    tested, design = LabelledScores(scores[pilot:], member[pilot:]), _design(at)
    counts, own = counts_at(tested, at), evaluate(tested, design, delta=delta, claims=claims)
    # At alpha / 2 each the two limits hold together, and with them both directions.
    tpr, fpr = limits(counts, design.alpha / 2)
    epsilon = float(epsilon_of_rates(np.array(tpr), np.array(fpr), delta))
    bound = Bound(BOUND, epsilon, 1.0 - design.alpha, own.verdict.standing, COVERAGE, Subjects.WORST_CASE_USER())
    others, refused = _without_threshold(everything, own)
    estimates = tuple(b for b in own.bounds if b.standing is Standing.ESTIMATE)
    both = replace(own, users=scores.size, bounds=(bound, *others, *estimates), refused=refused)
    # Of the tested trainings alone: the pilot cannot certify anything.
    reach = verdict.max_certifiable_epsilon(counts.members, counts.non_members, delta, design)
    return ThresholdTest(pilot, at, counts, epsilon, reach, both)


def pick_threshold(scores: Array, member: NDArray[np.bool_], delta: float, *, alpha: float = 0.05) -> float:
    """Return the threshold that would certify the largest epsilon on these scores.

    If several thresholds certify this epsilon, the function returns the middle of the widest gap.

    These scores must not be used again to test the threshold.

    Args:
        scores: scores of the pilot trainings, shape (k,).
        member: coins of the trainings, shape (k,), with both groups present.
        delta: delta of the bound, in [0, 1).
        alpha: error probability.
    """
    levels = np.unique(scores)
    # A constant pilot tells nothing; any threshold is as good.
    if levels.size == 1:
        return float(levels[0])
    # Between two scores, where further trainings can fall on either side; at a score every tie would count as "in".
    middles, gaps = (levels[1:] + levels[:-1]) / 2, np.diff(levels)
    held_in, held_out = np.sort(scores[member]), np.sort(scores[~member])
    above_in = held_in.size - np.searchsorted(held_in, middles).astype(np.float64)
    above_out = held_out.size - np.searchsorted(held_out, middles).astype(np.float64)
    tpr = rate_at_least(above_in, held_in.size, alpha / 2)
    fpr = rate_at_most(above_out, held_out.size, alpha / 2)
    ratios = np.stack([(tpr - delta) / fpr, (1.0 - fpr - delta) / (1.0 - tpr), 0.0 * tpr]).max(axis=0)
    # Equal up to rounding: the widest gap decides between thresholds that call the pilot alike.
    best = np.flatnonzero(ratios >= ratios.max() * (1.0 - 1e-12))
    return float(middles[best[np.argmax(gaps[best])]])


def _without_threshold(
    everything: LabelledScores, own: Judgement
) -> tuple[tuple[Bound, ...], tuple[RefusedBound, ...]]:
    """Return the bounds that use no threshold. They need no pilot, so they use all trainings."""
    try:
        judgement = evaluate(everything, _design(None), delta=own.delta)
    except TooFewUsers as error:
        return (), (RefusedBound("bounds without a threshold", error.statement, Subjects.WORST_CASE_USER()),)
    # What ``own`` could compute at its threshold is not refused.
    at_threshold = {bound.name for bound in own.bounds}
    return judgement.bounds, tuple(r for r in judgement.refused if r.name not in at_threshold)


def _design(threshold: float | None) -> Design:
    return Design(
        _COIN,
        independent_trainings=True,
        thresholds=() if threshold is None else (threshold,),
        subjects=Subjects.WORST_CASE_USER(),
    )
