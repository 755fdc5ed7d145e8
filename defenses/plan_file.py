"""plan.json: the mechanism on disk, written before the first step and read back to the same epsilon."""

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from dp_accounting import dp_event

from corpus.errors import InputError
from defenses.mechanism import Guarantee, Mechanism, NoGuarantee

_RELEASED = {
    "last_step": "the model after the last step",
    "public_validation": "the model of the step that separate public users' loss chose",
    "protected_validation": "the model of the step that the loss of protected users chose",
}
_KEYS = ("version", "mechanism", "dp_event", "guarantee", "covers")
EXPORTED = "files"  # the key that an exported plan has besides: every file's SHA-256 by name
_SAME = 2e-3  # relative difference of epsilon that another version of the accountant may make


def write_plan(mechanism: Mechanism, path: Path, *, cache_dir: Path | None = None) -> None:
    """Writes the plan: to a temporary name in the same folder, flushed to disk, then renamed over `path`."""
    document = {
        "version": Mechanism.VERSION,
        "mechanism": mechanism.model_dump(mode="json"),
        "dp_event": _event(mechanism.dp_event),
        "guarantee": promise_fields(mechanism.guarantee(cache_dir=cache_dir)),
        "covers": covers(mechanism),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def covers(mechanism: Mechanism) -> str:
    """What a plan speaks of, and what it does not."""
    return f"{_RELEASED[mechanism.checkpoint]}; not losses, gradient norms, cohort sizes or attack scores"


def read_plan(path: Path, *, cache_dir: Path | None = None) -> Mechanism:
    """The mechanism of a plan file. Its guarantee is computed anew, and must be the one that the file states.

    Raises InputError, one line, for: no such file, not JSON, another version, unknown or missing keys, an invalid
    mechanism, and a stated guarantee that the mechanism does not have.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give the plan.json of a run folder") from None
    except ValueError:
        raise InputError(f"{path}: not JSON: give the plan.json of a run folder") from None
    if not isinstance(document, dict) or document.get("version") != Mechanism.VERSION:
        found = document.get("version") if isinstance(document, dict) else None
        raise InputError(f"{path}: plan version {found!r}, this heldin reads version {Mechanism.VERSION}")
    unknown, missing = sorted(set(document) - {*_KEYS, EXPORTED}), sorted(set(_KEYS) - set(document))
    if unknown or missing:
        raise InputError(f"{path}: unknown keys {unknown}, missing keys {missing}: the plan was not written by heldin")
    try:
        mechanism = Mechanism(**document["mechanism"])
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    _compare(path, document["guarantee"], promise_fields(mechanism.guarantee(cache_dir=cache_dir)))
    return mechanism


def promise_fields(promise: Guarantee | NoGuarantee) -> dict[str, Any]:
    """The guarantee as JSON values, infinite numbers as null, with its label and whether it holds."""
    return {"holds": isinstance(promise, Guarantee), "label": promise.label, **_finite(dataclasses.asdict(promise))}


def _compare(path: Path, stated: Any, computed: dict[str, Any]) -> None:
    if not isinstance(stated, dict) or stated.get("holds") is not computed["holds"]:
        raise InputError(f"{path}: the stated guarantee is not this mechanism's, which is: {computed['label']}")
    if computed["holds"]:
        epsilon = stated.get("epsilon")
        if not isinstance(epsilon, int | float) or not math.isclose(epsilon, computed["epsilon"], rel_tol=_SAME):
            raise InputError(
                f"{path}: states epsilon {epsilon}, but this mechanism spends {computed['epsilon']:.6g}: "
                "the file was changed"
            )
    elif stated.get("reasons") != list(computed["reasons"]):
        raise InputError(f"{path}: the stated reasons are not this mechanism's, which is: {computed['label']}")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case tuple() | list():
            return [_finite(part) for part in value]
        case _:
            return value


def _event(event: dp_event.DpEvent) -> dict[str, Any]:
    """The event as its class name, under `type`, and its fields; nested events alike."""
    fields = event.to_named_tuple()._asdict()
    named = {"type": fields.pop("class_name")}
    fields.pop("module_name")
    for name in fields:
        part = getattr(event, name)
        named[name] = _event(part) if isinstance(part, dp_event.DpEvent) else part
    return named
