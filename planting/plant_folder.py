"""The files of ``heldin plant``: a public manifest, the training set, and owner-only secrets that include the plan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from heldin.base.artefacts import read_document, require_not_purged, stamped, unstamped, write_document
from heldin.base.errors import InputError
from heldin.base.files import file_sha256, kept_text, private_directory, text_sha256, whole_file, write_text
from heldin.base.kinds import Origin, origins_in
from heldin.base.yaml_files import read_yaml
from heldin.models.model_names import fingerprint_of
from heldin.planting.plant_config import PlantConfig, parse_plant
from heldin.record.facts import SkippedRows
from heldin.record.planted_facts import FormFacts
from heldin.record.planted_files import MANIFEST, SEAL
from heldin.stages.families import require_same_code

CONFIG = "config.yaml"


@dataclass(frozen=True)
class Manifest:
    """The public facts about a planted training set: hashes from before the coins, and facts about the written set.

    Attributes:
        created: UTC time at which heldin planted the set.
        plan: hash of all settings of the audit, fixed before the coins.
        reference: fingerprint of the reference model, fixed before the coins.
        ledger: keyed hash of the list of members, as a commitment to the list.
        file: name of the training set.
        sha256: hash of the training set's content.
        skipped: counts of the rows of the original set that were left out.
        columns: column names by role.
        looks: number of checkpoints that the audit's error probabilities cover.
        evidence: source of the facts about the rows that the model was given: "callback" or "declared".
        split: the split to train on, if the training set is a folder with several splits.
    """

    created: str
    plan: str
    reference: str
    ledger: str
    file: str
    sha256: str
    rows: int
    skipped: SkippedRows
    columns: dict[str, str | None]
    looks: int
    evidence: str
    split: str | None = None

    def fields(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {**vars(self), "skipped": self.skipped.model_dump(mode="json")}


def plan_hash(out: Path) -> str:
    """Return a hash of the config file in ``out``. The file lists every key, so a later change of defaults does not
    matter."""
    return _plan(kept_text(out / CONFIG) or "")


def _plan(text: str) -> str:
    return text_sha256("plan", text)


def write_config(config: PlantConfig, out: Path) -> None:
    """Write the config to ``out``, which only its owner can read. Write its hash to the secrets, before any coin is
    drawn."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    # The seal first: with it the folder is heldin's, and a call that is killed in between begins again.
    private_directory(out / "ledger")
    kinds = [origin.model_dump(mode="json") for origin in origins_in(config)]
    _write_seal(out, {"plan": _plan(text), "kinds": kinds})
    write_text(out / CONFIG, text, private=True)


def seal_before_coins(out: Path, models: Mapping[str, str], noticed_from: float | None) -> None:
    """Add to the seal the facts that must be fixed before any coin is drawn.

    Args:
        models: fingerprints of the reference models, by name.
        noticed_from: lowest AUROC of real rows for which the positive control notices filters; None: the control never
            notices filters.

        Raises InputError if coins were drawn with other models or another AUROC.
    """
    if (out / "ledger" / "ledger.json").is_file():
        require_models(out, models)
    else:
        _write_seal(out, {**_read_seal(out), "models": dict(models), "noticed_from": noticed_from})


def require_models(out: Path, models: Mapping[str, str]) -> None:
    """Raise InputError if a reference model differs from the model that was fixed before the coins were drawn."""
    sealed = _read_seal(out)["models"]
    # Another reference gives other scores, and one that is chosen after the coins may be chosen by them.
    other = next((name for name, fingerprint in models.items() if sealed.get(name) != fingerprint), None)
    if other is not None:
        raise InputError(f"the reference model '{other}' changed after the coins were drawn: restore the model")


