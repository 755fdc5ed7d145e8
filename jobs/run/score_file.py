"""scores.parquet: every text's statistics by user. Owner-only: it has user names, but no membership."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.attacks.table import Dial, TextStatistic
from heldin.base.files import whole_file


def write_scores(statistics: Sequence[TextStatistic], path: Path, *, of: str) -> None:
    """Write every text's statistics; ``of`` is a hash of the models and texts they belong to."""
    columns = {
        "user": [s.user for s in statistics],
        "text": [s.text for s in statistics],
        "attack": [s.attack for s in statistics],
        "statistic": [s.value for s in statistics],
        # Typed: without a changed dial the column is all None, of which pyarrow would make a column of type null.
        "dial": pa.array([s.dial.name if s.dial else None for s in statistics], pa.string()),
        "setting": pa.array([s.dial.setting if s.dial else None for s in statistics], pa.string()),
    }
    with whole_file(path, private=True) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata({"of": of}), temporary)


def read_scores(path: Path, *, of: str) -> list[TextStatistic] | None:
    """What ``write_scores`` wrote; None if there is nothing, or scores of other models or texts."""
    if not path.is_file():
        return None
    try:
        kept = pq.read_table(path)
    # To a run a damaged file is as good as none: scores are made again, from the cache at little cost.
    except pa.ArrowException:
        return None
    # No error here: a run scores again, and ``heldin verify`` says so itself.
    if (kept.schema.metadata or {}).get(b"of") != of.encode():
        return None
    table = kept.to_pydict()
    rows = zip(table["user"], table["text"], table["attack"], table["statistic"], strict=True)
    if "dial" not in table:
        return [_older(*row) for row in rows]
    dials = zip(table["dial"], table["setting"], strict=True)
    return [
        TextStatistic(*row, None if dial is None else Dial(dial, setting))
        for row, (dial, setting) in zip(rows, dials, strict=True)
    ]


def _older(user: str, text: int, attack: str, value: float) -> TextStatistic:
    """A row of a file from before dials had their own columns: "likelihood-ratio [reference: other]"."""
    name, bracket, rest = attack.partition(" [")
    dial, _, setting = rest.removesuffix("]").partition(": ")
    return TextStatistic(user, text, name, value, Dial(dial, setting) if bracket else None)
