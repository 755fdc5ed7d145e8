"""The cost of a mechanism and its guarantee against attackers: the numbers of ``heldin account``."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heldin.base.arguments import numbers_named
from heldin.base.errors import InputError
from heldin.base.section import MANY
from heldin.base.tabular import Tabular
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.closed_forms import check_delta
from heldin.defenses.accounting.events import (
    CappedPoissonGaussian,
    Event,
    FilteredGaussian,
    PoissonGaussian,
    TwoLevelGaussian,
    UnamplifiedGaussian,
    check_count,
)
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.defenses.accounting.heuristics import settled_delta
from heldin.defenses.choices import DeltaRule
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.words.guarantee import PromiseCaution
from heldin.words.statement import Statement

_WHOLE_USERS = ("uls", "banded", "filter", "uedp", "none")  # methods by which a user counts once, however many records


@dataclass(frozen=True)
class AccountRow(Tabular):
    """The numbers of one mechanism.

    Attributes:
        method: "uls", "banded", "els", "group", "example", "user-entity", "uedp", "filter" or "none".
        unit: the protected unit.
        noise_multiplier: noise standard deviation over clip norm.
        epsilon: epsilon of the unit; inf without a guarantee.
        delta: delta of the guarantee; None for a plain run.
        delta_rule: rule that gives delta from a public number. None for a given delta, and for plans, because the label
            of a plan has the rule.
        auroc_bound: AUROC that no user-level attacker exceeds in expectation. None at the example level without a group
            size, because the example level then implies nothing finite about a user.
        tpr_at_1pct_fpr_bound: TPR at 1 % FPR that no user-level attacker exceeds in expectation; None if
            ``auroc_bound`` is None.
        sampling_rate: sampling probability per step.
        group_size: largest number of a user's records for which the numbers hold; None if there is no limit, or the
            numbers do not cover users.
        label: the guarantee in words, for plans.
        assumed_epsilon: for plans without a guarantee, epsilon if the assumptions of accounting held.
        entity_cap: largest number of records naming an entity for which the numbers hold; None if the numbers do not
            cover entities.
        warnings: warnings to print with the numbers.
    """

    method: str
    unit: str
    noise_multiplier: float
    epsilon: float
    delta: float | None
    auroc_bound: float | None
    tpr_at_1pct_fpr_bound: float | None
    sampling_rate: float
    group_size: int | None
    steps: int
    label: Statement | None = None
    assumed_epsilon: float | None = None
    entity_cap: int | None = None
    warnings: tuple[Statement, ...] = ()
    delta_rule: Statement | None = None

    def heading(self) -> str:
        """Return the guarantee in one line."""
        if self.label is not None:
            return str(self.label)
        if not math.isfinite(self.epsilon):
            return f"no finite epsilon per {self.unit}"
        return f"epsilon {self.epsilon:.4g}, delta {self.delta:g} per {self.unit} (add/remove)"

    def notes(self) -> Sequence[str]:
        """Return the warnings."""
        return [str(warning) for warning in self.warnings]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row with all numbers."""
        statements = ("label", "warnings", "delta_rule")
        return [{name: value for name, value in self.as_dict().items() if name not in statements}]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict; epsilon may be inf."""
        label, rule = (str(part) if part else None for part in (self.label, self.delta_rule))
        return {**dataclasses.asdict(self), "label": label, "warnings": self.notes(), "delta_rule": rule}


@numbers_named
def account_uls(
    *,
    steps: int,
    delta: float | DeltaRule | None = None,
    users: int | None = None,
    cohort: float | None = None,
    sampling_rate: float | None = None,
    cap: int | None = None,
    examples: int | None = None,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
) -> AccountRow:
    """Return the numbers of user-level sampling (Charles et al., Theorem 2).

    Give either the sampling rate or ``users`` and ``cohort``, and either the noise multiplier or a target epsilon.

    Args:
        users: public number of users.
        cohort: expected number of users in a step.
        sampling_rate: probability that a user is in a step.
        cap: hard cohort cap, which needs ``users``; None: no cap.
        examples: public number of examples, for the delta rule "examples^-1.1".
    """
    rate = _rate(sampling_rate, users, cohort, "users", "cohort")
    event: Event = PoissonGaussian(1.0, rate)
    if cap is not None:
        if users is None:
            raise InputError("a cohort cap needs the public number of users: give --users")
        event = CappedPoissonGaussian(1.0, rate, users, cap)
    delta, rule = settled_delta(delta, users, examples)
    event = _with_noise(event, steps, delta, noise_multiplier, target_epsilon)
    return _row("uls", "user", event, event, steps, delta, users, rule)


@numbers_named
def account_els(
    *,
    group_size: int,
    steps: int,
    delta: float | DeltaRule | None = None,
    sampling_rate: float | None = None,
    examples: int | None = None,
    batch: float | None = None,
    users: int | None = None,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    method: str = "els",
) -> AccountRow:
    """Return the numbers per user of example-level sampling with at most ``group_size`` examples per user.

    The accounting is Theorem 1 of Charles et al.

    Give either the sampling rate or ``examples`` and ``batch``, and either the noise multiplier or a target epsilon.

    Args:
        sampling_rate: probability that an example is in a step.
        users: public number of users, for delta and its warning; None uses examples / group_size for the warning.
        method: name of the row, "els" or "group".
    """
    rate = _rate(sampling_rate, examples, batch, "examples", "batch")
    event = PoissonGaussian(1.0, rate, group_size)
    delta, rule = settled_delta(delta, users, examples)
    noised = _with_noise(event, steps, delta, noise_multiplier, target_epsilon)
    if users is None and examples is not None:
        users = -(-examples // group_size)  # the least number there can be
    return _row(method, "user", noised, noised, steps, delta, users, rule)


def account_group(**arguments: Any) -> AccountRow:
    """Return ``account_els`` for group privacy: exactly ``group_size`` records per user (Chua et al., B.3)."""
    return account_els(**arguments, method="group")


@numbers_named
def account_example(
    *,
    steps: int,
    delta: float | DeltaRule | None = None,
    sampling_rate: float | None = None,
    examples: int | None = None,
    batch: float | None = None,
    group_size: int | None = None,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
) -> AccountRow:
    """Return the numbers of example-level DP-SGD. Epsilon is per example; attacker bounds are per user.

    Give either the sampling rate or ``examples`` and ``batch``, and either the noise multiplier or a target epsilon.

    Args:
        sampling_rate: probability that an example is in a step.
        group_size: maximum number of a user's examples; None: the row has no statement about users.
    """
    rate = _rate(sampling_rate, examples, batch, "examples", "batch")
    delta, rule = settled_delta(delta, examples, examples)
    event = _with_noise(PoissonGaussian(1.0, rate), steps, delta, noise_multiplier, target_epsilon)
    user = None
    if group_size is not None:
        check_count("group size", group_size, MANY)
        user = PoissonGaussian(event.noise_multiplier, rate, group_size)
    return _row("example", "example", event, user, steps, delta, examples, rule)


def account_plan(mechanism: Mechanism) -> AccountRow:
    """Return a plan's numbers. Without a guarantee, epsilon is inf, and the label gives the reason.

    Attacker bounds then come from the fallback guarantee, or are 1 if there is no fallback guarantee.
    """
    promise = mechanism.guarantee()
    event = mechanism.assumed_event
    level = mechanism.level
    delta = mechanism.delta
    if isinstance(promise, Guarantee):
        assert delta is not None
        # None for units: the promise has its own warning about delta.
        row = _row(level.method, promise.unit, event, mechanism.user_event, mechanism.rounds, delta, None)
        return dataclasses.replace(
            row,
            steps=mechanism.steps,
            epsilon=promise.epsilon,  # under two-level sampling above the event's: names that were missed count too
            label=promise.statement,
            warnings=promise.cautions,
            entity_cap=mechanism.entity_cap,
        )
    bounds: tuple[float | None, float | None] = (1.0, 1.0)  # without a promise an attacker may be perfect
    if promise.fallback is not None and level.counts_users and delta is not None:
        bounds = _bounds(mechanism.fallback_event, 1, delta)  # one step: the event is of the whole run
    return AccountRow(
        method=level.method,
        unit=mechanism.unit,
        noise_multiplier=mechanism.noise_multiplier,
        epsilon=math.inf,
        delta=delta,
        auroc_bound=bounds[0] if level.counts_users else None,
        tpr_at_1pct_fpr_bound=bounds[1] if level.counts_users else None,
        sampling_rate=mechanism.sampler.rate,
        group_size=None if level.method in _WHOLE_USERS else mechanism.members,
        steps=mechanism.steps,
        label=promise.statement,
        assumed_epsilon=promise.assumed_epsilon,
    )


def _row(
    method: str,
    unit: str,
    event: Event,
    user: Event | None,
    steps: int,
    delta: float,
    units: int | None,
    rule: Statement | None = None,
) -> AccountRow:
    """Return the numbers for the protected unit's event. ``user``, a user's event if there is one, bounds attackers."""
    match event:
        case UnamplifiedGaussian():
            raise InputError("an unamplified run is only a fallback, without a sampling rate to account for")
        case PoissonGaussian(noise_multiplier=s, rate=rate):
            group = user.group_size if isinstance(user, PoissonGaussian) else event.group_size
        case CappedPoissonGaussian(noise_multiplier=s, rate=rate):
            group = 1
        case TwoLevelGaussian(noise_multiplier=s, user_rate=rate):
            group = 1
        case FilteredGaussian(noise_multiplier=s):
            group, rate = 1, 1.0
    auroc, tpr = _bounds(user, steps, delta) if user is not None else (None, None)
    caution = accounting.delta_caution(delta, units) if units is not None else None
    cautions = [caution, PromiseCaution.NO_NOISE() if s == 0.0 else None]
    return AccountRow(
        method=method,
        unit=unit,
        noise_multiplier=s,
        epsilon=accounting.epsilon(event, steps, delta),
        delta=delta,
        auroc_bound=auroc,
        tpr_at_1pct_fpr_bound=tpr,
        sampling_rate=rate,
        group_size=None if user is None or method in _WHOLE_USERS else group,
        steps=steps,
        warnings=tuple(caution for caution in cautions if caution is not None),
        delta_rule=rule,
    )


def _bounds(user: Event, steps: int, delta: float) -> tuple[float, float]:
    ceiling = ceiling_of(user, steps, delta)
    return ceiling.auroc, ceiling.tpr_at(0.01)


def _with_noise(
    event: Event,
    steps: int,
    delta: float,
    noise_multiplier: float | None,
    target_epsilon: float | None,
) -> Event:
    if (noise_multiplier is None) == (target_epsilon is None):
        raise InputError("give exactly one of noise multiplier and target epsilon")
    check_count("steps", steps)
    check_delta(delta, steps)
    if target_epsilon is not None:
        noise_multiplier = accounting.calibrate(event, steps, delta, target_epsilon)
    assert noise_multiplier is not None
    return dataclasses.replace(event, noise_multiplier=noise_multiplier)


def _rate(rate: float | None, population: int | None, cohort: float | None, whole: str, part: str) -> float:
    if rate is not None:
        if cohort is not None:
            raise InputError(f"give either a sampling rate, or both {part} and {whole}")
        return rate
    if population is None or cohort is None:
        raise InputError(f"the sampling rate is missing: give a sampling rate, or both {whole} and {part}")
    if population < 1:
        raise InputError(f"{whole} is {population}: give a number above 0")
    if cohort > population:
        raise InputError(f"{part} {cohort:g} is larger than {whole} {population}: lower {part}")
    return cohort / population


def account_table(row: AccountRow) -> str:
    """Return one line with name and value for each number. Numbers that the unit does not define are left out."""
    lines = [
        ("mechanism", row.method),
        ("privacy unit", row.unit),
        ("noise multiplier", f"{row.noise_multiplier:.5g}"),
        ("sampling rate", f"{row.sampling_rate:.5g}"),
        ("group size", _number(row.group_size)),
        ("entity cap", _number(row.entity_cap)),
        ("steps", str(row.steps)),
        ("delta", _number(row.delta)),
        ("epsilon", _number(row.epsilon)),
        ("epsilon if the assumption held", _number(row.assumed_epsilon)),
        ("AUROC of any attack on users, at most", _number(row.auroc_bound)),
        ("its TPR at 1 % FPR, at most", _number(row.tpr_at_1pct_fpr_bound)),
    ]
    text = [f"{name:<38}{value}" for name, value in lines if value]
    statements = [str(statement) for statement in (row.label, row.delta_rule) if statement is not None]
    return "\n".join([*text, *statements, *(f"warning: {warning}" for warning in row.notes())])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return "infinite" if math.isinf(value) else f"{value:.5g}"
