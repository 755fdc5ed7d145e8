"""Trackers of a run: TensorBoard, MLflow and Weights & Biases, through the trackers of accelerate.

During training, trackers receive no number that compares members with non-members, so nobody can stop a training
because of such a number. Trackers receive such numbers after the judgement.
"""

import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import read_json, write_text
from heldin.defenses.accounting.account import account_plan
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.recipe import TrackerName
from heldin.record.document import Record
from heldin.stages.run_config import RunConfig
from heldin.stages.run_folder import TENSORBOARD, TRACKERS
from heldin.stages.train.validation import HELD_IN_LOSS, HELD_OUT_LOSS, PUBLIC_LOSS

_PROJECT = "heldin"
_COMPARING = {
    HELD_IN_LOSS: "validation/member_loss",
    HELD_OUT_LOSS: "validation/non_member_loss",
    "auroc": "validation/auroc",
}
_LOCAL_STORES = ("file:", "sqlite:", "/", "./")  # of MLflow, by how their addresses begin
_LOCAL_MODES = ("offline", "disabled")  # of Weights & Biases
_REPORTED = "reported"
_STEP = "step"
_OF_THE_PLAN = ("epochs", "batch_size")  # settings of plain training that a private run does not use
_OF_TRACKERS = ("report_to", "report_unnoised")


