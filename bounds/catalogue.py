"""Scores from anywhere to bounds and a verdict: the engine of `heldin bound scores.csv`, without the command line.

Every bound that is valid for the stated design is computed, each at its own level; those that are not are refused with
the reason. Coverage beside a bound is the lowest that was measured (docs/coverage.md).
"""

import csv
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heldin.base.errors import InputError
from heldin.bounds import bands, estimates, one_run, verdict
from heldin.bounds import thresholds as bounds
from heldin.bounds.coverage import MEASURED
from heldin.bounds.noise_family import NoiseFamily, family_bound, noise_family
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Assignment, Claim, Design, Standing, Verdict
from heldin.corpus.names import missing_names_line
from heldin.defenses.accounting.ceiling import ceiling_of
from heldin.defenses.accounting.guarantees import check_delta
from heldin.defenses.mechanism import Guarantee, Mechanism
from heldin.defenses.plan_file import read_plan

COLUMNS = ("user", "score", "member")
_YES, _NO = ("1", "true", "yes", "in", "member", "held_in"), ("0", "false", "no", "out", "non-member", "held_out")


@dataclass(frozen=True)
class NamedBound:
    """One row of the result. level: nominal confidence; coverage: lowest measured, None where not measured."""

    name: str
    epsilon_lower: float
    level: float
    standing: Standing
    coverage: float | None


@dataclass(frozen=True)
class RefusedBound:
    """A bound that the design does not support, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class BoundResult:
    """What the scores say. verdicts: one per claim, each paying for the number of claims; verdict: the gravest."""

    users: int
    delta: float
    bounds: tuple[NamedBound, ...]
    refused: tuple[RefusedBound, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict to act on."""
        return verdict.gravest(self.verdicts)

    @property
    def exit_code(self) -> int:
        """0, 3 for a certified violation, 4 for an indicative one."""
        return self.verdict.exit_code

    def as_dict(self) -> dict[str, Any]:
        """bounds: [{name, epsilon_lower, level, standing, coverage}], refused: [{name, reason}], verdict: {...}."""
        return {
            "bounds": [{**dataclasses.asdict(b), "standing": b.standing.value} for b in self.bounds],
            "refused": [dataclasses.asdict(r) for r in self.refused],
            "verdict": self.verdict.as_dict(),
        }


def bound_scores(
    path: Path,
    *,
    higher_is: str = "member",
    assignment: str = "unknown",
    independent_trials: bool = False,
    delta: float | None = None,
    claims: Sequence[Claim] = (),
    guesses: int | None = None,
    thresholds: Sequence[float] = (),
    gaussian: bool = False,
    reference_on_one_side: bool = False,
    attacks: int = 1,
    alpha: float = 0.05,
) -> BoundResult:
    """Bounds and verdict of a CSV file with the columns user, score, member.

    Args:
        path: of the file; other columns are ignored.
        higher_is: "member" or "non-member", whom a higher score speaks for. Thresholds are in the file's own units.
        assignment: "coin", "fixed" or "unknown".
        independent_trials: every row is a training of its own, alike but for the user's presence.
        delta: in (0, 1); None takes the first claim's.
        claims: of `parse_claim` or `plan_claim`.
        guesses: r, registered before looking.
        thresholds: fixed before looking (independent trials).
        gaussian: the mechanism's trade-off curve is known to be Gaussian (no sampling).
        reference_on_one_side: see verdict.Design.
        attacks: how many attacks these scores are the best of.
        alpha: error probability of each bound, and of the verdict over all claims.

    Raises InputError, one line, for what `read_scores` and `evaluate` refuse.
    """
    orientations = {"member": 1.0, "non-member": -1.0}
    if higher_is not in orientations:
        raise InputError(f"higher-is '{higher_is}': choose member or non-member")
    if assignment not in tuple(Assignment):
        raise InputError(f"assignment '{assignment}': choose {', '.join(Assignment)}")
    sign = orientations[higher_is]
    design = Design(
        Assignment(assignment),
        independent_trials,
        coins_stated=True,
        reference_on_one_side=reference_on_one_side,
        guesses=guesses,
        # "score <= t" of a reversed score is "-score >= -t"
        thresholds=tuple(sign * t for t in thresholds),
        attacks=attacks,
        alpha=alpha,
    )
    scores = read_scores(path)
    oriented = LabelledScores(sign * scores.scores, scores.member, scores.users)
    found = evaluate(oriented, design, delta=delta, claims=claims, gaussian=gaussian)
    line = missing_names_line(scores.users or (), remedy="")
    if line is None:
        return found
    said = line.removeprefix("warning: ")
    verdicts = tuple(dataclasses.replace(its, warnings=(*its.warnings, said)) for its in found.verdicts)
    return dataclasses.replace(found, verdicts=verdicts)


