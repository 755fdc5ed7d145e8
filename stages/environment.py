"""The environment of a run, for the record."""

import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from heldin.base.machine import installed_versions, version
from heldin.models.devices import default_device, device_name, highest_peak
from heldin.record.facts import Environment

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "accelerate", "numpy", "scipy", "scikit-learn", "pyarrow")


def environment(seconds: Mapping[str, float]) -> Environment:
    """Return versions, source revision, device, and the seconds of each stage. A run sums its seconds over all
    calls."""
    return Environment(
        heldin=version(),
        python=platform.python_version(),
        # Those whose versions may change a number of the record.
        packages=installed_versions(PACKAGES),
        git_revision=_git_revision(),
        device=device_name(default_device()),
        threads=torch.get_num_threads(),
        seconds={stage: round(value, 2) for stage, value in seconds.items()},
        peak_memory=_peak_memory(),
    )


def _peak_memory() -> int:
    """Return the peak memory in bytes: the GPU's if there is a GPU, else this process's."""
    device = default_device()
    if device.type == "cuda":
        return highest_peak(device)
    status = Path("/proc/self/status")
    if status.is_file():
        # Not the resource usage, which a process on Linux inherits from whoever started it.
        held = next((line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
        if held is not None:
            return int(held) * 1024
    # Kilobytes, but bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _git_revision() -> str | None:
    """Return the Git revision of this code, with "+changes" if files were modified; None outside a checkout."""
    # Resolved: imports come through the links in src/heldin.
    folder = Path(__file__).resolve().parent
    # Asked first, or git would answer with the repository of whoever installed heldin in a folder of theirs.
    if not (folder.parent / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # Untracked files are left out: runs and corpora lie there and change nothing that is executed.
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