class RunTrackers:
    """The open trackers of a run. If a tracker fails, heldin closes it and tells the user, and the run continues.

    Args:
        opened: each tracker, and whether it may receive un-noised numbers.
        say: function that receives lines for the user.
    """

    def __init__(self, opened: Mapping[TrackerName, tuple[Any, bool]], say: Callable[[str], None]) -> None:
        self._opened = dict(opened)
        self._say = say

    def log(self, values: Mapping[str, float | None], step: int, *, unnoised: bool) -> None:
        """Log numbers at a step, except None and infinity. With ``unnoised``, log only to trackers that may receive
        un-noised numbers."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        if known:
            self._each(lambda name, tracker: _log(name, tracker, known, step), unnoised=unnoised)

    def state(self, texts: Mapping[str, str]) -> None:
        """Send texts about the run to trackers that may receive un-noised numbers."""
        self._each(lambda name, tracker: _state(name, tracker, texts), unnoised=True)

    def attach(self, path: Path) -> None:
        """Send a file to trackers that may receive un-noised numbers."""
        self._each(lambda name, tracker: _attach(name, tracker, path), unnoised=True)

    def describe(self, constants: Mapping[str, bool | int | float | str]) -> None:
        """Log the public constants of the run."""
        self._each(lambda name, tracker: _describe(name, tracker, constants), unnoised=False)

    def close(self) -> None:
        """Close all trackers."""
        self._each(lambda _, tracker: tracker.finish(), unnoised=False)

    def _each(self, call: Callable[[TrackerName, Any], object], *, unnoised: bool) -> None:
        for name, (tracker, receives) in list(self._opened.items()):
            if unnoised and not receives:
                continue
            try:
                call(name, tracker)
            # A server that is away is no reason to lose hours of training.
            except Exception as error:
                del self._opened[name]
                self._say(f"{name}: {error}. The run continues without this tracker")


def require_trackers(config: RunConfig) -> None:
    """Raise InputError for a tracker in the config that is not installed."""
    missing = [name for name in config.finetune.report_to if not _is_installed(name)]
    if missing:
        raise InputError(
            f"finetune.report_to names trackers that are not installed: {', '.join(missing)}. Run pip install"
            " '.[trackers]' in a clone of heldin, or leave these trackers out"
        )


def _is_installed(name: TrackerName) -> bool:
    # The folder wandb/ that Weights & Biases writes can be imported too, as a package without a file.
    spec = importlib.util.find_spec(name.value)
    return spec is not None and spec.origin is not None


def is_reported(config: RunConfig, out: Path) -> bool:
    """Return whether there is nothing left to log: the run has no tracker, or its results were already logged."""
    return not config.finetune.report_to or bool(_kept(out).get(_REPORTED))


@contextmanager
def run_trackers(config: RunConfig, out: Path, say: Callable[[str], None]) -> Iterator[RunTrackers]:
    """Open the trackers of the run in ``out``. Later calls continue the same runs of MLflow and Weights & Biases."""
    if is_reported(config, out):
        yield RunTrackers({}, say)
        return
    from accelerate import PartialState

    PartialState()  # accelerate's trackers refuse to log before it is made
    kept, opened = _kept(out), {}
    for name in config.finetune.report_to:
        try:
            tracker = _opened(name, _run_name(out), out, kept.get(name.value))
        except Exception as error:
            say(f"{name}: {error}. The run continues without this tracker")
            continue
        receives = not _is_private(config) or config.finetune.report_unnoised or not is_remote(name)
        opened[name] = tracker, receives
        if not receives:
            say(
                f"{name} receives no un-noised number of this private run. Set finetune.report_unnoised: true to"
                " send these numbers"
            )
    write_text(out / TRACKERS, json.dumps({**kept, **{n.value: _id(n, tracker) for n, (tracker, _) in opened.items()}}))
    trackers = RunTrackers(opened, say)
    try:
        yield trackers
    finally:
        trackers.close()


def live_log(
    config: RunConfig, mechanism: Mechanism, trackers: RunTrackers
) -> Callable[[Mapping[str, float], float], None]:
    """Log the settings, and return a function that logs an evaluation while the model trains.

    The function logs epsilon, rates and the loss of public users; for a run without noise, also the training loss.
    """
    private = _is_private(config)
    trackers.describe(_constants(config, mechanism))

    def log(point: Mapping[str, float], seconds: float) -> None:
        step = int(point["step"])
        spent: dict[str, float | None] = {
            "train/learning_rate": config.finetune.learning_rate_at(step - 1, mechanism.steps)
        }
        if mechanism.protects:
            spent |= {"privacy/epsilon": account_plan(mechanism.model_copy(update={"steps": step})).epsilon}
        if PUBLIC_LOSS in point:
            spent |= {"validation/public_loss": point[PUBLIC_LOSS]}
        trackers.log(spent, step, unnoised=False)
        # How long a private step takes follows from whom it drew.
        speed = {"train/steps_per_second": step / seconds} if seconds else {}
        plain = {} if private else {"train/loss": point["train_loss"]}
        trackers.log({**speed, **plain}, step, unnoised=True)

    return log


def log_results(config: RunConfig, out: Path, record: Record, say: Callable[[str], None]) -> None:
    """Log the judged results, only once per run: the curves, the answer, and report.pdf if it is in the folder."""
    if is_reported(config, out) or record.training is None:
        return
    with run_trackers(config, out, say) as trackers:
        for point in record.training.curve:
            values = {shown: getattr(point, name) for name, shown in _COMPARING.items()}
            trackers.log(values, point.step, unnoised=True)
        last, area = record.training.steps, record.primary().auroc
        if record.training.epsilon is not None:
            trackers.log({"privacy/epsilon": record.training.epsilon}, last, unnoised=False)
        judged: dict[str, float | None] = {
            "result/auroc": area.value,
            "result/auroc_lower": area.lower,
            "result/auroc_upper": area.upper,
        }
        if record.effort is not None:
            judged |= {"result/tokens_per_second": record.effort.tokens_per_second}
        trackers.log(judged, last, unnoised=True)
        trackers.state({"answer": record.decision.decision.answer.value, "headline": record.decision.headline})
        if (out / "report.pdf").is_file():
            trackers.attach(out / "report.pdf")
    write_text(out / TRACKERS, json.dumps({**_kept(out), _REPORTED: True}))


def _constants(config: RunConfig, mechanism: Mechanism) -> dict[str, bool | int | float | str]:
    """Return the settings by their keys in the config, and the numbers that the plan adds."""
    unused = _OF_TRACKERS + (_OF_THE_PLAN if _is_private(config) else ())
    recipe = {name: value for name, value in vars(config.finetune).items() if name not in unused}
    sections = {"defense": config.defense.model_dump(), "finetune": recipe}
    stated = {f"{section}/{key}": value for section, values in sections.items() for key, value in values.items()}
    stated |= {
        "model/base": config.model.base or "pretrain",
        "data_defenses": ", ".join(step.kind for step in config.data_defenses) or None,
        "plan/steps": mechanism.steps,
        "plan/delta": mechanism.delta,
        "plan/noise_multiplier": mechanism.noise_multiplier if mechanism.protects else None,
    }
    # By value, for a tracker that writes the name of a member of an enumeration.
    plain = {key: value.value if isinstance(value, StrEnum) else value for key, value in stated.items()}
    return {key: value for key, value in plain.items() if isinstance(value, bool | int | float | str)}


def _run_name(out: Path) -> str:
    """Return the name of the run's folder; for a run of a sweep, its cell's name, such as "1/uls"."""
    folder = out.resolve()
    return f"{folder.parent.name}/{folder.name}" if folder.parent.parent.name == "cells" else folder.name


def _opened(name: TrackerName, run: str, out: Path, kept: str | None) -> Any:
    """Return accelerate's tracker, with a new run or a continued one."""
    from accelerate import tracking

    match name:
        case TrackerName.TENSORBOARD:
            tracker = tracking.TensorBoardTracker(run_name=".", logging_dir=out / TENSORBOARD)
        case TrackerName.MLFLOW:
            tracker = tracking.MLflowTracker(experiment_name=_PROJECT, run_name=run, run_id=kept)
        case TrackerName.WANDB:
            tracker = tracking.WandBTracker(_PROJECT, name=run, id=kept, resume="allow")
    tracker.start()
    if name is TrackerName.WANDB:
        tracker.run.define_metric("*", step_metric=_STEP)
    return tracker