def evaluate(
    scores: LabelledScores,
    design: Design,
    *,
    delta: float | None = None,
    claims: Sequence[Claim] = (),
    gaussian: bool = False,
) -> BoundResult:
    """Every valid bound of scores in hand, higher meaning member; arguments of `bound_scores`.

    Raises InputError for a missing or invalid delta, thresholds that are not finite, and too few users.
    """
    if delta is None:
        if not claims:
            raise InputError("delta is missing: give --delta, below 1 / number of users, or a claim that states it")
        delta = claims[0].delta
    check_delta(delta, 1)
    if not all(math.isfinite(t) for t in design.thresholds):
        raise InputError("a threshold fixed beforehand must be a finite number")
    paid = dataclasses.replace(design, alpha=design.alpha / max(1, len(claims)))
    verdicts = tuple(verdict.decide(scores, claim, paid) for claim in claims)
    verdicts = verdicts or (verdict.undecided(scores, delta, design),)
    standing = Standing.INDICATIVE if design.flaws(scores.held_in.size, scores.scores.size) else Standing.CERTIFIED
    valid: list[NamedBound] = []
    refused: list[RefusedBound] = []
    family = next((claim.family for claim in claims if claim.family is not None), None)
    for name, compute in _catalogue(scores, design, delta, family).items():
        reason = _refusal(name, scores, design, gaussian)
        if reason is not None:
            refused.append(RefusedBound(name, reason))
            continue
        its = _STANDINGS.get(name, standing)
        epsilon = max(0.0, compute())
        valid.append(NamedBound(name, epsilon, 1.0 - design.alpha, its, MEASURED.get(name)))
    return BoundResult(scores.scores.size, delta, tuple(valid), tuple(refused), verdicts)


def read_scores(path: Path) -> LabelledScores:
    """Reads user, score, member, sorted by user: the result does not depend on the order of the rows.

    Raises InputError, one line with file and row, for an unreadable file, a missing column, a score without membership
    and the reverse, a score that is no finite number (names the user), a user twice or in both groups.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True, strict=True)
            header = [str(name).strip() for name in reader.fieldnames or ()]
            missing = [column for column in COLUMNS if column not in header]
            if missing:
                found = ", ".join(header) or "none"
                raise InputError(f"{path}: no column '{missing[0]}' (columns: {found}): needs {', '.join(COLUMNS)}")
            twice = next((column for column in COLUMNS if header.count(column) > 1), None)
            if twice:
                raise InputError(f"{path}: the column '{twice}' stands twice: rename one")
            reader.fieldnames = header
            rows: dict[str, tuple[float, bool]] = {}
            for row in reader:
                if None in row:
                    raise InputError(f"{path}, row {reader.line_num}: more fields than the header has")
                user, score, member = _row(path, reader.line_num, row)
                if user in rows and rows[user][1] != member:
                    raise InputError(f"{path}, row {reader.line_num}: user '{user}' is in both groups")
                if user in rows:
                    raise InputError(f"{path}, row {reader.line_num}: user '{user}' has two scores: give one per user")
                rows[user] = (score, member)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text: give a CSV file with the columns {', '.join(COLUMNS)}") from None
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV file ({error})") from None
    if not rows:
        raise InputError(f"{path}: no rows: give one per user")
    users = tuple(sorted(rows))
    try:
        return LabelledScores(
            np.array([rows[user][0] for user in users], dtype=np.float64),
            np.array([rows[user][1] for user in users], dtype=np.bool_),
            users,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_claim(text: str) -> Claim:
    """A claim as people write it: "epsilon=4,delta=1e-6". Raises InputError for anything else."""
    parts = [part.split("=", 1) for part in text.split(",")]
    fields = {pair[0].strip(): pair[1].strip() for pair in parts if len(pair) == 2}
    if sorted(fields) != ["delta", "epsilon"] or len(parts) != 2:
        raise InputError(f"claim '{text}' is not of the form epsilon=4,delta=1e-6")
    try:
        epsilon, delta = float(fields["epsilon"]), float(fields["delta"])
    except ValueError:
        raise InputError(f"claim '{text}': epsilon and delta must be numbers, as epsilon=4,delta=1e-6") from None
    return verdict.stated_claim(epsilon, delta)


def plan_claim(path: Path) -> Claim:
    """The accountant's curve of a plan.json. Raises InputError for a plan without a guarantee, or none for users."""
    return mechanism_claim(read_plan(path), str(path))


