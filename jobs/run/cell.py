"""A run's place in a sweep: which block's coins it has, and which plan fixed it before they were drawn. Owner-only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.base.coins import KEY_BYTES
from heldin.base.errors import InputError
from heldin.base.files import private_directory, write_text
from heldin.jobs.config import RunConfig, as_read_today
from heldin.jobs.config_files import first_difference
from heldin.record.facts import CellFacts

FILE = "cell.json"


@dataclass(frozen=True)
class Cell:
    """A cell of a sweep.

    Attributes:
        facts: its place, for the record.
        coins_key: secret key of its block's coins.
        config: the config that was fixed before these coins were drawn, as a file has it.
    """

    facts: CellFacts
    coins_key: bytes
    config: Mapping[str, Any]

    def require(self, config: RunConfig, out: Path) -> None:
        """Raise InputError unless this is the cell's config: coins are not for a config that came after them."""
        content = config.model_dump(mode="json")
        changed = first_difference(as_read_today(dict(self.config), str(out / "ledger" / FILE)), content)
        if changed:
            raise InputError(
                f"'{out}' is a cell of a sweep, whose config was fixed before its coins were drawn ('{changed}'"
                " differs): use a new run folder"
            )


def write_cell(cell: Cell, folder: Path) -> None:
    """Write the cell to ``folder``, a run's folder of secrets (owner-only)."""
    content = {"facts": cell.facts.model_dump(), "coins_key": cell.coins_key.hex(), "config": cell.config}
    write_text(private_directory(folder) / FILE, json.dumps(content, indent=1) + "\n", private=True)


def read_cell(folder: Path) -> Cell | None:
    """The cell whose folder of secrets this is; None for a run of its own. Raises InputError if it is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cell = Cell(
            CellFacts.model_validate(content["facts"]), bytes.fromhex(content["coins_key"]), dict(content["config"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is damaged: its run cannot go on; start the sweep in a new folder") from error
    # Coins must not rest on what is left of a key.
    if len(cell.coins_key) != KEY_BYTES:
        raise InputError(f"'{path}' is damaged: its run cannot go on; start the sweep in a new folder")
    return cell
