"""The units of a private run, the draw of each step, and the records that drawn units contribute.

Two-level sampling draws each entity by a coin that is keyed by the name of the entity. A record that names no entity
has a coin that is keyed by the id of the record. An entity has one coin for all authors, and no two records share a
coin (docs/theory.md#two-level-sampling).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from heldin.base.coins import keyed_positions, keyed_uniform
from heldin.base.errors import InputError
from heldin.defenses.carried_noise import CarriedNoise
from heldin.defenses.choices import (
    NoiseGenerator,
    RecordSelection,
    TwoLevel,
)
from heldin.defenses.data_side.selection import select_records
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.noise import NoiseSource
from heldin.defenses.samplers import Draws
from heldin.finetune.sampled_units import Copies, LocalWork, SampledUnit, Units, Writers, require_unique
from heldin.models.tokens import Tokens, joined

if TYPE_CHECKING:
    from heldin.corpus.entities.incidence import Incidence

Gradients = Mapping[str, torch.Tensor]


Weights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PrivateRecords:
    """The records available for training. All sequences have one entry for each record.

    Attributes:
        ids: unique ids.
        users: author of each record.
        lengths: number of counted tokens of each record.
        losses: mean token loss of each record under the base model; None if no selection needs it.
        named: entities that each record names, for two-level sampling; None for all other mechanisms.
    """

    ids: Sequence[str]
    users: Sequence[str]
    lengths: Sequence[int] | npt.NDArray[np.int64]
    losses: Sequence[float] | None = None
    named: "Incidence | None" = field(default=None, repr=False)


class GradientCanaries(Protocol):
    """An auditor's units, with gradients of the auditor's choice.

    They are sampled, clipped and summed like other units.
    """

    def gradient(self, number: int) -> Gradients:
        """Return the full gradient of canary ``number`` before clipping, by parameter name."""


@dataclass(frozen=True)
class PrivateTraining:
    """A mechanism that is ready to run: its key, the units that it samples, and the number of records per pass.

    Attributes:
        key: the run's secret key.
        units: all units that can be sampled.
        micro_records: maximum number of records per forward pass; a larger unit is a pass of its own.
        chunk: tokens of a random chunk, for record selection "random_chunk".
        canaries: gradients of the units that are gradient canaries.
        watch: function that is called with the number of each step and the noised gradient of the step. Audits use it.
            Its gradient is exactly the optimizer's input.
    """

    mechanism: Mechanism
    key: bytes
    units: Sequence[SampledUnit]
    records: PrivateRecords
    noise: NoiseGenerator
    micro_records: int = 64
    chunk: int | None = None
    canaries: GradientCanaries | None = None
    watch: Callable[[int, Gradients], None] | None = None

    def drawn(self, step: int) -> list[SampledUnit]:
        """Return the units drawn in ``step``, in the order of ``units``. The list may be empty."""
        return [self.units[i] for i in self._draws.at(step)]

    @functools.cached_property
    def source(self) -> NoiseSource:
        """Source of the run's independent noise."""
        return NoiseSource(self.noise, self.key)

    @functools.cached_property
    def noise_of_steps(self) -> CarriedNoise:
        """The noise that is added to the sums: the noise of ``source``, perhaps correlated over steps."""
        return CarriedNoise(self.source, self.mechanism.sampler.coefficients)

    @functools.cached_property
    def _draws(self) -> Draws:
        units = self.units
        names = units.names if isinstance(units, Units) else [unit.name for unit in units]
        return Draws(self.mechanism.sampler, self.key, names, self.mechanism.steps)

    def rows(self, unit: SampledUnit, step: int) -> list[int]:
        """Return the rows that a drawn unit contributes to ``step``."""
        # Before the choice: chosen first, an unusable record would keep another from being used.
        return self._chosen(unit.rows if self.mechanism.two_level is None else tuple(self.usable(unit, step)), step)

    def _chosen(self, rows: tuple[int, ...], step: int) -> list[int]:
        """Return the rows chosen for ``step`` from a drawn unit's rows."""
        rule = self.mechanism.record_selection
        if not self.mechanism.samples_users or rule == "random_chunk" or not rows:
            return list(rows)
        # Anew in each step, which costs nothing.
        return choose_records(rule, self.mechanism.group_size, rows, self.records, self.key, f"records {step}")

    def usable(self, unit: SampledUnit, step: int) -> dict[int, list[int]]:
        """Return the rows of a drawn unit that two-level sampling may use in ``step``.

        Each row is a key, with its drawn entities as the value.
        """
        assert self.mechanism.two_level is not None
        assert self.records.named is not None
        return usable(self.mechanism.two_level, self.records.named, unit.rows, self.records.ids, self.key, step)

    def local_work(self, unit: SampledUnit, step: int, sequences: Sequence[Tokens]) -> LocalWork:
        """Return the local work of a drawn unit in ``step``, for a mechanism that clips model differences."""
        two_level = self.mechanism.two_level
        if two_level is None:
            chosen = [sequences[row] for row in self.rows(unit, step)]
            return LocalWork(chosen, [1.0] * len(chosen))
        drawn, caps = self.usable(unit, step), two_level.weight_caps
        rows = self._chosen(tuple(drawn), step)
        weight = 1.0 if caps is None else min(1.0, len(unit.rows) / caps.user)
        weights = record_weights([drawn[row] for row in rows], self._entity_weights)
        return LocalWork([sequences[row] for row in rows], weights, weight)

    @functools.cached_property
    def _entity_weights(self) -> Weights | None:
        assert self.mechanism.two_level is not None
        assert self.records.named is not None
        return entity_weights(self.mechanism.two_level, self.records.named)

    def contribution(self, unit: SampledUnit, step: int, sequences: Sequence[Tokens]) -> list[Tokens]:
        """Return the contribution of a drawn unit to ``step``: records, or chunks of its whole text."""
        chosen = [sequences[row] for row in self.rows(unit, step)]
        if self.mechanism.record_selection != "random_chunk" or not chosen:
            return chosen
        assert self.chunk is not None
        # Keyed by step and user: where one user's text is cut is no function of another's.
        purposes = [f"chunk {step} {i}" for i in range(self.mechanism.group_size)]
        return random_chunks(chosen, self.chunk, [keyed_uniform(self.key, p, unit.name) for p in purposes])