def _describe(name: TrackerName, tracker: Any, constants: Mapping[str, bool | int | float | str]) -> None:
    if name is TrackerName.TENSORBOARD:
        from torch.utils.tensorboard.summary import hparams

        # In the run itself: accelerate makes a second one, without the results. The first summary is left out: it
        # would limit the columns of all runs to those of one.
        _, started, ended = hparams(dict(constants), {})  # type: ignore[no-untyped-call]
        for summary in (started, ended):
            tracker.writer.file_writer.add_summary(summary)
    else:
        tracker.store_init_configuration(dict(constants))


def _log(name: TrackerName, tracker: Any, values: Mapping[str, float], step: int) -> None:
    if name is TrackerName.WANDB:
        # Its own steps only rise, and the curves are logged after the last step.
        tracker.log({**values, _STEP: step})
    else:
        tracker.log(dict(values), step=step)


def _id(name: TrackerName, tracker: Any) -> str:
    match name:
        case TrackerName.TENSORBOARD:
            return TENSORBOARD
        case TrackerName.MLFLOW:
            return str(tracker.active_run.info.run_id)
        case TrackerName.WANDB:
            return str(tracker.run.id)


def _is_private(config: RunConfig) -> bool:
    return config.defense.noise_generator() is not None


def is_remote(name: TrackerName) -> bool:
    """Return whether a tracker sends data to another machine, or may do so. For MLflow, the address of the open run
    decides."""
    match name:
        case TrackerName.TENSORBOARD:
            return False
        case TrackerName.MLFLOW:
            import mlflow

            places = (mlflow.get_tracking_uri(), mlflow.get_artifact_uri())
            return not all(is_local_store(str(place)) for place in places)
        case TrackerName.WANDB:
            return os.environ.get("WANDB_MODE") not in _LOCAL_MODES


def is_local_store(address: str) -> bool:
    """Return whether an MLflow address is a file or folder on this machine; false for an unknown address."""
    return address.startswith(_LOCAL_STORES)


def _state(name: TrackerName, tracker: Any, texts: Mapping[str, str]) -> None:
    match name:
        case TrackerName.TENSORBOARD:
            tracker.log({f"result/{key}": text for key, text in texts.items()})
        case TrackerName.MLFLOW:
            import mlflow
            from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

            mlflow.set_tags({**texts, MLFLOW_RUN_NOTE: texts["headline"]})
        case TrackerName.WANDB:
            tracker.run.summary.update(dict(texts))


def _attach(name: TrackerName, tracker: Any, path: Path) -> None:
    match name:
        case TrackerName.TENSORBOARD:
            pass  # has no files; the report is in the run folder, next to TensorBoard's
        case TrackerName.MLFLOW:
            tracker.log_artifact(str(path))
        case TrackerName.WANDB:
            tracker.run.log_artifact(str(path), name=f"report-{tracker.run.id}", type="report")


def _kept(out: Path) -> dict[str, Any]:
    path = out / TRACKERS
    return dict(read_json(path)) if path.is_file() else {}
