"""A sweep that the tests of this folder look at; whoever changes it makes a copy first."""

import pytest

import heldin.sweeps.processes as processes
from heldin.record.sweep import read_sweep
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.load import load_sweep
from tests.tiny_sweeps import CANARIES, QUIET, ULS, USERS, in_process, written


@pytest.fixture(autouse=True)
def _few_steps_are_timed(monkeypatch):
    """A check of a sweep times steps of 16 records for a second, whatever the test is about."""
    monkeypatch.setattr("heldin.sweeps.check_sweep.SECONDS", 0.0)
    monkeypatch.setattr("heldin.sweeps.check_sweep.RECORDS", 1)


@pytest.fixture(scope="session")
def swept(make_once):
    """Two variants in two blocks, and a group of its own; the sweep, its folder and its result."""
    variants = {
        "none": USERS,
        "uls": {**USERS, "defense": ULS, "canaries": CANARIES},
        "apart": {**USERS, "split": {"attacker_fraction": 0.2}},
    }
    variants["none"] = {**USERS, "canaries": CANARIES}

    def build(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "run_process", in_process)
            sweep = load_sweep(written(folder, variants=variants, blocks=2))
            run_sweep(sweep, folder / "out", QUIET, command="heldin sweep")

    folder = make_once("swept", build)
    return load_sweep(folder / "sweep.yaml"), folder / "out", read_sweep(folder / "out")
