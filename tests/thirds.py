"""A pytest plugin (``-p tests.thirds --third N --minutes M``): a third of the tests, and none begins after M minutes.

The thirds depend on names alone, so a new test is in one of them without a list. Tests of a file stay together, since
they share fixtures; cases of one parametrized test are spread, since pages and commands take minutes each. What time
did not allow is skipped with its reason, and is counted in the summary.
"""

import time
import zlib

import pytest

THIRDS = (1, 2, 3)
_BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--third", type=int, choices=THIRDS, default=None, help="run the tests of one third")
    parser.addoption("--minutes", type=float, default=None, help="begin no test after this time")


def third_of(name: str) -> int:
    """Return the third of a test, by its node id."""
    file, _, case = name.partition("::")
    return 1 + zlib.crc32((name if "[" in case else file).encode()) % len(THIRDS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    third = config.getoption("--third")
    if third is not None:
        others = [item for item in items if third_of(item.nodeid) != third]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if third_of(item.nodeid) == third]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - _BEGUN > 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes of this call are over")
