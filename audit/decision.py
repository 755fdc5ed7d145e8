"""The audit's answer, one of four, from thresholds stated beforehand. The answer is a pure function of the evidence.

| answer | when |
|---|---|
| not valid | the split is asserted and the groups differ without the model, or the scores compare nothing |
| leaks | the randomisation test of either family rejects (audit/randomisation.py), or a claim is contradicted |
| no leak found | neither rejects, no score is reversed, all upper limits are below the thresholds, the model learned |
| inconclusive | none of these |

The module also has the config sections that state the measures and thresholds.
"""

import bisect
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from heldin.audit.limits import Z_ONE_SIDED
from heldin.audit.randomisation import REDRAWS, least_redraws
from heldin.audit.requirement import RequirementConfig
from heldin.base.section import Count, Many, Section
from heldin.words.statement import Statement


class AuditConfig(Section):
    """Settings for intervals, bounds and rates."""

    resamples: Annotated[Many, Field(ge=100)] = 2000
    """Number of bootstrap resamples of users, from which heldin computes the intervals of estimates."""
    delta: float = Field(1e-5, ge=1e-11, lt=1)
    """delta for the lower bounds on epsilon, if there is no claim. If there is a claim, the bounds use the delta of
    the claim."""
    fprs: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.001, 0.005, 0.01, 0.05, 0.1), min_length=1)
    """False-positive rates at which the report shows the true-positive rate, if there are enough non-members."""
    validation_texts: Count = 400
    """Maximum number of validation texts by members. Each evaluation measures the loss on these texts."""
    test_texts_per_user: Count = 10
    """Maximum number of test texts per non-member. heldin measures the final model's loss on these texts."""
    curve_users: Annotated[Count, Field(ge=50)] = 2000
    """Maximum number of audited users to score in each evaluation. heldin draws these users at random from members and
    non-members together."""
    exposure_users: Annotated[Count, Field(ge=50)] = 5000
    """Maximum number of members in the analysis of how exposure depends on a member's texts. heldin compares the words
    of these members with the words of at most as many other people in the training data."""
    curve_texts_per_user: Count = 5
    """Maximum number of texts per user to score in each evaluation, for the AUROC during training."""


class Answer(StrEnum):
    """The answer of an audit."""

    LEAKS = "leaks"
    NO_LEAK = "no leak found"
    INCONCLUSIVE = "inconclusive"
    NOT_VALID = "not valid"


class Promise(StrEnum):
    """The finding compared with the guarantee."""

    WITHIN = "within"
    ABOVE = "above"  # by the estimate, not certified
    BEYOND = "beyond"


