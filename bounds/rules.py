"""Every lower bound on epsilon as a rule: how it is computed, what it requires of the design, what it is worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heldin.bounds import bands, estimates, one_run, thresholds
from heldin.bounds.design import Assignment, Design
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Standing
from heldin.words import Statement
from heldin.words.evidence import Refusal

if TYPE_CHECKING:
    from heldin.bounds.noise_family import NoiseFamily

Compute = Callable[[LabelledScores, Design, float], float]
Need = Callable[[LabelledScores, Design], Statement | None]

PLAN_FAMILY = "one-run, if the trainer differs from the plan in its noise alone"


@dataclass(frozen=True)
class BoundRule:
    """A lower bound on epsilon.

    Attributes:
        name: name in records and reports.
        compute: epsilon from scores, design and delta.
        needs: conditions; each returns the reason if it does not hold.
        coverage: lowest measured coverage at nominal 0.95 (docs/coverage.md, compared by a test; with 2,000 simulated
            audits, a share just below 0.95 is within the simulation's noise).
        standing: standing of the bound, whatever the design; None: the design decides.
    """

    name: str
    compute: Compute
    needs: tuple[Need, ...]
    coverage: float
    standing: Standing | None = None

    def refusal(self, scores: LabelledScores, design: Design) -> Statement | None:
        """Why the bound is not valid for this design; None if it is valid."""
        return next((reason for need in self.needs if (reason := need(scores, design)) is not None), None)


def fair_coins(_: LabelledScores, design: Design) -> Statement | None:
    """Membership was drawn by independent fair coins, or how it was decided is not known."""
    # An unknown assignment passes: its bounds are then indicative (``Design.flaws``).
    if design.assignment is Assignment.FIXED:
        return Refusal.NEEDS_COINS()
    return None


def independent_trainings(_: LabelledScores, design: Design) -> Statement | None:
    """Each score comes from its own training."""
    if not design.independent_trainings:
        return Refusal.NEEDS_TRAININGS()
    return None


def gaussian_curve(_: LabelledScores, design: Design) -> Statement | None:
    """The mechanism's trade-off curve is Gaussian (no sampling)."""
    if not design.gaussian:
        return Refusal.NEEDS_GAUSSIAN()
    return None


def fixed_threshold(_: LabelledScores, design: Design) -> Statement | None:
    """A threshold was fixed before looking."""
    if not design.thresholds:
        return Refusal.NEEDS_THRESHOLD()
    return None


def one_threshold(_: LabelledScores, design: Design) -> Statement | None:
    """At most one threshold was fixed."""
    if len(design.thresholds) > 1:
        return Refusal.ONE_THRESHOLD(thresholds=len(design.thresholds))
    return None


def two_of_each(scores: LabelledScores, _: Design) -> Statement | None:
    """There are two trainings of each group, to split into halves."""
    n1, n0 = scores.held_in.size, scores.held_out.size
    if min(n1, n0) < 2:
        return Refusal.NEEDS_TWO_OF_EACH(members=n1, others=n0)
    return None


def band_in_reach(scores: LabelledScores, _: Design) -> Statement | None:
    """The groups are small enough to compute the exact band."""
    if max(scores.held_in.size, scores.held_out.size) > bands.LARGEST:
        return Refusal.BAND_TOO_LARGE(most=bands.LARGEST)
    return None


def _steinke(scores: LabelledScores, design: Design, delta: float) -> float:
    return one_run.steinke_bound(scores, delta, made=design.guesses, alpha=design.alpha, attacks=design.attacks).epsilon


def _fdp(scores: LabelledScores, design: Design, delta: float) -> float:
    return one_run.fdp_bound(scores, delta, made=design.guesses, alpha=design.alpha, attacks=design.attacks).epsilon


def _fdp_gaussian(scores: LabelledScores, design: Design, delta: float) -> float:
    return one_run.fdp_gaussian_bound(
        scores, delta, made=design.guesses, alpha=design.alpha, attacks=design.attacks
    ).epsilon


def _at_threshold(scores: LabelledScores, design: Design, delta: float) -> float:
    return thresholds.threshold_bound(
        scores, design.thresholds, delta, alpha=design.alpha, attacks=design.attacks
    ).epsilon


def _split(scores: LabelledScores, design: Design, delta: float) -> float:
    return thresholds.split_bound(scores, delta, alpha=design.alpha, attacks=design.attacks).epsilon


def _gaussian_at_threshold(scores: LabelledScores, design: Design, delta: float) -> float:
    bound = thresholds.threshold_gaussian_bound(
        scores, design.thresholds, delta, alpha=design.alpha, attacks=design.attacks
    )
    return bound.epsilon


def _gaussian_split(scores: LabelledScores, design: Design, delta: float) -> float:
    return thresholds.split_gaussian_bound(scores, delta, alpha=design.alpha, attacks=design.attacks).epsilon


def _roc_band(scores: LabelledScores, design: Design, delta: float) -> float:
    return bands.equal_local_level_band(scores, alpha=design.alpha, attacks=design.attacks).epsilon(delta)


def _dkw_band(scores: LabelledScores, design: Design, delta: float) -> float:
    return bands.dkw_band(scores, alpha=design.alpha, attacks=design.attacks).epsilon(delta)


def _area(scores: LabelledScores, design: Design, delta: float) -> float:
    # From a limit of the AUROC to the least epsilon whose region has that area.
    return bands.auroc_epsilon(bands.auroc_at_least(scores, alpha=design.alpha, attacks=design.attacks), delta)


def _bayesian(scores: LabelledScores, design: Design, delta: float) -> float:
    # The lower end of a two-sided interval of mass 1 - 2 alpha is a one-sided limit at alpha.
    counts = thresholds.counts_at(scores, design.thresholds[0])
    return estimates.bayesian_interval(counts, delta, confidence=1.0 - 2.0 * design.alpha / design.attacks).lower


# The Bayesian rule is an estimate whatever the design, so its coverage of 0 is shown and decides nothing.
RULES: Sequence[BoundRule] = (
    BoundRule("one-run", _steinke, (fair_coins,), 0.9455),
    BoundRule("one-run f-DP", _fdp, (fair_coins,), 0.9564),
    BoundRule("one-run Gaussian", _fdp_gaussian, (fair_coins, gaussian_curve), 0.961),
    BoundRule("Clopper-Pearson, fixed", _at_threshold, (independent_trainings, fixed_threshold), 0.9821),
    BoundRule("Clopper-Pearson, split", _split, (independent_trainings, two_of_each), 0.9955),
    BoundRule(
        "Gaussian, fixed threshold",
        _gaussian_at_threshold,
        (independent_trainings, gaussian_curve, fixed_threshold),
        0.996,
    ),
    BoundRule("Gaussian, split halves", _gaussian_split, (independent_trainings, gaussian_curve, two_of_each), 0.9975),
    BoundRule("ROC band", _roc_band, (independent_trainings, band_in_reach), 0.9995),
    BoundRule("DKW band", _dkw_band, (independent_trainings,), 0.999),
    BoundRule("AUROC", _area, (independent_trainings,), 1.0),
    BoundRule(
        "Bayesian interval",
        _bayesian,
        (independent_trainings, fixed_threshold, one_threshold),
        0.0,
        Standing.ESTIMATE,
    ),
)


def plan_rule(family: "NoiseFamily") -> BoundRule:
    """The bound over the noise multiplier of a claimed plan."""

    from heldin.bounds.noise_family import family_bound

    def compute(scores: LabelledScores, design: Design, delta: float) -> float:
        bound = family_bound(scores, family, delta, made=design.guesses, alpha=design.alpha, attacks=design.attacks)
        return bound.epsilon

    return BoundRule(PLAN_FAMILY, compute, (fair_coins,), 0.989, Standing.CONDITIONAL)
