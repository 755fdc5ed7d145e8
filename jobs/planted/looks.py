"""The looks at models that a planted training set has served for, kept in its folder of secrets."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import write_text

_LOOKS = "looks.jsonl"
_SERVED = "served.json"
_CHANGED = "changed.json"


@dataclass(frozen=True)
class Look:
    """One look at a model: what was audited, and the claims that were tested on it.

    Attributes:
        number: from 1.
        model: fingerprint of the audited model.
        claims: as they were given.
        beside: precision of the reference, where it is in no fingerprint of the model; None: float32.
    """

    number: int
    model: str
    claims: tuple[str, ...]
    beside: str | None = None


def look_at(out: Path, model: str, claims: Sequence[str], beside: str | None = None) -> Look:
    """The number of this look: that of an earlier one at the same model with the same claims, or the next, unwritten.

    Args:
        out: the planted folder.
        model: fingerprint of the audited model.
        claims: as they were given.
        beside: precision of the reference, where it is in no fingerprint of the model; None: float32.
    """
    taken = _looks(out)
    now = Look(len(taken) + 1, model, tuple(claims), beside)
    return next((its for its in taken if replace(its, number=now.number) == now), now)


def write_look(look: Look, out: Path) -> None:
    """Note a look in the secrets, unless it was noted before; called before scores meet coins."""
    kept = _looks(out)
    if look in kept:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    earlier = (out / "ledger" / _LOOKS).read_text(encoding="utf-8") if kept else ""
    # Absent in float32: the looks of earlier versions are read.
    beside = {} if look.beside is None else {"beside": look.beside}
    line = json.dumps({"look": look.number, "model": look.model, "claims": look.claims, **beside, "time": now})
    write_text(out / "ledger" / _LOOKS, f"{earlier}{line}\n", private=True)


def served_models(out: Path) -> dict[str, bool]:
    """By name of each model behind an endpoint whether its scores are of one model. Raises InputError if damaged."""
    path = out / "ledger" / _SERVED
    if not path.is_file():
        return {}
    try:
        return {str(name): bool(whole) for name, whole in json.loads(path.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"'{path}' is damaged: restore it, or plant anew") from error


def note_served(name: str, out: Path, *, whole: bool) -> None:
    """Note a model behind an endpoint before it is scored, and that it changed meanwhile (not ``whole``)."""
    write_text(out / "ledger" / _SERVED, json.dumps({**served_models(out), name: whole}) + "\n", private=True)


def looks_that_saw_a_change(out: Path) -> list[int]:
    """Numbers of the looks that found the training set changed. Raises InputError if the note is damaged."""
    path = out / "ledger" / _CHANGED
    if not path.is_file():
        return []
    try:
        return [int(number) for number in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise InputError(f"'{path}' is damaged: restore it, or plant anew") from error


def note_change(look: Look, out: Path) -> None:
    """Note that a look found the training set changed, so that it stays so once the file is gone."""
    kept = looks_that_saw_a_change(out)
    if look.number not in kept:
        write_text(out / "ledger" / _CHANGED, json.dumps([*kept, look.number]) + "\n", private=True)


def _looks(out: Path) -> list[Look]:
    path = out / "ledger" / _LOOKS
    if not path.is_file():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Look(its["look"], its["model"], tuple(its["claims"]), its.get("beside")) for its in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is damaged, so that it is not known how many looks were taken") from error
