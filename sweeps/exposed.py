"""Who is exposed under each variant of a sweep: canary users by kind, and thirds of the held-in users."""

from collections.abc import Mapping, Sequence

import numpy as np

from heldin.audit.blocks import over_blocks
from heldin.audit.coarse import LEAST_IN_GROUP, brief, significant
from heldin.audit.exposure import Exposed
from heldin.record.document import Record
from heldin.record.sweep import Band, CanaryPoint
from heldin.sweeps.finished import Finished

THIRDS = 3


def canary_points(records: Sequence[Record]) -> list[CanaryPoint]:
    """AUROC of each kind, length and number of documents over the blocks, where every block has one."""
    aurocs_of: dict[tuple[str, int | None, int | None], list[tuple[float, float, float]]] = {}
    for record in records:
        for group in record.canaries.groups if record.canaries else []:
            if group.auroc is not None:
                estimate = (group.auroc.value, group.auroc.lower, group.auroc.upper)
                aurocs_of.setdefault((group.kind, group.length, group.documents), []).append(estimate)
    return [
        CanaryPoint(
            kind=kind,
            length=length,
            documents=documents,
            auroc=over_blocks([value for value, *_ in aurocs], (aurocs[0][1], aurocs[0][2]), least=0.0, most=1.0),
        )
        for (kind, length, documents), aurocs in aurocs_of.items()
        if len(aurocs) == len(records)
    ]


def bands(pairs: Sequence[tuple[Finished, Finished]]) -> list[Band]:
    """How exposed thirds of the held-in users are under the second of each pair.

    Args:
        pairs: of each block the first variant's cell, by which users are sorted, and another's. Sorted by what users
            wrote, never by their scores: of those who happened to score high most score lower under any other model.
    """
    thirds = []
    for measure in ("records", "word divergence"):
        # Of each third over all blocks: values, and shares of held-out users with a lower score.
        values: list[list[float]] = [[] for _ in range(THIRDS)]
        above: list[list[float]] = [[] for _ in range(THIRDS)]
        for first, other in pairs:
            exposed = {person.user: person.above for person in other.people}
            known = {user: value for user, value in _sorted_by(measure, first).items() if user in exposed}
            if len(known) < THIRDS * LEAST_IN_GROUP:
                return []
            users = sorted(known, key=lambda user: (known[user], user))
            for third, rows in enumerate(np.array_split(np.arange(len(users)), THIRDS)):
                values[third] += [known[users[row]] for row in rows]
                above[third] += [exposed[users[row]] for row in rows]
        thirds += [
            Band.model_validate(
                {
                    "of": measure,
                    "third": third + 1,
                    "typical": significant(float(np.mean(values[third]))),
                    "users": len(above[third]),
                    "above": brief(float(np.mean(above[third]))),
                }
            )
            for third in range(THIRDS)
            if above[third]
        ]
    return thirds


def _sorted_by(measure: str, cell: Finished) -> Mapping[str, float]:
    training = cell.record.training
    if training is None:
        return {}
    return {person.user: _value(measure, person, training.records) for person in cell.people}


def _value(measure: str, person: Exposed, records: int) -> float:
    return float(round(person.share * records)) if measure == "records" else person.word_divergence
