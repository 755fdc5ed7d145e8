"""White-box audit of a training implementation: canary users with chosen gradients, every noised step watched.

The strongest attacker of the privacy definition: it knows everything but whether the canary user is in, and sees each
step. Each canary user is included by an independent fair coin under a fresh key and rides along a real training of a
tiny model. What is certified rests on the coins alone (audit/one_run.py). Several trainings, each with its own
canaries, coins and key, are one mechanism in which a canary touches one training only: they are judged as one pool.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.bound_scores import BoundResult, evaluate
from audit.estimates import EpsilonEstimate, andrew_estimate
from audit.labelled import LabelledScores
from audit.roc import auroc
from audit.verdict import Outcome, Standing, Verdict
from audit.white_box.canaries import Array, Directions, Stage, set_stage
from audit.white_box.checks import (
    Check,
    alarms,
    empty_cohort_checks,
    exact_checks,
    noise_checks,
    sampling_checks,
)
from audit.white_box.power import ALARM_LEVEL, TrainerPower, claim_of, coin_design, quiet_places, trainer_power
from audit.white_box.trainers import Trainer, loop_trainer, watched_steps
from corpus.coins import keyed_digest
from corpus.errors import InputError
from defenses.mechanism import Mechanism


@dataclass(frozen=True)
class TrainerAudit:
    """What was found.

    Attributes:
        power: stated before the run.
        estimate: Andrew et al. 2024, pooled variance, over all trainings' canaries; None for sampled runs, which are
            not Gaussian. An estimate, not a bound.
        estimates: the same of each training.
        auroc, auroc_error: of the likelihood-ratio statistic over all canaries, with its standard error.
        result: certified bounds and the verdict on the accountant's curve.
        checks: of noise, clip, divisor and sampling.
        alarms: those of `checks` that reject at ALARM_LEVEL together.
    """

    mechanism: Mechanism
    trainings: int
    directions: Directions
    power: TrainerPower
    estimate: EpsilonEstimate | None
    estimates: tuple[float, ...]
    auroc: float
    auroc_error: float
    result: BoundResult
    checks: tuple[Check, ...]
    alarms: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        """On the accountant's curve; where that stands and a check rejects, on the claim to run the mechanism at all.

        A check's level is exact but it speaks of the mechanism, not of epsilon: more noise than stated breaks it too.
        """
        of_curve = self.result.verdict
        if of_curve.exit_code or not self.alarms:
            return of_curve
        what = "; ".join(f"{a.name} {a.measured:.4g}, stated {a.expected:.4g}" for a in self.alarms)
        return dataclasses.replace(
            of_curve,
            claim="the stated mechanism",
            outcome=Outcome.VIOLATED,
            standing=Standing.INDICATIVE,
            reason=f"the trainer does not run the stated mechanism ({what}); as to its coins, {of_curve.reason}",
        )

    @property
    def exit_code(self) -> int:
        """3 certified violation of the accountant's curve; 4 an alarm: not the stated mechanism; 0 otherwise."""
        return self.verdict.exit_code

    def as_dict(self) -> dict[str, Any]:
        """Every number, nested, with the fields of BoundResult.as_dict."""
        return {
            "mechanism": self.mechanism.model_dump(mode="json"),
            "trainings": self.trainings,
            "directions": self.directions,
            "power": dataclasses.asdict(self.power),
            "estimate": None if self.estimate is None else dataclasses.asdict(self.estimate),
            "estimates": list(self.estimates),
            "auroc": self.auroc,
            "auroc_error": self.auroc_error,
            **self.result.as_dict(),
            "verdict": self.verdict.as_dict(),
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "alarms": [check.name for check in self.alarms],
        }


@dataclass(frozen=True, eq=False)
class Observation:
    """One watched training. scores: log likelihood ratio of each canary, (m,); sums: its projections added up, (m,).

    member: the coins, (m,); noise: the quiet coordinates over the stated deviation, (T, P).
    """

    scores: Array
    sums: Array
    member: NDArray[np.bool_]
    noise: NDArray[np.float32]


