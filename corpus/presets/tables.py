"""Datasets published as tables: Reddit comments, CC News, ArXiv abstracts, BookSum.

The steps and thresholds are from Kandpal et al. (2024), Appendix D.1. For BookSum, they are from Chua et al. (2024),
section 3.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.arguments import number_in
from heldin.corpus.presets.published import PresetTokens, Published, table_files
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import Columns, batched
from heldin.words.rows import RowFault
from heldin.words.statement import Statement

REDDIT = Published(
    "Reddit comments of pushshift (RC_2015-09.zst and the like, JSON lines or Parquet)",
    ("author", "body", "created_utc", "id"),
)
CC_NEWS = Published("cc_news of the Hugging Face hub (Parquet or JSON lines)", ("domain", "text", "date"))
ARXIV = Published(
    "arXiv metadata (arxiv-metadata-oai-snapshot.json, or the hub's arxiv-abstracts-2021.jsonl.gz)",
    ("id", "submitter", "abstract"),
)
BOOKSUM = Published("BookSum's chapters (train.csv, dev.csv, test.csv of kmfoda/booksum)", ("bid", "summary_text"))

# Unix time; the ends are exclusive.
FIRST_SECOND = datetime(2015, 9, 1, tzinfo=UTC).timestamp()
LAST_SECOND = datetime(2016, 3, 1, tzinfo=UTC).timestamp()
SMALL_LAST_SECOND = datetime(2016, 1, 1, tzinfo=UTC).timestamp()
MAX_COMMENTS = 2000
MIN_TOKENS = 250
LAST_YEAR = 2021

Row = dict[str, Any]


def reddit(path: Path, tokens: PresetTokens, bad: BadRows, *, end: float = LAST_SECOND) -> Iterator[pa.RecordBatch]:
    """Yield long comments since September 2015 by authors who are not bots, moderators or prolific accounts.

    Memory grows with the number of authors.

    Args:
        path: a file or a folder of files.
        tokens: unit of the minimum length.
        bad: the rule for unusable rows, which also counts them.
        end: end of the period (exclusive), in Unix time, seconds.
    """
    # Two passes over the files: how prolific an author is counts comments of all lengths, and is known only at the end.
    # Bad rows are reported in the second pass.
    passing = BadRows(bad.rule)
    rows = (row for _, row in REDDIT.rows(path, passing) if isinstance(row, dict))
    # By all of an author's comments in the period: user-local, since no other author's count is looked at.
    comments = Counter(row["author"] for row in rows if is_person(row.get("author")) and _in_period(_second(row), end))

    def record(row: Row) -> Row | None:
        second = _second(row)
        if second is None:
            raise _Unusable(RowFault.NO_TIME(column="created_utc"))
        if not _in_period(second, end) or not is_person(row.get("author")) or comments[row["author"]] > MAX_COMMENTS:
            return None
        text = row.get("body")
        # Last, because tokenizing costs most. A body that is no text goes on, to be reported as a bad row.
        if isinstance(text, str) and len(tokens.split(text)) < MIN_TOKENS:
            return None
        when = datetime.fromtimestamp(second, UTC).isoformat()
        return {"user": row["author"], "text": text, "id": row.get("id"), "date": when}

    return _batches(REDDIT, path, bad, record, Columns(id="id", date="date"))


def cc_news(path: Path, _tokens: PresetTokens, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """Yield articles, with the web domain as the user.

    Duplicates are kept (the paper removes them in one experiment only).
    """
    return _batches(
        CC_NEWS,
        path,
        bad,
        lambda row: {"user": row.get("domain"), "text": row.get("text"), "date": row.get("date")},
        Columns(date="date"),
    )


def arxiv(path: Path, _tokens: PresetTokens, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """Yield abstracts through 2021, with the submitter as the user. Papers without a submitter are left out."""

    def record(row: Row) -> Row | None:
        if (year := arxiv_year(str(row.get("id")))) is None:
            raise _Unusable(RowFault.NO_ARXIV_ID(column="id"))
        if not row.get("submitter") or year > LAST_YEAR:
            return None
        return {"user": row["submitter"], "text": row.get("abstract"), "id": row["id"]}

    return _batches(ARXIV, path, bad, record, Columns(id="id"))


def booksum(path: Path, _tokens: PresetTokens, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """Yield human-written summaries, with the summarised book as the user."""
    return _batches(
        BOOKSUM, path, bad, lambda row: {"user": row.get("bid"), "text": row.get("summary_text")}, Columns()
    )


def is_person(author: object) -> bool:
    """Return whether an author is a person: no "bot" or "mod" in the name (any case), and no deleted account."""
    if not isinstance(author, str) or author in ("", "[deleted]"):
        return False
    return "bot" not in author.lower() and "mod" not in author.lower()


def arxiv_year(identifier: str) -> int | None:
    """Return the year of an arXiv id such as 1501.00001 or hep-th/9901001; None if it is not an arXiv id."""
    # Old ids have the archive before a slash; both forms go on with year and month, two digits each.
    digits = identifier.rpartition("/")[2][:4]
    if not (len(digits) == 4 and digits.isascii() and digits.isdigit()):
        return None
    # arXiv began in 1991, so that two digits tell the century until 2090.
    return (1900 if digits >= "9100" else 2000) + int(digits[:2])


class _Unusable(Exception):
    """A row that cannot be used, with its fault."""

    def __init__(self, fault: Statement) -> None:
        super().__init__(fault)
        self.fault = fault


def _second(row: Row) -> float | None:
    try:
        return number_in(str(row["created_utc"]))  # some months of the archive hold strings
    except (KeyError, TypeError, ValueError):
        return None


def _in_period(second: float | None, end: float) -> bool:
    return second is not None and FIRST_SECOND <= second < end


def _batches(
    published: Published, path: Path, bad: BadRows, record: Callable[[Row], Row | None], columns: Columns
) -> Iterator[pa.RecordBatch]:
    """Yield records of every file. ``record`` returns None to leave a row out, and raises for a bad row."""

    def kept(file: Path) -> Iterator[tuple[int, Any]]:
        for number, row in published.rows(file, bad):
            try:
                made = record(row) if isinstance(row, dict) else row
            except _Unusable as error:
                bad.report(f"{file.name} row {number}", error.fault)
                continue
            # A JSON null is not a row that was left out: it is passed on, to be reported as a bad row.
            if made is not None or row is None:
                yield number, made

    # File by file, so that a bad row is named with its file and its place there.
    for file in table_files(path):
        yield from batched(kept(file), file.name, "row", columns, bad)
