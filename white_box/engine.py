"""White-box audit of a training implementation: coins include canary users, and the audit watches every noised step.

The attacker is the strongest that the privacy definition allows. It sees each step, and knows everything except whether
the canary user is in the training. An independent fair coin under a fresh key includes each canary user in a real
training of a tiny model. The certified result depends only on the coins (bounds/one_run.py). Short runs with little or
no randomness also check whether the implemented step is the stated step.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldin.base.coins import keyed_digest
from heldin.base.errors import ExitCode, InputError
from heldin.base.tabular import Tabular
from heldin.bounds.estimates import EpsilonEstimate, andrew_estimate
from heldin.bounds.judgement import RULES, Judgement, evaluate, gaussian_curve
from heldin.bounds.verdict import Outcome
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.declared import OF_PLAN
from heldin.white_box.canaries import Directions
from heldin.white_box.check import Check, alarms, silent
from heldin.white_box.cohort_checks import cohort_size_checks, loss_checks
from heldin.white_box.coins import Observation, auroc_with_error, coin_checks, observe, pooled
from heldin.white_box.coordinate_checks import crowded_checks, empty_checks
from heldin.white_box.draw_checks import draw_checks, odd_draw_checks
from heldin.white_box.findings import (
    WIDTH,
    alarm_text,
    check_lines,
    closing_lines,
    outcome_text,
    tested_lines,
    untested_lines,
    wrapped,
)
from heldin.white_box.noise_checks import noise_checks
from heldin.white_box.outcome import AlarmKind, TrainerOutcome
from heldin.white_box.power import TrainerPower, claim_of, coin_design, quiet_places, trainer_power
from heldin.white_box.processes import process_checks
from heldin.white_box.stage import TIED_GPT_NEO, Stage, StageModel, set_stage
from heldin.white_box.step_checks import canary_checks, norms_of_units, text_checks, unlike_checks
from heldin.white_box.trainers import Trainer, loop_trainer
from heldin.white_box.weight_checks import given_checks, recomputed_check

# (stage, trainer, the section's own key, number of steps as a multiple of a short audit's)
Section = Callable[[Stage, Trainer, bytes, int], tuple[Check, ...]]

_BELOW, _ABOVE = 0.1, 10.0  # clip norms, as multiples of the smallest and the largest norm of a unit's gradient


def _empty(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return empty_checks(stage, trainer, key)


def _crowded(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return crowded_checks(stage, trainer, key, clip_norms(stage, key)[1])


def _canaries(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return canary_checks(stage, trainer, key)


def _texts(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return text_checks(stage, trainer, key, norms_of_units(stage, key), *clip_norms(stage, key), effort)


def _unlike(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return unlike_checks(stage, trainer, key, clip_norms(stage, key)[0])


def _draws(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return draw_checks(stage, trainer, key, clip_norms(stage, key)[0], effort)


def _odd_draws(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return odd_draw_checks(stage, trainer, key, *clip_norms(stage, key))


def _cohort_sizes(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return cohort_size_checks(stage, trainer, key)


def _losses(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return loss_checks(stage, trainer, key, clip_norms(stage, key)[1])


def _weights(stage: Stage, trainer: Trainer, key: bytes, effort: int) -> tuple[Check, ...]:
    return given_checks(stage, trainer, key)


def clip_norms(stage: Stage, key: bytes) -> tuple[float, float]:
    """Return a clip norm far below the gradient norm of every unit, and a clip norm far above."""
    norms = norms_of_units(stage, key)
    return _BELOW * float(norms[0]), _ABOVE * float(norms[-1])


SECTIONS: Mapping[str, Section] = {
    "empty steps": _empty,
    "crowded steps": _crowded,
    "canaries' steps": _canaries,
    "texts' steps": _texts,
    "unlike units": _unlike,
    "draws": _draws,
    "odd draws": _odd_draws,
    "cohort sizes": _cohort_sizes,
    "losses": _losses,
    "weights": _weights,
}


@dataclass(frozen=True)
class TrainerAudit(Tabular):
    """The findings of an audit.

    Attributes:
        model: model on which the trainer was audited.
        directions: directions of the gradient canaries.
        power: deviations that the audit could detect, computed before the run.
        estimate: estimate of epsilon, not a bound (Andrew et al. 2024, pooled variance), over the canaries of all
            trainings; None for sampled runs, which are not Gaussian.
        estimates: estimate of epsilon for each training.
        auroc, auroc_error: AUROC of the likelihood ratio over all gradient canaries, and the standard error of this
            AUROC.
        result: certified bounds, and the verdict on the accountant's curve.
        checks: the checks of the stated mechanism, each with its detectable deviation.
        accepted: kinds of alarms that the user accepted in advance.
        of_plan: whether the audited step is the plan's step in heldin's loop. False: the caller passed another step.
    """

    mechanism: Mechanism
    trainings: int
    model: StageModel
    directions: Directions
    power: TrainerPower
    estimate: EpsilonEstimate | None
    estimates: tuple[float, ...]
    auroc: float
    auroc_error: float
    result: Judgement
    checks: tuple[Check, ...]
    alarms: tuple[Check, ...]
    accepted: tuple[AlarmKind, ...] = ()
    of_plan: bool = False

    @property
    def outcome(self) -> TrainerOutcome:
        """The most serious finding."""
        # What the coins certify outranks the checks, which are about the mechanism and not about epsilon.
        of_curve = self.result.verdict.outcome
        if of_curve is Outcome.CONTRADICTED:
            return TrainerOutcome.CURVE_CONTRADICTED
        # A check is about the mechanism: too much noise fails it too.
        if any(alarm.kind is AlarmKind.MECHANISM for alarm in self.alarms):
            return TrainerOutcome.MECHANISM_CONTRADICTED
        if self.alarms:
            return TrainerOutcome.UNSAFE
        # A guarantee of releases says nothing about weights that nobody compared with them.
        compared = any(check.subject == "weights" and not check.untested for check in self.checks)
        consistent = of_curve is Outcome.CONSISTENT and compared
        return TrainerOutcome.CONSISTENT if consistent else TrainerOutcome.INCONCLUSIVE

    @property
    def exit_code(self) -> int:
        """The exit code: CERTIFIED, OTHER_MECHANISM, or UNSAFE unless the user accepted this finding in advance;
        otherwise DONE."""
        match self.outcome:
            case TrainerOutcome.CURVE_CONTRADICTED:
                return self.result.verdict.exit_code
            case TrainerOutcome.MECHANISM_CONTRADICTED:
                return ExitCode.OTHER_MECHANISM
            case TrainerOutcome.UNSAFE:
                return ExitCode.DONE if AlarmKind.NON_FINITE in self.accepted else ExitCode.UNSAFE
            case _:
                return ExitCode.DONE

    def heading(self) -> str:
        """The outcome, in a few sentences."""
        return outcome_text(self.outcome, self.checks, self.accepted, self.result.verdict.reason)

    def notes(self) -> Sequence[str]:
        """List the tested mistakes with their smallest detectable deviations, then the untested mistakes."""
        return [*tested_lines(self.checks), *untested_lines(self.checks)]

    def rows(self) -> list[dict[str, Any]]:
        """Return the checks as rows for a table."""
        return [{**dataclasses.asdict(check), "alarm": check.alarm} for check in self.checks]

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as nested values. Bounds and verdicts have the form of Judgement.as_dict."""
        # The outcome is of coins and checks together; the verdict of the coins alone stays in ``verdicts``.
        of_coins = {name: value for name, value in self.result.as_dict().items() if name != "verdict"}
        return {
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "accepted": [kind.value for kind in self.accepted],
            "alarms": [
                {"name": alarm.name, "kind": alarm.kind.value, "accepted": alarm.kind in self.accepted}
                for alarm in self.alarms
            ],
            "mechanism": self.mechanism.model_dump(mode="json"),
            "step": OF_PLAN if self.of_plan else "given",
            "trainings": self.trainings,
            "model": str(self.model),
            "directions": self.directions,
            "power": dataclasses.asdict(self.power),
            "estimate": None if self.estimate is None else dataclasses.asdict(self.estimate),
            "estimates": list(self.estimates),
            "auroc": self.auroc,
            "auroc_error": self.auroc_error,
            **of_coins,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "tested": tested_lines(self.checks),
            "not_tested": untested_lines(self.checks),
        }


