"""The audited mechanism of a white-box audit, and the deviations that the audit can detect, computed before the run."""

import bisect
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from heldin.base.errors import InputError
from heldin.bounds import one_run
from heldin.bounds.design import Assignment, Design
from heldin.bounds.one_run import Guesses, Try, attack_mu, simulated_rights
from heldin.bounds.verdict import Claim, curve_claim, max_certifiable_epsilon
from heldin.defenses.accounting.events import PoissonGaussian, with_noise
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.defenses.samplers import PoissonSampler
from heldin.white_box import laws
from heldin.white_box.check import LEVEL
from heldin.white_box.stage import check_auditable

# What each kind protects and samples.
KINDS: dict[str, tuple[Literal["user", "example"], Literal["user", "example"]]] = {
    "uls": ("user", "user"),
    "els": ("user", "example"),
    "example": ("example", "example"),
}
WEAKER = (2 / 3, 1 / 2, 1 / 4, 1 / 10)  # of the stated noise: trainers that the power is stated for
_QUIET = 2000  # coordinates of the noise test, at most
_NOISE_VALUES = 4_000_000  # float32 numbers over all steps and trainings: 16 MB


@dataclass(frozen=True)
class WeakerTrainer:
    """The power of the one-run test against a trainer that adds too little noise.

    Attributes:
        noise: noise of the trainer, as a share of the stated noise.
        auroc: the largest AUROC that an attacker can reach with this noise.
    """

    noise: float
    auroc: float
    probability: float


@dataclass(frozen=True)
class TrainerPower:
    """The power of the audit, computed before the audit runs.

    Attributes:
        canaries: number of canary users over all trainings.
        auroc_ceiling: the largest AUROC that the claim allows.
        max_certifiable_epsilon: lower bound on epsilon if all guesses are right.
        weaker: power against trainers that add too little noise.
        noise_error: relative error of the noise deviation that the noise check detects with probability 0.99.
    """

    canaries: int
    epsilon: float
    delta: float
    auroc_ceiling: float
    max_certifiable_epsilon: float
    weaker: tuple[WeakerTrainer, ...]
    noise_error: float


def chosen_mechanism(
    plan: Path | None,
    *,
    kind: str | None = None,
    users: int | None = None,
    cohort: float | None = None,
    examples: int | None = None,
    batch: float | None = None,
    sampling_rate: float | None = None,
    group_size: int = 1,
    steps: int | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
) -> Mechanism:
    """Return the mechanism in a plan file, or the mechanism that the options of ``heldin white-box`` describe.

    Args:
        plan: path of a plan.json; excludes all options other than the group size.
        kind: "uls", "els" or "example".
        users: public number of users, for uls.
        cohort: expected number of users per step.
        examples: public number of examples, for els and example.
        batch: expected number of examples per step.
        sampling_rate: probability that a step samples a unit; replaces the numbers of units and of drawn units.
        group_size: maximum number of examples per user.
        noise_multiplier: noise standard deviation divided by clip norm.
        target_epsilon: epsilon for which to calibrate the noise; replaces the noise multiplier.

    Raises:
        InputError: a plan and options exclude each other, options are missing or conflict, or the mechanism is invalid.
    """
    given = (kind, users, cohort, examples, batch, sampling_rate, steps, delta, noise_multiplier, target_epsilon)
    if plan is not None:
        if any(value is not None for value in given):
            raise InputError("--plan states the whole mechanism: leave --kind and the numbers out")
        return read_plan(plan)
    if kind is None or steps is None or delta is None:
        raise InputError("give --plan, or --kind with --steps, --delta and a sampling rate")
    if kind not in KINDS:
        raise InputError(f"--kind is {kind}: choose from {', '.join(KINDS)}")
    of_users = KINDS[kind][1] == "user"
    names, population, drawn = (
        ("--users and --cohort", users, cohort) if of_users else ("--examples and --batch", examples, batch)
    )
    if (examples, batch) != (None, None) if of_users else (users, cohort) != (None, None):
        raise InputError(f"--kind {kind} needs {names}: give {names}")
    if (sampling_rate is None) == (population is None or drawn is None):
        raise InputError(f"give either --sampling-rate, or {names}")
    if sampling_rate is not None:
        sampler = PoissonSampler(rate=sampling_rate, population=population)
    else:
        assert population is not None
        assert drawn is not None
        sampler = PoissonSampler.of(population, drawn)
    return trainer_mechanism(
        kind,
        sampler,
        steps=steps,
        delta=delta,
        group_size=group_size,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
    )


