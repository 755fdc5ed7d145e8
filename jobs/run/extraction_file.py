"""extraction.parquet: the probability that each text is emitted. Owner-only: it has user names, but no membership."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from heldin.attacks.extraction import TextProbabilities
from heldin.base.artefacts import read_table, write_table
from heldin.base.errors import InputError

FILE = "extraction.parquet"
MARKS = "marks.parquet"  # of the marks of canary users
_MARKS = ("in_others", "in_public")


def write_probabilities(found: TextProbabilities, path: Path, *, of: str) -> None:
    """Write the probabilities; ``of`` is a hash of the models and texts they belong to."""
    columns = {"user": pa.array(list(found.users), pa.string()), "target": pa.array(found.target, pa.float64())}
    if found.reference is not None:
        columns["reference"] = pa.array(found.reference, pa.float64())
    for name in _MARKS:
        if (marks := getattr(found, name)) is not None:
            columns[name] = pa.array(marks, pa.bool_())
    write_table(columns, path, made_from=of)


def read_probabilities(
    path: Path, *, of: str, say: Callable[[str], object] = lambda _: None
) -> TextProbabilities | None:
    """Read what ``write_probabilities`` wrote; None if there is nothing, or probabilities of other models or texts.

    Args:
        of: what it must belong to.
    """
    kept = read_table(path, made_from=of, say=say)
    if kept is None:
        return None
    columns = {name: np.asarray(kept[name]) for name in kept.column_names if name != "user"}
    return TextProbabilities(
        kept["user"].to_pylist(), columns["target"], *(columns.get(name) for name in ("reference", *_MARKS))
    )


def kept_probabilities(folder: Path, *, of: str) -> TextProbabilities:
    """The probabilities that a record rests on. Raises InputError where they are gone, damaged or of something else."""
    kept = read_probabilities(folder / FILE, of=of)
    if kept is None:
        raise InputError(f"'{folder / FILE}' is missing, damaged, or of other models or texts than the record names")
    return kept