def mechanism_claim(mechanism: Mechanism, name: str = "plan") -> Claim:
    """The accountant's curve of a mechanism; errors of `plan_claim`, beginning with `name`."""
    promise = mechanism.guarantee()
    if not isinstance(promise, Guarantee):
        raise InputError(f"{name}: {promise.label}: there is nothing to test; state an epsilon with --claim instead")
    if promise.unit != "user":
        raise InputError(
            f"{name}: protects single examples, which promises nothing finite about a user: "
            "state a user's epsilon with --claim instead"
        )
    ceiling = ceiling_of(mechanism.assumed_event, mechanism.steps, promise.delta)
    family = noise_family(mechanism, promise.delta)
    return verdict.curve_claim(ceiling, promise.epsilon, promise.delta, family)


def table(result: BoundResult) -> str:
    """The result as plain text, the verdict first, the reason with it."""
    lines = []
    for its in result.verdicts:
        lines += [f"{its.outcome.value.upper()} ({its.standing.value}): {its.reason}"]
        lines += [f"  warning: {text}" for text in its.warnings]
    lines += ["", f"epsilon lower bounds at delta {result.delta:g}, {result.users} users, each at its own level"]
    lines += [f"{'bound':<26}{'epsilon >=':>11}{'level':>8}{'standing':>13}{'coverage':>10}"]
    for b in result.bounds:
        coverage = "-" if b.coverage is None else f"{b.coverage:.3f}"
        lines += [b.name] if len(b.name) > 25 else []
        name = b.name if len(b.name) <= 25 else ""
        lines += [f"{name:<26}{b.epsilon_lower:>11.3f}{b.level:>8.3g}{b.standing.value:>13}{coverage:>10}"]
    lines += ["(none is valid for this design)"] if not result.bounds else []
    lines += [""] + [f"refused: {r.name}: {r.reason}" for r in result.refused]
    return "\n".join(lines).rstrip() + "\n"


PLAN_FAMILY = "one-run, if the trainer differs from the plan in its noise alone"
_ONE_RUN = ("one-run", "one-run f-DP", "one-run Gaussian", PLAN_FAMILY)
_GAUSSIAN = ("one-run Gaussian", "Gaussian, fixed threshold", "Gaussian, split halves")
_FIXED = ("Clopper-Pearson, fixed", "Gaussian, fixed threshold", "Bayesian interval")
_SPLIT = ("Clopper-Pearson, split", "Gaussian, split halves")
_STANDINGS = {"Bayesian interval": Standing.ESTIMATE, PLAN_FAMILY: Standing.CONDITIONAL}


