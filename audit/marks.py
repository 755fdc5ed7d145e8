"""Exposure of canary users' marks, by kind and length: counts of people and medians, both groups and models.

No number is about one canary user: a median needs ten of them (docs/decisions/0010-nobody-in-a-report.md).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.marks import MarkRanks, exposures
from heldin.audit.coarse import LEAST_IN_GROUP, brief, share_limits
from heldin.audit.results import MarkExposure, MarkGroup, MarkSide
from heldin.canaries.kinds import Canary

FIRST_PERCENT = 100


def mark_groups(ranks: MarkRanks, member: Mapping[str, bool], canaries: Mapping[str, Canary]) -> list[MarkGroup]:
    """Groups of canary users by kind and length.

    Args:
        ranks: the rank of every canary user's mark.
        member: whether each is held in.
        canaries: how each was made.
    """
    of_group: dict[tuple[str, int], list[int]] = {}
    for row, user in enumerate(ranks.users):
        of_group.setdefault((canaries[user].kind.value, canaries[user].length or 0), []).append(row)
    groups = []
    for _, members in sorted(of_group.items()):
        rows = np.array(members, dtype=np.intp)
        inside = np.array([member[ranks.users[row]] for row in rows], dtype=np.bool_)
        example = canaries[ranks.users[rows[0]]]
        groups.append(
            MarkGroup(
                kind=example.kind.value,
                length=example.length,
                candidates=int(ranks.candidates[rows].min()),
                held_in=_side(ranks, rows[inside]),
                held_out=_side(ranks, rows[~inside]),
            )
        )
    return groups


def _side(ranks: MarkRanks, rows: NDArray[np.intp]) -> MarkSide:
    candidates = ranks.candidates[rows]
    target, reference = (_exposed(column[rows], candidates) for column in (ranks.target, ranks.reference))
    lower, upper = share_limits(target.highest, rows.size) if rows.size else (None, None)
    return MarkSide(users=rows.size, target=target, lower=lower, upper=upper, reference=reference)


def _exposed(ranks: NDArray[np.int64], candidates: NDArray[np.int64]) -> MarkExposure:
    # Among no candidates every mark is the first, and says nothing.
    some = candidates > 0
    median = None
    if ranks.size >= LEAST_IN_GROUP and some.all():
        median = brief(float(np.median(exposures(ranks, candidates))), 1)
    return MarkExposure(
        highest=int((some & (ranks == 1)).sum()),
        first_percent=int((some & (ranks * FIRST_PERCENT <= candidates + 1)).sum()),
        median=median,
    )