class DecisionConfig(Section):
    """Thresholds that decide the answer."""

    auroc: Annotated[float, Field(gt=0.5, lt=1)] = 0.60
    """For the answer "no leak found", the AUROC of every score must be below this limit at 95 % confidence."""
    tpr: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """For the answer "no leak found", the true-positive rate of every score at false-positive rate ``fpr`` must be
    below this limit. The limit must be above ``fpr``."""
    fpr: Annotated[float, Field(gt=0, le=0.1)] = 0.05
    """False-positive rate at which the limit ``tpr`` applies."""
    auroc_level: Annotated[float, Field(gt=0, lt=1)] = 0.04
    """Maximum probability that an AUROC leads to the answer "leaks" by chance alone."""
    tpr_level: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Maximum probability that a true-positive rate at a low false-positive rate leads to the answer "leaks" by chance
    alone."""
    redraws: Annotated[Count, Field(le=10**8)] = REDRAWS  # a planted audit asks for more at each look
    """Number of random reassignments of members in the joint test of all scores. A smaller ``auroc_level`` or
    ``tpr_level`` needs more reassignments.
    """
    require: tuple[RequirementConfig, ...] = ()
    """Your organisation's acceptance limits, in the format of a sweep's requirements. The limits decide the
    recommendation in the report, but not the answer.
    """

    @model_validator(mode="after")
    def _possible(self) -> "DecisionConfig":
        for name in ("auroc_level", "tpr_level"):
            # The smallest p-value is 1 / (1 + redraws): above the level, no leak however plain would be found.
            needed = least_redraws(getattr(self, name))
            if self.redraws < needed:
                raise ValueError(
                    f"{self.redraws} redraws are too few to reach {name} {getattr(self, name):g}: give at least"
                    f" {needed} redraws"
                )
        if self.tpr <= self.fpr:
            raise ValueError(
                f"tpr {self.tpr:g} is not above fpr {self.fpr:g}, so guessing alone reaches this tpr: raise tpr"
                " above fpr"
            )
        return self


@dataclass(frozen=True)
class RateEvidence:
    """A score's true-positive rate at a false-positive rate.

    Attributes:
        fpr: the false-positive rate.
        value: the true-positive rate.
        lower: lower end of the rate's 95 % interval.
        upper: upper end of the rate's 95 % interval.
        at_most: one-sided 95 % upper limit of the rate.
        adjusted_p: adjusted p-value; None if the rate is not part of the randomisation test.
    """

    fpr: float
    value: float
    lower: float
    upper: float
    at_most: float
    adjusted_p: float | None


@dataclass(frozen=True)
class ScoreEvidence:
    """One score of the family.

    Attributes:
        name: the attack, the changed setting, and the rule that combines the scores of a user's texts.
        auroc: AUROC over users.
        lower: lower end of the AUROC's simultaneous 95 % interval.
        upper: upper end of the AUROC's simultaneous 95 % interval.
        at_most: one-sided 95 % upper limit of the AUROC.
        adjusted_p: adjusted p-value of the AUROC, by the randomisation test.
        rates: true-positive rate at each false-positive rate that this number of non-members can show, ascending.
        tpr_p: the smallest adjusted p-value of a true-positive rate, including rates that are not in ``rates``.
    """

    name: str
    auroc: float
    lower: float
    upper: float
    at_most: float
    adjusted_p: float
    rates: tuple[RateEvidence, ...] = ()
    tpr_p: float = 1.0

    def at(self, fpr: float) -> RateEvidence | None:
        """Return the true-positive rate at ``fpr``; None if there are too few users to show it."""
        return next((rate for rate in self.rates if math.isclose(rate.fpr, fpr)), None)


@dataclass(frozen=True)
class AnswerEvidence:
    """The evidence that decides the answer.

    Attributes:
        users: number of scored users, members and non-members.
        scores: the family, the primary score first.
        auroc_p, tpr_p, reversed_p: p-values of the AUROC family, of the rate family, and of scores that are higher for
            non-members.
        auroc_margin, tpr_margin: see ``audit.randomisation.FamilyTest``. ``tpr_margin`` is at the decision's FPR; None
            if there are too few users to show that FPR.
        exact: whether the p-values are exact: heldin drew the assignment, and every condition is met. Otherwise they
            are indicative.
        flaws: reasons why the comparison is not valid; empty if it is valid.
        ceiling: the largest AUROC that the guarantee allows; None without a guarantee.
        ceiling_rates: pairs (FPR, largest TPR that the guarantee allows), for each FPR of the scores.
        contradicted: evidence of the gravest verdict that contradicts a claim; None if no claim is contradicted.
        contradicted_by: the people in the verdict of ``contradicted``; None if they are the scored users, or if no
            claim is contradicted.
        unmet: whether a condition of a certified statement is not met, apart from the condition that heldin drew the
            assignment.
        learned: whether the model's gain on non-members is above zero; None if it was not measured.
        falls_short: whether recipients of the model see more of the model than every attacker of the audit does.
    """

    users: int
    held_out: int
    scores: tuple[ScoreEvidence, ...]
    auroc_p: float
    tpr_p: float
    reversed_p: float
    auroc_margin: float
    tpr_margin: float | None
    exact: bool
    flaws: tuple[Statement, ...] = ()
    ceiling: float | None = None
    ceiling_rates: tuple[tuple[float, float], ...] = ()
    contradicted: str | None = None
    contradicted_by: Statement | None = None
    unmet: bool = False
    learned: bool | None = None
    falls_short: bool = False


@dataclass(frozen=True)
class Decision:
    """The answer, and the numbers that decided it.

    Attributes:
        answer: the answer.
        exact: whether the p-values are exact: heldin drew the members, and every condition is met.
        strongest: index of the strongest score that passes the corrected test. If only a contradicted claim leads to
            "leaks", the index is the primary attack's; for any other answer, it is null.
        separates: whether the strongest score passes the test; false for answers other than "leaks", and if only a
            claim led to "leaks".
        promise: the finding compared with the guarantee. "above" relies only on the estimate; null without a leak or a
            guarantee.
        largest_auroc: largest AUROC of any score.
        shown_auroc: largest lower end of the simultaneous intervals: some score has at least this AUROC.
        excluded_auroc: the audit rules out AUROCs above this number for every score, at 95 % confidence.
        largest_tpr: largest true-positive rate of any score at the decision's FPR; null if there are too few users.
        excluded_tpr: the audit rules out true-positive rates above this number for every score, at 95 % confidence;
            null if there are too few users.
        users_needed: number of users with which four of five audits rule out both thresholds, if no score is better
            than guessing.
        reversed: whether some score is higher for non-members.
        unlearned: whether only the proof that the model learned something is missing for the answer "no leak found".
        flaws: reasons why the comparison is not valid.
        weaker: whether the audit rules out a leak only to attackers with less access than the recipients of the model.
    """

    answer: Answer
    exact: bool
    strongest: int | None
    separates: bool
    promise: Promise | None
    largest_auroc: float
    shown_auroc: float
    excluded_auroc: float
    largest_tpr: float | None
    excluded_tpr: float | None
    users_needed: int
    reversed: bool
    unlearned: bool
    flaws: tuple[Statement, ...]
    weaker: bool = False


def decide(evidence: AnswerEvidence, by: DecisionConfig) -> Decision:
    """Return the answer, by the table in the module's docstring, with the numbers behind it."""
    # An intersection-union claim: the largest limit errs only if that score's own limit does, so that the number of
    # scores costs nothing (docs/theory.md#randomisation-test).
    excluded_auroc = max(score.at_most for score in evidence.scores)
    largest_tpr, excluded_tpr = _largest_rates(evidence, by)
    # Two families, whose levels add up: 5 % with the defaults. A contradicted claim has an error level of its own.
    leaks = evidence.auroc_p <= by.auroc_level or evidence.tpr_p <= by.tpr_level or evidence.contradicted is not None
    # Flaws are about the compared users: a claim that other people's scores violate (canary users) still counts.
    void = bool(evidence.flaws) and not (evidence.contradicted and evidence.contradicted_by)
    leads = strongest(evidence, by) if leaks and not void else None
    # A score below chance has low upper limits, yet it tells the sides apart: it may not pass for "no leak found".
    backwards = evidence.reversed_p <= by.auroc_level
    small = not backwards and excluded_auroc < by.auroc and excluded_tpr is not None and excluded_tpr < by.tpr
    answer = _answer(void=void, leaks=leaks, small=small and not evidence.falls_short, learned=evidence.learned)
    # Both keep "no leak found" back; that the model learned nothing is the plainer reason.
    unlearned = small and evidence.learned is False
    return Decision(
        answer=answer,
        exact=evidence.exact,
        strongest=leads,
        # A contradicted claim alone shows no attack that succeeds: the score next to it did not pass.
        separates=leads is not None and passes(evidence.scores[leads], by),
        promise=_promise(evidence, leads, by),
        largest_auroc=max(score.auroc for score in evidence.scores),
        shown_auroc=max(score.lower for score in evidence.scores),
        excluded_auroc=excluded_auroc,
        largest_tpr=largest_tpr,
        excluded_tpr=excluded_tpr,
        users_needed=users_needed(by, evidence.auroc_margin, evidence.tpr_margin),
        reversed=backwards,
        unlearned=unlearned and answer is Answer.INCONCLUSIVE,
        flaws=evidence.flaws,
        weaker=small and not unlearned and evidence.falls_short and answer is Answer.INCONCLUSIVE,
    )


