"""Trackers of a run: TensorBoard, MLflow and Weights & Biases, by the trackers of accelerate.

While a model trains, they receive no number that compares members with non-members: nobody can stop a training because
of such a number. Those numbers follow after the judgement.
"""

import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
_LOCAL_STORES = ("file:", "sqlite:", "/", "./")  # of MLflow, by how their addresses begin
_LOCAL_MODES = ("offline", "disabled")  # of Weights & Biases
_REPORTED = "reported"


class RunTrackers:
    """The open trackers of a run. One that fails is closed with a line for the user, and the run goes on.

    Args:
        opened: each tracker, and whether it may receive un-noised numbers.
        say: receives lines for the user.
    """

    def __init__(self, opened: Mapping[TrackerName, tuple[Any, bool]], say: Callable[[str], None]) -> None:
        self._opened = dict(opened)
        self._say = say

    def log(self, values: Mapping[str, float | None], step: int, *, unnoised: bool) -> None:
        """Log numbers at a step; ``unnoised``: only where un-noised numbers may go. None and infinity are left out."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        if known:
            self._each(lambda _, tracker: tracker.log(known, step=step), unnoised=unnoised)

    def state(self, texts: Mapping[str, str]) -> None:
        """State facts about the run that are no numbers, where un-noised numbers may go."""
        self._each(lambda name, tracker: _state(name, tracker, texts), unnoised=True)

    def attach(self, path: Path) -> None:
        """Add a file, where un-noised numbers may go."""
        self._each(lambda name, tracker: _attach(name, tracker, path), unnoised=True)

    def describe(self, constants: Mapping[str, bool | int | float | str]) -> None:
        """Log the public constants of the run."""
        self._each(lambda _, tracker: tracker.store_init_configuration(dict(constants)), unnoised=False)

    def close(self) -> None:
        """Close all."""
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
                self._say(f"{name}: {error}; the run goes on without this tracker")


def require_trackers(config: RunConfig) -> None:
    """Raise InputError for a tracker that is not installed."""
    for name in config.finetune.report_to:
        if importlib.util.find_spec(name.value) is None:
            raise InputError(
                f"{name}, in finetune.report_to, is not installed: pip install '.[trackers]' in a clone of heldin, or"
                f" leave {name} out"
            )


def is_reported(config: RunConfig, out: Path) -> bool:
    """Return whether nothing is left to log: the run has no tracker, or its results were logged before."""
    return not config.finetune.report_to or bool(_kept(out).get(_REPORTED))


@contextmanager
def run_trackers(config: RunConfig, out: Path, say: Callable[[str], None]) -> Iterator[RunTrackers]:
    """Open the trackers of the run in ``out``; a later call goes on in the same runs of MLflow and Weights & Biases."""
    if is_reported(config, out):
        yield RunTrackers({}, say)
        return
    from accelerate import PartialState

    PartialState()  # accelerate's trackers refuse to log before it is made
    kept, opened = _kept(out), {}
    for name in config.finetune.report_to:
        try:
            tracker = _opened(name, config.name, out, kept.get(name.value))
        except Exception as error:
            say(f"{name}: {error}. The run continues without this tracker")
            continue
        receives = not _is_private(config) or config.finetune.report_unnoised or not is_remote(name)
        opened[name] = tracker, receives
        if not receives:
            say(
                f"{name} receives no un-noised number of this private run. Set finetune.report_unnoised: true to send"
                " them"
            )
    write_text(out / TRACKERS, json.dumps({**kept, **{n.value: _id(n, tracker) for n, (tracker, _) in opened.items()}}))
    trackers = RunTrackers(opened, say)
    try:
        if not kept:
            trackers.describe(_constants(config))
        yield trackers
    finally:
        trackers.close()


def live_log(
    config: RunConfig, mechanism: Mechanism, trackers: RunTrackers
) -> Callable[[Mapping[str, float], float], None]:
    """Return a function that logs an evaluation while the model trains.

    It logs epsilon, rates and the loss of public users, and for a run without noise the training loss.
    """
    private = _is_private(config)

    def log(point: Mapping[str, float], seconds: float) -> None:
        step = int(point["step"])
        spent: dict[str, float | None] = {
            "train/learning_rate": config.finetune.learning_rate_at(step - 1, mechanism.steps)
        }
        if mechanism.protects:
            spent |= {"privacy/epsilon": account_plan(mechanism.model_copy(update={"steps": step})).epsilon}
        if PUBLIC_LOSS in point:
            spent |= {"train/public_loss": point[PUBLIC_LOSS]}
        trackers.log(spent, step, unnoised=False)
        # How long a private step takes follows from whom it drew.
        speed = {"train/steps_per_second": step / seconds} if seconds else {}
        plain = {} if private else {"train/loss": point["train_loss"]}
        trackers.log({**speed, **plain}, step, unnoised=True)

    return log


def log_results(config: RunConfig, out: Path, record: Record, say: Callable[[str], None]) -> None:
    """Log what was judged: the curves, the answer, and report.pdf if the folder has it; once for each run."""
    if is_reported(config, out) or record.training is None:
        return
    with run_trackers(config, out, say) as trackers:
        for point in record.training.curve:
            values = {f"after/{name}": getattr(point, name) for name in (HELD_IN_LOSS, HELD_OUT_LOSS, "auroc")}
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


def _constants(config: RunConfig) -> dict[str, bool | int | float | str]:
    values = config.finetune.__dict__.items()
    plain = {name: value for name, value in values if isinstance(value, bool | int | float | str)}
    return {"defense": str(config.defense.kind), **plain}


def _opened(name: TrackerName, run: str, out: Path, kept: str | None) -> Any:
    """Return accelerate's tracker, begun or gone on with."""
    from accelerate import tracking

    match name:
        case TrackerName.TENSORBOARD:
            tracker = tracking.TensorBoardTracker(run_name=".", logging_dir=out / TENSORBOARD)
        case TrackerName.MLFLOW:
            tracker = tracking.MLflowTracker(experiment_name=_PROJECT, run_name=run, run_id=kept)
        case TrackerName.WANDB:
            tracker = tracking.WandBTracker(_PROJECT, name=run, id=kept, resume="allow")
    tracker.start()
    return tracker


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
    """Return whether a tracker sends what it receives to another machine, or may do so; for MLflow, of its open run."""
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
    """Return whether an address of MLflow is a file or folder of this machine; one that is not known is not."""
    return address.startswith(_LOCAL_STORES)


def _state(name: TrackerName, tracker: Any, texts: Mapping[str, str]) -> None:
    match name:
        case TrackerName.TENSORBOARD:
            tracker.log({f"result/{key}": text for key, text in texts.items()})
        case TrackerName.MLFLOW:
            import mlflow

            mlflow.set_tags(dict(texts))
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
