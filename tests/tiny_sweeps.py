"""Sweeps of tiny cells, which run in this process."""

import copy
from pathlib import Path

import yaml

from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.jobs.run import run
from heldin.stages.run_config import load_config
from heldin.sweeps.processes import Ended
from heldin.sweeps.shared import make_shared
from tests.conftest import SMALL

QUIET = LineReporter(lambda line: None)
ROOT = Path(__file__).resolve().parents[1]
ULS = {"kind": "uls", "population": 30, "cohort": 8, "steps": 6, "delta": 1e-3, "noise_multiplier": 1.0}
USERS = {"corpus": {"users": {"min_records": 8, "fraction": 0.5, "max_users": None}}, "finetune": {"select": "last"}}
# A sweep's cells differ by what surrounds the model: one evaluation is as good as more, and no cell is killed here.
BASE = copy.deepcopy(SMALL)
BASE["finetune"] |= {"evaluations": 1, "checkpoint_every": 100}
CANARIES = [{"kind": "rare_phrase", "users": 10, "documents": [4]}]


def written(folder, **content):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    sweep = {"name": "two", "base": "base.yaml", "variants": {"none": None, "uls": {"defense": ULS}}, **content}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep, sort_keys=False), encoding="utf-8")
    return folder / "sweep.yaml"


def in_process(task, slot):
    """A cell in this process: the real one takes seconds to start (test_sweep_processes)."""
    if task.module != "heldin":
        make_shared([Path(name) for name in task.words], QUIET)
        return Ended(0)
    try:
        record = run(load_config(Path(task.words[1])), Path(task.words[3]), QUIET, command="heldin run")
    except InputError as error:
        return Ended(2, f"error: {error}")
    if record is None:
        return Ended(0, halted=True)
    return Ended(record.judgement.exit_code, seconds=1.0)
