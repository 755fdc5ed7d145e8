"""Every family of kinds, by the name in its entry-point group; each is imported when it is asked for."""

import importlib
from collections.abc import Sequence
from typing import Any

from heldin.base.errors import InputError
from heldin.base.kinds import Family, Origin

FAMILIES = {
    "attacks": "heldin.attacks.kinds:ATTACKS",
    "sources": "heldin.corpus.sources.kinds:SOURCES",
    "defenses": "heldin.defenses.data_side.kinds:DATA_DEFENSES",
}


def family(name: str) -> Family[Any]:
    """Return the family of this name. Raises InputError, listing all, if there is none."""
    if name not in FAMILIES:
        raise InputError(f"there is no family '{name}' of kinds; choose from {', '.join(FAMILIES)}")
    module, _, attribute = FAMILIES[name].partition(":")
    found: Family[Any] = getattr(importlib.import_module(module), attribute)
    return found


def require_same_code(kinds: Sequence[Origin]) -> None:
    """Check that what a record names has the code that made the record.

    Raises:
        InputError: a package is gone, or has another version or other files; the message says which.
    """
    for origin in kinds:
        now = family(origin.family).origin(origin.kind)
        if now != origin:
            there = "heldin's own" if now is None else _version(now)
            raise InputError(
                f"{origin.family}: '{origin.kind}' was {_version(origin)} when this was made, and is {there} now:"
                " install what it was, or make it again"
            )


def _version(origin: Origin) -> str:
    return f"{origin.package} {origin.version or 'without a version'} (code {origin.sha256[:16]})"
