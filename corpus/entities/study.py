"""What a source of mentions finds in a corpus: statistics, and recall where the corpus is annotated."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heldin.base.progress import Reporter
from heldin.corpus.entities.agreement import Agreement, agreement
from heldin.corpus.entities.exposure import EntityStatistics, entity_statistics
from heldin.corpus.entities.gold import Gold
from heldin.corpus.entities.mentions import Mentions, find_mentions
from heldin.corpus.entities.sources import gold_of
from heldin.corpus.entities.spans import CATEGORIES, Category, EntitySource
from heldin.corpus.sources.rows import Source
from heldin.corpus.store import CorpusStore


@dataclass(frozen=True)
class EntityStudy:
    """The answer of ``heldin corpus entities``.

    Attributes:
        mentions: what was found.
        statistics: counts of it.
        agreement: with gold columns, for all categories together first; empty without them.
    """

    mentions: Mentions
    statistics: EntityStatistics
    agreement: tuple[Agreement, ...]

    def as_dict(self) -> dict[str, Any]:
        """All counts by name; the mentions themselves stay where they are."""
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
    """Search a corpus, count, and compare with its annotation if it has one.

    Args:
        corpus: what the store was built of; its sentences must be the store's records for a comparison.
        aliases: alias to person.

    Raises:
        InputError: a source that cannot be used.
    """
    mentions = find_mentions(store, source, reporter)
    statistics = entity_statistics(mentions, categories=categories, aliases=aliases)
    gold = gold_of(corpus)
    if gold is None or isinstance(source, Gold):
        return EntityStudy(mentions, statistics, ())
    return EntityStudy(mentions, statistics, agreement(mentions, find_mentions(store, gold, reporter)))
