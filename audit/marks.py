"""Exposure of canary users' marks, by kind and length: counts of people and medians, both groups and models.

No number is about one canary user: a median needs ten of them (docs/decisions/0010-nobody-in-a-report.md).
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.marks import MarkRanks, exposures
from heldin.audit.coarse import LEAST_IN_GROUP, brief, share_limits
from heldin.base.section import Facts
from heldin.canaries.kinds import Canary

FIRST_PERCENT = 100


class MarkExposure(Facts):
    """Ranks of the marks of some canary users under one model.

    Attributes:
        highest: number of marks that rank before every candidate.
        first_percent: number of marks that rank in the first hundredth of candidates and mark.
        median: median exposure in bits; null for fewer than ten canary users.
    """

    highest: int
    first_percent: int
    median: float | None


class MarkSide(Facts):
    """Members or non-members among the canary users of one group.

    Attributes:
        users: number of canary users.
        target: how their marks rank under the audited model.
        lower, upper: exact 95 % limits of the share of ``target.highest`` (Clopper & Pearson 1934); null without users.
        reference: how they rank under the reference.
    """

    users: int
    target: MarkExposure
    lower: float | None
    upper: float | None
    reference: MarkExposure


class MarkGroup(Facts):
    """Canary users of one kind and substring length.

    Attributes:
        kind: how they were made.
        length: length of the substring in tokens; null for other kinds.
        candidates: smallest number of marks, never planted, among which a mark is ranked; 0 if none can be drawn.
        held_in: canary users who are members.
        held_out: canary users who are non-members: the control.
    """

    kind: Literal["unseen_token", "high_temperature", "rare_phrase", "named_person", "substring"]
    length: int | None
    candidates: int
    held_in: MarkSide
    held_out: MarkSide


class MarkFacts(Facts):
    """Exposure of canary users' marks (the secrets that their texts share).

    Attributes:
        groups: results by kind and length.
    """

    groups: list[MarkGroup]


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