def audit_trainer(
    mechanism: Mechanism,
    keys: Sequence[bytes],
    *,
    canaries: int = 2000,
    directions: Directions = "coordinate",
    trainer: Trainer = loop_trainer,
    effort: int = 4,
    processes: bool = False,
    seed: int = 0,
    alpha: float = 0.05,
    advance: Callable[[int], object] | None = None,
    model: StageModel = TIED_GPT_NEO,
    accepted: Sequence[AlarmKind] = (),
) -> TrainerAudit:
    """Audit a trainer that claims to run ``mechanism``.

    Args:
        mechanism: the stated mechanism, which must be Poisson-sampled and have a guarantee (see ``set_stage``).
        keys: a fresh secret key for each training, never used before.
        canaries: number of canary users per training; a fair coin includes each of them.
        directions: "coordinate" is tight against the accountant; "random" uses directions over all parameters.
        trainer: heldin's own loop, ``stepwise(step)`` for another step function, or a whole trainer. A whole trainer
            states its optimizer in a method ``optimizer`` (``white_box.trainers.StatedOptimizer``).
        effort: number of steps for the checks of sampling and of carried-over state, as a multiple of a short audit's
            number.
        processes: whether to also run in two processes, which must be able to import the trainer; takes about 20
            seconds.
        alpha: error probability of bounds and verdict.
        advance: called with 1 after each part of the audit (see ``parts``).
        accepted: kinds of alarms that do not change the exit code.

    Raises:
        InputError: there are no keys, a key is repeated, the mechanism cannot be tested, or the number of canaries is
            too small or too large.
    """
    if not keys or len(set(keys)) != len(keys):
        raise InputError(
            "two training runs have one key, or there is no training: give a different key for each training"
        )
    # Before anything is trained: what the audit could say must not depend on what it finds.
    claim, _ = claim_of(mechanism)
    power = trainer_power(mechanism, canaries * len(keys), alpha=alpha)
    quiet = quiet_places(mechanism.steps, len(keys))
    stage = set_stage(mechanism, canaries, directions=directions, quiet=quiet, seed=seed, kind=model)
    done = advance or (lambda _: None)
    seen = []
    for key in keys:
        seen.append(observe(stage, key, trainer))
        done(1)
    # trainings with separate canaries, coins and keys are one mechanism in which each canary affects one training
    scores = pooled(seen)
    full = mechanism.sampler.rate == 1.0
    # The Gaussian bound needs a Gaussian curve, which sampling at a rate below 1 does not have.
    result = evaluate(scores, coin_design(alpha, gaussian=full), delta=claim.delta, claims=(claim,))
    area, error = auroc_with_error(scores.held_in, scores.held_out)
    checks = [*training_checks(seen, power.auroc_ceiling)]
    for name, section in SECTIONS.items():
        # Keyed by its name, so that a section's runs do not depend on which others there are.
        checks += section(stage, trainer, _section_key(keys[0], name), effort)
        done(1)
    if processes:
        key = _section_key(keys[0], "processes")
        checks += process_checks(stage, trainer, key, clip_norms(stage, key)[0])
        done(1)
    else:
        checks.append(silent("two processes", "processes", "several processes: not requested"))
    estimates = [_estimate(stage, [s]) for s in seen] if full else []
    return TrainerAudit(
        mechanism=mechanism,
        of_plan=trainer is loop_trainer,
        trainings=len(keys),
        model=model,
        directions=directions,
        power=power,
        estimate=_estimate(stage, seen) if full else None,
        estimates=tuple(estimate.epsilon for estimate in estimates),
        auroc=area,
        auroc_error=error,
        result=result,
        checks=tuple(checks),
        alarms=alarms(checks),
        accepted=tuple(accepted),
    )


