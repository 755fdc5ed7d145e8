"""The gradient of a private step: draw units, clip each unit's gradient, sum, add noise once, divide by a constant.

Charles et al. (2024), Algorithms 1 (ELS) and 2 (ULS); the rules of accounting.md section 3. What comes out is the only
thing that the optimizer sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from corpus.errors import InputError
from defenses.choices import (
    BatchClip,
    ConstantDivisor,
    FlatClip,
    NoClip,
    NoiseGenerator,
    NormalisedClip,
    RecordSelection,
)
from defenses.mechanism import Mechanism
from defenses.noise import gaussian
from defenses.per_unit_gradients import Units, clipped_gradient_sum
from defenses.sampling import draw
from defenses.selection import select_records
from finetune.batches import collate


@dataclass(frozen=True)
class PrivateRecords:
    """The records that may be trained on, one entry per record: id, user, and loss under the base model if needed."""

    ids: Sequence[str]
    users: Sequence[str]
    lengths: Sequence[int]
    losses: Sequence[float] | None = None


@dataclass(frozen=True)
class SampledUnit:
    """What the sampler draws: a name, and the rows that it may contribute."""

    name: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class PrivateTraining:
    """A mechanism about to run: its key, what it samples, and how many records fit into one pass."""

    mechanism: Mechanism
    key: bytes
    units: tuple[SampledUnit, ...]
    records: PrivateRecords
    noise: NoiseGenerator
    micro_records: int = 64

    def cohort(self, step: int) -> list[list[int]]:
        """Rows of each unit that takes part in ``step``, in the order of the units; possibly no unit."""
        drawn = draw(self.mechanism.sampler, self.key, step, [unit.name for unit in self.units])
        if self.mechanism.sampled == "example":
            return [list(self.units[i].rows) for i in drawn]
        rule, size = self.mechanism.record_selection, self.mechanism.group_size
        return [_choose(rule, size, self.units[i].rows, self.records, self.key, f"records {step}") for i in drawn]


def plan_private_training(
    mechanism: Mechanism,
    key: bytes,
    records: PrivateRecords,
    noise: NoiseGenerator,
    *,
    micro_records: int = 64,
    exactly: bool = False,
) -> PrivateTraining:
    """Lay out what is sampled.

    Args:
        mechanism: what to run.
        key: the run's secret key.
        records: that may be trained on.
        noise: generator.
        micro_records: most records in one forward pass; a larger unit is a pass of its own.
        exactly: give every user exactly ``group_size`` entries, repeating records of users with fewer (group privacy as
            Chua et al. run it); only where examples are sampled for users.

    Raises:
        InputError: a clip or divisor that the private loop does not run, or a record id that stands twice.
    """
    if isinstance(mechanism.clip, BatchClip | NoClip) or not isinstance(mechanism.divisor, ConstantDivisor):
        raise InputError("a private run clips each unit and divides by a public constant; this plan does not")
    if len(set(records.ids)) != len(records.ids):
        raise InputError("a record id stands twice among the training records")
    by_user: dict[str, list[int]] = {}
    for row, user in enumerate(records.users):
        by_user.setdefault(user, []).append(row)
    if mechanism.sampled == "user":
        units = [SampledUnit(user, tuple(rows)) for user, rows in sorted(by_user.items())]
    elif mechanism.unit == "example":
        units = [SampledUnit(name, (row,)) for row, name in enumerate(records.ids)]
    else:
        units = []
        for _, rows in sorted(by_user.items()):
            pool = _choose(mechanism.record_selection, mechanism.group_size, tuple(rows), records, key, "pool")
            pool = pool[: mechanism.group_size]
            copies = mechanism.group_size if exactly else len(pool)
            units += [
                SampledUnit(f"{records.ids[pool[i % len(pool)]]} copy {i // len(pool)}", (pool[i % len(pool)],))
                for i in range(copies)
            ]
    return PrivateTraining(mechanism, key, tuple(units), records, noise, micro_records)


def private_gradient(
    model: PreTrainedModel, training: PrivateTraining, step: int, sequences: Sequence[Sequence[int]]
) -> float | None:
    """Put the noised mean gradient of ``step`` into ``.grad``; return the cohort's mean loss, which is not private.

    An empty cohort gives pure noise and None. Noise of deviation noise multiplier times sensitivity is added once to
    the sum over all micro-batches.
    """
    mechanism = training.mechanism
    clip, divisor = mechanism.clip, mechanism.divisor
    assert isinstance(clip, FlatClip | NormalisedClip)
    assert isinstance(divisor, ConstantDivisor)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
    losses: list[torch.Tensor] = []
    for units in micro_batches(training.cohort(step), training.micro_records):
        found = clipped_gradient_sum(model, _units(units, sequences, model.device), clip_norm=clip.norm)
        for name, gradient in found.gradients.items():
            total[name] += gradient
        losses.append(found.losses[~found.masked])
    scale = 1.0 / clip.norm if isinstance(clip, NormalisedClip) else 1.0
    deviation = mechanism.noise_multiplier * mechanism.sensitivity
    for name, parameter in parameters.items():
        summed = total[name] * scale
        if deviation > 0:
            shape, device = summed.shape, summed.device
            summed = summed + gaussian(training.noise, training.key, step, name, shape, deviation, device)
        parameter.grad = (summed / divisor.value).to(parameter.dtype)
    finite = torch.cat(losses) if losses else torch.empty(0)
    return float(finite.mean()) if finite.numel() else None


def micro_batches(cohort: Sequence[list[int]], most: int) -> list[list[list[int]]]:
    """Cut a cohort into runs of whole units with at most ``most`` records each; a larger unit is a run of its own."""
    runs: list[list[list[int]]] = []
    size = 0
    for rows in cohort:
        if not rows:
            continue  # a unit with nothing to give contributes zero
        if not runs or size + len(rows) > most:
            runs.append([])
            size = 0
        runs[-1].append(rows)
        size += len(rows)
    return runs


def _units(units: Sequence[list[int]], sequences: Sequence[Sequence[int]], device: torch.device) -> Units:
    rows = [row for rows in units for row in rows]
    inputs, targets = collate([sequences[row] for row in rows], device)
    unit = torch.tensor([i for i, its in enumerate(units) for _ in its], device=device)
    return Units(inputs, targets, unit, len(units))


def _choose(
    rule: RecordSelection, count: int, rows: tuple[int, ...], records: PrivateRecords, key: bytes, purpose: str
) -> list[int]:
    chosen = select_records(
        rule,
        count,
        ids=[records.ids[row] for row in rows],
        lengths=[records.lengths[row] for row in rows],
        key=key,
        purpose=purpose,
        losses=None if records.losses is None else [records.losses[row] for row in rows],
    )
    return [rows[i] for i in chosen]
