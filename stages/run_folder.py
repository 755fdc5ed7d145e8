"""A run's folder, which is new or has an earlier run of the same config; and the seconds of the run's stages.

This module does not import torch.
"""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from heldin.base.artefacts import INDEX, require_not_purged, write_artefact
from heldin.base.errors import InputError
from heldin.base.files import is_held, private_directory, write_text
from heldin.base.progress import LOG
from heldin.base.yaml_files import read_yaml
from heldin.stages.config_files import first_difference
from heldin.stages.families import KINDS, keep_code, require_kept_code

if TYPE_CHECKING:
    from heldin.stages.run_config import RunConfig


SECONDS_FILE = "seconds.json"
TRACKERS = "trackers.json"  # ids of the run in its trackers, and whether its results were logged
TENSORBOARD = "tensorboard"  # folder of the files of TensorBoard
_BEFORE_COINS = {
    "config.yaml",
    KINDS,
    INDEX,
    LOG,
    SECONDS_FILE,
}  # what a run leaves that was stopped before it drew any


class StageSeconds:
    """Seconds of each stage, stored in the run folder.

    Attributes:
        seconds: seconds of each stage, summed over all calls so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._path: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """From now on, store the seconds in this folder, added to the seconds of earlier calls."""
        self._path = folder / SECONDS_FILE
        try:
            earlier = json.loads(self._path.read_text(encoding="utf-8"))
            before = {str(stage): float(value) for stage, value in earlier.items()}
        # Nothing follows from it: a run does not end for a file that only says how long it took.
        except (OSError, ValueError, TypeError, AttributeError):
            before = {}
        self.seconds = {**before, **{stage: before.get(stage, 0.0) + spent for stage, spent in self.seconds.items()}}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of this block to the stage, even if an error or an interruption ends the block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started
            if self._path is not None and self._path.parent.is_dir():
                write_text(self._path, json.dumps(self.seconds))


def take_folder(config: "RunConfig", out: Path) -> None:
    """Create the run folder, or check that it belongs to an earlier run of the same config."""
    if not require_folder(config, out):
        private_directory(out)
        keep_code(config, out)
        write_config(config.model_dump(mode="json"), out)


def write_config(content: dict[str, Any], out: Path) -> None:
    """Write a run's config to its folder."""
    write_artefact(out / "config.yaml", yaml.safe_dump(content, sort_keys=False))


def require_folder(config: "RunConfig", out: Path) -> bool:
    """Return whether ``out`` contains an earlier run of the same config. Writes nothing.

    Raises:
        InputError: the folder contains other files, or a package's code differs from the code that began the run.
    """
    path = out / "config.yaml"
    require_not_purged(out)
    require_kept_code(out)
    # As data, not as text: order and comments of a file do not make another config.
    content = config.model_dump(mode="json")
    if path.is_file():
        changed = first_difference(read_yaml(path), content)
        if changed:
            # Never taken over: the other run may be at work, before its coins.
            held = is_held(out)
            bare = not held and _without_coins(out)
            lost = ", or remove the folder, which has no coins yet" if bare else ""
            works = ", and a process is working on it" if held else ""
            raise InputError(
                f"'{out}' contains a run of another config ('{changed}' differs){works}: choose another --out{lost}"
            )
        return True
    _require_empty(out, "run")
    return False


@contextmanager
def for_any_config_without_coins(out: Path) -> Iterator[None]:
    """If an input stops the run before any coin is drawn, remove the config, so a later run can use the folder with any
    config. The log stays.

    Only the process that holds the folder may call this.
    """
    try:
        yield
    except InputError:
        if _without_coins(out):
            for name in _BEFORE_COINS - {LOG}:
                (out / name).unlink(missing_ok=True)
        raise


def _without_coins(out: Path) -> bool:
    return {file.name for file in out.iterdir()} <= _BEFORE_COINS


def take_new_folder(out: Path, purpose: str, besides: Collection[str] = ()) -> None:
    """Create ``out`` with access only for its owner.

    Raises InputError if ``out`` is a file or contains files other than ``besides``. Changes nothing in that case.
    """
    _require_empty(out, purpose, besides)
    private_directory(out)


def _require_empty(out: Path, purpose: str, besides: Collection[str] = ()) -> None:
    # a lone log is of a call that ended before it wrote anything: no reason to refuse the next
    if out.exists() and (not out.is_dir() or any(file.name not in (LOG, *besides) for file in out.iterdir())):
        article = "an" if purpose[0] in "aeiou" else "a"
        is_what = "is not empty and contains no" if out.is_dir() else f"is a file, not a folder for {article}"
        raise InputError(f"'{out}' {is_what} {purpose}: choose another --out")
