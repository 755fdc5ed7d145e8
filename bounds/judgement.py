"""The judgement of scores: valid bounds at their own levels, refused bounds with reasons, and verdicts.

Each lower bound on epsilon is a rule: a computation, requirements on the design, and a strength of evidence.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from pydantic import ConfigDict

from heldin.base.errors import ExitCode, InputError
from heldin.base.tabular import Tabular
from heldin.bounds import bands, estimates, one_run, thresholds, verdict
from heldin.bounds.design import Assignment, Design
from heldin.bounds.noise_family import NoiseFamily, family_bound
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Claim, Standing, Verdict, describe_outcome, p_value
from heldin.defenses.accounting.closed_forms import check_delta
from heldin.words.evidence import REAL_USERS, Refusal
from heldin.words.statement import Statement

Compute = Callable[[LabelledScores, Design, float], float]
Need = Callable[[LabelledScores, Design], Statement | None]

PLAN_FAMILY = "one-run, if the trainer differs from the plan in its noise alone"


@dataclass(frozen=True)
class BoundRule:
    """A lower bound on epsilon.

    Attributes:
        name: name in records and reports.
        compute: function from scores, design and delta to epsilon.
        needs: conditions of the bound. Each is a function that returns a reason if the condition does not hold.
        coverage: lowest measured coverage at nominal 0.95 (docs/coverage.md, which a test compares). A share just below
            0.95 is within the noise of 2,000 simulated audits.
        standing: strength of evidence under every design; None: the design decides.
    """

    name: str
    compute: Compute
    needs: tuple[Need, ...]
    coverage: float
    standing: Standing | None = None

    def refusal(self, scores: LabelledScores, design: Design) -> Statement | None:
        """Return why the bound is not valid for this design; None if it is valid."""
        return next((reason for need in self.needs if (reason := need(scores, design)) is not None), None)


def fair_coins(_: LabelledScores, design: Design) -> Statement | None:
    """Require that independent fair coins drew membership, or that the assignment is unknown."""
    # An unknown assignment passes: its bounds are then indicative (``Design.flaws``).
    if design.assignment is Assignment.FIXED:
        return Refusal.NEEDS_COINS()
    return None


def independent_trainings(_: LabelledScores, design: Design) -> Statement | None:
    """Require a separate training for each score."""
    if not design.independent_trainings:
        return Refusal.NEEDS_TRAININGS()
    return None


def gaussian_curve(_: LabelledScores, design: Design) -> Statement | None:
    """Require a mechanism whose trade-off curve is Gaussian (no sampling)."""
    if not design.gaussian:
        return Refusal.NEEDS_GAUSSIAN()
    return None


def fixed_threshold(_: LabelledScores, design: Design) -> Statement | None:
    """Require a threshold that was fixed before looking."""
    if not design.thresholds:
        return Refusal.NEEDS_THRESHOLD()
    return None


def one_threshold(_: LabelledScores, design: Design) -> Statement | None:
    """Require at most one fixed threshold."""
    if len(design.thresholds) > 1:
        return Refusal.ONE_THRESHOLD(thresholds=len(design.thresholds))
    return None


def two_of_each(scores: LabelledScores, _: Design) -> Statement | None:
    """Require two trainings of each group, because the bound splits each group into halves."""
    n1, n0 = scores.held_in.size, scores.held_out.size
    if min(n1, n0) < 2:
        return Refusal.NEEDS_TWO_OF_EACH(members=n1, others=n0)
    return None


def band_in_reach(scores: LabelledScores, _: Design) -> Statement | None:
    """Require groups that are small enough to compute the exact band."""
    if max(scores.held_in.size, scores.held_out.size) > bands.LARGEST:
        return Refusal.BAND_TOO_LARGE(most=bands.LARGEST)
    return None


def _one_run(bound: Callable[..., one_run.OneRunBound]) -> Compute:
    return lambda scores, design, delta: (
        bound(scores, delta, made=design.guesses, alpha=design.alpha, attacks=design.attacks).epsilon
    )


def _at_thresholds(bound: Callable[..., thresholds.ThresholdBound]) -> Compute:
    return lambda scores, design, delta: (
        bound(scores, design.thresholds, delta, alpha=design.alpha, attacks=design.attacks).epsilon
    )


def _halves(bound: Callable[..., thresholds.ThresholdBound]) -> Compute:
    return lambda scores, design, delta: bound(scores, delta, alpha=design.alpha, attacks=design.attacks).epsilon


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
    BoundRule("one-run", _one_run(one_run.steinke_bound), (fair_coins,), 0.9455),
    BoundRule("one-run f-DP", _one_run(one_run.fdp_bound), (fair_coins,), 0.9564),
    BoundRule("one-run Gaussian", _one_run(one_run.fdp_gaussian_bound), (fair_coins, gaussian_curve), 0.961),
    BoundRule(
        "Clopper-Pearson, fixed",
        _at_thresholds(thresholds.threshold_bound),
        (independent_trainings, fixed_threshold),
        0.9821,
    ),
    BoundRule("Clopper-Pearson, split", _halves(thresholds.split_bound), (independent_trainings, two_of_each), 0.9955),
    BoundRule(
        "Gaussian, fixed threshold",
        _at_thresholds(thresholds.threshold_gaussian_bound),
        (independent_trainings, gaussian_curve, fixed_threshold),
        0.996,
    ),
    BoundRule(
        "Gaussian, split halves",
        _halves(thresholds.split_gaussian_bound),
        (independent_trainings, gaussian_curve, two_of_each),
        0.9975,
    ),
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


def plan_rule(family: NoiseFamily) -> BoundRule:
    """Return the rule for the bound that varies the noise multiplier of a claimed plan."""

    def compute(scores: LabelledScores, design: Design, delta: float) -> float:
        bound = family_bound(scores, family, delta, made=design.guesses, alpha=design.alpha, attacks=design.attacks)
        return bound.epsilon

    return BoundRule(PLAN_FAMILY, compute, (fair_coins,), 0.989, Standing.CONDITIONAL)


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon per user.

    Attributes:
        name: name of the rule that computes the bound.
        epsilon_lower: the bound: epsilon is at least this number at ``level``.
        level: nominal confidence.
        standing: strength of the evidence.
        coverage: lowest measured coverage at nominal 0.95; null if it was not measured.
        subjects: the people whom the statement is about.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    epsilon_lower: float
    level: float
    standing: Standing
    coverage: float | None
    subjects: Statement = REAL_USERS


@dataclass(frozen=True)
class RefusedBound:
    """A bound that the design does not support.

    Attributes:
        name: name of the bound.
        refusal: reason why the bound is not valid.
        subjects: the people in the bound.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    refusal: Statement
    subjects: Statement = REAL_USERS

    @property
    def reason(self) -> str:
        """The refusal in words."""
        return str(self.refusal)


