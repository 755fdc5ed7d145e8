"""From evidence to verdict: the outcome (contradicted, consistent, inconclusive) and the strength of the evidence.

There is one test per claim, chosen by the design and not by its result. The test of one run uses the theorems of
bounds/one_run.py. The test of independent trainings uses ROC bands, or thresholds fixed beforehand. The error
probability covers several attacks, numbers of guesses and thresholds. The p-value of a claim is the smallest level at
which the verdict's test would reject the claim.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from heldin.base.arguments import number_in
from heldin.base.errors import ExitCode, InputError, TooFewUsers
from heldin.bounds import bands, one_run, verdict
from heldin.bounds import thresholds as bounds
from heldin.bounds.design import Design
from heldin.bounds.one_run import Guesses, InverseRoc
from heldin.bounds.roc import epsilon_of_rates
from heldin.bounds.scores import LabelledScores, check_alpha, labelled
from heldin.defenses.accounting.roc_ceiling import RocCeiling, epsilon_delta_ceiling
from heldin.words.evidence import (
    REAL_USERS,
    CertifiedCondition,
    ClaimLabel,
    CountedUnits,
    Finding,
    Refusal,
    Test,
    units_of,
)
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.bounds.noise_family import NoiseFamily

NO_CLAIM = ClaimLabel.NONE()  # label of the verdict if nothing is claimed
_LEAST, _MOST = 1e-12, 1.0 - 1e-6
_FACTOR = 1.01  # a p-value is at most this much above the smallest rejecting level


class Outcome(StrEnum):
    """The result of the test of a claim."""

    CONTRADICTED = "contradicted"
    CONSISTENT = "consistent"  # not rejected; a perfect attack would have rejected it
    INCONCLUSIVE = "inconclusive"  # not rejected, nor would perfect guessing have been


class Standing(StrEnum):
    """The strength of a number or a verdict: valid at its level under stated conditions, or weaker evidence."""

    CERTIFIED = "certified"
    INDICATIVE = "indicative"
    CONDITIONAL = "conditional"  # valid on a condition that nobody checks, which the bound's name states
    ESTIMATE = "estimate"


@dataclass(frozen=True, eq=False)
class Claim:
    """A claimed guarantee: no attacker's ROC is above ``ceiling``.

    Attributes:
        label: words for the claim in reports.
        ceiling: the highest ROC that the claim allows.
        epsilon: epsilon of the claim at delta. If the claim is a curve, only summaries use it.
        is_curve: whether the claim is an accountant's whole curve, not one (epsilon, delta).
        family: the plan at any noise multiplier, if the claim is the curve of such a plan.
    """

    label: Statement
    ceiling: RocCeiling
    epsilon: float
    delta: float
    is_curve: bool = False
    family: "NoiseFamily | None" = None

    @functools.cached_property
    def _inverse(self) -> InverseRoc:
        return one_run.curve_inverse(self.ceiling)

    def rejected_by(self, game: Guesses, alpha: float) -> bool:
        """Return whether one run's guesses reject the claim at level alpha (conditions: bounds/one_run.py)."""
        if self.is_curve:
            return one_run.fdp_rejects(game, self._inverse, alpha)
        return one_run.one_run_rejects(game, self.epsilon, self.delta, alpha)


def stated_claim(epsilon: float, delta: float) -> Claim:
    """Return the claim of (epsilon, delta)-DP per user under add/remove.

    Raises InputError unless epsilon >= 0 and 0 < delta < 1.
    """
    if not (np.isfinite(epsilon) and epsilon >= 0.0):
        raise InputError(
            f"claimed epsilon {epsilon} is not a number of at least 0: write a claim as epsilon=4,delta=1e-6"
        )
    if not 0.0 < delta < 1.0:
        raise InputError(f"claimed delta {delta} is outside (0, 1): write a claim as epsilon=4,delta=1e-6")
    label = ClaimLabel.STATED(epsilon=float(epsilon), delta=delta)
    return Claim(label, epsilon_delta_ceiling(epsilon, delta), epsilon, delta)


