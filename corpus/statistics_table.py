"""Corpus statistics as plain text for a terminal."""

from heldin.corpus.statistics import CorpusStatistics

BAR = 40
EXCERPT = 100


def statistics_table(stats: CorpusStatistics) -> str:
    """Counts, percentiles, a histogram with bars, and the most repeated texts (excerpts of people's text)."""
    lines = [
        f"users                        {stats.users:,}",
        f"records                      {stats.records:,}",
        f"{stats.token_unit:<29}{stats.tokens:,}",
        "records per user             P0 {} | P25 {} | P50 {} | P75 {} | P100 {}".format(*stats.percentiles),
        f"duplicates within users      {stats.duplicates_within_users:,}",
        f"duplicates across users      {stats.duplicates_across_users:,}",
        "",
        "users by number of records",
    ]
    most = max(users for _, _, users in stats.histogram)
    for low, high, users in stats.histogram:
        lines.append(f"  {low:>7,} to {high:>7,}  {users:>7,}  {'#' * round(BAR * users / most)}")
    if stats.most_repeated:
        lines += ["", "most repeated texts (copies, users, excerpt)"]
    for repeated in stats.most_repeated:
        excerpt = " ".join(repeated.text.split())[:EXCERPT]
        lines.append(f"  {repeated.copies:>7,} {repeated.users:>6,}  {excerpt}")
    return "\n".join(lines)