def _largest_rates(evidence: AnswerEvidence, by: DecisionConfig) -> tuple[float | None, float | None]:
    """Return the largest TPR of any score, and the largest upper limit of a TPR; None if a score shows no TPR."""
    rates = [score.at(by.fpr) for score in evidence.scores]
    shown = [rate for rate in rates if rate is not None]
    # One score whose rate cannot be shown leaves the claim about all of them open.
    if len(shown) < len(rates):
        return None, None
    return max(rate.value for rate in shown), max(rate.at_most for rate in shown)


def _answer(*, void: bool, leaks: bool, small: bool, learned: bool | None) -> Answer:
    if void:
        return Answer.NOT_VALID
    if leaks:
        return Answer.LEAKS
    # A model that learned nothing leaks nothing, which says nothing of its defense.
    return Answer.NO_LEAK if small and learned is not False else Answer.INCONCLUSIVE


def users_needed(by: DecisionConfig, auroc_margin: float, tpr_margin: float | None) -> int:
    """Return the number of users with which four of five audits at chance rule out both thresholds.

    Half of the users are members.

    With n users, the best score deviates by chance to 1/2 + margin / sqrt(3 n). Its upper limit is 1.645 / sqrt(3 n)
    higher. The best TPR deviates to t = f + margin sqrt(4 f (1 - f) / n), and its limit is 1.645 deviations higher. The
    variance is 2 t (1 - t) / n for the rate and 2 (t / f)^2 f (1 - f) / n for the threshold.

    Args:
        auroc_margin: deviation of the best score by chance, in standard deviations.
        tpr_margin: deviation of the best TPR by chance, in standard deviations; None: as for the AUROC.
    """
    f, stray = by.fpr, max(0.0, auroc_margin if tpr_margin is None else tpr_margin)

    def enough(n: int) -> bool:
        t = min(1.0, f + stray * math.sqrt(4 * f * (1 - f) / n))
        limit = t + Z_ONE_SIDED * math.sqrt(2 * (t * (1 - t) + t * t / f * (1 - f)) / n)
        # With n / 2 held out, a rate at which not even one of them may be named shows nothing.
        return limit < by.tpr and f * n / 2 >= 1

    least = math.ceil(((max(auroc_margin, 0.0) + Z_ONE_SIDED) / (by.auroc - 0.5)) ** 2 / 3)
    high = least
    # Ends, since the limit falls towards the FPR, which is below the TPR threshold.
    while not enough(high):
        high *= 2
    return bisect.bisect_left(range(high), True, lo=least, key=enough) if high > least else least


