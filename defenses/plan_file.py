"""plan.json: the mechanism on disk. heldin writes it before the first step, and reading it gives the same epsilon."""

import dataclasses
import json
import math
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dp_accounting import dp_event
from pydantic import TypeAdapter

from heldin.base.artefacts import stamped, unstamped, write_artefact
from heldin.base.errors import InputError
from heldin.base.files import finite, parsed_json
from heldin.defenses.exposure import EpsilonAtExposure
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.mechanism import Mechanism
from heldin.words.guarantee import Covers
from heldin.words.statement import Statement

_COVERS = {
    "last_step": Covers.LAST_STEP,
    "public_validation": Covers.PUBLIC_VALIDATION,
    "protected_validation": Covers.PROTECTED_VALIDATION,
}
_KEYS = ("mechanism", "dp_event", "guarantee", "covers")
PLAN = "plan.json"
_REMEDY = "give a run folder, a folder of heldin export, or its plan.json"
EXPORTED = "files"  # additional key of an exported plan: every file's SHA-256 by name
_SAME = 2e-3  # relative difference of epsilon allowed between versions of the accountant
_ROUNDED = 1e-9  # relative difference allowed between processors in the event's binomial weights
_SHOWN = 100  # characters of a value in a message


def write_plan(mechanism: Mechanism, path: Path) -> None:
    """Write the plan to ``path``, and its digest to the index in its folder."""
    write_artefact(path, json.dumps(plan_document(mechanism), indent=2, allow_nan=False) + "\n")


def plan_document(mechanism: Mechanism) -> dict[str, Any]:
    """Return the content of a plan file: the mechanism, its guarantee, label, event and coverage."""
    return stamped(_document(mechanism, mechanism.guarantee()))


def _document(mechanism: Mechanism, promise: Guarantee | NoGuarantee) -> dict[str, Any]:
    return {
        "mechanism": mechanism.model_dump(mode="json"),
        "dp_event": _event(mechanism.dp_event),
        "guarantee": promise_fields(promise),
        "covers": covers(mechanism).model_dump(),
    }


def covers(mechanism: Mechanism) -> Statement:
    """Return a statement that lists the coverage of a plan's guarantee, and its limits."""
    return _COVERS[mechanism.checkpoint]()


def read_plan(path: Path) -> Mechanism:
    """Return the mechanism of a plan file.

    The function computes again everything that follows from the mechanism, and compares the result with the file.

    Raises InputError, one line, if the file does not exist or is not JSON, or if it has another version, unknown or
    missing keys, or an invalid mechanism. Also raises InputError if the guarantee, label, event or coverage in the file
    differs from the mechanism's.
    """
    return mechanism_in(read_plan_document(path), path)


def stated_plan(plan: Mechanism | str | Path) -> Mechanism:
    """Return a mechanism, or a plan file's mechanism. Raises InputError like ``read_plan``, and for other input."""
    if isinstance(plan, str | Path):
        return read_plan(Path(plan))
    if type(plan) is not Mechanism:
        raise InputError(f"mechanism is {plan!r:.80}: give a heldin.Mechanism, or the path of a plan.json")
    return plan


def read_plan_document(path: Path) -> Any:
    """Return the content of a plan file, unchecked. Raises InputError, one line, if the file cannot be read as JSON."""
    try:
        return parsed_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}): {_REMEDY}") from None
    except ValueError:
        raise InputError(f"'{path}' is not JSON: {_REMEDY}") from None


def mechanism_in(document: Any, path: Path) -> Mechanism:
    """Return the mechanism in a plan file's content, after the checks of ``read_plan``.

    Errors name the file as ``path``.
    """
    if not isinstance(document, dict):
        raise InputError(f"'{path}' is not a JSON object: {_REMEDY}")
    document = unstamped(document, path, "start again in a new folder")
    _require_keys(path, "the plan", {k: v for k, v in document.items() if k != EXPORTED}, _KEYS)
    try:
        mechanism = Mechanism(**document["mechanism"])
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    stated = document["guarantee"]
    promise = _with_epsilons(mechanism.guarantee(), stated)
    # By identity, so that 1 or "true" in an edited file does not pass for true.
    if not isinstance(stated, dict) or stated.get("holds") is not isinstance(promise, Guarantee):
        raise InputError(
            f"the guarantee in '{path}' differs from this mechanism's guarantee ({promise.label}): copy plan.json"
            " from the run folder again"
        )
    computed = _document(mechanism, promise)
    for name in ("guarantee", "dp_event", "covers"):
        _require_same(path, name, document[name], computed[name])
    return mechanism


