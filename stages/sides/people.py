"""Which held-in users are told apart by what goes with exposure, and beside whose words: all, or a sample by name."""

from collections.abc import Sequence

import numpy as np

from heldin.audit.exposure import Exposed, exposed_users
from heldin.audit.preregistration import Preregistration
from heldin.audit.scored_users import ScoredUsers
from heldin.base.coins import first_in_keyed_order, seed_key
from heldin.defenses.texts.data_side import TrainingRecord
from heldin.stages.sides.data import RunData
from heldin.stages.sides.rows import writers


def people_of(fixed: Preregistration, data: RunData, table: ScoredUsers) -> list[Exposed]:
    """Held-in users, most exposed first: at most ``audit.exposure_users`` of them, beside as many others' words.

    Args:
        table: the scored users.
    """
    most, owners = fixed.audit.exposure_users, data.ledger.owners()
    wrote = writers(data.store, data.training_rows)
    number = {name: i for i, name in enumerate(wrote.names)}
    # An audited entity's records are its own here, whoever wrote them.
    of_entities = {name: len(number) + i for i, name in enumerate(sorted(set(owners.values())))}
    whose = wrote.places.astype(np.int64)
    if owners:
        entity = np.array([of_entities.get(owners.get(row, ""), -1) for row in data.training_rows.tolist()])
        whose = np.where(entity >= 0, entity, whose)
    listed = [name for name, held_in in zip(table.users, table.member, strict=True) if held_in]
    of_listed = set(listed)
    there = {name: i for name, i in {**number, **of_entities}.items() if name not in of_listed}
    present = np.zeros(len(number) + len(of_entities), dtype=np.bool_)
    present[whose] = True
    others = [name for name, i in there.items() if present[i]]
    shown = _sample(fixed.seed, "exposed", listed, most)
    beside = _sample(fixed.seed, "words of others", others, most)
    every = {**number, **of_entities}
    wanted = np.zeros_like(present)
    wanted[[every[name] for name in (*shown, *beside) if name in every]] = True
    rows = data.training_rows[wanted[whose]]
    records = [
        TrainingRecord(record.row, owners.get(record.row, record.user), record.id, data.training_text(record.row))
        for record in map(data.store.record, rows.tolist())
    ]
    return exposed_users(
        table,
        records,
        attack=fixed.attack.primary,
        aggregation=fixed.attack.aggregations[0],
        listed=frozenset(shown),
        trained_on=data.training_rows.size,
    )


def _sample(seed: int, purpose: str, names: Sequence[str], most: int) -> list[str]:
    """At most so many of the names, by a public order: who is among them follows from no score."""
    if len(names) <= most:
        return list(names)
    return [names[i] for i in first_in_keyed_order(seed_key(seed), purpose, names, most)]
