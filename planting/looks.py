"""The looks at models that were trained on a planted set. The list of looks is in the set's folder of secrets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heldin.base.artefacts import read_document, write_document
from heldin.base.errors import InputError

LOOKS = "looks.json"


@dataclass(frozen=True)
class Look:
    """One look at a model, with the claims that it tested.

    Attributes:
        number: number of the look, starting at 1.
        model: fingerprint of the audited model.
        claims: the claims as the user wrote them.
        beside: precision of the reference, if the model's fingerprint does not contain it; None: float32.
    """

    number: int
    model: str
    claims: tuple[str, ...]
    beside: str | None = None


def look_at(out: Path, model: str, claims: Sequence[str], beside: str | None = None) -> Look:
    """Return an earlier look at this model with these claims. Otherwise return the next look, without writing it.

    Args:
        model: fingerprint of the audited model.
        claims: the claims as the user wrote them.
        beside: precision of the reference, if the model's fingerprint does not contain it; None: float32.

    Raises:
        InputError: the list of looks was changed, or lacks a look whose audit is in the folder.
    """
    taken = _looks(_read(out))
    audits = [int(path.parent.name) for path in out.glob("audits/*/record.json") if path.parent.name.isdigit()]
    if max(audits, default=0) > len(taken):
        raise InputError(
            f"'{_path(out)}' does not list look {max(audits)}, although the audit of this look is in the folder:"
            " restore this file"
        )
    now = Look(len(taken) + 1, model, tuple(claims), beside)
    return next((look for look in taken if replace(look, number=now.number) == now), now)


def write_look(look: Look, out: Path) -> None:
    """Add a look to the list, unless it is already there. Call this function before scores are joined with coins."""
    kept = _read(out)
    if look in _looks(kept):
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"model": look.model, "claims": list(look.claims), "beside": look.beside, "time": now}
    _write({**kept, "looks": [*kept["looks"], entry]}, out)


def served_models(out: Path) -> dict[str, bool]:
    """Return, by name of each model behind an endpoint, whether a single model gave all its scores."""
    return dict(_read(out)["served"])


def note_served(name: str, out: Path, *, whole: bool) -> None:
    """Record a model behind an endpoint before scoring, or record that the model changed during scoring (``whole``
    false)."""
    kept = _read(out)
    _write({**kept, "served": {**kept["served"], name: whole}}, out)


def looks_that_saw_a_change(out: Path) -> list[int]:
    """Return the numbers of the looks that found the training set changed."""
    return list(_read(out)["changed"])


def note_change(look: Look, out: Path) -> None:
    """Record that a look found the training set changed, so the finding remains after somebody deletes the set."""
    kept = _read(out)
    if look.number not in kept["changed"]:
        _write({**kept, "changed": [*kept["changed"], look.number]}, out)


def _looks(kept: dict[str, Any]) -> list[Look]:
    return [
        Look(number, entry["model"], tuple(entry["claims"]), entry["beside"])
        for number, entry in enumerate(kept["looks"], start=1)
    ]


def _path(out: Path) -> Path:
    return out / "ledger" / LOOKS


def _read(out: Path) -> dict[str, Any]:
    if not _path(out).is_file():
        return {"looks": [], "served": {}, "changed": []}
    return read_document(_path(out), "restore this file, or plant again")


def _write(content: dict[str, Any], out: Path) -> None:
    write_document(_path(out), content)
