"""The tables that measures write to a job's folder: their names, and functions that read them without a model.

heldin finds a package's tables without an import of the package's code.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.attacks.protocol import Dial, TextStatistic
from heldin.audit.utility import UserLoss
from heldin.base.artefacts import read_table
from heldin.base.errors import InputError
from heldin.stages.measures.asked import OF_MEASURE

SCORES, LOSSES, PRECISION = "scores.parquet", "losses.parquet", "precision.parquet"
SHADOW = "shadow"  # folder of the scores of shadow models


def tables_in(folder: Path) -> list[str]:
    """Return the names of all tables in a folder that a measure may have written."""
    asked = sorted(path.name for path in folder.glob(f"{OF_MEASURE}*.parquet"))
    return [*sorted((SCORES, LOSSES, PRECISION)), *asked]


def columns_of(statistics: Sequence[TextStatistic]) -> Mapping[str, Any]:
    """Return statistics as the columns of a table of scores."""
    return {
        "user": [s.user for s in statistics],
        "text": [s.text for s in statistics],
        "attack": [s.attack for s in statistics],
        "statistic": [s.value for s in statistics],
        # Typed: without a changed dial the column is all None, of which pyarrow would make a column of type null.
        "dial": pa.array([s.dial.name if s.dial else None for s in statistics], pa.string()),
        "setting": pa.array([s.dial.setting if s.dial else None for s in statistics], pa.string()),
    }


def statistics_of(table: pa.Table) -> list[TextStatistic]:
    """Return the statistics from a table of scores."""
    columns = table.to_pydict()
    rows = zip(columns["user"], columns["text"], columns["attack"], columns["statistic"], strict=True)
    dials = zip(columns["dial"], columns["setting"], strict=True)
    return [
        TextStatistic(*row, None if dial is None else Dial(dial, setting))
        for row, (dial, setting) in zip(rows, dials, strict=True)
    ]


def read_scores(folder: Path) -> list[TextStatistic]:
    """Return the scores in a job's folder without checking their inputs. Raises InputError if there are no scores."""
    path = folder / SCORES
    table = read_table(path)
    if table is None:
        raise InputError(f"'{path}' is missing or was changed: repeat the command that made the folder")
    return statistics_of(table)


def read_losses(folder: Path) -> dict[str, UserLoss]:
    """Return the losses in a run's folder, to compare runs. Raises InputError if there are no losses."""
    path = folder / LOSSES
    table = read_table(path)
    if table is None:
        raise InputError(f"'{path}' is missing or damaged: repeat the command that made the folder")
    return losses_of(table)


def losses_of(table: pa.Table) -> dict[str, UserLoss]:
    """Return the losses from a table."""
    return {row["user"]: UserLoss(**row) for row in table.to_pylist()}
