"""The layout of a run before any coin: the users, what is set aside, what caps keep, and who is audited."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heldin.base.coins import keyed_order, seed_key
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.kinds import Canary
from heldin.corpus.row_parts import RowParts
from heldin.corpus.set_asides import set_asides
from heldin.corpus.split import Audited, Part
from heldin.corpus.store import Corpus
from heldin.defenses.config import EntityDefense
from heldin.stages.run_config import RunConfig, SplitConfig
from heldin.stages.sides.audit_pool import AuditPool, pool_of_entities, pool_of_users
from heldin.stages.sides.corpus import CorpusData

if TYPE_CHECKING:
    from heldin.stages.sides.slots import Slots


@dataclass(frozen=True)
class Layout:
    """The public layout that is fixed before any coin.

    Attributes:
        corpus: fingerprint of the corpus.
        users: the real users.
        planted: by canary user, the number of its records for training (None: all that are not set aside).
        parts: rows of each user and canary user, by what they are used for.
        pool: the real users and entities whose membership chance decides; canary users have coins besides.
        drawn_from: hash of what the parts follow from.
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
    """Return the layout of a run, and the slots of one that protects users and entities.

    Args:
        corpus: the corpus before anything was planted.
        store: the corpus with canary users in it, if there are any.
        reporter: where the progress of set-asides and of searching texts for entities is shown.
        earlier: what an earlier call's parts followed from, and these parts, which are then not drawn again.

    Raises:
        InputError: see ``find_slots``, ``pool_of_users`` and ``pool_of_entities``.
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
    if isinstance(config.defense, EntityDefense):
        # Entities are no part of a plain run.
        from heldin.stages.sides.slots import find_slots

        slots = find_slots(config, corpus.store, store, parts, reporter)
    if split.audited is Audited.USERS:
        # Canary users alone are audited where nobody else is left to be (jobs.planted.data).
        pool = pool_of_users(users, split, seed=seed) if users or not planted else AuditPool((), {})
    else:
        named = slots.named if slots else None
        if named is None:
            from heldin.stages.sides.slots import whom_records_name

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
    """Return the rows of every user and canary user by what they are used for; no coin is drawn.

    Args:
        planted: see ``Layout``.
        split: what is set aside of every user.
        seed: public seed of the set-asides.
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
    """Return at most ``most`` of the rows, chosen by their record ids."""
    row_of = {store.id(row): row for row in rows}
    return tuple(sorted(row_of[id_] for id_ in keyed_order(seed_key(seed), "canary documents", list(row_of))[:most]))
