"""The power of the positive control that docs/planted-audits.md lists is that of the code."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from heldin.planting.positive_control import LEFT, Filter, noticed_from

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def control_power():
    path = ROOT / "benchmarks" / "control_power.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def test_the_power_that_a_plan_counts_on_is_reached_where_coins_decide_the_sides(control_power):
    dice, rounds = np.random.default_rng(1), 300
    area = noticed_from(400, 400, 300)
    share = control_power.share_noticed(area, LEFT[Filter.TOKEN_LOSS], 300, dice, rows=400, rounds=rounds)
    assert round(share * rounds) >= stats.binom.ppf(1e-6, rounds, 0.78)
    # An honest training whose canary users are learned like real rows is not accused.
    assert control_power.share_noticed(area, 1.0, 300, dice, rows=400, rounds=rounds) <= 0.05


@pytest.mark.slow
def test_the_table_is_that_of_the_page(control_power):
    assert control_power.table() in (ROOT / "docs" / "planted-audits.md").read_text(encoding="utf-8")