def training_checks(seen: Sequence[Observation], ceiling: float) -> list[Check]:
    """Check whole trainings: AUROCs against the accountant's ceiling, the noise, and the weights."""
    noise, furthest = np.concatenate([s.noise for s in seen]), [s.recomputed for s in seen]
    stated = [value for value in furthest if value is not None]
    weights = recomputed_check(max(stated) if stated else None, len(noise))
    return [*coin_checks(seen, ceiling), *noise_checks(noise, len(seen)), weights]


def parts(trainings: int, *, processes: bool) -> int:
    """Return how often ``audit_trainer`` calls ``advance``."""
    return trainings + len(SECTIONS) + processes


def directions_of(text: str) -> Directions:
    """Return the directions for a value of ``--directions``. Raises InputError for any other value."""
    match text:
        case "coordinate" | "random":
            return text
        case _:
            raise InputError(f"--directions {text}: choose coordinate or random")


def table(audit: TrainerAudit, width: int = WIDTH) -> str:
    """Return the findings as plain text: estimate, bounds, AUROC with its ceiling, checks, and outcome."""
    lines = [f"audited on: {audit.model}"]
    if audit.estimate is not None:
        estimate = audit.estimate
        lines += [
            f"estimate (not a bound): epsilon {estimate.epsilon:.3f}, {100 * estimate.confidence:g} % bootstrap "
            f"interval {estimate.lower:.3f} to {estimate.upper:.3f}; of single training runs {_spread(audit.estimates)}"
        ]
        lines += [f"note: {estimate.warning}"] if estimate.warning else []
    needs_gaussian = {rule.name for rule in RULES if gaussian_curve in rule.needs}
    for b in audit.result.bounds:
        condition = ", if the trade-off curve is Gaussian" if b.name in needs_gaussian else ""
        lines += [f"{b.standing.value}: epsilon >= {b.epsilon_lower:.3f} ({b.name}, level {b.level:g}{condition})"]
    lines += [
        f"likelihood-ratio statistic: AUROC {audit.auroc:.4f} +- {audit.auroc_error:.4f}, ceiling "
        f"{audit.power.auroc_ceiling:.4f}"
    ]
    last = [*(alarm_text(alarm, audit.accepted) for alarm in audit.alarms), audit.heading()]
    blocks = [
        wrapped(lines, width),
        check_lines(audit.checks),
        closing_lines(audit.checks, width),
        wrapped(last, width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _section_key(key: bytes, name: str) -> bytes:
    return keyed_digest(key, "white-box section", name)


def _estimate(stage: Stage, seen: Sequence[Observation]) -> EpsilonEstimate:
    sums, member = np.concatenate([s.sums for s in seen]), np.concatenate([s.member for s in seen])
    delta = stage.mechanism.delta
    assert delta is not None
    # canaries of other trainings add no interference
    dimension = stage.canaries.dimension * len(seen) if stage.canaries.coordinates is None else None
    return andrew_estimate(sums[member], delta, unobserved=sums[~member], dimension=dimension)


def _spread(values: Sequence[float]) -> str:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return f"median {middle:.3f} (5 % to 95 %: {low:.3f} to {high:.3f})"
