"""Main memory is what the tightest limit leaves, of either version of control groups."""

import psutil
import pytest

from heldin.base import machine
from heldin.base.machine import main_memory

TOTAL = int(psutil.virtual_memory().total)


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A function that writes what the process is in, and the limits by file."""

    def write(lines, **limits):
        monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(machine, "OF_THIS_PROCESS", tmp_path / "self")
        (tmp_path / "self").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for name, limit in limits.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{limit}\n", encoding="utf-8")

    return write


@pytest.mark.parametrize(
    ("lines", "limits", "least"),
    [
        (["0::/job"], {"job/memory.max": 2**20}, 2**20),
        # A limit of a group that this one lies in, and one that says there is none.
        (["0::/jobs/one"], {"jobs/memory.max": 2**21, "jobs/one/memory.max": "max"}, 2**21),
        (["0::/jobs/one"], {"jobs/memory.max": 2**21, "jobs/one/memory.max": 2**20}, 2**20),
        # In a container the path is the host's and only the root is there.
        (["0::/host/path"], {"memory.max": 2**22}, 2**22),
        (["4:memory:/job", "3:cpu:/job"], {"memory/job/memory.limit_in_bytes": 2**20}, 2**20),
        (["5:cpu,memory:/"], {"memory/memory.limit_in_bytes": 2**23}, 2**23),
        # Version 1 has no word for "none": its largest number is far above any machine's.
        (["4:memory:/"], {"memory/memory.limit_in_bytes": 2**63 - 4096}, TOTAL),
        (["3:cpu:/job"], {"memory/job/memory.limit_in_bytes": 2**20}, TOTAL),
        ([], {"memory.max": 2**20}, TOTAL),
    ],
)
def test_the_tightest_limit_counts(groups, lines, limits, least):
    groups(lines, **limits)
    assert main_memory() == least


def test_without_control_groups_it_is_the_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "OF_THIS_PROCESS", tmp_path / "none")
    assert main_memory() == TOTAL