def write_manifest(manifest: Manifest, out: Path, form: FormFacts | None, unseen: str | None) -> None:
    """Write the manifest. A folder with a manifest is complete.

    Args:
        manifest: facts for anyone who trains on the set.
        out: the planted folder; its secrets receive the manifest's hash, ``form`` and ``unseen``.
        form: how well text alone distinguishes canary rows from real rows; None without canary users.
        unseen: hash of the stored sample of unseen rows; None if there is no sample.
    """
    text = json.dumps(stamped(manifest.fields()), indent=1) + "\n"
    with whole_file(out / MANIFEST) as temporary:
        temporary.write_text(text, encoding="utf-8")
        # Before the rename: a manifest whose hash is not sealed would be refused for ever.
        measured = None if form is None else form.model_dump(mode="json")
        kept = _read_seal(out)
        _write_seal(out, {**kept, "form": measured, "unseen": unseen, "manifest": file_sha256(temporary)})


def unseen_hash(out: Path) -> str | None:
    """Return the hash of the stored sample of unseen rows; None if the plan has no such rows."""
    unseen: str | None = _read_seal(out)["unseen"]
    return unseen


def planned_noticing(out: Path) -> float | None:
    """Return the lowest AUROC of real rows for which the plan relies on the positive control; None: the plan never
    relies on the control."""
    noticed: float | None = _read_seal(out)["noticed_from"]
    return noticed


def read_form(out: Path) -> FormFacts | None:
    """Return how well text alone distinguishes canary rows from real rows, as ``plant`` measured it."""
    form = _read_seal(out)["form"]
    return None if form is None else FormFacts.model_validate(form)


def read_planted(out: Path) -> tuple[PlantConfig, Manifest]:
    """Return the config and the manifest of a planted folder.

    Raises:
        InputError: ``plant`` did not finish in this folder, the folder was purged, or a file was changed.
    """
    require_not_purged(out)
    if not (out / MANIFEST).is_file() or not (out / "ledger" / SEAL).is_file():
        raise InputError(f"'{out}' has no planted training set: give the folder that heldin plant wrote")
    config = read_plant_config(out)
    seal = _read_seal(out)
    require_plan(out)
    if seal.get("manifest") != file_sha256(out / MANIFEST):
        raise InputError(
            f"'{out / MANIFEST}' and the ledger next to it do not match, so one of the two was changed or"
            " exchanged: restore both, or plant again"
        )
    # Not damaged, since its hash is the one that was kept.
    content = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    kept = unstamped(content, out / MANIFEST, "plant again")
    manifest = Manifest(**{**kept, "skipped": SkippedRows.model_validate(kept["skipped"])})
    # The manifest is the copy that others may hold.
    if manifest.plan != plan_hash(out):
        raise InputError(f"'{out / CONFIG}' does not match the plan of the manifest: restore this file, or plant again")
    require_models(out, {config.reference: manifest.reference})
    return config, manifest


def require_plan(out: Path) -> None:
    """Raise InputError if the config, or the code of a package in it, was changed after the coins were drawn."""
    # With another attack or threshold the scores would be those of an audit chosen after the coins.
    sealed = _read_seal(out)
    require_same_code([Origin.model_validate(kind) for kind in sealed.get("kinds", ())])
    if sealed.get("plan") != plan_hash(out):
        raise InputError(f"'{out / CONFIG}' was changed after the coins were drawn: restore this file, or plant again")


def read_plant_config(out: Path) -> PlantConfig:
    """Return the config in a planted folder. Raises InputError if it is damaged."""
    content = read_yaml(out / CONFIG)
    if not isinstance(content, dict):
        raise InputError(f"'{out / CONFIG}' is damaged: plant in a new folder")
    return parse_plant(content, str(out / CONFIG))


def _write_seal(out: Path, content: dict[str, Any]) -> None:
    write_document(out / "ledger" / SEAL, content)


def _read_seal(out: Path) -> dict[str, Any]:
    return read_document(out / "ledger" / SEAL, "plant in a new folder")


def fingerprints(config: PlantConfig) -> dict[str, str]:
    """Return the fingerprints of all reference models by name, in float32, whatever their scoring precision."""
    leading = fingerprint_of(config.reference, revision=config.revision)
    return {config.reference: leading} | {name: fingerprint_of(name) for name in further_references(config)}


def further_references(config: PlantConfig) -> list[str]:
    """Return the names of the reference models other than the primary reference model."""
    return [reference.model_name for reference in config.attack.references if reference.model_name]
