"""How well a source finds what gold columns annotate: recall and precision."""

from dataclasses import dataclass

import duckdb

from heldin.corpus.entities.mentions import Mentions
from heldin.corpus.entities.spans import CATEGORIES


@dataclass(frozen=True)
class Agreement:
    """Found mentions against annotated ones.

    Attributes:
        category: of both, or "all".
        annotated: mentions in the gold columns.
        found: mentions that the source found.
        matched: found mentions with the start, end and category of an annotated one.
        covered: annotated mentions of which a found one, of any category, holds at least a character.
    """

    category: str
    annotated: int
    found: int
    matched: int
    covered: int

    @property
    def recall(self) -> float | None:
        """Share of annotated mentions that were matched; None if there are none."""
        return self.matched / self.annotated if self.annotated else None

    @property
    def precision(self) -> float | None:
        """Share of found mentions that were matched; None if there are none."""
        return self.matched / self.found if self.found else None


def agreement(mentions_found: Mentions, gold: Mentions) -> tuple[Agreement, ...]:
    """For all categories together, then for each that either has. Both tables are of one store."""
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
