"""The claims of Lai et al. for UeDP-Alg, and its actual guarantee: the numbers of ``heldin account uedp``.

The claim is the epsilon of the classical moments accountant at the rate at which a random *record* is used. The actual
guarantee is the guarantee of two-level sampling, in which neighbours differ in a user and an entity
(docs/theory.md#claims-of-user-entity-dp).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from heldin.base.errors import InputError
from heldin.base.section import MANY
from heldin.base.tabular import Tabular
from heldin.defenses.accounting.events import TwoLevelGaussian, check_count, check_noise
from heldin.defenses.accounting.guarantees import HOLDERS, Rule, missed_epsilon, moments_epsilon, two_level_epsilon

NoiseScale: TypeAlias = Literal["cohort", "clip-norm"]
"""Unit of the noise multiplier: the largest norm of a whole cohort's sum plus one (Algorithm 1), or one clip norm."""

RULES: tuple[Rule, ...] = ("all", "any")
ASSUMED = (
    "the actual guarantee assumes weights and divisors that are public constants: weights that count records void it"
)


@dataclass(frozen=True)
class HolderPoint:
    """The actual guarantee for an entity that at most ``holders`` other users name.

    Attributes:
        holders: maximum number K of other users whose records name the entity.
        rule_all: epsilon if a record needs all of its entities drawn.
        rule_any: epsilon if one drawn entity suffices.
    """

    holders: int
    rule_all: float
    rule_any: float


@dataclass(frozen=True)
class UedpAccount(Tabular):
    """The paper's claim, with the actual guarantee.

    Attributes:
        users: public number of users.
        cohort: expected number of users in a step.
        entity_rate: probability q_e that a recognised entity is in a step.
        noise_multiplier: z.
        noise_on_sum: standard deviation of the noise on the sum of clipped updates, divided by the clip norm.
        delta: delta of every epsilon.
        claimed_sensitive: the paper's epsilon for f_E.
        claimed: the paper's epsilon for f_E+; None if the share of sensitive records is not given.
        user: epsilon of a user alone.
        missed: epsilon of a user and a name that the recogniser missed in one text of another user.
        strict: the actual guarantee for each number of holders, including names that the recogniser missed in one text.
    """

    users: int
    cohort: float
    entity_rate: float
    noise_multiplier: float
    noise_on_sum: float
    steps: int
    delta: float
    claimed_sensitive: float
    claimed: float | None
    user: float
    missed: float
    strict: tuple[HolderPoint, ...]

    def heading(self) -> str:
        """Return the claim and the actual guarantee in one line."""
        claim = self.claimed_sensitive if self.claimed is None else self.claimed
        worst = self.strict[-1]
        return (
            f"claimed epsilon {claim:.4g}; actual epsilon for an entity that up to {worst.holders} other users name:"
            f" {worst.rule_all:.4g} (rule all), {worst.rule_any:.4g} (rule any), delta {self.delta:g}"
        )

    def notes(self) -> Sequence[str]:
        """State the assumptions behind the numbers."""
        return (
            ASSUMED,
            "the numbers include the epsilon for a name that the recogniser missed in one text of another user:"
            f" {self.missed:.4g}",
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each number of holders."""
        return [dataclasses.asdict(point) for point in self.strict]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dataclasses.asdict(self)


def account_uedp(
    *,
    users: int,
    cohort: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    entity_rate: float = 0.5,
    sensitive_share: float | None = None,
    holders: Sequence[int] = (),
    noise_scale: NoiseScale = "cohort",
) -> UedpAccount:
    """Return the epsilon that Lai et al. claim for UeDP-Alg, and the epsilon that two-level sampling gives.

    Args:
        users: public number of users |U|.
        cohort: expected number of users in a step, q_u |U|.
        noise_multiplier: z.
        entity_rate: probability q_e that a recognised entity is in a step.
        sensitive_share: share of records with a recognised entity, for the claim of f_E+; None: f_E only.
        holders: numbers of other users who name the entity, one row for each; empty: powers of two up to 64, and all
            users.
        noise_scale: unit of the noise multiplier: "cohort", the largest norm of a whole cohort's sum plus one
            (Algorithm 1, line 14, with weights of 1), or "clip-norm", one clip norm.

    Raises:
        InputError: a number is out of range.
    """
    check_count("users", users)
    if not 0.0 < cohort <= users:
        raise InputError(f"cohort {cohort:g} is outside (0, {users}]: give the expected number of users per step")
    check_noise(noise_multiplier)
    if not 0.0 < entity_rate <= 1.0:
        raise InputError(f"entity rate {entity_rate} is outside (0, 1]: give a number above 0 and at most 1")
    if sensitive_share is not None and not 0.0 < sensitive_share <= 1.0:
        raise InputError(
            f"share of sensitive records {sensitive_share} is outside (0, 1]: give a number above 0 and at most 1"
        )
    counts = sorted({*holders} if holders else {*(k for k in HOLDERS if k < users), users})
    for k in counts:
        check_count("holders", k, MANY)
    rate = cohort / users
    noise = noise_multiplier * (cohort + 1.0) if noise_scale == "cohort" else noise_multiplier
    event = TwoLevelGaussian(noise, rate, entity_rate, 1)
    missed = missed_epsilon(event, steps, delta)
    points = []
    for k in counts:
        points.append(HolderPoint(k, *(two_level_epsilon(replace(event, holders=k), steps, delta, r) for r in RULES)))
    share = sensitive_share
    return UedpAccount(
        users=users,
        cohort=cohort,
        entity_rate=entity_rate,
        noise_multiplier=noise_multiplier,
        noise_on_sum=noise,
        steps=steps,
        delta=delta,
        claimed_sensitive=moments_epsilon(noise_multiplier, rate * entity_rate, steps, delta),
        claimed=None if share is None else moments_epsilon(noise_multiplier, rate * entity_rate * share, steps, delta),
        user=two_level_epsilon(replace(event, holders=0), steps, delta, "all"),
        missed=missed,
        strict=tuple(points),
    )


def uedp_table(result: UedpAccount) -> str:
    """Return the claim and the epsilons of the actual guarantee as plain text for a terminal."""
    claimed = "" if result.claimed is None else f", f_E+ {result.claimed:.4g}"
    lines = [
        result.heading(),
        f"noise on the sum {result.noise_on_sum:.5g} clip norms, {result.users} users, cohort {result.cohort:g},"
        f" {result.steps} steps",
        f"the paper's claim: f_E {result.claimed_sensitive:.4g}{claimed}; actual epsilon of a user"
        f" alone: {result.user:.4g}",
        "",
        f"{'other users who name the entity':>32}{'rule all':>12}{'rule any':>12}",
    ]
    for point in result.strict:
        lines.append(f"{point.holders:>32}{point.rule_all:>12.5g}{point.rule_any:>12.5g}")
    return "\n".join([*lines, "", *(f"note: {note}" for note in result.notes())])
