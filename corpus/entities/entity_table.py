"""What is named in a corpus as plain text for a terminal; no name is printed."""

from collections.abc import Sequence

from heldin.corpus.entities.agreement import Agreement
from heldin.corpus.entities.exposure import EntityStatistics

BAR = 40


def entity_table(stats: EntityStatistics, agreement: Sequence[Agreement] = ()) -> str:
    """Counts by category, records and authors per entity, the most exposed entities by rank, and recall if measured."""
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
