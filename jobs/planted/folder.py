"""What ``heldin plant`` leaves: a public manifest, the training set, and owner-only secrets with the looks taken."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, private_directory, text_sha256, whole_file, write_text
from heldin.base.purged import require_not_purged
from heldin.base.yaml_files import read_yaml
from heldin.jobs.planted.config import PlantConfig, parse_plant

MANIFEST, CONFIG, TRAINING, AUDITS = "manifest.json", "config.yaml", "training", "audits"
SEAL = "planted.json"  # in the ledger: hashes of what was fixed
_LOOKS = "looks.jsonl"
_FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What may be known of a planted training set; nothing in it follows from a coin but the hashes.

    Attributes:
        created: time, UTC.
        plan: hash of everything about the audit, which was fixed before the coins.
        ledger: commitment to who is held in, a keyed hash.
        file: name of the training set.
        sha256: hash of its content.
        rows: number of its rows.
        columns: its columns by what they hold.
        looks: number of checkpoints that the audit pays for.
    """

    created: str
    plan: str
    ledger: str
    file: str
    sha256: str
    rows: int
    columns: dict[str, str]
    looks: int


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


def plan_hash(config: PlantConfig) -> str:
    """Hash of everything that the config fixes."""
    return text_sha256("plan", json.dumps(config.model_dump(mode="json"), sort_keys=True))


def write_config(config: PlantConfig, out: Path) -> None:
    """Write the config to ``out`` (made owner-only), and its hash to the secrets, before any coin."""
    private_directory(out / "ledger")
    _write_seal(out, {"plan": plan_hash(config)})
    write_text(out / CONFIG, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), private=True)


def write_manifest(manifest: Manifest, out: Path) -> None:
    """Write the manifest, and its hash to the secrets; a folder with a manifest is whole."""
    text = json.dumps({"heldin_manifest": _FORMAT, **vars(manifest)}, indent=1) + "\n"
    with whole_file(out / MANIFEST) as temporary:
        temporary.write_text(text, encoding="utf-8")
        # Before the rename: a manifest whose hash is not sealed would be refused for ever.
        _write_seal(out, {"plan": manifest.plan, "manifest": file_sha256(temporary)})


def read_planted(out: Path) -> tuple[PlantConfig, Manifest]:
    """The config and manifest of a planted folder.

    Raises:
        InputError: ``plant`` did not finish there, it was purged, or a file was changed afterwards.
    """
    require_not_purged(out)
    if not (out / MANIFEST).is_file() or not (out / "ledger" / SEAL).is_file():
        raise InputError(f"'{out}' holds no planted training set: name the folder that heldin plant wrote")
    config = read_plant_config(out)
    seal = _read_json(out / "ledger" / SEAL)
    # With another attack or threshold the scores would be those of an audit chosen after the coins.
    if seal.get("plan") != plan_hash(config):
        raise InputError(f"'{out / CONFIG}' was changed after the coins were drawn: restore it, or plant anew")
    if seal.get("manifest") != file_sha256(out / MANIFEST):
        raise InputError(f"'{out / MANIFEST}' was changed after it was written: restore it, or plant anew")
    content = _read_json(out / MANIFEST)
    if content.pop("heldin_manifest", None) != _FORMAT:
        raise InputError(f"'{out / MANIFEST}' is of another heldin: audit it with the one that planted")
    return config, Manifest(**content)


def read_plant_config(out: Path) -> PlantConfig:
    """The config in a planted folder. Raises InputError if it is damaged."""
    content = read_yaml(out / CONFIG)
    if not isinstance(content, dict):
        raise InputError(f"'{out / CONFIG}' is damaged: plant in a new folder")
    return parse_plant(content, str(out / CONFIG))


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


def _looks(out: Path) -> list[Look]:
    path = out / "ledger" / _LOOKS
    if not path.is_file():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [Look(its["look"], its["model"], tuple(its["claims"])) for its in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is damaged, so that it is not known how many looks were taken") from error


def _write_seal(out: Path, content: dict[str, Any]) -> None:
    write_text(out / "ledger" / SEAL, json.dumps(content) + "\n", private=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' is damaged: plant in a new folder") from error
    if not isinstance(content, dict):
        raise InputError(f"'{path}' is damaged: plant in a new folder")
    return content
