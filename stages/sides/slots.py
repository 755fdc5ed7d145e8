"""The corpus as text sampling reads it: authors and names of training records, records that caps keep, exposed users.

heldin applies caps to the training records of all users before it draws any coin. The slot of a non-member's record
stays empty, and nobody else gets the slot (docs/theory.md#caps-and-fixed-incidence).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heldin.base.coins import seed_key
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.entities.incidence import Incidence, incidence
from heldin.corpus.entities.mentions import find_mentions, with_rows_beyond
from heldin.corpus.entities.spans import Text
from heldin.corpus.names import load_aliases
from heldin.corpus.row_parts import RowParts
from heldin.corpus.split import Part
from heldin.corpus.store import Corpus, CorpusStore
from heldin.defenses.data_side.contract import Removal
from heldin.defenses.texts.caps import kept_under_caps, slot_order
from heldin.stages.run_config import RunConfig
from heldin.words.statement import Statement

_NOBODY = -1


@dataclass(frozen=True, eq=False)
class Slots:
    """The authors of a run's training records and the people named in them. Row numbers are those in the corpus.

    Attributes:
        users: all users with training records, members or not.
        authors: for each training record, its author's number in ``users``, shape (rows,); -1 for other rows.
        named: entities that each row names; None without a source of entities.
        kept: mask of the training records that caps keep, shape (rows,); without caps, all training records.
        caps: sentence about the caps; None without caps.
    """

    users: tuple[str, ...]
    authors: npt.NDArray[np.int32]
    named: Incidence | None
    kept: npt.NDArray[np.bool_]
    caps: Statement | None

    def removal(self, rows: npt.NDArray[np.integer]) -> Removal | None:
        """Return the records that the caps remove from these rows; None without caps."""
        if self.caps is None:
            return None
        out = rows[~self.kept[rows]]
        return Removal(self.caps, rows.size, out.size, np.unique(self.authors[out]).size)

    def exposed(self, rows: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        """Count how many of these rows each user wrote or is named in, and how many name each entity.

        Returns:
            Counts of the users and counts of the entities with at least one row. The counts of entities are None
            without a source of entities.
        """
        of_users = np.bincount(self.authors[rows], minlength=len(self.users))
        if self.named is None:
            return of_users[of_users > 0], None
        sizes = np.diff(self.named.starts)
        author = np.repeat(self.authors, sizes[: self.authors.size])
        chosen = np.zeros(self.authors.size, dtype=np.bool_)
        chosen[rows] = True
        among = np.repeat(chosen, sizes[: self.authors.size])
        entity = self.named.entities[: among.size]
        # An entity that is a user's name: that user's own records were counted above.
        number = {user: i for i, user in enumerate(self.users)}
        user_of = np.full(self.named.count, _NOBODY, dtype=np.int32)
        for user, entities in self.named.users.items():
            user_of[entities] = number.get(user, _NOBODY)
        others = among & (user_of[entity] != _NOBODY) & (user_of[entity] != author)
        of_users = of_users + np.bincount(user_of[entity[others]], minlength=len(self.users))
        of_entities = np.bincount(entity[among], minlength=self.named.count)
        return of_users[of_users > 0], of_entities[of_entities > 0]


def find_slots(
    config: RunConfig, base: CorpusStore, store: Corpus, parts: RowParts, reporter: Reporter
) -> Slots | None:
    """Return the slots of a run that protects users and entities; None for all other runs.

    Args:
        base: the corpus before canary users were added; the entities are stored next to it.
        store: the corpus with canary users, if there are any.
        parts: rows of every user, member or not, by use.

    Raises:
        InputError: the source of entities cannot be used.
    """
    defense = config.defense
    if not defense.protects_named:
        return None
    users, unsorted = tuple(sorted(parts)), parts.rows_of(Part.TRAIN)
    rows = np.sort(unsorted)
    authors = np.full(max(len(base), int(rows.max(initial=-1)) + 1), _NOBODY, dtype=np.int32)
    number = {user: i for i, user in enumerate(users)}
    authors[unsorted] = np.repeat([number[user] for user in parts], parts.sizes(Part.TRAIN))
    named = whom_records_name(config, base, store, rows, reporter) if defense.searched_by else None
    kept = authors != _NOBODY
    if defense.caps and named is not None:
        group_size, entity_cap = defense.caps
        # A public seed: which records are kept is told to nobody, and needs no secret.
        order = rows[slot_order(seed_key(config.seed), (store.id(row) for row in rows.tolist()), rows.size)]
        kept = kept_under_caps(
            order, authors, named.starts, named.entities, group_size=group_size, entity_cap=entity_cap
        )
        _require_some(config, users, authors, kept, reporter)
    return Slots(users, authors, named, kept, defense.capped_as)


def _require_some(
    config: RunConfig,
    users: Sequence[str],
    authors: npt.NDArray[np.int32],
    kept: npt.NDArray[np.bool_],
    reporter: Reporter,
) -> None:
    """Report how many users lose all records to caps. Raises InputError if no record is left, or if the attack must
    score such users."""
    # Of everybody, so that nothing here depends on a coin.
    empty = len(users) - np.unique(authors[kept]).size
    remedy = "raise defense.group_size or defense.entity_cap, or choose fewer categories"
    if not kept.any():
        raise InputError(f"the caps leave {counted(len(users), 'user')} without any training record: {remedy}")
    if empty and "training" in config.attack.documents:
        raise InputError(
            f"attack.documents has 'training', but the caps leave {empty:,} of {counted(len(users), 'user')} without"
            f" a training record to score: {remedy}, or score fresh texts"
        )
    if empty:
        reporter.say(
            f"caps leave {empty:,} of {counted(len(users), 'user')} without a training record, so it does not"
            " matter whether these users are members"
        )


def whom_records_name(
    config: RunConfig, base: CorpusStore, store: Corpus, rows: npt.NDArray[np.integer], reporter: Reporter
) -> Incidence | None:
    """Return the entities that each row names, from the config's source of entities; None without a source.

    Args:
        base: see ``find_slots``.
        store: see ``find_slots``.
        rows: training rows of all users; the search includes rows after the last row of ``base``.

    Raises:
        InputError: the source cannot be used.
    """
    defense, split = config.defense, config.split
    searched = defense.searched_by or split.entities
    if searched is None:
        return None
    source = searched.source()
    mentions = find_mentions(base, source, reporter)
    planted = {row: Text(store.id(row), store.text(row)) for row in rows[rows >= len(base)].tolist()}
    if planted:
        mentions = with_rows_beyond(mentions, planted, source)
    aliases = load_aliases(config.corpus.aliases) if config.corpus.aliases else None
    return incidence(
        mentions, categories=defense.entity_categories if defense.searched_by else split.categories, aliases=aliases
    )
