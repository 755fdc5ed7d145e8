"""Which of a drawn user's records two-level sampling may use in a step, and how much each counts.

Entities are drawn by coins that are keyed by their names, records that name none by coins keyed by their ids: one
entity has one coin, whoever writes of it, and no two records share one (docs/theory.md#two-level-sampling).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_uniform
from heldin.corpus.entities.incidence import Incidence
from heldin.defenses.choices import TwoLevel

Weights = npt.NDArray[np.float64]


def usable(
    two_level: TwoLevel, named: Incidence, rows: Sequence[int], ids: Sequence[str], key: bytes, step: int
) -> dict[int, list[int]]:
    """The rows that a step may use, each with the drawn entities that it names; none for one that names nobody.

    Args:
        two_level: rates and rule.
        named: entities of every row.
        rows: of one user.
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


def entity_weights(two_level: TwoLevel, named: Incidence) -> Weights | None:
    """w_e = min(records / cap, 1) of every entity (Algorithm 1, line 4), shape (count,); None for constants of 1."""
    if two_level.weight_caps is None:
        return None
    weights: Weights = np.minimum(named.records_of() / two_level.weight_caps.entity, 1.0)
    return weights


def record_weights(used: Sequence[Sequence[int]], weights: Weights | None) -> list[float]:
    """What each record counts: the weights of its drawn entities together, or 1 if it names none (lines 23 to 25).

    Args:
        used: drawn entities of each record.
        weights: of entities; None: 1 each.
    """
    if weights is None:
        return [float(len(drawn) or 1) for drawn in used]
    return [float(weights[list(drawn)].sum()) if drawn else 1.0 for drawn in used]
