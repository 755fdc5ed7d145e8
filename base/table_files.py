"""Tables that a command leaves for a later one: Parquet files, readable by their owner only, kept as artefacts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.artefacts import artefact_file, is_whole

TABLE = ".parquet"  # ending of every table's name


def write_table(columns: Mapping[str, Any], path: Path, *, made_from: str = "") -> None:
    """Write a table.

    Args:
        columns: arrays or lists by name.
        made_from: hash of what the values follow from, such as models and texts.
    """
    with artefact_file(path, made_from=made_from) as temporary:
        pq.write_table(pa.table(dict(columns)), temporary)


def read_table(
    path: Path, *, made_from: str | None = None, say: Callable[[str], object] = lambda _: None
) -> pa.Table | None:
    """Read what ``write_table`` wrote.

    Args:
        made_from: what it must have been made from; None: whatever it was.

    Returns:
        None if it is missing, was changed, or was made from something else.
    """
    return pq.read_table(path) if is_whole(path, made_from, say) else None
