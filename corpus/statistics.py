"""The content of a corpus: users, records, sizes, repeated texts (Kandpal et al. 2024, Table 1 and Appendix D.5)."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from heldin.base.files import cache_directory
from heldin.base.progress import Advance, LineReporter, Reporter
from heldin.corpus.sorting import sorting_database
from heldin.corpus.store import CorpusStore

_TEXTS = pa.schema({"text": pa.large_string(), "owner": pa.int64(), "place": pa.int64()})


@dataclass(frozen=True)
class RepeatedText:
    """A text that occurs in several records.

    Attributes:
        copies: number of records with this text.
        users: number of users with such a record.
    """

    text: str
    copies: int
    users: int


@dataclass(frozen=True)
class CorpusStatistics:
    """Counts of a corpus.

    Attributes:
        percentiles: P0, P25, P50, P75 and P100 of records per user.
        tokens: number of tokens or words.
        token_unit: unit of ``tokens``.
        duplicates_within_users: number of records that repeat the text of an earlier record of the user.
        duplicates_across_users: number of records whose text another user has too.
        most_repeated: texts with the most copies, the most copied text first.
        histogram: (lowest, highest, users) for each bin of records per user.
        copies: (fewest, most, texts) for each bin of records of one user with the same text (Kandpal et al., Figure 8).
    """

    users: int
    records: int
    percentiles: tuple[int, int, int, int, int]
    tokens: int
    token_unit: str
    duplicates_within_users: int
    duplicates_across_users: int
    most_repeated: tuple[RepeatedText, ...]
    histogram: tuple[tuple[int, int, int], ...]
    copies: tuple[tuple[int, int, int], ...]


def corpus_statistics(
    store: CorpusStore,
    *,
    count_tokens: Callable[[str], int] | None = None,
    token_unit: str = "words",
    most_repeated: int = 10,
    reporter: Reporter | None = None,
) -> CorpusStatistics:
    """Return statistics of a store, from one pass over the counted parts of its texts, in bounded memory.

    Args:
        count_tokens: returns the number of tokens of a text; None counts whitespace-separated words.
        token_unit: name of the unit of ``count_tokens``.
        most_repeated: number of most repeated texts to return.
        reporter: receives the progress; None: no progress is reported.
    """
    counted = _Counted(count_tokens or (lambda text: len(text.split())))
    with (
        tempfile.TemporaryDirectory(dir=cache_directory(), prefix="statistics-") as folder,
        sorting_database(Path(folder) / "scratch") as database,
    ):
        with (reporter or LineReporter(lambda line: None)).track("statistics", len(store), "records") as advance:
            batches = counted.batches(store, advance)
            database.register("incoming", pa.RecordBatchReader.from_batches(_TEXTS, batches))
            # MD5 of 128 bits: texts that meet by chance are out of reach.
            database.execute(
                "CREATE TABLE of_users AS SELECT md5_number(text) AS hash, owner, count(*) AS copies,"
                " min(place) AS place FROM incoming GROUP BY hash, owner"
            )
        database.execute(
            "CREATE TABLE texts AS SELECT sum(copies)::BIGINT AS copies, count(*) AS users, min(place) AS place"
            " FROM of_users GROUP BY hash"
        )
        within = _number(database, "SELECT sum(copies - 1) FROM of_users")
        across = _number(database, "SELECT sum(copies) FROM texts WHERE users > 1")
        copies = database.execute("SELECT copies, count(*) FROM of_users GROUP BY copies").fetchall()
        repeated = database.execute(
            "SELECT place, copies, users FROM texts WHERE copies > 1 ORDER BY copies DESC, place LIMIT ?",
            [most_repeated],
        ).fetchall()
    return CorpusStatistics(
        users=len(store.users),
        records=len(store),
        percentiles=records_percentiles([int(n) for n in store.counts]),
        tokens=counted.tokens,
        token_unit=token_unit,
        duplicates_within_users=within,
        duplicates_across_users=across,
        most_repeated=tuple(
            RepeatedText(store.document(place).counted, copies, users) for place, copies, users in repeated
        ),
        histogram=doubling_histogram(store.counts),
        copies=doubling_histogram(*np.array(copies, dtype=np.int64).reshape(-1, 2).T),
    )


class _Counted:
    """Reads texts with owner and place in batches, and counts their tokens."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self.tokens = 0

    def batches(self, store: CorpusStore, advance: Advance) -> Iterator[pa.RecordBatch]:
        ends = np.cumsum(store.counts)
        for first, texts in store.counted_chunks():
            self.tokens += sum(map(self._count, texts.to_pylist()))
            places = np.arange(first, first + len(texts), dtype=np.int64)
            # A user's rows are adjacent: the user of a row is the first whose rows end behind it.
            owners = np.searchsorted(ends, places, side="right")
            columns = [texts.cast(pa.large_string()), pa.array(owners), pa.array(places)]
            # Documents of which nothing counts are no copies of each other.
            yield pa.RecordBatch.from_arrays(columns, schema=_TEXTS).filter(pc.greater(pc.binary_length(texts), 0))
            advance(len(texts))


