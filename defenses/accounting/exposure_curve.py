"""The guarantee of text sampling for people who wrote a text or are named in one: epsilon by number of texts.

Every text has a separate Poisson coin and is clipped alone. A person who wrote or is named in m texts is a group of m
sampled members, even if no recogniser found the name (docs/theory.md#text-sampling).
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heldin.base.errors import InputError
from heldin.base.section import MANY
from heldin.base.tabular import Tabular
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.closed_forms import check_delta
from heldin.defenses.accounting.events import PoissonGaussian, check_count
from heldin.defenses.accounting.guarantees import EXPOSED, ceiling_of


@dataclass(frozen=True)
class ExposurePoint:
    """The guarantee for people who are in at most ``exposed`` texts.

    Attributes:
        exposed: m, number of texts that the person wrote or is named in.
        auroc_bound: AUROC that no attacker on a person with this exposure exceeds in expectation.
    """

    exposed: int
    epsilon: float
    auroc_bound: float


@dataclass(frozen=True)
class ExposureCurve(Tabular):
    """The guarantee of text sampling.

    Attributes:
        noise_multiplier: noise standard deviation over clip norm.
        sampling_rate: probability that a text is in a step.
        delta: delta of every epsilon.
        curve: the points of the curve, by ascending number of texts.
        group_size: G, maximum number of a user's texts in training; None without caps.
        entity_cap: k, maximum number of texts that name an entity; None without caps.
        epsilon_pair: epsilon(G + k) of a user and an entity together; None without caps.
        epsilon_user: epsilon(G) of every user; None without caps.
        epsilon_entity: epsilon(k) of every recognised entity; None without caps.
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    delta: float
    curve: tuple[ExposurePoint, ...]
    group_size: int | None = None
    entity_cap: int | None = None
    epsilon_pair: float | None = None
    epsilon_user: float | None = None
    epsilon_entity: float | None = None

    def heading(self) -> str:
        """Return the guarantee in one line."""
        if self.epsilon_pair is None:
            return (
                f"epsilon by the number of texts that a person wrote or is named in, delta {self.delta:g} (add/remove)"
            )
        return (
            f"epsilon {self.epsilon_pair:.4g} for every user and entity together, {self.epsilon_user:.4g} for every"
            f" user, {self.epsilon_entity:.4g} for every recognised entity, delta {self.delta:g} (fixed incidence)"
        )

    def notes(self) -> Sequence[str]:
        """State the assumptions behind the numbers."""
        notes = ["a name that the recogniser missed has the epsilon for the number of texts that contain it"]
        if self.epsilon_pair is not None:
            notes.append(
                "with caps, neighbours have the same slots (authors and named people), so the guarantee"
                " does not hide that a slot exists, or whom it names"
            )
        return notes

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each number of texts."""
        return [dataclasses.asdict(point) for point in self.curve]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return dataclasses.asdict(self)


def exposure_points(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, exposed: Sequence[int]
) -> tuple[ExposurePoint, ...]:
    """Return the curve at the given numbers of texts, ascending and without repetitions (docs/theory.md#text-sampling).

    Args:
        sampling_rate: probability that a text is in a step.
        exposed: numbers of texts, each at least 1.
    """
    points = []
    for m in sorted(set(exposed)):
        event = PoissonGaussian(noise_multiplier, sampling_rate, m)
        points.append(ExposurePoint(m, accounting.epsilon(event, steps, delta), ceiling_of(event, steps, delta).auroc))
    return tuple(points)


def account_user_entity(
    *,
    sampling_rate: float,
    steps: int,
    delta: float,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    exposed: Sequence[int] = (),
    group_size: int | None = None,
    entity_cap: int | None = None,
) -> ExposureCurve:
    """Return the guarantee of text sampling, in which each text has a separate coin and is clipped alone.

    Give either the noise multiplier or a target epsilon. With caps, the target is for epsilon(G + k) of a user and an
    entity together. Without caps, the target is for the largest of ``exposed``.

    Args:
        sampling_rate: probability that a text is in a step.
        exposed: numbers of texts on the curve; if empty, powers of two up to 64.
        group_size: G, maximum number of a user's texts; needs ``entity_cap``.
        entity_cap: k, maximum number of texts that name an entity; needs ``group_size``.

    Raises:
        InputError: one cap is given without the other, noise and target are both given or both missing, or a number is
            out of range.
    """
    check_delta(delta, steps)
    if (noise_multiplier is None) == (target_epsilon is None):
        raise InputError("give exactly one of noise multiplier and target epsilon")
    if (group_size is None) != (entity_cap is None):
        raise InputError(
            "one cap is missing: give both a cap on texts per user (--group-size) and a cap on texts per entity"
            " (--entity-cap)"
        )
    for m in exposed:
        check_count("number of exposed texts", m, MANY)
    caps: tuple[int, ...] = ()
    if group_size is not None and entity_cap is not None:
        check_count("group size", group_size, MANY)
        check_count("entity cap", entity_cap, MANY)
        caps = (group_size + entity_cap, group_size, entity_cap)
    if target_epsilon is not None:
        if not (caps or exposed):
            raise InputError(
                "a target epsilon needs a number of texts: give caps (--group-size, --entity-cap), or the number of"
                " a person's texts (--exposed)"
            )
        widest = PoissonGaussian(1.0, sampling_rate, caps[0] if caps else max(exposed))
        noise_multiplier = accounting.calibrate(widest, steps, delta, target_epsilon)
    assert noise_multiplier is not None
    pair, user, entity = (
        (accounting.epsilon(PoissonGaussian(noise_multiplier, sampling_rate, m), steps, delta) for m in caps)
        if caps
        else (None, None, None)
    )
    curve = exposure_points(noise_multiplier, sampling_rate, steps, delta, [*(exposed or EXPOSED), *caps])
    return ExposureCurve(
        noise_multiplier, sampling_rate, steps, delta, curve, group_size, entity_cap, pair, user, entity
    )


def exposure_table(result: ExposureCurve) -> str:
    """Return the curve as plain text for a terminal."""
    lines = [
        result.heading(),
        f"noise multiplier {result.noise_multiplier:.5g}, sampling rate {result.sampling_rate:.5g},"
        f" {result.steps} steps",
        "",
        f"{'texts':>8}{'epsilon':>12}{'AUROC of any attack, at most':>32}",
    ]
    for point in result.curve:
        spent = "infinite" if math.isinf(point.epsilon) else f"{point.epsilon:.5g}"
        lines.append(f"{point.exposed:>8}{spent:>12}{point.auroc_bound:>32.4f}")
    return "\n".join([*lines, "", *(f"note: {note}" for note in result.notes())])
