"""The answer of ``heldin corpus entities``: the source of mentions, its mentions in a corpus, and its accuracy.

heldin measures recall and precision if the corpus is annotated (gold columns). It prints no name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from heldin.base.errors import InputError
from heldin.base.files import existing
from heldin.base.progress import Reporter
from heldin.corpus.entities.exposure import EntityStatistics, entity_statistics
from heldin.corpus.entities.gold import Gold
from heldin.corpus.entities.mentions import Mentions, find_mentions
from heldin.corpus.entities.recognisers import Patterns, SpacyPipeline, WordList
from heldin.corpus.entities.spans import CATEGORIES, PATTERNS, Category, EntitySource
from heldin.corpus.sources.iob import Iob
from heldin.corpus.sources.rows import Source
from heldin.corpus.store import CorpusStore


@dataclass(frozen=True)
class Agreement:
    """Found mentions compared with annotated mentions.

    Attributes:
        category: category of the compared mentions, or "all".
        annotated: number of mentions in the gold columns.
        found: number of mentions that the source found.
        matched: number of found mentions with the start, end and category of an annotated mention.
        covered: number of annotated mentions that overlap a found mention of any category.
    """

    category: str
    annotated: int
    found: int
    matched: int
    covered: int

    @property
    def recall(self) -> float | None:
        """Share of annotated mentions that were matched; None if there are no annotated mentions."""
        return self.matched / self.annotated if self.annotated else None

    @property
    def precision(self) -> float | None:
        """Share of found mentions that were matched; None if there are no found mentions."""
        return self.matched / self.found if self.found else None


def agreement(mentions_found: Mentions, gold: Mentions) -> tuple[Agreement, ...]:
    """Compare the mentions for all categories together, then for each category that either table has.

    Both tables must be of one store.
    """
    with duckdb.connect() as database:
        for name, mentions in (("found", mentions_found), ("gold", gold)):
            database.register(f"all_{name}", mentions.table())
            database.execute(f"CREATE VIEW {name} AS SELECT * FROM all_{name} WHERE longest")
        database.execute(
            'CREATE TABLE exact AS SELECT gold.category FROM gold JOIN found USING (row, start, "end", category)'
        )
        database.execute(
            "CREATE TABLE touched AS SELECT category FROM gold WHERE EXISTS (SELECT 1 FROM found WHERE found.row ="
            ' gold.row AND found.start < gold."end" AND gold.start < found."end")'
        )
        counts = [
            dict(database.execute(f"SELECT category, count(*) FROM {table} GROUP BY 1").fetchall())
            for table in ("gold", "found", "exact", "touched")
        ]
    rows = [Agreement("all", *(sum(count.values()) for count in counts))]
    for place, category in enumerate(CATEGORIES):
        if any(place in count for count in counts):
            rows.append(Agreement(category, *(count.get(place, 0) for count in counts)))
    return tuple(rows)


@dataclass(frozen=True)
class EntityStudy:
    """The answer of ``heldin corpus entities``.

    Attributes:
        mentions: the mentions that were found.
        statistics: counts of the mentions.
        agreement: comparison with gold columns, for all categories together first; empty without gold columns.
    """

    mentions: Mentions
    statistics: EntityStatistics
    agreement: tuple[Agreement, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all counts as a dict, without the mentions."""
        rates = [{**asdict(row), "recall": row.recall, "precision": row.precision} for row in self.agreement]
        return {**asdict(self.statistics), "agreement": rates}


def study_entities(
    store: CorpusStore,
    source: EntitySource,
    corpus: Source,
    *,
    categories: Sequence[Category] = CATEGORIES,
    aliases: Mapping[str, str] | None = None,
    reporter: Reporter,
) -> EntityStudy:
    """Search a corpus for mentions, count them, and compare them with the annotation of the corpus if there is one.

    Args:
        corpus: source from which the store was built. For a comparison, its sentences must be the store's records.
        aliases: map from alias to person.

    Raises:
        InputError: the source cannot be used.
    """
    mentions = find_mentions(store, source, reporter)
    statistics = entity_statistics(mentions, categories=categories, aliases=aliases)
    gold = gold_of(corpus)
    if gold is None or isinstance(source, Gold):
        return EntityStudy(mentions, statistics, ())
    return EntityStudy(mentions, statistics, agreement(mentions, find_mentions(store, gold, reporter)))