def disagreement(evidence: AnswerEvidence, by: DecisionConfig) -> bool:
    """Return whether another score passes after adjustment and the primary score does not."""
    passing = [passes(score, by) for score in evidence.scores]
    return any(passing) and not passing[0]


def passes(score: ScoreEvidence, by: DecisionConfig) -> bool:
    """Return whether the score passes after adjustment, by its AUROC or by a true-positive rate."""
    return score.adjusted_p <= by.auroc_level or score.tpr_p <= by.tpr_level


def strongest(evidence: AnswerEvidence, by: DecisionConfig) -> int:
    """Return the index of the best score that passes.

    The best score has the highest AUROC among the scores that pass by AUROC. If no score passes by AUROC, it has the
    highest AUROC among the scores that pass by a TPR. If none passes, the index is 0, the primary score.
    """
    numbered = list(enumerate(evidence.scores))
    by_auroc = [i for i, score in numbered if score.adjusted_p <= by.auroc_level]
    candidates = by_auroc or [i for i, score in numbered if score.tpr_p <= by.tpr_level] or [0]
    # Of equal AUROCs the earlier score: the leading one is the first.
    return max(candidates, key=lambda i: (evidence.scores[i].auroc, -i))


def _lowest_rate(score: ScoreEvidence, by: DecisionConfig) -> RateEvidence | None:
    """Return the TPR at the stated false-positive rate, or at the next larger false-positive rate that can be shown."""
    rates = [rate for rate in score.rates if rate.fpr > by.fpr or math.isclose(rate.fpr, by.fpr)]
    return min(rates, key=lambda each: each.fpr, default=None)


def _promise(evidence: AnswerEvidence, strongest: int | None, by: DecisionConfig) -> Promise | None:
    if strongest is None:
        return None
    if evidence.contradicted is not None:
        return Promise.BEYOND
    if evidence.ceiling is None:
        return None
    allowed = dict(evidence.ceiling_rates)
    # every score that passes, not the strongest alone: another may be above the ceiling at a low FPR
    for score in evidence.scores:
        rate = _lowest_rate(score, by) if passes(score, by) else None
        # By the estimates, not their limits, which is why it is called not certified.
        if rate is not None and rate.value > allowed.get(rate.fpr, 1.0):
            return Promise.ABOVE
        if passes(score, by) and score.auroc > evidence.ceiling:
            return Promise.ABOVE
    return Promise.WITHIN