def trainer_mechanism(
    kind: str,
    sampler: PoissonSampler,
    *,
    steps: int,
    delta: float,
    group_size: int = 1,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
) -> Mechanism:
    """Return the mechanism of ``heldin white-box`` without a plan. The clip norm is 0.1, the divisor the expected
    cohort.

    Args:
        kind: "uls" (users sampled), "els" (examples sampled, at most ``group_size`` per user), "example".
        sampler: sampler of users, or of examples.
        group_size: maximum number of examples per user, G; for "uls", a user's records per step, which cost no privacy.
        noise_multiplier: noise standard deviation divided by clip norm; give exactly one of this and
            ``target_epsilon``.
        target_epsilon: epsilon for which to calibrate the noise.

    Raises:
        InputError: the kind is unknown, or ``Mechanism`` raises.
    """
    if kind not in KINDS:
        raise InputError(f"--kind is {kind}: choose from {', '.join(KINDS)}")
    if (noise_multiplier is None) == (target_epsilon is None):
        raise InputError("give exactly one of noise multiplier and target epsilon")
    unit, sampled = KINDS[kind]
    mechanism = Mechanism(
        unit=unit,
        sampled=sampled,
        sampler=sampler,
        group_size=group_size,
        clip=FlatClip(norm=0.1),
        noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
        steps=steps,
        delta=delta,
        # Any constant will do where no population is given.
        divisor=ConstantDivisor(value=max(1.0, sampler.rate * (sampler.population or 100))),
    )
    return mechanism if target_epsilon is None else mechanism.calibrated(target_epsilon)


def trainer_power(mechanism: Mechanism, canaries: int, *, alpha: float = 0.05) -> TrainerPower:
    """Return what an audit with this many canary users, over all trainings, can certify or falsify.

    For a trainer with less noise, the attacker is the accountant's own for that noise, approximated as Gaussian with
    the same AUROC. Raises InputError for too few canaries, and for a mechanism without a guarantee.
    """
    claim, event = claim_of(mechanism)
    # As if the coins fell evenly.
    reach = max_certifiable_epsilon(canaries - canaries // 2, canaries // 2, claim.delta, coin_design(alpha))
    tries = one_run.paid_tries(canaries, alpha=alpha)

    def least(attempt: Try) -> int:
        """Return the smallest number of right guesses that the test rejects; one more than the number of guesses if the
        test rejects no number."""
        # By bisection: what rejects some number of right guesses rejects any larger number of them.
        return bisect.bisect_left(
            range(attempt.made + 1),
            True,
            key=lambda v: claim.rejected_by(Guesses(canaries, attempt.made, v), attempt.level),
        )

    needed = np.array([least(attempt) for attempt in tries])
    weaker = []
    for share in WEAKER:
        noise = event.noise_multiplier * share
        area = ceiling_of(with_noise(event, noise), mechanism.rounds, claim.delta).auroc
        # An area of 1 would have mu infinite.
        right = simulated_rights(
            canaries, attack_mu(min(area, 1.0 - 1e-9)), tuple(attempt.made for attempt in tries), seed=0
        )
        # By any of the numbers of guesses, each at its own level, as the verdict does it.
        weaker.append(WeakerTrainer(share, area, float((right >= needed).any(axis=1).mean())))
    values = mechanism.steps * quiet_places(mechanism.steps, 1)
    seen = laws.deviations(np.array([float(values)]), values, LEVEL)  # only for what it would have seen
    error = max(seen.smallest - 1.0, 1.0 - seen.below)
    return TrainerPower(canaries, claim.epsilon, claim.delta, claim.ceiling.auroc, reach, tuple(weaker), error)


def power_table(power: TrainerPower) -> str:
    """Return the power as plain text, for printing before the run."""
    lines = [
        f"claim: epsilon {power.epsilon:.4g} at delta {power.delta:g}; no attacker's AUROC is above "
        f"{power.auroc_ceiling:.4f}",
        f"power: {power.canaries} canary users by fair coin; perfect guessing certifies epsilon "
        f"{power.max_certifiable_epsilon:.3g}",
    ]
    lines += [
        f"  noise {weak.noise:.2g} times the stated (AUROC up to {weak.auroc:.3f}): the one-run test rejects it in "
        f"{100.0 * weak.probability:.0f} % of audits"
        for weak in power.weaker
    ]
    lines += [
        f"  noise off by {100.0 * power.noise_error:.2g} % in either direction: the noise check detects it in 99 % of"
        " audits"
    ]
    return "\n".join(lines)


def claim_of(mechanism: Mechanism) -> tuple[Claim, PoissonGaussian]:
    """Return the accountant's curve as a claim, and the event of one step. Raises InputError if there is no
    guarantee."""
    check_auditable(mechanism)
    promise, event = mechanism.guarantee(), mechanism.assumed_event
    if not isinstance(promise, Guarantee):
        raise InputError(f"the white-box audit needs a guarantee to test: {promise.label}")
    assert isinstance(event, PoissonGaussian)
    ceiling = ceiling_of(event, mechanism.rounds, promise.delta)
    return curve_claim(ceiling, promise.epsilon, promise.delta), event


def coin_design(alpha: float, *, gaussian: bool = False) -> Design:
    """Return a design of independent fair coins that heldin draws and observes. Set ``gaussian`` if nothing is
    sampled."""
    return Design(Assignment.COIN, alpha=alpha, gaussian=gaussian)


def quiet_places(steps: int, trainings: int) -> int:
    """Return the number of coordinates for the noise check, which memory limits."""
    return max(50, min(_QUIET, _NOISE_VALUES // (steps * trainings)))
