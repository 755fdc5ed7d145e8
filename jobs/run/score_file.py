"""scores.parquet: every text's statistics by user. Owner-only: it has user names, but no membership."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from heldin.attacks.protocol import Dial, TextStatistic
from heldin.base.artefacts import read_table, write_table

SCORES = "scores.parquet"
SHADOW = "shadow"  # folder of the scores of shadow models


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
    write_table(columns, path, made_from=of)


def read_scores(
    path: Path, *, of: str | None, say: Callable[[str], object] = lambda _: None
) -> list[TextStatistic] | None:
    """Read what ``write_scores`` wrote.

    Args:
        of: what it must belong to; None: whatever it does.

    Returns:
        None if there are none, or scores of other models or texts.
    """
    kept = read_table(path, made_from=of, say=say)
    if kept is None:
        return None
    table = kept.to_pydict()
    rows = zip(table["user"], table["text"], table["attack"], table["statistic"], strict=True)
    dials = zip(table["dial"], table["setting"], strict=True)
    return [
        TextStatistic(*row, None if dial is None else Dial(dial, setting))
        for row, (dial, setting) in zip(rows, dials, strict=True)
    ]