def audit_trainer(
    mechanism: Mechanism,
    keys: Sequence[bytes],
    *,
    canaries: int = 2000,
    directions: Directions = "coordinate",
    trainer: Trainer = loop_trainer,
    seed: int = 0,
    alpha: float = 0.05,
    advance: Callable[[int], object] | None = None,
) -> TrainerAudit:
    """Audit whoever trains under `mechanism`.

    Args:
        mechanism: Poisson-sampled and with a guarantee (see `set_stage`).
        keys: a fresh secret key for each training, never used before.
        canaries: m of each training, all flipped.
        directions: "coordinate": tight against the accountant; "random": over all parameters.
        trainer: heldin's own loop, or `stepwise(step)` for a foreign step function.
        seed: public.
        alpha: error probability of bounds and verdict.
        advance: called with 1 after every training.

    Raises:
        InputError: no keys, one used twice, a mechanism that is not tested here, too few or too many canaries.
    """
    if not keys or len(set(keys)) != len(keys):
        raise InputError("a white-box audit needs at least one training, and a key of its own for each")
    claim, _ = claim_of(mechanism)
    power = trainer_power(mechanism, canaries * len(keys), alpha=alpha)
    quiet = quiet_places(mechanism.steps, len(keys))
    stage = set_stage(mechanism, canaries, directions=directions, quiet=quiet, seed=seed)
    seen = []
    for key in keys:
        seen.append(observe(stage, key, trainer))
        if advance:
            advance(1)
    scores = np.concatenate([s.scores for s in seen])
    member = np.concatenate([s.member for s in seen])
    labelled = LabelledScores(scores, member)
    full = mechanism.sampler.rate == 1.0
    result = evaluate(labelled, coin_design(alpha), delta=claim.delta, claims=(claim,), gaussian=full)
    area, error = auroc_with_error(labelled.held_in, labelled.held_out)
    checks = (*_checks(stage, trainer, keys[0], seen), _above(area, error, power.auroc_ceiling))
    found = [_estimate(stage, [s]) for s in seen] if full else []
    pooled = _estimate(stage, seen) if full else None
    return TrainerAudit(
        mechanism=mechanism,
        trainings=len(keys),
        directions=directions,
        power=power,
        estimate=pooled,
        estimates=tuple(its.epsilon for its in found),
        auroc=area,
        auroc_error=error,
        result=result,
        checks=checks,
        alarms=alarms(checks, ALARM_LEVEL),
    )


def directions_of(text: str) -> Directions:
    """Raises InputError for anything but "coordinate" and "random"."""
    match text:
        case "coordinate" | "random":
            return text
        case _:
            raise InputError(f"--directions {text}: choose coordinate or random")


def observe(stage: Stage, key: bytes, trainer: Trainer = loop_trainer) -> Observation:
    """Train once under `key` with the canaries that its coins include, watching every step."""
    mechanism, canaries = stage.mechanism, stage.canaries
    member = stage.coins(key)
    places = np.concatenate([canaries.watched, canaries.quiet])
    stream = watched_steps(
        trainer, stage.model(), stage.training(key, member), stage.sequences, canaries.shapes, places
    )
    seen = canaries.projections(stream[:, : canaries.watched.size])
    scores = log_likelihood_ratios(seen, mechanism.noise_multiplier, mechanism.sampler.rate, mechanism.members)
    noise = stream[:, canaries.watched.size :] / np.float32(mechanism.noise_multiplier)
    return Observation(scores, seen.sum(axis=0), member, noise)


def log_likelihood_ratios(projections: Array, noise_multiplier: float, rate: float, group_size: int = 1) -> Array:
    """ln of P(all steps | in) / P(all steps | out) of each canary, shape (T, m) to (m,).

    One step is N(Binom(G, q), s^2) against N(0, s^2) in units of the sensitivity (Charles et al. 2024, Theorem 1):
    ln sum_k Binom(k; G, q) exp((k x - k^2 / 2) / s^2). Steps are independent given membership, so that by Neyman and
    Pearson no test of these projections has a higher ROC; its own is the accountant's ceiling.
    """
    total = np.zeros(projections.shape[1])
    counts = np.arange(group_size + 1)
    weights = stats.binom.logpmf(counts, group_size, rate)
    for row in projections:
        each = np.full(row.size, -np.inf)
        for k, weight in zip(counts[np.isfinite(weights)], weights[np.isfinite(weights)], strict=True):
            each = np.logaddexp(each, weight + (k * row - 0.5 * k * k) / noise_multiplier**2)
        total += each
    return total


