"""A pytest plugin (``-p tests.times``): processor time by folder and the slowest tests, after the run.

Processor time of the test's process and of the processes that it waited for. Unlike wall-clock time it hardly depends
on what else the machine does. A test that makes a shared fixture pays for it.
"""

import collections
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_SLOWEST = 20
_START = pytest.StashKey[float]()


def _processor_seconds() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_START] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        report.processor_seconds = _processor_seconds() - item.stash.get(_START, _processor_seconds())
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    seconds = {
        report.nodeid: report.processor_seconds
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "processor_seconds")
    }
    if seconds:
        terminalreporter.section("processor time")
        for line in _summary(seconds):
            terminalreporter.write_line(line)


def _summary(seconds: Mapping[str, float]) -> Sequence[str]:
    folders: dict[str, list[float]] = collections.defaultdict(list)
    for test, used in seconds.items():
        folders[Path(test.partition("::")[0]).parent.as_posix()].append(used)
    by_folder = sorted(folders.items(), key=lambda entry: -sum(entry[1]))
    slowest = sorted(seconds.items(), key=lambda entry: -entry[1])[:_SLOWEST]
    return [
        f"{sum(seconds.values()):8.1f} s  all {len(seconds)} tests",
        *(f"{sum(used):8.1f} s  {folder} ({len(used)} tests)" for folder, used in by_folder),
        f"the {len(slowest)} slowest:",
        *(f"{used:8.1f} s  {test}" for test, used in slowest),
    ]