def _catalogue(
    scores: LabelledScores, design: Design, delta: float, family: NoiseFamily | None
) -> dict[str, Callable[[], float]]:
    """Every bound by name, not yet computed; that over the plan's noise only where a plan is claimed."""
    alpha, attacks, made, at = design.alpha, design.attacks, design.guesses, design.thresholds
    of_plan = (
        {}
        if family is None
        else {PLAN_FAMILY: lambda: family_bound(scores, family, delta, made=made, alpha=alpha, attacks=attacks).epsilon}
    )
    return of_plan | {
        "one-run": lambda: one_run.steinke_bound(scores, delta, made=made, alpha=alpha, attacks=attacks).epsilon,
        "one-run f-DP": lambda: one_run.fdp_bound(scores, delta, made=made, alpha=alpha, attacks=attacks).epsilon,
        "one-run Gaussian": lambda: (
            one_run.fdp_gaussian_bound(scores, delta, made=made, alpha=alpha, attacks=attacks).epsilon
        ),
        "Clopper-Pearson, fixed": lambda: (
            bounds.threshold_bound(scores, at, delta, alpha=alpha, attacks=attacks).epsilon
        ),
        "Clopper-Pearson, split": lambda: bounds.split_bound(scores, delta, alpha=alpha, attacks=attacks).epsilon,
        "Gaussian, fixed threshold": lambda: (
            bounds.threshold_gaussian_bound(scores, at, delta, alpha=alpha, attacks=attacks).epsilon
        ),
        "Gaussian, split halves": lambda: (
            bounds.split_gaussian_bound(scores, delta, alpha=alpha, attacks=attacks).epsilon
        ),
        "ROC band": lambda: bands.equal_local_level_band(scores, alpha=alpha, attacks=attacks).epsilon(delta),
        "DKW band": lambda: bands.dkw_band(scores, alpha=alpha, attacks=attacks).epsilon(delta),
        "AUROC": lambda: bands.auroc_epsilon(bands.auroc_at_least(scores, alpha=alpha, attacks=attacks), delta),
        "Bayesian interval": lambda: (
            estimates.bayesian_interval(
                bounds.counts_at(scores, at[0]), delta, confidence=1.0 - 2.0 * alpha / attacks
            ).lower
        ),
    }


def _refusal(name: str, scores: LabelledScores, design: Design, gaussian: bool) -> str | None:
    """Why the bound is not valid for the design; None if it is."""
    n1, n0 = scores.held_in.size, scores.held_out.size
    if name in _ONE_RUN:
        if design.assignment is Assignment.FIXED:
            return "needs membership drawn by independent fair coins; the split was fixed"
    elif not design.independent_trials:
        return "needs independent trials, one training per score; scores of one run share one model"
    if name in _GAUSSIAN and not gaussian:
        return "holds only where the mechanism's trade-off curve is Gaussian, which nobody states"
    if name in _FIXED and not design.thresholds:
        return "needs a threshold that was fixed before looking; the best one found is no bound"
    if name in _SPLIT and min(n1, n0) < 2:
        return f"needs two trials of each group to split; there are {n1} and {n0}"
    if name == "Bayesian interval" and len(design.thresholds) > 1:
        return f"is of one threshold; {len(design.thresholds)} were fixed"
    if name == "ROC band" and max(n1, n0) > bands.LARGEST:
        return f"is computed up to {bands.LARGEST} trials of a group: see the DKW band"
    return None


def _row(path: Path, number: int, row: dict[str, Any]) -> tuple[str, float, bool]:
    where = f"{path}, row {number}"
    user, score, member = (str(row.get(column) or "").strip() for column in COLUMNS)
    if not user:
        raise InputError(f"{where}: no user name")
    if "\n" in user:
        raise InputError(f"{where}: a user name over several lines: is there a stray quotation mark before this row?")
    if not member:
        raise InputError(f"{where}: user '{user}' has a score but no membership: say 1 (held in) or 0")
    if not score:
        raise InputError(f"{where}: user '{user}' has membership but no score: score every user")
    if member.lower() not in _YES + _NO:
        raise InputError(f"{where}: membership '{member}' of user '{user}': say 1 (held in) or 0 (held out)")
    try:
        value = float(score)
    except ValueError:
        raise InputError(f"{where}: score '{score}' of user '{user}' is not a number") from None
    if not math.isfinite(value):
        raise InputError(f"{where}: the score of user '{user}' is {value}; no user may be dropped: score it again")
    return user, value, member.lower() in _YES