def auroc_with_error(held_in: Array, held_out: Array) -> tuple[float, float]:
    """AUROC and its standard error (DeLong, DeLong, Clarke-Pearson 1988) for independent scores."""
    ordered_in, ordered_out = np.sort(held_in), np.sort(held_out)

    def below(values: Array, others: Array) -> Array:
        strictly, or_equal = (np.searchsorted(others, values, side) for side in ("left", "right"))
        return np.asarray(0.5 * (strictly + or_equal) / others.size)

    of_in, of_out = below(held_in, ordered_out), below(held_out, ordered_in)
    variance = of_in.var(ddof=1) / of_in.size + of_out.var(ddof=1) / of_out.size
    return auroc(held_in, held_out), math.sqrt(float(variance))


def table(found: TrainerAudit) -> str:
    """The findings as plain text: estimate, bounds, AUROC against the ceiling, checks, and the verdict."""
    lines = []
    if found.estimate is not None:
        its = found.estimate
        lines += [
            f"estimate (not a bound): epsilon {its.epsilon:.3f}, {100 * its.confidence:g} % bootstrap interval "
            f"{its.lower:.3f} to {its.upper:.3f}; of single trainings {_spread(found.estimates)}"
        ]
        lines += [f"  note: {its.warning}"] if its.warning else []
    for b in found.result.bounds:
        condition = ", if the trade-off curve is Gaussian" if "Gaussian" in b.name else ""
        lines += [f"{b.standing.value}: epsilon >= {b.epsilon_lower:.3f} ({b.name}, level {b.level:g}{condition})"]
    lines += [
        f"likelihood-ratio statistic: AUROC {found.auroc:.4f} +- {found.auroc_error:.4f}, ceiling "
        f"{found.power.auroc_ceiling:.4f}",
        "",
        f"{'check':<40}{'measured':>11}{'stated':>11}{'p-value':>11}",
        *(check.line() for check in found.checks),
        "",
    ]
    lines += [f"ALARM: {a.name}: {a.measured:.4g}, stated {a.expected:.4g} (p = {a.p_value:.1g})" for a in found.alarms]
    lines += ["no alarm: noise, clip, divisor and sampling are as stated"] if not found.alarms else []
    verdict = found.verdict
    lines += [f"{verdict.outcome.value.upper()} ({verdict.standing.value}): {verdict.reason}"]
    return "\n".join(lines)


def _checks(stage: Stage, trainer: Trainer, key: bytes, seen: Sequence[Observation]) -> tuple[Check, ...]:
    empty, exact, drawn = (keyed_digest(key, "white-box check", name) for name in ("empty", "exact", "drawn"))
    return (
        *noise_checks(np.concatenate([s.noise for s in seen])),
        *empty_cohort_checks(stage, trainer, empty),
        *exact_checks(stage, trainer, exact),
        *sampling_checks(stage, trainer, drawn),
    )


def _estimate(stage: Stage, seen: Sequence[Observation]) -> EpsilonEstimate:
    sums, member = np.concatenate([s.sums for s in seen]), np.concatenate([s.member for s in seen])
    delta = stage.mechanism.delta
    assert delta is not None
    # canaries of other trainings disturb nobody here
    dimension = stage.canaries.dimension * len(seen) if stage.canaries.coordinates is None else None
    return andrew_estimate(sums[member], delta, unobserved=sums[~member], dimension=dimension)


def _above(area: float, error: float, ceiling: float) -> Check:
    """One-sided: below the ceiling is no fault. Independent scores are what a correct trainer gives."""
    p_value = float(stats.norm.sf((area - ceiling) / max(error, 1e-12)))
    return Check("AUROC, at most", p_value, area, ceiling)


def _spread(values: Sequence[float]) -> str:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return f"median {middle:.3f} (5 % to 95 %: {low:.3f} to {high:.3f})"
