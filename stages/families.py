"""Every family of kinds, by the name of its entry-point group. heldin imports a family at its first use."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from heldin.base.artefacts import write_artefact
from heldin.base.errors import InputError
from heldin.base.files import read_json, strict_json
from heldin.base.kinds import Family, Origin, origins_in

KINDS = "kinds.json"  # in a run's folder: its code is compared before anything is added to it
FAMILIES = {
    "attacks": "heldin.attacks.kinds:ATTACKS",
    "sources": "heldin.corpus.sources.kinds:SOURCES",
    "defenses": "heldin.defenses.data_side.contract:DATA_DEFENSES",
    "mechanisms": "heldin.defenses.mechanisms.kinds:MECHANISMS",
    "canaries": "heldin.canaries.kinds:CANARIES",
    "measures": "heldin.stages.measures.kinds:MEASURES",
}


def family(name: str) -> Family[Any]:
    """Return the family with this name. For an unknown name, raises InputError with a list of all names."""
    if name not in FAMILIES:
        raise InputError(f"there is no family '{name}' of kinds: choose from {', '.join(FAMILIES)}")
    module, _, attribute = FAMILIES[name].partition(":")
    of_name: Family[Any] = getattr(importlib.import_module(module), attribute)
    return of_name


def require_same_code(kinds: Sequence[Origin]) -> None:
    """Check that each kind in a record has the code that made the record; see ``Family.require_same_code``."""
    for origin in kinds:
        family(origin.family).require_same_code(origin)


def keep_code(config: BaseModel, folder: Path) -> None:
    """Write the other packages' kinds in a config, with a hash of their code, to a job's new folder. Writes nothing if
    there are no such kinds."""
    if kinds := origins_in(config):
        content = [origin.model_dump(mode="json") for origin in kinds]
        write_artefact(folder / KINDS, strict_json({"kinds": content}) + "\n")


def require_kept_code(folder: Path) -> None:
    """Check that the installed code is the code that began a job's folder.

    Raises InputError if the code differs, or if the folder's list of code is unreadable.
    """
    path = folder / KINDS
    if path.is_file():
        try:
            kinds = [Origin.model_validate(origin) for origin in read_json(path)["kinds"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"'{path}' is damaged: restore this file from a backup, or use a new folder") from error
        require_same_code(kinds)
