"""Spending a compute budget: calibrated rows, equal compute, and Estimate-and-Double by hand."""

import numpy as np
import pytest

from heldin.defenses.accounting.choose import choose, table
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import epsilon
from heldin.words.guarantee import DeltaText
from tests.oracles import banded
from tests.refusals import refused
from tests.statements import values_of


def _choose(**changes):
    return choose(**{"users": 512, "budget": 64, "steps": 100, "target_epsilon": 4.0, "delta": 1e-4, **changes})


def test_every_option_spends_the_target_and_the_whole_budget():
    found = _choose(els_group_size=8)
    assert [(o.group_size, o.cohort) for o in found.options if o.method == "uls"] == [
        (2**i, 64 // 2**i) for i in range(7)
    ]
    for o in found.options:
        event = PoissonGaussian(o.noise_multiplier, o.cohort / 512)
        if o.method == "els":
            event = PoissonGaussian(o.noise_multiplier, 64 / (8 * 512), 8)
        if o.method == "banded":
            event = PoissonGaussian(o.noise_multiplier, o.bands * o.cohort / 512)
        assert epsilon(event, -(-100 // o.bands), 1e-4) == pytest.approx(4.0, rel=2e-3)
        inverse = np.linalg.inv(banded.matrix(o.bands, 100))
        share = o.noise_multiplier / o.cohort
        assert o.deviation == pytest.approx(share * np.linalg.norm(inverse) / 10)
        assert o.sums == pytest.approx(share * banded.error(o.bands, 100))
    assert found.least.cohort == 64


def test_banded_noise_is_a_row_where_it_has_less_noise_in_sums_and_is_chosen_there():
    found = _choose(users=4400, budget=220, steps=400, target_epsilon=8.0, delta=None)
    best = found.least
    assert (best.method, best.group_size, best.cohort, best.bands) == ("banded", 1, 220, 8)
    of_uls = next(o for o in found.options if (o.method, o.cohort) == ("uls", 220))
    assert best.sums * 220 == pytest.approx(10.36, rel=3e-3)
    assert of_uls.sums * 220 == pytest.approx(12.08, rel=3e-3)
    assert "8 bands" in table(found)
    # At epsilon 2 such users gain nothing at the whole cohort.
    few = _choose(users=1000, budget=100, steps=200, target_epsilon=2.0, delta=None)
    assert few.least.method == "uls"
    assert {(o.method, o.cohort) for o in few.options} >= {("uls", 100), ("banded", 1)}
    assert ("banded", 100) not in {(o.method, o.cohort) for o in few.options}


def test_small_clip_norms_for_large_groups_move_the_choice():
    flat, steep = _choose(clip_norm=lambda g: 1.0), _choose(clip_norm=lambda g: 1.0 / g)
    assert [o.cohort for o in flat.options if o.chosen] == [64]
    chosen = next(o for o in steep.options if o.chosen)
    assert chosen.group_size > 1
    assert steep.least.group_size >= chosen.group_size
    assert sum(o.passed for o in steep.options) == 2  # from (1, 32) once doubled


def test_cohorts_never_exceed_the_population():
    found = _choose(users=16, budget=64, clip_norm=lambda g: 1.0)
    assert max(o.cohort for o in found.options) <= 16
    with refused(by=choose, naming="0"):
        _choose(budget=0)


def test_delta_follows_from_the_public_number_of_users():
    chosen = _choose(delta=None)
    assert chosen.delta == pytest.approx(512**-1.1)
    assert values_of(chosen.delta_rule, DeltaText.OVER_UNITS) == {"number": 512}
    assert str(chosen.delta_rule) in table(chosen)
    assert "choose banded" in table(_choose())
