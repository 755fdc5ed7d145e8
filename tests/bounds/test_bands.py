"""ROC bands against docs/theory.md#roc-bands, simulation and slow twins."""

import math

import numpy as np
import pytest
from scipy import special

from heldin.bounds import bands
from heldin.bounds.scores import labelled
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.accounting.events import UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.defenses.accounting.roc_ceiling import epsilon_delta_ceiling
from tests.drawn_scores import gaussian_scores
from tests.oracles import bounds as slow
from tests.oracles.ceilings import gaussian_auroc
from tests.refusals import refused
from tests.theory_tables import numbers


@pytest.mark.parametrize(("n", "eta", "width"), numbers("table-of-local-levels"))
def test_local_levels(n, eta, width):
    """Rounded down by at most 0.1 % (bands.local_level), and to four digits on the page."""
    found = bands.local_level(int(n), 0.025)
    assert found == pytest.approx(eta, rel=1.5e-3)
    assert 0.0249 < bands.crossing_probability(int(n), found) <= 0.025
    assert bands.dkw_width(int(n), 0.05) == pytest.approx(width, abs=6e-5)


@pytest.mark.parametrize(("n", "eta"), [(1, 0.03), (4, 0.01), (60, 1.4e-3), (300, 7e-4)])
def test_crossing_probability_against_simulation(n, eta):
    rng = np.random.default_rng(3)
    k = np.arange(1, n + 1)
    limits = special.betaincinv(k, n + 1 - k, eta)
    crossed = np.concatenate([(np.sort(rng.random((5000, n)), 1) < limits).any(1) for _ in range(8)])
    exact = bands.crossing_probability(n, eta)
    assert abs(crossed.mean() - exact) < 5.5 * math.sqrt(exact * (1 - exact) / crossed.size)
    if n == 1:
        assert exact == pytest.approx(0.03, rel=1e-9)
    assert abs(crossed.mean() - bands.crossing_probability(n, 1.5 * eta)) > 3 * math.sqrt(exact / crossed.size)


@pytest.mark.slow
def test_crossing_probability_at_5000_trials():
    """The exact level is 3.8e-4; a table made by simulation once said 4.6e-4."""
    rng = np.random.default_rng(4)
    n = 5000
    k = np.arange(1, n + 1)
    for eta in (3.77e-4, 4.6e-4):
        limits = special.betaincinv(k, n + 1 - k, eta)
        crossed = np.concatenate([(np.sort(rng.random((500, n)), 1) < limits).any(1) for _ in range(60)])
        exact = bands.crossing_probability(n, eta)
        assert abs(crossed.mean() - exact) < 5.5 * math.sqrt(exact * (1 - exact) / crossed.size)
    assert bands.crossing_probability(n, 4.6e-4) > 0.029


def test_bands_by_hand():
    rng = np.random.default_rng(1)
    scores = labelled(rng.integers(0, 6, 40).astype(float) + 1, rng.integers(0, 6, 30).astype(float))
    local, dkw = bands.equal_local_level_band(scores), bands.dkw_band(scores)
    eta1, eta0 = bands.local_level(40, 0.025), bands.local_level(30, 0.025)
    for i, t in enumerate(local.thresholds):
        k, j = slow.band_by_hand(scores.held_in, scores.held_out, t)
        assert local.tpr[i] == pytest.approx(slow.clopper_pearson_lower(k, 40, eta1), abs=1e-9)
        assert local.fpr[i] == pytest.approx(1 - slow.clopper_pearson_lower(30 - j, 30, eta0), abs=1e-9)
        assert dkw.tpr[i] == pytest.approx(max(0.0, k / 40 - bands.dkw_width(40, 0.05)))
        assert dkw.fpr[i] == pytest.approx(min(1.0, j / 30 + bands.dkw_width(30, 0.05)))


def test_violation_test_has_the_power_of_the_page():
    """n = 500 + 500: claim mu = 0.7 of a truth 1.0 about half of the time, 0.5 nearly always, the truth never."""
    found = dict.fromkeys((0.5, 0.7, 1.0), 0)
    ceilings = {mu: ceiling_of(UnamplifiedGaussian(1 / mu, 1), 1, 1e-5) for mu in found}
    for seed in range(100):
        scores = gaussian_scores(1.0, 500, seed)
        for mu, ceiling in ceilings.items():
            found[mu] += bands.violates(scores, ceiling).contradicted
    assert found[0.5] >= 95
    assert 35 <= found[0.7] <= 85
    assert found[1.0] <= 3


def test_auroc_bound():
    scores = gaussian_scores(2.0, 1000)
    least = bands.auroc_at_least(scores)
    assert least == pytest.approx(gaussian_auroc(2.0) - math.sqrt(math.log(20) / 1000), abs=0.03)
    assert bands.auroc_epsilon(0.7311, 0.0) == pytest.approx(1.0, abs=1e-3)
    assert bands.auroc_epsilon(0.4, 0.0) == 0.0
    ceiling = epsilon_delta_ceiling(1.0, 1e-3)
    assert bands.auroc_epsilon(ceiling.auroc, 1e-3) == pytest.approx(1.0, abs=1e-9)
    assert bands.auroc_at_least(scores, attacks=4) < least


def test_band_epsilon_is_below_the_truth_and_not_far():
    scores = gaussian_scores(1.5, 2500)
    truth = gaussian_epsilon(1.5, 1e-5)
    for band in (bands.equal_local_level_band(scores), bands.dkw_band(scores)):
        assert 0.25 * truth < band.epsilon(1e-5) < truth


def test_very_many_trials_use_the_dkw_band_alone(monkeypatch):
    monkeypatch.setattr(bands, "LARGEST", 400)
    scores, ceiling = gaussian_scores(1.0, 487), ceiling_of(UnamplifiedGaussian(2.0, 1), 1, 1e-5)
    assert bands.both_bands(scores)[0] is None
    assert bands.violates(scores, ceiling) == bands.RocTest(False, True, 0.05)
    with refused(by="local_level", naming=("487", "ROC")):
        bands.equal_local_level_band(scores)
