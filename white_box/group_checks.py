"""Check groups of users that take turns, as banded noise requires. The checks infer the groups from the steps in which
each unit was drawn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heldin.white_box.canaries import Array
from heldin.white_box.check import Check, exact

if TYPE_CHECKING:
    from heldin.white_box.trainers import ObservedDraws


def group_check(seen: "Sequence[ObservedDraws]", groups: int) -> Check:
    """Check that every unit was drawn only in the steps of one group.

    Two units with equal texts share one column, and are ignored.
    """
    strays = 0.0
    for each in seen:
        for times in (each.texts[:, _lone(each)], each.canaries):
            by_group = _by_group(times, groups)
            strays = max(strays, float((by_group.sum(axis=0) - by_group.max(axis=0)).max(initial=0.0)))
    detects = "a unit that is drawn once in a step of another group"
    return exact("sampling: a unit's steps outside its group", "rates", strays, 0.0, detects)


def in_rounds(seen: "ObservedDraws", groups: int) -> "ObservedDraws":
    """Return the draws in the steps of each unit's own group, as if all groups had the same steps.

    Units with equal texts are omitted. The last steps are omitted too, unless every group has a step there.
    """
    lone = _lone(seen)
    return replace(
        seen,
        texts=_own_steps(seen.texts[:, lone], groups),
        names=tuple(seen.names[j] for j in lone),
        canaries=_own_steps(seen.canaries, groups),
    )


def _lone(seen: "ObservedDraws") -> list[int]:
    return [j for j, names in enumerate(seen.names) if len(names) == 1]


def _by_group(times: Array, groups: int) -> Array:
    """Return how often each group's steps drew each column, shape (groups, columns)."""
    return np.stack([np.abs(times[group::groups]).sum(axis=0) for group in range(groups)])


def _own_steps(times: Array, groups: int) -> Array:
    rounds = len(times) // groups
    own: NDArray[np.int64] = _by_group(times, groups).argmax(axis=0)
    whole = times[: rounds * groups].reshape(rounds, groups, -1)
    return np.asarray(whole[:, own, np.arange(times.shape[1])])
