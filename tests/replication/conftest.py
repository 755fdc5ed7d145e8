"""The command line of the replications in this process, and the sweep that tests of sweeps look at."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sweeps.conftest import swept

__all__ = ["swept"]


@pytest.fixture
def replicate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run ``python -m replication ARGS`` in this process; returns exit code, standard output and standard error."""
    from heldin.commands.cli import call
    from replication.__main__ import app

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["replication", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            call(app, "python -m replication")
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run
