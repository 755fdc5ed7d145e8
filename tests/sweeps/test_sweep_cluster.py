"""A sweep on a Ray cluster of two machines: the same comparison as on one, also when one of them is lost."""

import dataclasses
import importlib.util
import os
import shutil
import signal
import socket

import pytest
import yaml

from heldin.base.files import cache_root
from heldin.base.machine import version
from heldin.record.sweep import read_sweep
from heldin.sweeps.node import SHARED, SweepBatch, require_same_code, token
from tests.refusals import refused
from tests.sweeps.test_sweep_processes import (
    PATIENCE,
    cell_process,
    file,
    half_done,
    numbers,
    same_keys,
    started,
    until,
)

__all__ = ["file"]  # a fixture
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray (the extra 'cluster') is missing")


@pytest.fixture
def machines():
    from ray.cluster_utils import Cluster

    its = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield its
    its.shutdown()


@pytest.mark.long
@needs_ray
@pytest.mark.slow
def test_a_machine_that_is_lost_changes_no_number(file, machines, tmp_path):
    out, calm = tmp_path / "out", tmp_path / "calm"
    other = machines.add_node(num_cpus=1)
    machines.wait_for_nodes()
    text = file.read_text(encoding="utf-8").replace("workers: 2", "workers: 1")
    file.write_text(text, encoding="utf-8")
    address = machines.address
    sweep = started(file, out, "--ray-address", address)
    # One machine has one CPU: the cells are on both.
    until(lambda: half_done(out, "1/none") and half_done(out, "1/uls"), sweep)
    same_keys(out, calm)
    machines.remove_node(other, allow_graceful=False)
    _, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    # What is shared was made once, and a machine's copy of it is gone.
    assert [its.name for its in (out / SHARED).iterdir() if its.name.isdigit()] == ["1"]
    assert (out / SHARED).stat().st_mode & 0o077 == 0
    assert not list((cache_root() / "sweeps").iterdir())

    # Here, without a cluster.
    _, said = (sweep := started(file, calm)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    assert numbers(out) == numbers(calm)
    # All is done: nothing is asked of a cluster any more.
    machines.shutdown()
    _, said = (sweep := started(file, out, "--ray-address", address)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    assert numbers(out) == numbers(calm)
    shutil.rmtree(out / "cells" / "1" / "uls")
    _, said = (sweep := started(file, out, "--ray-address", address)).communicate(timeout=PATIENCE)
    assert sweep.returncode == 2
    assert f"--ray-address {address}: no machine" in said


@needs_ray
@pytest.mark.slow
def test_ctrl_c_stops_the_cells_on_the_cluster_too(file, machines, tmp_path):
    out = tmp_path / "out"
    base = file.with_name("base.yaml")
    # Hours, if nobody stopped it; alone, since one machine with one CPU would run the other cell first, by chance.
    base.write_text(base.read_text(encoding="utf-8").replace("epochs: 30", "epochs: 300000"), encoding="utf-8")
    content = yaml.safe_load(file.read_text(encoding="utf-8")) | {"variants": {"none": {}}}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    sweep = started(file, out, "--ray-address", machines.address)
    until(lambda: half_done(out, "1/none"), sweep)
    # The terminal's group of processes: those that Ray started are in none.
    os.killpg(sweep.pid, signal.SIGINT)
    _, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 130, said
    until(lambda: not cell_process(out, "1/none"))
    assert not (out / "cells" / "1" / "none" / "record.json").exists()


@pytest.mark.long
@needs_ray
@pytest.mark.slow
def test_a_sweep_that_is_tuned_runs_on_a_cluster_from_a_relative_folder(file, machines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base, content = (yaml.safe_load(its.read_text(encoding="utf-8")) for its in (file.with_name("base.yaml"), file))
    base["corpus"]["public_validation"] = {"min_records": 4, "fraction": 0.5}
    base["finetune"]["epochs"] = 1
    file.with_name("base.yaml").write_text(yaml.safe_dump(base), encoding="utf-8")
    content |= {"variants": {"none": {}}, "tune": {"over": {"none": {"finetune.learning_rate": [1e-6, 0.003]}}}}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    sweep = started(file, "runs/tuned", "--ray-address", machines.address)
    _, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    found = read_sweep(tmp_path / "runs" / "tuned")
    assert [(its.values, its.chosen) for its in found.tried] == [
        ({"finetune.learning_rate": 1e-6}, False),
        ({"finetune.learning_rate": 0.003}, True),
    ]
    assert not (tmp_path / "runs" / "tuned" / "progress").exists()


def test_an_address_at_which_nobody_answers_is_said_in_a_line(file, tmp_path, call):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    code, _, err = call("sweep", file, "--out", tmp_path / "out", "--ray-address", f"ray://{address}")
    assert (code, "HOST:PORT" in err) == (2, True)
    code, _, err = call("sweep", file, "--out", tmp_path / "out", "--ray-address", address)
    assert code == 2
    assert f"error: --ray-address {address}: no machine" in err
    # It can go on without.
    assert not (tmp_path / "out" / "comparison.json").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_one_line_says_how_to_get_it(file, tmp_path, call):
    code, _, err = call("sweep", file, "--out", tmp_path / "out", "--ray-address", "auto")
    assert (code, ".[cluster]" in err) == (2, True)


def test_a_folder_that_another_machine_does_not_see_is_refused(tmp_path):
    batch = SweepBatch(str(tmp_path / "elsewhere"), token(tmp_path), version(), str(tmp_path), {})
    with refused(by=require_same_code, naming=("--ray-address", "elsewhere")):
        require_same_code(batch)
    # Another folder under the same name.
    shared = tmp_path / "out" / SHARED
    shared.mkdir(parents=True)
    (shared / "token").write_text("f" * 24, encoding="utf-8")
    batch = dataclasses.replace(batch, out=str(tmp_path / "out"))
    with refused(by=require_same_code, naming=("--ray-address", "out")):
        require_same_code(batch)
    (shared / "token").write_text(batch.token, encoding="utf-8")
    require_same_code(batch)
    with refused(by=require_same_code, naming=("9.9", version())):
        require_same_code(dataclasses.replace(batch, version="9.9"))
