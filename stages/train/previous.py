"""Earlier releases about the same people: their plans, stored with the run, and one guarantee for all releases."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.base.artefacts import read_document, write_document
from heldin.base.errors import InputError
from heldin.base.files import file_sha256
from heldin.base.wording import counted
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import PLAN, mechanism_in, plan_at, read_plan_document
from heldin.defenses.releases import PlannedRelease, Together, compose_releases
from heldin.record.facts import EarlierPlan, EarlierReleases
from heldin.stages.run_config import RunConfig

KEPT = "previous.json"  # in the run's folder: its record can be checked when the other folders are gone
_MODEL_OF_RUN = Path("checkpoints") / "final"
_ADAPTER = "adapter_config.json"
_OF_MODEL = ("*.safetensors", "*.bin", "tokenizer*.json", "vocab.*", "merges.txt", "*.model")


@dataclass(frozen=True)
class Earlier:
    """The releases in one entry of ``previous``.

    Attributes:
        name: name of the plan in the config, for messages.
        times: number of releases under the plan.
        sha256: digest of the plan's file.
        document: content of the plan's file.
        mechanism: the mechanism that the plan describes.
        is_base: whether this training starts from the released model.
    """

    name: str
    times: int
    sha256: str
    document: dict[str, Any]
    mechanism: Mechanism
    is_base: bool = False


def require_previous(config: RunConfig, out: Path) -> None:
    """Check the plans in ``previous``, and compare the base model with them.

    Raises:
        InputError: a plan is missing or damaged; the base model has a plan but ``previous`` is not set; or the base
            model has the weights of a release in ``previous``. The last two apply only if the defense assumes that the
            base model has not seen the protected people.
    """
    read_previous(config, out)
    base = Path(config.model.base or "")
    if not config.defense.relies_on_base or config.model.base is None or not base.is_dir():
        return
    if config.previous is None and (plan := _plan_of_model(base)) is not None:
        raise InputError(
            f"model.base: '{base}' was trained on people's texts, as '{plan}' shows. List in previous the earlier"
            " releases that used texts of the same people, or set previous to [] if no earlier release used such texts"
        )
    weights = _weights_in(base)
    for release in config.previous or ():
        if weights & _weights_in(_model_beside(Path(release.plan))):
            raise InputError(
                f"model.base: '{base}' has the weights of '{release.plan}', which previous lists as trained on the"
                " same people, so this training alone guarantees nothing. Set defense.base_model_saw_protected to"
                " true, and the record states the epsilon of both together. Or begin with a model that was not"
                " trained on these people"
            )


def read_previous(config: RunConfig, out: Path) -> list[Earlier]:
    """Return the releases in ``previous``. Reads the plans from the run's folder if it has copies."""
    if (out / KEPT).is_file():
        kept = read_document(out / KEPT)["releases"]
        # ``require_folder`` refuses another ``previous`` in the same folder, and may be called later.
        named = zip(config.previous or (), kept, strict=False)
        return [
            Earlier(
                r.plan, r.times, copy["sha256"], copy["plan"], mechanism_in(copy["plan"], out / KEPT), copy["is_base"]
            )
            for r, copy in named
        ]
    releases = []
    for release in config.previous or ():
        file = plan_at(Path(release.plan))
        document = read_plan_document(file)
        mechanism, is_base = mechanism_in(document, file), _is_base(config, release.plan)
        releases.append(Earlier(release.plan, release.times, file_sha256(file), document, mechanism, is_base))
    return releases


def keep_previous(config: RunConfig, out: Path, say: Callable[[str], object]) -> None:
    """Copy the plans in ``previous`` to the run's folder, only once, and report their guarantees."""
    earlier = read_previous(config, out)
    if earlier and not (out / KEPT).is_file():
        copies = [
            {"sha256": release.sha256, "plan": release.document, "is_base": release.is_base} for release in earlier
        ]
        write_document(out / KEPT, {"releases": copies})
    for release in earlier:
        promise = release.mechanism.guarantee().label
        say(f"earlier releases: {counted(release.times, 'release')} by '{release.name}', each: {promise}")


def earlier_facts(config: RunConfig, mechanism: Mechanism, out: Path) -> EarlierReleases | None:
    """Return the record's facts about earlier releases; None if the config does not state whether there are earlier
    releases."""
    if config.previous is None:
        return None
    earlier = read_previous(config, out)
    together = None
    if earlier:
        with suppress(InputError):
            together = all_together(mechanism, earlier)
    return EarlierReleases(
        plans=[_plan_facts(release) for release in earlier],
        epsilon=together and together.epsilon,
        together=together and together.statement,
    )


def all_together(mechanism: Mechanism, earlier: Sequence[Earlier]) -> Together:
    """Return the combined guarantee of the earlier releases and this release, at this plan's delta.

    A training may start from the model of an earlier release, such as preference tuning after a private fine-tuning.
    heldin then adds the privacy losses of the two trainings. Under adaptive composition, the earlier release is an
    input like any other (docs/theory.md#several-releases).

    Raises InputError if no epsilon covers all releases.
    """
    # Of records that are ranked by such a base one user's choice would depend on the texts of others.
    if any(release.is_base for release in earlier) and not mechanism.ranks_by_losses:
        mechanism = mechanism.model_copy(update={"base_model_saw_protected": False, "tokenizer_saw_protected": False})
    releases = [PlannedRelease(release.name, release.mechanism, release.times) for release in earlier]
    return compose_releases([*releases, PlannedRelease("this plan", mechanism)], mechanism.delta)


def _is_base(config: RunConfig, plan: str) -> bool:
    """Return whether a training starts from the model that this plan released, with unchanged weights and tokenizer.

    One equal file is not enough, because a shard that training did not change also occurs in models for other people.
    An adapter is not enough either, because its base may be any model.
    """
    if config.model.base is None or not Path(config.model.base).is_dir():
        return False
    base, released = Path(config.model.base), _model_beside(Path(plan))
    if not _weights_in(base) or (base / _ADAPTER).exists() or (released / _ADAPTER).exists():
        return False
    return _model_in(base) == _model_in(released)


def _plan_facts(release: Earlier) -> EarlierPlan:
    promise = release.mechanism.guarantee()
    held = promise if isinstance(promise, Guarantee) else None
    return EarlierPlan(
        digest=release.sha256,
        times=release.times,
        unit=release.mechanism.unit,
        epsilon=held and held.epsilon,
        delta=held and held.delta,
    )


def _plan_of_model(folder: Path) -> Path | None:
    """Return the plan of the training that made a model folder, for an export or a run; None if there is no plan."""
    folder = folder.resolve()
    run = folder.parent.parent
    beside = [folder / PLAN, *([run / PLAN] if run / _MODEL_OF_RUN == folder else [])]
    return next((plan for plan in beside if plan.is_file()), None)


def _model_beside(plan: Path) -> Path:
    """Return the folder of the model that a plan trained, given the plan's file or folder."""
    folder = plan if plan.is_dir() else plan.parent
    return folder / _MODEL_OF_RUN if (folder / _MODEL_OF_RUN).is_dir() else folder


def _model_in(folder: Path) -> dict[str, str]:
    """Return the digests, by name, of the files from which heldin loads a model and its tokenizer."""
    return {file.name: file_sha256(file) for pattern in _OF_MODEL for file in folder.glob(pattern)}


def _weights_in(folder: Path) -> set[str]:
    return {file_sha256(file) for file in folder.glob("*.safetensors")}
