"""The looks at models that a planted training set has served for, kept in its folder of secrets."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import write_text

_LOOKS = "looks.jsonl"
_SPOILED = "spoiled.json"


@dataclass(frozen=True)
class Look:
    """One look at a model: what was audited, and the claims that were tested on it.

    Attributes:
        number: from 1.
        model: fingerprint of the audited model.
        claims: as they were given.
    """

    number: int
    model: str
    claims: tuple[str, ...]


def look_at(out: Path, model: str, claims: Sequence[str]) -> Look:
    """The number of this look: that of an earlier one at the same model with the same claims, or the next, unwritten.

    Args:
        out: the planted folder.
        model: fingerprint of the audited model.
        claims: as they were given.
    """
    taken = _looks(out)
    again = next((its for its in taken if (its.model, its.claims) == (model, tuple(claims))), None)
    return again or Look(len(taken) + 1, model, tuple(claims))


def write_look(look: Look, out: Path) -> None:
    """Note a look in the secrets, unless it was noted before; called before scores meet coins."""
    kept = _looks(out)
    if look in kept:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    earlier = (out / "ledger" / _LOOKS).read_text(encoding="utf-8") if kept else ""
    line = json.dumps({"look": look.number, "model": look.model, "claims": look.claims, "time": now})
    write_text(out / "ledger" / _LOOKS, f"{earlier}{line}\n", private=True)


def names_looked_at(out: Path) -> list[str]:
    """Names of the models that were looked at."""
    return [its.model for its in _looks(out)]


def spoil(name: str, out: Path) -> None:
    """Note that the model of this name changed while it was scored, so that its scores are of two."""
    write_text(out / "ledger" / _SPOILED, json.dumps(sorted({*spoiled_names(out), name})) + "\n", private=True)


def spoiled_names(out: Path) -> set[str]:
    """Names of models that changed while they were scored. Raises InputError for a damaged file."""
    path = out / "ledger" / _SPOILED
    if not path.is_file():
        return set()
    try:
        return set(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"'{path}' is damaged: restore it, or plant anew") from error


def _looks(out: Path) -> list[Look]:
    path = out / "ledger" / _LOOKS
    if not path.is_file():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Look(its["look"], its["model"], tuple(its["claims"])) for its in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is damaged, so that it is not known how many looks were taken") from error