def plan_at(path: Path) -> Path:
    """Return the plan file of a run folder or exported folder. For the path of a file, return this path.

    Raises InputError, one line, if there is no plan file.
    """
    if path.is_dir():
        if not (path / PLAN).is_file():
            raise InputError(f"'{path}' contains no {PLAN}: {_REMEDY}")
        return path / PLAN
    if not path.exists():
        raise InputError(f"'{path}' does not exist: {_REMEDY}")
    return path


def promise_fields(promise: Guarantee | NoGuarantee) -> dict[str, Any]:
    """Return the guarantee as JSON values, with a field that states whether it holds. Infinite numbers are null."""
    return {"holds": isinstance(promise, Guarantee), **finite(_values_of(promise))}


def _values_of(promise: Guarantee | NoGuarantee) -> dict[str, Any]:
    adapter: TypeAdapter[Guarantee | NoGuarantee] = TypeAdapter(type(promise))
    values: dict[str, Any] = adapter.dump_python(promise)
    return values


def _with_epsilons(promise: Guarantee | NoGuarantee, stated: Any) -> Guarantee | NoGuarantee:
    """Return the guarantee with the epsilons that a plan states, if they agree within ``_SAME``."""
    # A plan stays valid although another version of the accountant computes a slightly different epsilon.
    if not isinstance(stated, dict):
        return promise
    if isinstance(promise, Guarantee):
        return _guarantee_with_epsilon(promise, stated)
    assumed, fallback = promise.assumed_epsilon, promise.fallback
    if assumed is not None and _close(stated.get("assumed_epsilon"), assumed, _SAME):
        assumed = stated["assumed_epsilon"]
    if fallback is not None and isinstance(stated.get("fallback"), dict):
        fallback = _guarantee_with_epsilon(fallback, stated["fallback"])
    return dataclasses.replace(promise, assumed_epsilon=assumed, fallback=fallback)


def _guarantee_with_epsilon(promise: Guarantee, stated: dict[str, Any]) -> Guarantee:
    if _close(stated.get("epsilon"), promise.epsilon, _SAME):
        promise = dataclasses.replace(promise, epsilon=stated["epsilon"])
    exposure, kept = promise.exposure, stated.get("exposure")
    if exposure is None or not isinstance(kept, dict):
        return promise
    # By number of records; what is missing or strange stays as computed, and is then found to differ.
    points: Any = kept.get("curve")
    listed = [p for p in points if isinstance(p, dict)] if isinstance(points, list) else []
    stated_epsilon = {p["exposed"]: p.get("epsilon") for p in listed if isinstance(p.get("exposed"), int)}
    near = [(point, stated_epsilon.get(point.exposed)) for point in exposure.curve]
    curve = tuple(EpsilonAtExposure(p.exposed, float(e)) if e and _close(e, p.epsilon, _SAME) else p for p, e in near)
    return dataclasses.replace(promise, exposure=dataclasses.replace(exposure, curve=curve))


def _require_same(path: Path, name: str, stated: Any, computed: Any) -> None:
    """Raise InputError, naming the field, if a JSON value is not ``computed``."""
    match computed:
        case dict() if isinstance(stated, dict):
            _require_keys(path, name, stated, computed)
            for key, value in computed.items():
                _require_same(path, f"{name}.{key}", stated[key], value)
        case list() if isinstance(stated, list) and len(stated) == len(computed):
            for i, value in enumerate(computed):
                _require_same(path, f"{name}[{i}]", stated[i], value)
        case float() if _close(stated, computed, _ROUNDED):
            pass
        # By type too, since True == 1 in Python.
        case _ if type(stated) is type(computed) and stated == computed:
            pass
        case _:
            raise InputError(
                f"{path}: {name} is stated as {_shown(stated)}, but this mechanism gives {_shown(computed)}. The file"
                " was changed, or another heldin wrote it: copy plan.json from the run folder again"
            )


def _require_keys(path: Path, name: str, stated: Mapping[str, Any], expected: Collection[str]) -> None:
    unknown, missing = sorted(set(stated) - set(expected)), sorted(set(expected) - set(stated))
    if unknown or missing:
        raise InputError(
            f"{path}: {name} has unknown keys {unknown} and missing keys {missing}, so somebody changed the file:"
            " copy plan.json from the run folder again"
        )


def _close(stated: Any, computed: float, tolerance: float) -> bool:
    number = type(stated) in (int, float) and abs(stated) <= sys.float_info.max  # larger integers do not fit a float
    return number and math.isclose(stated, computed, rel_tol=tolerance)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _event(event: dp_event.DpEvent) -> dict[str, Any]:
    """Return the event's class name under "type", and its fields; nested events have the same form."""
    fields = event.to_named_tuple()._asdict()
    named = {"type": fields.pop("class_name")}
    # A plan must stay readable if dp-accounting moves the class to another module.
    fields.pop("module_name")
    for name in fields:
        part = getattr(event, name)
        named[name] = _event(part) if isinstance(part, dp_event.DpEvent) else part
    return named
