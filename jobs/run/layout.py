"""What a run fixes before any coin: who takes part, what is set aside, what caps keep, who is audited."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heldin.base.coins import keyed_order, seed_key
from heldin.base.progress import Reporter
from heldin.canaries.kinds import Canary
from heldin.corpus.split import Audited, Part, set_aside
from heldin.corpus.store import Corpus
from heldin.jobs.config import RunConfig, SplitConfig
from heldin.jobs.run.audit_pool import AuditPool, Parts, pool_of_entities, pool_of_users
from heldin.jobs.run.corpus import CorpusData
from heldin.jobs.run.slots import Slots, find_slots, whom_records_name


@dataclass(frozen=True)
class Layout:
    """What is fixed, and public, before any coin.

    Attributes:
        corpus: fingerprint of the corpus.
        users: the real users.
        planted: by canary user, the number of its records for training (None: all that are not set aside).
        parts: rows of each user and canary user, by what they are used for.
        pool: the real users and entities whose membership chance decides; canary users have coins besides.
    """

    corpus: str
    users: tuple[str, ...]
    planted: Mapping[str, int | None]
    parts: Mapping[str, Parts]
    pool: AuditPool


def laid_out(
    config: RunConfig, corpus: CorpusData, store: Corpus, canaries: Mapping[str, Canary], reporter: Reporter
) -> tuple[Layout, Slots | None]:
    """The layout of a run, and the slots of one that protects users and entities.

    Args:
        config: config of the run.
        corpus: the corpus before anything was planted.
        store: the corpus with canary users in it, if there are any.
        canaries: how each canary user was made.
        reporter: where the progress of searching texts for entities is shown.

    Raises:
        InputError: see ``find_slots``, ``pool_of_users`` and ``pool_of_entities``.
    """
    # Replaced users are in no pool: held in beside their copies, they would be trained on under two names.
    replaced = {canary.source for canary in canaries.values()}
    users = tuple(user for user in corpus.audited.users if user not in replaced)
    planted = {user: canary.documents for user, canary in canaries.items()}
    split, seed = config.split, config.seed
    parts = set_asides(store, users, planted, split, seed=seed if split.seed is None else split.seed)
    # Over everybody's records, also of those whom their coin will leave out.
    training = {user: its[Part.TRAIN] for user, its in parts.items()}
    slots = find_slots(config, corpus.store, store, training, reporter)
    if split.audited is Audited.USERS:
        # Canary users alone are audited where nobody else is left to be (jobs.planted.data).
        pool = pool_of_users(users, split, seed=seed) if users or not planted else AuditPool((), {})
    else:
        named = slots.named if slots else None
        if named is None:
            rows = np.array(sorted(row for its in training.values() for row in its), dtype=np.int64)
            named = whom_records_name(config, corpus.store, store, rows, reporter)
        assert named is not None
        kept = slots.kept if slots else np.ones(named.starts.size - 1, dtype=np.bool_)
        pool = pool_of_entities(split, named, parts, kept, real=users, seed=seed)
    return Layout(store.fingerprint, users, planted, parts, pool), slots


def set_asides(
    store: Corpus, users: tuple[str, ...], planted: Mapping[str, int | None], split: SplitConfig, *, seed: int
) -> dict[str, Parts]:
    """Rows of every user and canary user by what they are used for; no coin is asked.

    Args:
        store: the corpus, with the records of all of them.
        users: the real users.
        planted: see ``Layout``.
        split: what is set aside of every user.
        seed: public seed of the set-asides.
    """
    # By one rule for all users, before coins (docs/theory.md#conditions-of-one-run, 4).
    parts = {
        user: set_aside(
            {row: store.id(row) for row in store.rows(user)},
            attacker_fraction=split.attacker_fraction,
            evaluation_fraction=split.evaluation_fraction,
            seed=seed,
        )
        for user in (*users, *planted)
    }
    for user, documents in planted.items():
        # Cut before the coin falls, so that a canary user who is held out has the same number of documents.
        parts[user][Part.TRAIN] = _some(store, parts[user][Part.TRAIN], documents, seed)
    return dict(parts)


def _some(store: Corpus, rows: tuple[int, ...], most: int | None, seed: int) -> tuple[int, ...]:
    """At most ``most`` of the rows, chosen by their record ids."""
    row_of = {store.id(row): row for row in rows}
    return tuple(sorted(row_of[id_] for id_ in keyed_order(seed_key(seed), "canary documents", list(row_of))[:most]))
