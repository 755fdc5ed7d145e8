"""Run any tests on the pretended GPU: ``pytest -p tests.gpu.everywhere tests/jobs``.

Left out of every suite, as tests that look for a CPU's bits, or for its name, fail: what counts are errors of devices.
"""

import pytest

from tests.gpu.pretended import pretend


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    with pytest.MonkeyPatch.context() as patch, pretend(patch):
        return (yield)