def plan_private_training(
    mechanism: Mechanism,
    key: bytes,
    records: PrivateRecords,
    noise: NoiseGenerator,
    *,
    micro_records: int = 64,
    chunk: int | None = None,
    exactly: bool = False,
) -> PrivateTraining:
    """Return a mechanism that is ready to run, with the units that it samples.

    Args:
        mechanism: the mechanism to run.
        records: the records available for training.
        micro_records: maximum number of records per forward pass; a larger unit is a pass of its own.
        chunk: tokens of a random chunk, if the mechanism trains on chunks.
        exactly: whether every user gets exactly ``group_size`` entries, with repeated records for users who have fewer
            (group privacy as Chua et al. run it). Only valid if examples are sampled and users are protected.

    Raises:
        InputError: the private loop does not support the clip or divisor, chunks are requested although examples are
            sampled, or a record id occurs twice.
    """
    if not mechanism.clip.bounds_units or mechanism.divisor.constant is None:
        raise InputError(
            "a private run must clip each unit and divide by a public constant, but this plan does not: change the"
            " clip or the divisor"
        )
    if mechanism.record_selection == "random_chunk" and (not mechanism.samples_users or chunk is None):
        raise InputError(
            "record selection 'random_chunk' cuts a sampled user's text: sample users, or choose another record"
            " selection"
        )
    if mechanism.two_level is not None and records.named is None:
        raise InputError("two-level sampling needs the entities that each record names: give entities")
    # Coins are keyed by name: two records of one name would be sampled together.
    require_unique(records.ids)
    units = _units(mechanism, key, records, exactly=exactly)
    population, two_level = mechanism.sampler.population, mechanism.two_level
    # Under Poisson coins epsilon is right whatever the number of users; but this one is for an entity whom all others
    # may name, and all others are more.
    if two_level and population and two_level.holders == population - 1 < len(units) - 1:
        raise InputError(
            f"the corpus has {len(units)} users, but the plan's epsilon is for population {population}, where at"
            f" most {population - 1} other users name an entity. Raise population, or state holders"
        )
    return PrivateTraining(mechanism, key, units, records, noise, micro_records, chunk)