def curve_claim(ceiling: RocCeiling, epsilon: float, delta: float, family: "NoiseFamily | None" = None) -> Claim:
    """Return the claim of an accountant's whole curve.

    Args:
        ceiling: the curve, from ``defenses.accounting.guarantees.ceiling_of``.
        epsilon: a point of the curve, for summaries.
        family: the plan at any noise multiplier, if there is such a family.
    """
    label = ClaimLabel.CURVE(epsilon=float(f"{epsilon:.4g}"), delta=delta)
    return Claim(label, ceiling, epsilon, delta, is_curve=True, family=family)


def describe_outcome(outcome: str, standing: str) -> str:
    """Return an outcome and its evidence in words. Only for a contradicted claim do the words include "certified".

    "Not contradicted (certified)" would read as if the claim were certified.
    """
    plain = standing == Standing.CERTIFIED.value and outcome != Outcome.CONTRADICTED.value
    return f"{_OUTCOMES[Outcome(outcome)]}{'' if plain else f' ({standing})'}"


_OUTCOMES = {
    Outcome.CONTRADICTED: "contradicted",
    Outcome.CONSISTENT: "not contradicted",
    Outcome.INCONCLUSIVE: "out of reach",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict of the audit on one claim.

    Attributes:
        claim: label of the claim; ``NO_CLAIM`` if there is none.
        outcome: contradicted; not contradicted although a perfect attack would have contradicted the claim; or
            inconclusive, because even a perfect attack would not have contradicted it.
        standing: strength of the evidence.
        finding: result of the test, with the reason if the verdict is only indicative.
        max_certifiable_epsilon: the epsilon that perfect guesses would have certified at the claim's delta. If the
            evidence is indicative, this assumes that all conditions were met.
        cautions: warnings to print with the verdict.
        subjects: the people whom the statement is about.
        p_value: smallest level at which the test would reject the claim; null if there was no test.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    claim: Statement
    outcome: Outcome
    standing: Standing
    finding: Statement
    max_certifiable_epsilon: float
    cautions: tuple[Statement, ...] = ()
    subjects: Statement = REAL_USERS
    p_value: float | None = None

    @property
    def reason(self) -> str:
        """The finding in words."""
        return str(self.finding)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The cautions in words."""
        return tuple(map(str, self.cautions))

    @property
    def exit_code(self) -> int:
        """The exit code: CERTIFIED or INDICATIVE if the claim is contradicted, else DONE."""
        if self.outcome is not Outcome.CONTRADICTED:
            return ExitCode.DONE
        return ExitCode.CERTIFIED if self.standing is Standing.CERTIFIED else ExitCode.INDICATIVE

    def as_dict(self) -> dict[str, Any]:
        """Return the public fields: outcome, standing, reason, max_certifiable_epsilon."""
        return {
            "outcome": self.outcome.value,
            "standing": self.standing.value,
            "finding": self.finding.model_dump(),
            "reason": self.reason,
            "max_certifiable_epsilon": self.max_certifiable_epsilon,
        }


def decide(scores: LabelledScores, claim: Claim, design: Design) -> Verdict:
    """Return the verdict on one claim.

    | test rejects | perfect guessing would reject | outcome      |
    |--------------|-------------------------------|--------------|
    | yes          |                               | contradicted     |
    | no           | yes                           | consistent   |
    | no           | no                            | inconclusive |

    Raises TooFewUsers if no result of the test could reject any epsilon.
    """
    n1, n0 = scores.held_in.size, scores.held_out.size
    reach = max_certifiable_epsilon(n1, n0, claim.delta, design)
    flaws = design.flaws(n1, n1 + n0)
    if rejects(scores, claim, design):
        finding = Finding.REJECTED(claim=claim.label, level=design.alpha, test=_test(design))
        outcome = Outcome.CONTRADICTED
    elif could_reject(n1, n0, claim, design):
        outcome, finding = Outcome.CONSISTENT, Finding.NOT_REJECTED(claim=claim.label)
        flaws = (*flaws, *design.unshown)
    else:
        outcome = Outcome.INCONCLUSIVE
        finding = Finding.OUT_OF_REACH(claim=claim.label, count=n1 + n0, units=_units(design), reach=reach)
    standing = Standing.INDICATIVE if flaws else Standing.CERTIFIED
    if flaws:
        finding = Finding.IF_CONDITIONS_HELD(flaws=list(flaws), finding=finding)
    else:
        finding = Finding.UNDER_CONDITION(finding=finding, condition=_condition(design), confidence=1.0 - design.alpha)
    return Verdict(claim.label, outcome, standing, finding, reach, design.cautions(n1, n1 + n0), design.subjects)


def undecided(scores: LabelledScores, delta: float, design: Design) -> Verdict:
    """Return the verdict without a claim: inconclusive, with the epsilon that could have been certified."""
    n1, n0 = scores.held_in.size, scores.held_out.size
    reach = max_certifiable_epsilon(n1, n0, delta, design)
    flaws = design.flaws(n1, n1 + n0)
    standing = Standing.INDICATIVE if flaws else Standing.CERTIFIED
    finding = Finding.NO_CLAIM(count=n1 + n0, units=_units(design), reach=reach)
    if flaws:
        finding = Finding.WITH_FLAWS(flaws=list(flaws), finding=finding)
    cautions = design.cautions(n1, n1 + n0)
    return Verdict(NO_CLAIM, Outcome.INCONCLUSIVE, standing, finding, reach, cautions, design.subjects)


def gravest(verdicts: tuple[Verdict, ...]) -> Verdict:
    """Return the verdict to act on: contradicted before inconclusive before consistent, certified before indicative."""
    order = [Outcome.CONTRADICTED, Outcome.INCONCLUSIVE, Outcome.CONSISTENT]
    # Inconclusive before consistent: a claim that nothing could have rejected must not hide behind another's test.
    return min(verdicts, key=lambda v: (order.index(v.outcome), v.standing is not Standing.CERTIFIED))


def rejects(scores: LabelledScores, claim: Claim, design: Design) -> bool:
    """Return whether the design's one test rejects the claim at level alpha / attacks."""
    alpha, attacks = design.alpha, design.attacks
    if not design.independent_trainings:
        # Each number of guesses at its share of alpha, so that any rejection counts.
        games = one_run.games_of(scores, design.guesses, alpha, attacks)
        return any(claim.rejected_by(game, level) for game, level in games.play())
    if design.thresholds:
        return bounds.thresholds_violate(scores, design.thresholds, claim.ceiling, alpha=alpha, attacks=attacks)
    return bands.violates(scores, claim.ceiling, alpha=alpha, attacks=attacks).contradicted


def could_reject(members: int, non_members: int, claim: Claim, design: Design) -> bool:
    """Return whether ``rejects`` would be true if every guess were right (perfect separation)."""
    if not design.independent_trainings:
        perfect = one_run.perfect_games(members + non_members, design.guesses, design.alpha, design.attacks)
        return any(claim.rejected_by(game, level) for game, level in perfect)
    return rejects(_perfect(members, non_members), claim, _at_half(design))


def max_certifiable_epsilon(members: int, non_members: int, delta: float, design: Design) -> float:
    """Return the largest epsilon at this delta whose (epsilon, delta)-DP the design's test could reject.

    Args:
        delta: delta of the claim, in [0, 1).

    Raises:
        TooFewUsers: the test could reject no epsilon above 0.
    """
    alpha, attacks = design.alpha, design.attacks
    if not design.independent_trainings:
        games = one_run.perfect_games(members + non_members, design.guesses, alpha, attacks)
        # Both theorems, as ``rejects`` lets either reject at no extra price (docs/theory.md#one-run-curve-test).
        theorems = (one_run.one_run_epsilon, one_run.fdp_epsilon)
        reach = max(theorem(game, delta, level) for theorem in theorems for game, level in games)
    else:
        perfect, at_half = _perfect(members, non_members), _at_half(design)
        if design.thresholds:
            # Two directions of each threshold share its two limits (docs/theory.md#independent-trainings).
            level = check_alpha(alpha, attacks) / (2 * len(at_half.thresholds))
            tpr, fpr = bounds.limits(bounds.counts_at(perfect, 0.5), level)
            reach = float(epsilon_of_rates(np.array(tpr), np.array(fpr), delta))
        else:
            both = bands.both_bands(perfect, alpha=alpha, attacks=attacks)
            reach = max(band.epsilon(delta) for band in both if band is not None)
    if reach <= 0.0:
        raise TooFewUsers(Refusal.TOO_FEW(members=members, others=non_members, level=alpha))
    return reach


def _perfect(members: int, non_members: int) -> LabelledScores:
    return labelled(np.ones(members), np.zeros(non_members))


def _at_half(design: Design) -> Design:
    """Return the design with all of its thresholds moved between the perfectly separated groups."""
    # Where they lie means nothing on scores of 0 and 1; how many there are is what is paid for.
    return replace(design, thresholds=(0.5,) * len(design.thresholds))


def _test(design: Design) -> Statement:
    if not design.independent_trainings:
        return Test.ONE_RUN()
    return (Test.FIXED_THRESHOLDS if design.thresholds else Test.ROC_BANDS)()


def _units(design: Design) -> Statement:
    return CountedUnits.TRAININGS() if design.independent_trainings else units_of(design.subjects)


def _condition(design: Design) -> Statement:
    return (
        CertifiedCondition.INDEPENDENT_TRAININGS if design.independent_trainings else CertifiedCondition.FAIR_COINS
    )()


def p_value(scores: LabelledScores, claim: Claim, design: Design) -> float | None:
    """Return the p-value of the one-run test behind a verdict, at most 1 % too large and never below 1e-12.

    The design's own level fixes the numbers of guesses and their shares before any score is seen. The verdict at that
    level rejects iff the p-value is at most alpha / attacks. A test's level may then be lowered freely: if either
    theorem's test rejects at one level, it rejects at every higher level.

    Args:
        scores: scores joined to membership.
        design: how the scores were obtained.

    Returns:
        The p-value; None for independent trainings, whose bands are not tests at every level.
    """
    if design.independent_trainings:
        return None
    whole = design.alpha / design.attacks
    games = one_run.games_of(scores, design.guesses, design.alpha, design.attacks)
    return min(1.0, *(_smallest_level(game, claim) * whole / level for game, level in games.play()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values of K tests (Holm 1979), which bound the probability of any wrong rejection by alpha.

    The bound is valid under any dependence of the tests.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        # Never below an earlier one: a test is reached only where all before it rejected.
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _smallest_level(game: Guesses, claim: Claim) -> float:
    """Return a level at which the game rejects the claim, at most 1 % above the smallest such level; 1 if none does."""
    if not claim.rejected_by(game, _MOST):
        return 1.0
    if claim.rejected_by(game, _LEAST):
        return _LEAST
    low, high = _LEAST, _MOST
    while high > _FACTOR * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if claim.rejected_by(game, middle) else (middle, high)
    return high


def parse_claim(text: str) -> Claim:
    """Read a claim such as "epsilon=4,delta=1e-6". Raises InputError for any other form."""
    parts = [part.split("=", 1) for part in text.split(",")]
    fields = {pair[0].strip(): pair[1].strip() for pair in parts if len(pair) == 2}
    if [*fields] == ["epsilon"] and len(parts) == 1:
        raise InputError(f"claim '{text}' has no delta: add one, such as delta=1e-6")
    # A name given twice is one field of the dictionary, which the number of parts shows.
    if sorted(fields) != ["delta", "epsilon"] or len(parts) != 2:
        why = "; only heldin audit-planted accepts a unit" if "unit" in fields else ""
        raise InputError(f"claim '{text}' is malformed: write epsilon=4,delta=1e-6{why}")
    try:
        epsilon, delta = number_in(fields["epsilon"]), number_in(fields["delta"])
    except ValueError:
        raise InputError(f"claim '{text}' contains a value that is not a number: write epsilon=4,delta=1e-6") from None
    return verdict.stated_claim(epsilon, delta)
