"""scores.parquet: every text's statistics by user. Owner-only: it has user names, but no membership."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.attacks.table import TextStatistic
from heldin.base.files import whole_file


def write_scores(statistics: Sequence[TextStatistic], path: Path, *, of: str) -> None:
    """Write every text's statistics; ``of`` names models and texts."""
    columns = {
        "user": [s.user for s in statistics],
        "text": [s.text for s in statistics],
        "attack": [s.attack for s in statistics],
        "statistic": [s.value for s in statistics],
    }
    with whole_file(path, private=True) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata({"of": of}), temporary)


def read_scores(path: Path, *, of: str) -> list[TextStatistic] | None:
    """What ``write_scores`` wrote, or None where there is nothing, or scores of other models or texts."""
    if not path.is_file():
        return None
    try:
        kept = pq.read_table(path)
    except pa.ArrowException:
        return None
    if (kept.schema.metadata or {}).get(b"of") != of.encode():
        return None
    table = kept.to_pydict()
    return [
        TextStatistic(*row)
        for row in zip(table["user"], table["text"], table["attack"], table["statistic"], strict=True)
    ]
