"""A sweep that the tests of this folder look at; whoever changes it makes a copy first."""

import pytest

import heldin.sweeps.processes as processes
from heldin.sweeps.driver import run_sweep
from heldin.sweeps.load import load_sweep
from tests.tiny_sweeps import CANARIES, QUIET, ULS, USERS, in_process, written


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """Two variants in two blocks, and a group of its own; the sweep, its folder and its result."""
    folder = tmp_path_factory.mktemp("swept")
    variants = {
        "none": USERS,
        "uls": {**USERS, "defense": ULS, "canaries": CANARIES},
        "apart": {**USERS, "split": {"attacker_fraction": 0.2}},
    }
    variants["none"] = {**USERS, "canaries": CANARIES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run_process", in_process)
        sweep = load_sweep(written(folder, variants=variants, blocks=2))
        result = run_sweep(sweep, folder / "out", QUIET, command="heldin sweep")
    return sweep, folder / "out", result
