"""How long each stage of a run took, over all calls: a run that was killed and went on took both parts' time."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heldin.base.files import write_text

FILE = "seconds.json"


class StageSeconds:
    """Seconds by stage, kept in the run folder.

    Attributes:
        seconds: of each stage, over all calls so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._path: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """Add to what earlier calls left in this folder, from now on."""
        self._path = folder / FILE
        try:
            earlier = json.loads(self._path.read_text(encoding="utf-8"))
            before = {str(stage): float(value) for stage, value in earlier.items()}
        # Nothing follows from it: a run does not end for a file that only says how long it took.
        except (OSError, ValueError, TypeError, AttributeError):
            before = {}
        self.seconds = {**before, **{stage: before.get(stage, 0.0) + spent for stage, spent in self.seconds.items()}}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds of this block, also where it ends in an error or an interruption."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started
            if self._path is not None and self._path.parent.is_dir():
                write_text(self._path, json.dumps(self.seconds))