BAR = 40


def entity_table(stats: EntityStatistics, agreement: Sequence[Agreement] = ()) -> str:
    """Return text: counts by category, records and authors per entity, the most exposed entities, and any recall."""
    share = stats.records_with_any / stats.records if stats.records else 0.0
    lines = [
        f"records                      {stats.records:,}",
        f"  that name any entity       {stats.records_with_any:,} ({share:.1%})",
        f"entities                     {stats.entities:,}",
        "records per entity           P0 {} | P25 {} | P50 {} | P75 {} | P100 {}".format(*stats.records_per_entity),
        "authors per entity           P0 {} | P25 {} | P50 {} | P75 {} | P100 {}".format(*stats.authors_per_entity),
        f"users named by other users   {stats.users_named:,} of {stats.users:,}",
        "records of or about a user   P0 {} | P25 {} | P50 {} | P75 {} | P100 {}".format(*stats.records_per_user),
        "",
        f"{'category':<14}{'mentions':>12}{'entities':>12}{'records':>12}",
    ]
    for count in stats.categories:
        lines.append(f"{count.category:<14}{count.mentions:>12,}{count.entities:>12,}{count.records:>12,}")
    if stats.histogram:
        lines += ["", "entities by number of records"]
        most = max(entities for _, _, entities in stats.histogram)
        for low, high, entities in stats.histogram:
            lines.append(f"  {low:>7,} to {high:>7,}  {entities:>7,}  {'#' * round(BAR * entities / most)}")
        lines += ["", f"{'most exposed':<14}{'category':<12}{'records':>10}{'authors':>10}"]
        for entity in stats.most_exposed:
            lines.append(f"{entity.pseudonym:<14}{entity.category:<12}{entity.records:>10,}{entity.authors:>10,}")
    if agreement:
        lines += ["", f"{'against gold':<14}{'annotated':>10}{'found':>10}{'recall':>9}{'precision':>11}{'touched':>9}"]
        for row in agreement:
            touched = row.covered / row.annotated if row.annotated else None
            lines.append(
                f"{row.category:<14}{row.annotated:>10,}{row.found:>10,}{_share(row.recall):>9}{_share(row.precision):>11}"
                f"{_share(touched):>9}"
            )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def chosen_source(
    corpus: Source,
    *,
    gold: bool = False,
    words: Path | None = None,
    patterns: Sequence[str] = (),
    pipeline: str | None = None,
) -> EntitySource:
    """Return the one source of mentions that the options name.

    Args:
        corpus: source of the records.
        gold: whether to use the annotation of the corpus itself, a CoNLL file.
        words: file with names.
        patterns: names of presidio's recognisers.
        pipeline: spaCy pipeline, by name or folder.

    Raises:
        InputError: none or several of the options name a source, or the source does not exist.
    """
    asked = [gold, words is not None, bool(patterns), pipeline is not None]
    if sum(asked) != 1:
        raise InputError("give one source of entities: --gold, --words FILE, --pattern NAME or --pipeline NAME")
    if words is not None:
        return WordList(existing(words))
    if pipeline is not None:
        return SpacyPipeline(pipeline)
    if gold:
        annotated = gold_of(corpus)
        if annotated is None:
            raise InputError("--gold reads the last column of a CoNLL file: give one CoNLL file as the corpus")
        return annotated
    unknown = [name for name in patterns if name not in PATTERNS]
    if unknown:
        raise InputError(f"--pattern {unknown[0]} is unknown: use {', '.join(PATTERNS)}")
    return Patterns(tuple(name for name in PATTERNS if name in patterns))


def gold_of(corpus: Source) -> Gold | None:
    """Return the annotation of a corpus that is one CoNLL file; None for any other corpus."""
    return Gold(corpus.path) if isinstance(corpus, Iob) else None


def known_categories(names: Sequence[str]) -> tuple[Category, ...]:
    """Return the named categories, or all categories if no category is named. Raises InputError for an unknown name."""
    unknown = [name for name in names if name not in CATEGORIES]
    if unknown:
        raise InputError(f"category '{unknown[0]}' is unknown: use one of {', '.join(CATEGORIES)}")
    return tuple(category for category in CATEGORIES if not names or category in names)
