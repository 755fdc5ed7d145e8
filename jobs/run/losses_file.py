"""losses.parquet: held-out users' losses on their test texts. Owner-only: it has user names."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.audit.utility import UserLoss
from heldin.base.errors import InputError
from heldin.base.files import whole_file

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
    with whole_file(path, private=True) as temporary:
        pq.write_table(pa.table(columns).replace_schema_metadata({"of": of}), temporary)


def losses_of(path: Path, *, of: str | None) -> dict[str, UserLoss] | None:
    """What ``write_losses`` wrote; None for no file, or one of other models or texts, whichever if ``of`` is None."""
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
        if of is not None and (table.schema.metadata or {}).get(b"of") != of.encode():
            return None
        return {row["user"]: UserLoss(**row) for row in table.to_pylist()}
    except (OSError, TypeError, pa.ArrowException):
        return None


def read_losses(out: Path) -> dict[str, UserLoss]:
    """The losses in a run's folder, for comparing runs. Raises InputError if there are none."""
    kept = losses_of(out / FILE, of=None)
    if kept is None:
        raise InputError(f"'{out / FILE}' is missing or damaged: run the command that made the folder again")
    return kept
