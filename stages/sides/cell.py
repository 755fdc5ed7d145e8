"""A run's place in a sweep: which block's coins it has, and which plan fixed it before they were drawn. Owner-only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.base.artefacts import read_document, write_document
from heldin.base.errors import InputError
from heldin.base.files import private_directory
from heldin.record.facts import CellFacts
from heldin.stages.config import RunConfig
from heldin.stages.config_files import first_difference

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
        changed = first_difference(dict(self.config), content)
        if changed:
            raise InputError(
                f"'{out}' is a cell of a sweep, whose config was fixed before its coins were drawn ('{changed}'"
                " differs): use a new run folder"
            )


def write_cell(cell: Cell, folder: Path) -> None:
    """Write the cell to ``folder``, a run's folder of secrets (owner-only)."""
    content = {"facts": cell.facts.model_dump(), "coins_key": cell.coins_key.hex(), "config": cell.config}
    write_document(private_directory(folder) / FILE, content)


def read_cell(folder: Path) -> Cell | None:
    """The cell whose folder of secrets this is; None for a run of its own. Raises InputError if it is damaged."""
    path = folder / FILE
    if not path.is_file():
        return None
    content = read_document(path, "its run cannot go on; start the sweep in a new folder")
    facts = CellFacts.model_validate(content["facts"])
    return Cell(facts, bytes.fromhex(content["coins_key"]), content["config"])