@dataclass(frozen=True)
class Judgement(Tabular):
    """The bounds and verdicts from the scores.

    Attributes:
        users: number of users, or of trainings, with judged scores.
        delta: delta at which the bounds on epsilon hold.
        bounds: the bounds, each valid at its level.
        refused: bounds that the design does not support.
        verdicts: one verdict per claim, all valid at the same time. Without a claim, one verdict states the bound that
            could have been certified.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    users: int
    delta: float
    bounds: tuple[Bound, ...]
    refused: tuple[RefusedBound, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict to act on."""
        return verdict.gravest(self.verdicts)

    @property
    def exit_code(self) -> int:
        """The exit code of the gravest verdict: CERTIFIED before INDICATIVE before DONE."""
        codes = [v.exit_code for v in self.verdicts]
        return ExitCode.CERTIFIED if ExitCode.CERTIFIED in codes else max(codes, default=ExitCode.DONE)

    def heading(self) -> str:
        """Return the gravest verdict, or the reason why there is none."""
        if not self.verdicts:
            return f"No statement is possible: {'; '.join(bound.reason for bound in self.refused)}"
        gravest = self.verdict
        return f"{describe_outcome(gravest.outcome, gravest.standing).capitalize()}: {gravest.reason}"

    def notes(self) -> Sequence[str]:
        """Return the warnings of all verdicts, without repetitions."""
        return tuple(dict.fromkeys(text for verdict in self.verdicts for text in verdict.warnings))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each bound, with its level."""
        return [{**asdict(b), "standing": b.standing.value, "delta": self.delta} for b in self.bounds]

    def as_dict(self) -> dict[str, Any]:
        """Return bounds, refused bounds, the gravest verdict (null if there is none), and all verdicts, for JSON."""
        return {
            "bounds": [_without_subjects(b) for b in self.bounds],
            "refused": [{"name": r.name, "refusal": r.refusal.model_dump(), "reason": r.reason} for r in self.refused],
            "verdict": self.verdict.as_dict() if self.verdicts else None,
            "verdicts": [{"claim": verdict.claim.model_dump(), **verdict.as_dict()} for verdict in self.verdicts],
        }


def nothing_judged(users: int, delta: float, refusal: Statement, subjects: Statement = REAL_USERS) -> Judgement:
    """Return the judgement of scores that support no statement.

    Args:
        delta: delta for which bounds were requested.
        refusal: why there are no bounds.
        subjects: the people whom the bounds would be about.
    """
    return Judgement(users, delta, (), (RefusedBound("all bounds", refusal, subjects),), ())


def evaluate(
    scores: LabelledScores, design: Design, *, delta: float | None = None, claims: Sequence[Claim] = ()
) -> Judgement:
    """Return every bound that is valid for these scores, and the verdict on each claim.

    Args:
        scores: scores joined to membership; higher means more likely a member.
        design: how the scores were obtained. ``design.alpha`` is the error probability of each bound, and of all
            verdicts together.
        delta: delta of the bounds, in (0, 1); None: delta of the first claim.

    Raises:
        InputError: delta is missing or invalid, or a threshold is not finite.
        TooFewUsers: there are too few users for any statement, even with perfect separation.
    """
    if delta is None:
        if not claims:
            raise InputError("delta is missing: give --delta (below 1 / number of users), or a claim with a delta")
        delta = claims[0].delta
    check_delta(delta, 1)
    if not all(math.isfinite(t) for t in design.thresholds):
        raise InputError("the threshold fixed beforehand is not a finite number: give a finite number")
    # Refused before anything is computed: guesses that are fitted to one another's coins break the theorem
    # (tests/coverage/test_attack_coverage.py shows what becomes of the level).
    if not design.uses.certifiable:
        fitted = Refusal.FITTED_TO_COINS(uses=design.uses.stated)
        return nothing_judged(scores.scores.size, delta, fitted, design.subjects)
    # Bonferroni over the claims, whose verdicts hold together; a bound is valid at its own level and pays for nothing.
    paid = replace(design, alpha=design.alpha / max(1, len(claims)))
    verdicts = tuple(
        replace(verdict.decide(scores, claim, paid), p_value=_upwards(p_value(scores, claim, paid))) for claim in claims
    )
    verdicts = verdicts or (verdict.undecided(scores, delta, design),)
    # The bounds stand on the same conditions as the verdicts.
    standing = Standing.INDICATIVE if design.flaws(scores.held_in.size, scores.scores.size) else Standing.CERTIFIED
    # The bound over the noise needs a plan, which a stated (epsilon, delta) is not.
    family = next((claim.family for claim in claims if claim.family is not None), None)
    valid, refused = [], []
    for rule in (*([plan_rule(family)] if family else []), *RULES):
        # Refused with its reason, never computed under conditions that its theorem does not allow.
        refusal = rule.refusal(scores, design)
        if refusal is not None:
            refused.append(RefusedBound(rule.name, refusal, design.subjects))
            continue
        # No epsilon is below 0, whatever the scores say.
        epsilon = max(0.0, rule.compute(scores, design, delta))
        worth = rule.standing or standing
        valid.append(Bound(rule.name, epsilon, 1.0 - design.alpha, worth, rule.coverage, design.subjects))
    return Judgement(scores.scores.size, delta, tuple(valid), tuple(refused), verdicts)


def joined(judgements: Sequence[Judgement]) -> Judgement:
    """Join the judgements of several groups of people. Each bound and each verdict states its group.

    Raises ValueError if the judgements have different deltas, because bounds at different deltas do not compare.
    """
    if len({j.delta for j in judgements}) > 1:
        raise ValueError("bounds at several deltas cannot be joined")
    return Judgement(
        users=sum(j.users for j in judgements),
        delta=judgements[0].delta,
        bounds=tuple(bound for j in judgements for bound in j.bounds),
        refused=tuple(refused for j in judgements for refused in j.refused),
        verdicts=tuple(each for j in judgements for each in j.verdicts),
    )


def _upwards(p: float | None) -> float | None:
    """Round a p-value up to three digits. A smaller p-value would reject too often."""
    if p is None:
        return None
    scale = 10.0 ** (2 - math.floor(math.log10(p)))
    return min(1.0, math.ceil(p * scale) / scale)


def _without_subjects(bound: Bound) -> dict[str, Any]:
    return {name: value for name, value in asdict(bound).items() if name != "subjects"}


def table(result: Judgement) -> str:
    """Return the result as plain text: the verdicts with their reasons, then the bounds."""
    lines = []
    for each in result.verdicts:
        lines += [f"{describe_outcome(each.outcome, each.standing).upper()}: {each.reason}"]
        lines += [f"  warning: {text}" for text in each.warnings]
    lines += ["", f"epsilon lower bounds at delta {result.delta:g}, {result.users} users, each at its own confidence"]
    lines += [f"{'bound':<26}{'epsilon >=':>11}{'confidence':>12}{'standing':>13}{'coverage':>10}"]
    for b in result.bounds:
        coverage = "-" if b.coverage is None else f"{b.coverage:.3f}"
        lines += [b.name] if len(b.name) > 25 else []
        name = b.name if len(b.name) <= 25 else ""
        lines += [f"{name:<26}{b.epsilon_lower:>11.3f}{b.level:>12.3g}{b.standing.value:>13}{coverage:>10}"]
    lines += ["(none is valid for this design)"] if not result.bounds else []
    if any(b.coverage is not None for b in result.bounds):
        lines += ["coverage: lowest measured share of simulations with a known epsilon in which the bound held"]
    lines += [""] + [f"refused: {r.name}: {r.reason}" for r in result.refused]
    return "\n".join(lines).rstrip() + "\n"