def _units(mechanism: Mechanism, key: bytes, records: PrivateRecords, *, exactly: bool) -> Units:
    if not mechanism.samples_users and not mechanism.level.caps_users:
        # Every record alone: at the example level, and under text sampling.
        every = np.arange(len(records.ids))
        return Units(records.ids, every, every + 1)
    # All of a user's rows: which G of them a step takes is decided when the user is drawn.
    users = Writers.of_names(records.users).units()
    if mechanism.samples_users:
        return users
    pools = []
    for user in users:
        # Once for the whole run, unlike under ULS.
        pool = choose_records(mechanism.record_selection, mechanism.group_size, user.rows, records, key, "pool")
        # Rule "all" ignores the number, on which the accountant relies.
        pools.append(np.array(pool[: mechanism.group_size], dtype=np.int64))
    numbers = [np.arange(mechanism.group_size if exactly else pool.size) for pool in pools]
    numbered = list(zip(pools, numbers, strict=True))
    rows = np.concatenate([pool[number % pool.size] for pool, number in numbered] or [np.arange(0)])
    copies = np.concatenate([number // pool.size for pool, number in numbered] or [np.arange(0)])
    return Units(Copies(records.ids, rows, copies), rows, np.arange(1, rows.size + 1))


def random_chunks(records: Sequence[Tokens], length: int, at: Sequence[float]) -> list[Tokens]:
    """Return chunks of ``length`` tokens of one user's concatenated records (Chua et al., section 5.1).

    Args:
        records: tokens of one user's records, each with a start token; only the first start token is kept.
        length: tokens of a chunk.
        at: start of each chunk, as a share of the possible positions.

    Returns:
        One chunk for each entry of ``at``, or the whole text once if it is not longer than a chunk.
    """
    text = joined([records[0], *(record.part(1, None) for record in records[1:])])
    places = len(text) - length + 1
    # Nothing to choose: one chunk, whatever the number asked for, since copies of it would not change the mean.
    if places <= 1:
        return [text]
    return [text.part(start, start + length) for start in (int(share * places) for share in at)]  # shares are below 1


def choose_records(
    rule: RecordSelection, count: int, rows: Sequence[int], records: PrivateRecords, key: bytes, purpose: str
) -> list[int]:
    """Choose at most ``count`` of one user's rows (see ``select_records``).

    Args:
        key: secret key for random choices.
        purpose: name of this choice; another purpose gives another random choice.
    """
    if rule == "random":
        # Of the user's own records, by that user and the key alone (docs/theory.md#rules-of-a-private-step).
        chosen = keyed_positions(key, purpose, records.users[rows[0]], count=count, total=len(rows)) if rows else []
        return [rows[i] for i in chosen]
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


def usable(
    two_level: TwoLevel, named: "Incidence", rows: Sequence[int], ids: Sequence[str], key: bytes, step: int
) -> dict[int, list[int]]:
    """Return the usable rows of a step, each with the drawn entities that it names.

    The list of a row that names no entity is empty.

    Args:
        two_level: rates and rule.
        named: entities of each row.
        ids: record ids, by row.
        step: number of the step, from 0.
    """
    rows_used: dict[int, list[int]] = {}
    for row in rows:
        entities = named.of(row)
        if not entities:
            if keyed_uniform(key, f"extended {step}", ids[row]) < two_level.extended_rate:
                rows_used[row] = []
            continue
        drawn = [e for e in entities if keyed_uniform(key, f"entities {step}", named.names[e]) < two_level.entity_rate]
        if len(drawn) == len(entities) or (drawn and two_level.rule == "any"):
            rows_used[row] = drawn
    return rows_used


def entity_weights(two_level: TwoLevel, named: "Incidence") -> Weights | None:
    """Return w_e = min(records / cap, 1) of every entity (Algorithm 1, line 4), shape (count,); None: all are 1."""
    if two_level.weight_caps is None:
        return None
    weights: Weights = np.minimum(named.records_of() / two_level.weight_caps.entity, 1.0)
    return weights


def record_weights(used: Sequence[Sequence[int]], weights: Weights | None) -> list[float]:
    """Return each record's weight (lines 23 to 25): the sum over its drawn entities, or 1 if it names no entity.

    Args:
        weights: weights of the entities; None: every weight is 1.
    """
    if weights is None:
        return [float(len(drawn) or 1) for drawn in used]
    return [float(weights[list(drawn)].sum()) if drawn else 1.0 for drawn in used]
