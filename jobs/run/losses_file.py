"""losses.parquet: held-out users' losses on their test texts. Owner-only: it has user names."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from heldin.audit.utility import UserLoss
from heldin.base.artefacts import read_table, write_table
from heldin.base.errors import InputError

FILE = "losses.parquet"


def write_losses(losses: dict[str, UserLoss], path: Path, *, of: str) -> None:
    """Write the losses; ``of`` is a hash of the models and texts they belong to."""
    its = list(losses.values())
    columns = {
        "user": pa.array([user.user for user in its], pa.string()),
        "texts": pa.array([user.texts for user in its], pa.int64()),
        "loss": pa.array([user.loss for user in its], pa.float64()),
        "base_loss": pa.array([user.base_loss for user in its], pa.float64()),
    }
    write_table(columns, path, made_from=of)


def losses_of(
    path: Path, *, of: str | None, say: Callable[[str], object] = lambda _: None
) -> dict[str, UserLoss] | None:
    """Read what ``write_losses`` wrote; None for no file, or one of other models or texts.

    Args:
        of: what it must belong to; None: whatever it does.
    """
    table = read_table(path, made_from=of, say=say)
    return None if table is None else {row["user"]: UserLoss(**row) for row in table.to_pylist()}


def read_losses(out: Path) -> dict[str, UserLoss]:
    """The losses in a run's folder, for comparing runs. Raises InputError if there are none."""
    kept = losses_of(out / FILE, of=None)
    if kept is None:
        raise InputError(f"'{out / FILE}' is missing or damaged: run the command that made the folder again")
    return kept
