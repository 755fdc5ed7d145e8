"""A sweep on a Ray cluster of two machines: the same comparison as on one, also when one of them is lost."""

import importlib.util
import os
import shutil
import signal
import socket

import pytest

from tests.jobs.test_sweep_processes import PATIENCE, cell_process, file, half_done, numbers, same_keys, started, until

__all__ = ["file"]  # a fixture
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray (the extra 'cluster') is missing")


@pytest.fixture
def machines():
    from ray.cluster_utils import Cluster

    its = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield its
    its.shutdown()


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
    until(lambda: half_done(out, "1/none") and half_done(out, "1/uls"))
    same_keys(out, calm)
    machines.remove_node(other, allow_graceful=False)
    _, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, said
    # What is shared was made once, and a machine's copy of it is gone.
    assert [its.name for its in (out / "shared").iterdir() if its.name.isdigit()] == ["1"]
    assert (out / "shared").stat().st_mode & 0o077 == 0

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
    assert f"--ray-address {address}: nobody answers" in said


@needs_ray
@pytest.mark.slow
def test_ctrl_c_stops_the_cells_on_the_cluster_too(file, machines, tmp_path):
    out = tmp_path / "out"
    sweep = started(file, out, "--ray-address", machines.address)
    until(lambda: half_done(out, "1/none") or half_done(out, "1/uls"))
    # The terminal's group of processes: those that Ray started are in none.
    os.killpg(sweep.pid, signal.SIGINT)
    _, said = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 130, said
    assert "the same command resumes" in said
    until(lambda: not cell_process(out, "1/none") and not cell_process(out, "1/uls"))


def test_an_address_at_which_nobody_answers_is_said_in_a_line(file, tmp_path, call):
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    code, _, err = call("sweep", file, "--out", tmp_path / "out", "--ray-address", address)
    assert code == 2
    assert f"error: --ray-address {address}: nobody answers" in err
    # It can go on without.
    assert not (tmp_path / "out" / "comparison.json").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_one_line_says_how_to_get_it(file, tmp_path, call):
    code, _, err = call("sweep", file, "--out", tmp_path / "out", "--ray-address", "auto")
    assert (code, "--ray-address needs Ray: pip install 'heldin[cluster]'" in err) == (2, True)


def test_a_folder_that_another_machine_does_not_see_is_refused(tmp_path):
    from heldin.base.errors import InputError
    from heldin.jobs.sweep.ray_cluster import _require_seen, _token

    token = _token(tmp_path)
    with pytest.raises(InputError, match="does not see '.*': with --ray-address the sweep's folder must be on a"):
        _require_seen(str(tmp_path / "elsewhere"), token)
    # Another folder under the same name.
    (tmp_path / "out" / "shared").mkdir(parents=True)
    (tmp_path / "out" / "shared" / "token").write_text("f" * 24, encoding="utf-8")
    with pytest.raises(InputError, match="does not see"):
        _require_seen(str(tmp_path / "out"), token)