def _number(database: duckdb.DuckDBPyConnection, query: str) -> int:
    row = database.execute(query).fetchone()
    assert row is not None
    return int(row[0] or 0)


def records_percentiles(counts: Sequence[int]) -> tuple[int, int, int, int, int]:
    """Return P0, P25, P50, P75 and P100 of records per user. Each is the number of some user."""
    # "nearest": an interpolated value would be a number of records that no user has.
    p = np.percentile(counts, [0, 25, 50, 75, 100], method="nearest")
    return int(p[0]), int(p[1]), int(p[2]), int(p[3]), int(p[4])


def doubling_histogram(numbers: npt.ArrayLike, times: npt.ArrayLike = 1) -> tuple[tuple[int, int, int], ...]:
    """Return (lowest, highest, count) for bins of numbers. Widths double, and empty bins at the ends are left out.

    Args:
        numbers: numbers from 1 on, shape (n,).
        times: how often each number occurs, shape (n,).
    """
    bins = np.floor(np.log2(numbers)).astype(int)
    weights = np.broadcast_to(times, bins.shape)
    return tuple((2**b, 2 ** (b + 1) - 1, int(weights[bins == b].sum())) for b in range(bins.min(), bins.max() + 1))


BAR = 40
EXCERPT = 100


def statistics_table(stats: CorpusStatistics) -> str:
    """Return counts, percentiles, a histogram with bars, and the most repeated texts (excerpts of people's text)."""
    lines = [
        f"users                        {stats.users:,}",
        f"records                      {stats.records:,}",
        f"{stats.token_unit:<29}{stats.tokens:,}",
        "records per user             P0 {} | P25 {} | P50 {} | P75 {} | P100 {}".format(*stats.percentiles),
        f"duplicates within users      {stats.duplicates_within_users:,}",
        f"duplicates across users      {stats.duplicates_across_users:,}",
        "",
        "users by number of records",
        *_bars(stats.histogram),
    ]
    if stats.duplicates_within_users:
        lines += ["", "texts by their number of copies within one user", *_bars(stats.copies)]
    if stats.most_repeated:
        lines += ["", "most repeated texts (copies, users, excerpt)"]
    for repeated in stats.most_repeated:
        excerpt = " ".join(repeated.text.split())[:EXCERPT]
        lines.append(f"  {repeated.copies:>7,} {repeated.users:>6,}  {excerpt}")
    return "\n".join(lines)


def _bars(bins: Sequence[tuple[int, int, int]]) -> list[str]:
    scale = BAR / max(number for _, _, number in bins)
    return [f"  {low:>7,} to {high:>7,}  {number:>7,}  {'#' * round(scale * number)}" for low, high, number in bins]
