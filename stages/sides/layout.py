"""The layout of a run before any coin is drawn: users, records set aside, records that caps keep, and audited names.

The audit pool contains the units with membership decided by a coin: users, entities named in records, or both. Lai et
al. (2021) protect the people whom a text names in addition to its author. docs/theory.md#audits-of-entities explains
what an audit of entities can conclude.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.users import Canary
from heldin.corpus.row_parts import PARTS, Parts, RowParts, set_asides
from heldin.corpus.split import Audited, Part, check_pool
from heldin.corpus.store import Corpus
from heldin.stages.run_config import RunConfig, SplitConfig
from heldin.stages.sides.corpus import CorpusData

if TYPE_CHECKING:
    from heldin.corpus.entities.incidence import Incidence
    from heldin.stages.sides.slots import Slots

PREFIX = "entity/"
_UNUSED = 0
_USES = {part: code for code, part in enumerate(PARTS, start=1)}


@dataclass(frozen=True)
class AuditPool:
    """The audited users and entities. heldin fixes them before any coin is drawn.

    Attributes:
        names: names of the users and entities whose membership a coin decides.
        entities: for each entity in ``names``, the rows that name it, by use.
    """

    names: tuple[str, ...]
    entities: Mapping[str, Parts]


def pool_of_users(users: Sequence[str], split: SplitConfig, *, seed: int) -> AuditPool:
    """Return the users whose membership a coin decides: a fixed number, a fraction by public coins, or all.

    Args:
        split: the config section that sets how many users are audited.
        seed: public seed of the choice.

    Raises:
        InputError: the pool has fewer than two users, or the config asks for more users than there are.
    """
    size = split.audit_pool
    if (fraction := split.audit_fraction) is not None:
        # By a coin of the user's own: whether somebody is audited is no function of who else there is.
        users = [user for user in users if keyed_uniform(seed_key(seed), "audit fraction", user) < fraction]
        if len(users) < 2:
            raise InputError(
                f"split.audit_fraction {fraction:g} leaves {len(users)} user(s) to audit: raise split.audit_fraction"
            )
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
    """Return entities, and users if both are audited. No two of them share a record for training or for the attacker.

    heldin chooses names in a public order that alternates between entities and users. It skips a name if an earlier
    name has any of the name's records. If users are audited too, an entity with a user's name is not chosen, because
    nobody may have two coins.

    Args:
        split: the config section that sets who is audited, and how many.
        named: entities that each row names.
        parts: rows of all users, including canary users, by use.
        kept: mask of the rows that caps keep, shape (rows,) or longer.
        real: the users who are not canary users.
        seed: public seed of the order.

    Raises:
        InputError: there are fewer than two names, or fewer than ``split.audit_pool``.
    """
    use = _uses(named, parts, kept)
    rows = np.repeat(np.arange(use.size), np.diff(named.starts))
    order = np.argsort(named.entities, kind="stable")
    rows, starts = rows[order], np.concatenate([[0], np.cumsum(named.records_of())])
    number = {PREFIX + named.names[e]: e for e in _candidates(split, named, use, rows, starts)}
    clash = next((name for name in number if name in parts), None)
    if clash is not None:
        raise InputError(
            f"the corpus has a user named '{clash}', which is also the name of an audited entity: rename this user"
        )
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

    # Entities and users by turns: an entity's records are of several users, and if these were taken first, few entities
    # would be left.
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
            f"split.audited: {len(number):,} entities are named in at least {split.entity_records} training records"
            f" and in a record of the attacker. Only {len(pool):,} entities and users share no record with each"
            f" other, but {split.audit_pool or 2} are needed, with at least one entity. Lower"
            f" split.entity_records{' or split.audit_pool' if split.audit_pool else ''}"
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
    """Return the use of each row, shape (rows of ``named``,). Training rows that caps drop have no use."""
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
    """Return the numbers of entities with enough training records, and at least one record for the attacker."""
    entity = np.repeat(np.arange(named.count), np.diff(starts))
    trained, fresh = (
        np.bincount(entity[use[rows] == _USES[part]], minlength=named.count) for part in (Part.TRAIN, Part.ATTACKER)
    )
    enough = (trained >= split.entity_records) & (fresh > 0)
    if split.audited is Audited.BOTH:
        enough[list(named.users.values())] = False
    return [int(number) for number in np.flatnonzero(enough)]


@dataclass(frozen=True)
class Layout:
    """The public layout of a run. heldin fixes the layout before any coin is drawn.

    Attributes:
        corpus: fingerprint of the corpus.
        planted: for each canary user, the number of training records; None: all records that are not set aside.
        parts: rows of each user and canary user, by use.
        pool: the real users and entities whose membership a coin decides; canary users also have coins.
        drawn_from: hash of the inputs that determine ``parts``.
    """

    corpus: str
    users: tuple[str, ...]
    planted: Mapping[str, int | None]
    parts: RowParts
    pool: AuditPool
    drawn_from: str = ""


def laid_out(
    config: RunConfig,
    corpus: CorpusData,
    store: Corpus,
    canaries: Mapping[str, Canary],
    reporter: Reporter,
    earlier: tuple[str, RowParts] | None = None,
) -> "tuple[Layout, Slots | None]":
    """Return the layout of a run; also its slots, if the run protects users and entities.

    Args:
        corpus: the corpus before canary users were added.
        store: the corpus with canary users, if there are any.
        reporter: shows the progress of setting records aside, and of searching texts for entities.
        earlier: hash of the inputs of an earlier call, and its parts; reused if the hash is equal.

    Raises:
        InputError: ``find_slots``, ``pool_of_users`` or ``pool_of_entities`` raises.
    """
    # Replaced users are in no pool: held in beside their copies, they would be trained on under two names.
    replaced = {canary.source for canary in canaries.values()}
    users = tuple(user for user in corpus.audited.users if user not in replaced)
    planted = {user: canary.documents for user, canary in canaries.items()}
    split, seed = config.split, config.seed
    of_parts = seed if split.seed is None else split.seed
    fractions = split.attacker_fraction, split.evaluation_fraction
    drawn_from = text_sha256(store.fingerprint, repr((*fractions, of_parts, sorted(planted.items()))), *users)
    if earlier is not None and earlier[0] == drawn_from:
        # Not drawn anew at every start: for 100 million records that takes minutes.
        parts = earlier[1].first(len(users) + len(planted))
    else:
        parts = parts_of(store, users, planted, split, seed=of_parts, reporter=reporter)
    # Over everybody's records, also of those whom their coin will leave out.
    slots = None
    if config.defense.protects_named or split.audited is not Audited.USERS:
        # Entities are no part of a plain run.
        from heldin.stages.sides.slots import find_slots, whom_records_name
    if config.defense.protects_named:
        slots = find_slots(config, corpus.store, store, parts, reporter)
    if split.audited is Audited.USERS:
        # Canary users alone are audited where nobody else is left to be (planting.plant_data).
        pool = pool_of_users(users, split, seed=seed) if users or not planted else AuditPool((), {})
    else:
        named = slots.named if slots else None
        if named is None:
            rows = np.sort(parts.rows_of(Part.TRAIN))
            named = whom_records_name(config, corpus.store, store, rows, reporter)
        assert named is not None
        kept = slots.kept if slots else np.ones(named.starts.size - 1, dtype=np.bool_)
        pool = pool_of_entities(split, named, parts, kept, real=users, seed=seed)
    return Layout(store.fingerprint, users, planted, parts, pool, drawn_from), slots


def parts_of(
    store: Corpus,
    users: tuple[str, ...],
    planted: Mapping[str, int | None],
    split: SplitConfig,
    *,
    seed: int,
    reporter: Reporter | None = None,
) -> RowParts:
    """Return the rows of every user and canary user, by use. Draws no coin.

    Args:
        planted: see ``Layout``.
        split: the config section that sets which records of each user are set aside.
        seed: public seed for setting records aside.
    """

    # By one rule for all users, before coins (docs/theory.md#conditions-of-one-run, 4).
    def aside(names: Sequence[str], advance: Callable[[int], object] | None = None) -> RowParts:
        return set_asides(
            store,
            names,
            attacker_fraction=split.attacker_fraction,
            evaluation_fraction=split.evaluation_fraction,
            seed=seed,
            advance=advance,
        )

    if reporter is None:
        real = aside(users)
    else:
        with reporter.track("set-asides", sum(len(store.rows(user)) for user in users), "records") as advance:
            real = aside(users, advance)
    cut = dict(aside(tuple(planted)))
    for user, documents in planted.items():
        # Cut before the coin falls, so that a canary user who is held out has the same number of documents.
        cut[user] = {**cut[user], Part.TRAIN: _some(store, cut[user][Part.TRAIN], documents, seed)}
    return real.joined(RowParts.of(cut))


def _some(store: Corpus, rows: tuple[int, ...], most: int | None, seed: int) -> tuple[int, ...]:
    """Return at most ``most`` of the rows, chosen by a keyed order of their record ids."""
    row_of = {store.id(row): row for row in rows}
    return tuple(sorted(row_of[id_] for id_ in keyed_order(seed_key(seed), "canary documents", list(row_of))[:most]))
