"""The noise of ELS and ULS at equal compute: against the table of calibrated noise, and what is counted."""

import pytest

from replication.noise import (
    CLIP_NORM,
    COHORTS,
    EPSILONS,
    GROUP_SIZES,
    SIGMAS,
    Accounted,
    Noise,
    Study,
    _els,
    noise_figure,
    table,
)
from tests.theory_tables import numbers


def test_variances_are_those_of_the_calibrated_noise():
    row = next(row for row in numbers("table-of-calibrated-noise") if row[:3] == (64, 32768, 32))
    assert _els(4.0, 64, 32) == pytest.approx((row[4] * CLIP_NORM / 64) ** 2, rel=1e-3)


def test_the_settings_in_which_each_has_less_noise_are_counted():
    noises = [Noise(eps, m, g, 2.0, 3.0, 3.0 / g) for eps in EPSILONS for m in COHORTS for g in GROUP_SIZES]
    accounted = [Accounted(s, g, s + g, None if g > 4 else s + 2 * g) for s in SIGMAS for g in GROUP_SIZES]
    by_group = [(eps, g, 1.0 + 0.01 * (g == 32)) for eps in EPSILONS for g in GROUP_SIZES]
    found = Study(tuple(accounted), tuple(by_group), tuple(noises))
    *_, spread, counted = table(found).splitlines()
    assert "1.010" in spread
    # 3 / g is below 2 from a group size of 2 on: 5 of 6 group sizes.
    assert "0 of 36" in counted
    assert " 30 " in counted
    assert noise_figure(found).startswith("<?xml")
