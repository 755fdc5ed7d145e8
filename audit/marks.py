"""How far canary users' marks are exposed, by kind and length: counts of people and medians, both sides and models.

No number is about one canary user: a median needs ten of them (docs/decisions/0010-nobody-in-a-report.md).
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.marks import MarkRanks, exposures
from heldin.audit.coarse import LEAST_IN_GROUP, brief, share_limits
from heldin.base.facts import Facts
from heldin.canaries.kinds import Canary

FIRST_PERCENT = 100


class Exposed(Facts):
    """How the marks of some canary users rank under one model.

    Attributes:
        highest: number of marks that rank before every candidate.
        first_percent: number of marks in the first hundredth of all, the candidates and the mark.
        median: median exposure in bits; null for fewer than ten canary users.
    """

    highest: int
    first_percent: int
    median: float | None


class MarkSide(Facts):
    """Canary users of one group on one side.

    Attributes:
        users: number of canary users.
        target: how their marks rank under the audited model.
        lower, upper: exact 95 % limits of the share of ``target.highest`` (Clopper & Pearson 1934); null for nobody.
        reference: how they rank under the reference.
    """

    users: int
    target: Exposed
    lower: float | None
    upper: float | None
    reference: Exposed


class MarkGroup(Facts):
    """Canary users of one kind and substring length.

    Attributes:
        kind: how they were made.
        length: length of the substring in tokens; null for other kinds.
        candidates: number of marks never planted among which each mark is ranked, at least; 0 where none can be drawn.
        held_in: canary users who were held in.
        held_out: those who were held out: the control.
    """

    kind: Literal["unseen_token", "high_temperature", "rare_phrase", "named_person", "substring"]
    length: int | None
    candidates: int
    held_in: MarkSide
    held_out: MarkSide


class MarkFacts(Facts):
    """Exposure of canary users' marks.

    Attributes:
        groups: by kind and length.
    """

    groups: list[MarkGroup]


def mark_groups(found: MarkRanks, member: Mapping[str, bool], canaries: Mapping[str, Canary]) -> list[MarkGroup]:
    """Groups of canary users by kind and length.

    Args:
        found: the rank of every canary user's mark.
        member: whether each is held in.
        canaries: how each was made.
    """
    of_group: dict[tuple[str, int], list[int]] = {}
    for row, user in enumerate(found.users):
        of_group.setdefault((canaries[user].kind.value, canaries[user].length or 0), []).append(row)
    groups = []
    for _, members in sorted(of_group.items()):
        rows = np.array(members, dtype=np.intp)
        inside = np.array([member[found.users[row]] for row in rows], dtype=np.bool_)
        one = canaries[found.users[rows[0]]]
        groups.append(
            MarkGroup(
                kind=one.kind.value,
                length=one.length,
                candidates=int(found.candidates[rows].min()),
                held_in=_side(found, rows[inside]),
                held_out=_side(found, rows[~inside]),
            )
        )
    return groups


def _side(found: MarkRanks, rows: NDArray[np.intp]) -> MarkSide:
    candidates = found.candidates[rows]
    target, reference = (_exposed(its[rows], candidates) for its in (found.target, found.reference))
    lower, upper = share_limits(target.highest, rows.size) if rows.size else (None, None)
    return MarkSide(users=rows.size, target=target, lower=lower, upper=upper, reference=reference)


def _exposed(ranks: NDArray[np.int64], candidates: NDArray[np.int64]) -> Exposed:
    # Among no candidates every mark is the first, and says nothing.
    some = candidates > 0
    median = None
    if ranks.size >= LEAST_IN_GROUP and some.all():
        median = brief(float(np.median(exposures(ranks, candidates))), 1)
    return Exposed(
        highest=int((some & (ranks == 1)).sum()),
        first_percent=int((some & (ranks * FIRST_PERCENT <= candidates + 1)).sum()),
        median=median,
    )
