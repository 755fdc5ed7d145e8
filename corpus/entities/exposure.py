"""The number of records that name each person or thing. Queries count the mentions without loading all of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from heldin.corpus.entities.mentions import Mentions
from heldin.corpus.entities.spans import CATEGORIES, Category, canonical
from heldin.corpus.statistics import doubling_histogram, records_percentiles

MOST_EXPOSED = 10


@dataclass(frozen=True)
class CategoryCount:
    """The mentions of one category.

    Attributes:
        category: a category of Table I of Lai et al. (2021).
        mentions: number of mentions.
        entities: number of distinct canonical names.
        records: number of records with at least one mention.
    """

    category: Category
    mentions: int
    entities: int
    records: int


@dataclass(frozen=True)
class ExposedEntity:
    """One of the entities in the most records, without its name.

    Attributes:
        pseudonym: a name made from the rank, in place of the entity's name.
        category: category of most of its mentions.
        records: number of records that name the entity.
        authors: number of users who wrote these records.
    """

    pseudonym: str
    category: Category
    records: int
    authors: int


@dataclass(frozen=True)
class EntityStatistics:
    """The people and things that a corpus names.

    Attributes:
        records_with_any: number of records that name any entity of the requested categories.
        categories: counts for each category that occurs.
        entities: number of distinct names, after aliases are joined.
        records_per_entity: P0, P25, P50, P75 and P100 of the number of records that name each entity.
        authors_per_entity: P0, P25, P50, P75 and P100 of the number of authors of records that name each entity.
        histogram: (lowest, highest, entities) for bins of records per entity; each bin is twice as wide as the previous
            bin.
        users_named: number of users whom another user's record names, by their own name or by an alias.
        records_per_user: P0, P25, P50, P75 and P100 of the number of records that each user wrote or is named in. Text
            sampling's epsilon for a person depends on this number (docs/theory.md#text-sampling).
        most_exposed: the entities in the most records.
    """

    records: int
    users: int
    records_with_any: int
    categories: tuple[CategoryCount, ...]
    entities: int
    records_per_entity: tuple[int, int, int, int, int]
    authors_per_entity: tuple[int, int, int, int, int]
    histogram: tuple[tuple[int, int, int], ...]
    users_named: int
    records_per_user: tuple[int, int, int, int, int]
    most_exposed: tuple[ExposedEntity, ...]


def entity_statistics(
    mentions: Mentions, *, categories: Sequence[Category] = CATEGORIES, aliases: Mapping[str, str] | None = None
) -> EntityStatistics:
    """Return statistics of the mentions.

    Args:
        aliases: map from alias to person. All names of a person, including the user name, are one entity.
    """
    store = mentions.store
    with people_of(mentions, categories, aliases or {}) as database:
        by_category = database.execute(
            "SELECT category, count(*), count(DISTINCT entity), count(DISTINCT row) FROM found GROUP BY 1 ORDER BY 1"
        ).fetchall()
        (with_any,) = database.execute("SELECT count(DISTINCT row) FROM named").fetchall()[0]
        per_entity = database.execute(
            "SELECT count(DISTINCT row) AS records, count(DISTINCT author) AS authors, mode(category) AS category"
            " FROM named GROUP BY person ORDER BY records DESC, authors DESC, category, min(row)"
        ).fetchnumpy()
        named = database.execute(
            "SELECT number, count(DISTINCT row) AS records FROM named JOIN users ON person = users.name"
            " WHERE author <> number GROUP BY number"
        ).fetchnumpy()
    records, authors, kinds = (per_entity[name].tolist() for name in ("records", "authors", "category"))
    top = zip(records[:MOST_EXPOSED], authors, kinds, strict=False)
    nothing = (0, 0, 0, 0, 0)
    occurs = store.counts.astype(np.int64)
    occurs[named["number"]] += named["records"]
    return EntityStatistics(
        records=len(store),
        users=len(store.users),
        records_with_any=with_any,
        categories=tuple(CategoryCount(CATEGORIES[place], *counts) for place, *counts in by_category),
        entities=len(records),
        records_per_entity=records_percentiles(records) if len(records) else nothing,
        authors_per_entity=records_percentiles(authors) if len(records) else nothing,
        histogram=doubling_histogram(records) if len(records) else (),
        users_named=len(named["number"]),
        records_per_user=records_percentiles(occurs.tolist()),
        most_exposed=tuple(
            ExposedEntity(f"entity {rank}", CATEGORIES[place], count, writers)
            for rank, (count, writers, place) in enumerate(top, start=1)
        ),
    )


@contextmanager
def people_of(
    mentions: Mentions, categories: Sequence[Category], aliases: Mapping[str, str]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database of mentions and users.

    The view ``named`` has all mentions, with ``person``. The view ``found`` has the longest mentions. The table
    ``users`` has the users of the store.

    A part of a longer mention may name a person. Such a part counts under any category of the longer mention.
    """
    store = mentions.store
    # A user is named by the own name and by every alias; an alias that belongs to nobody who writes joins names alone.
    person_of = {canonical(user): user for user in store.users}
    person_of |= {canonical(person): person for person in aliases.values()}
    person_of |= {canonical(alias): person for alias, person in aliases.items()}
    with duckdb.connect() as database:
        wanted = [CATEGORIES.index(category) for category in categories]
        database.register("mentions", mentions.table())
        database.register("names", pa.table({"name": list(person_of), "person": list(person_of.values())}))
        database.register("users", pa.table({"name": store.users, "number": range(len(store.users))}))
        database.execute(
            "CREATE VIEW named AS SELECT mentions.*, coalesce(names.person, mentions.entity) AS person FROM mentions"
            f" LEFT JOIN names ON mentions.entity = names.name WHERE category IN ({', '.join(map(str, wanted)) or -1})"
        )
        database.execute("CREATE VIEW found AS SELECT * FROM named WHERE longest")
        yield database
