"""The pool of those whose membership chance decides: users, entities that records name, or both.

Lai et al. (2021) protect whoever is named beside whoever writes; what an audit of entities may conclude is said in
docs/theory.md#audits-of-entities.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.corpus.row_parts import PARTS, Parts, RowParts
from heldin.corpus.split import Audited, Part, check_pool
from heldin.stages.run_config import SplitConfig

if TYPE_CHECKING:
    from heldin.corpus.entities.incidence import Incidence

PREFIX = "entity/"
_UNUSED = 0
_USES = {part: code for code, part in enumerate(PARTS, start=1)}


@dataclass(frozen=True)
class AuditPool:
    """The audited users and entities, fixed before any coin.

    Attributes:
        names: names of users and entities whose membership chance decides.
        entities: of the entities among them, the rows that name each, by what they are used for.
    """

    names: tuple[str, ...]
    entities: Mapping[str, Parts]


def pool_of_users(users: Sequence[str], split: SplitConfig, *, seed: int) -> AuditPool:
    """Return the users whose membership chance decides: a fixed number, a fraction by public coins, or all.

    Args:
        split: how many are audited.
        seed: public seed of the choice.

    Raises:
        InputError: the pool has fewer than two, or more than there are.
    """
    size = split.audit_pool
    if (fraction := split.audit_fraction) is not None:
        # By a coin of the user's own: whether somebody is audited is no function of who else there is.
        users = [user for user in users if keyed_uniform(seed_key(seed), "audit fraction", user) < fraction]
        if len(users) < 2:
            raise InputError(f"split.audit_fraction {fraction:g} leaves {len(users)} user(s) to audit: raise it")
    check_pool(len(users), size)
    # Under the public seed: the pool must be fixed before the secret coins, and not depend on them.
    return AuditPool(
        tuple(users if size is None else keyed_order(seed_key(seed), "audit pool", list(users))[:size]), {}
    )


def pool_of_entities(
    split: SplitConfig,
    named: "Incidence",
    parts: RowParts,
    kept: npt.NDArray[np.bool_],
    *,
    real: Sequence[str],
    seed: int,
) -> AuditPool:
    """Return entities, and users if both are audited, no two of whom share a record for training or for the attacker.

    They are taken in a public order, entities and users by turns, each unless one before has any of its records. An
    entity that is a user's name is not taken beside users: nobody has two coins.

    Args:
        split: who is audited, and how many.
        named: whom each row names.
        parts: rows of all users, canary users included, by what they are used for.
        kept: shape (rows,) or more: rows that caps keep.
        real: the users who are not canary users.
        seed: public seed of the order.

    Raises:
        InputError: there are fewer than two, or fewer than ``split.audit_pool``.
    """
    use = _uses(named, parts, kept)
    rows = np.repeat(np.arange(use.size), np.diff(named.starts))
    order = np.argsort(named.entities, kind="stable")
    rows, starts = rows[order], np.concatenate([[0], np.cumsum(named.records_of())])
    number = {PREFIX + named.names[e]: e for e in _candidates(split, named, use, rows, starts)}
    clash = next((name for name in number if name in parts), None)
    if clash is not None:
        raise InputError(f"the corpus has a user named '{clash}', which is an audited entity's name: rename that user")
    taken = np.zeros(use.size, dtype=np.bool_)
    # A canary user's records have that user's coin already.
    for user in parts.keys() - set(real):
        taken[[row for row in _rows_of(parts[user]) if row < taken.size]] = True

    def free(name: str) -> bool:
        own_rows = rows[starts[number[name]] : starts[number[name] + 1]] if name in number else _rows_of(parts[name])
        asked = own_rows[np.isin(use[own_rows], (_USES[Part.TRAIN], _USES[Part.ATTACKER]))]
        if taken[asked].any():
            return False
        taken[asked] = True
        return True

    # Entities and users by turns: an entity's records are of several users, who would leave room for few entities.
    key = seed_key(seed)
    turns: list[Iterator[str]] = [filter(free, keyed_order(key, "audited entities", list(number)))]
    if split.audited is Audited.BOTH:
        turns.append(filter(free, keyed_order(key, "audited users", list(real))))
    pool = list(itertools.islice(_by_turns(turns), split.audit_pool))
    entities = {}
    for name in (name for name in pool if name in number):
        own_rows = rows[starts[number[name]] : starts[number[name] + 1]]
        entities[name] = {part: tuple(own_rows[use[own_rows] == code].tolist()) for part, code in _USES.items()}
    if len(pool) < max(2, split.audit_pool or 0) or not entities:
        raise InputError(
            f"split.audited: entities named in {split.entity_records} or more training records and in one of the"
            f" attacker's: {len(number):,}; of those who could be audited {len(pool):,} share no record, and"
            f" {split.audit_pool or 2} are needed, an entity among them: lower split.entity_records"
            f"{' or split.audit_pool' if split.audit_pool else ''}"
        )
    return AuditPool(tuple(pool), entities)


def _by_turns(queues: list[Iterator[str]]) -> Iterator[str]:
    while queues:
        queue = queues.pop(0)
        if (name := next(queue, None)) is not None:
            yield name
            queues.append(queue)


def _rows_of(parts: Parts) -> npt.NDArray[np.int64]:
    return np.array([row for part_rows in parts.values() for row in part_rows], dtype=np.int64)


def _uses(named: "Incidence", parts: RowParts, kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """Return the use of each row, shape (rows of ``named``,); records that caps leave out are unused."""
    use = parts.uses(named.starts.size - 1)
    use[(use == _USES[Part.TRAIN]) & ~kept[: use.size]] = _UNUSED
    return use


def _candidates(
    split: SplitConfig,
    named: "Incidence",
    use: npt.NDArray[np.int8],
    rows: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
) -> list[int]:
    """Numbers of the entities with enough records to train on, and one at least for the attacker."""
    entity = np.repeat(np.arange(named.count), np.diff(starts))
    trained, fresh = (
        np.bincount(entity[use[rows] == _USES[part]], minlength=named.count) for part in (Part.TRAIN, Part.ATTACKER)
    )
    enough = (trained >= split.entity_records) & (fresh > 0)
    if split.audited is Audited.BOTH:
        enough[list(named.users.values())] = False
    return [int(number) for number in np.flatnonzero(enough)]
