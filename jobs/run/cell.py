"""A run's place in a sweep: which block's coins it has, and which plan fixed it before they were drawn. Owner-only."""

import json
from dataclasses import dataclass
from pathlib import Path

from heldin.base.coins import KEY_BYTES
from heldin.base.errors import InputError
from heldin.base.files import private_directory, write_text
from heldin.record.facts import CellFacts

FILE = "cell.json"


@dataclass(frozen=True)
class Cell:
    """A cell of a sweep.

    Attributes:
        facts: its place, for the record.
        coins_key: secret key of its block's coins.
    """

    facts: CellFacts
    coins_key: bytes


def write_cell(cell: Cell, folder: Path) -> None:
    """Write the cell to ``folder``, a run's folder of secrets (owner-only)."""
    content = {"facts": cell.facts.model_dump(), "coins_key": cell.coins_key.hex()}
    write_text(private_directory(folder) / FILE, json.dumps(content, indent=1) + "\n", private=True)


def read_cell(folder: Path) -> Cell | None:
    """The cell whose folder of secrets this is; None for a run of its own. Raises InputError if it is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cell = Cell(CellFacts.model_validate(content["facts"]), bytes.fromhex(content["coins_key"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is damaged: its run cannot go on; start the sweep in a new folder") from error
    # Coins must not rest on what is left of a key.
    if len(cell.coins_key) != KEY_BYTES:
        raise InputError(f"'{path}' is damaged: its run cannot go on; start the sweep in a new folder")
    return cell
