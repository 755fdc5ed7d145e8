"""Power before cost, against the tables of accounting.md sections 4h and 7."""

import json
import time

import numpy as np
import pytest

from heldin.base.errors import InputError
from heldin.bounds import one_run, power
from heldin.bounds.one_run import Guesses
from heldin.bounds.verdict import curve_claim, stated_claim
from heldin.defenses.accounting.ceiling import ceiling_of, gaussian_auroc
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import gaussian_epsilon

# AUROC: (4d, 4e) at m = 100, 1000, 10000, delta 1e-5, best number of guesses in hindsight
MEDIANS = {
    0.56: ((0.0, 0.0), (0.14, 0.22), (0.35, 0.45)),
    0.66: ((0.24, 0.40), (0.85, 1.24), (1.28, 1.59)),
    0.75: ((0.70, 1.30), (1.63, 2.46), (2.21, 2.84)),
    0.88: ((1.82, 3.41), (3.00, 4.73), (3.90, 5.58)),
    0.95: ((2.55, 5.15), (3.71, 6.43), (5.18, 8.13)),
    0.99: ((3.13, 6.95), (4.86, 9.22), (6.33, 11.0)),
}


@pytest.mark.parametrize("auroc", MEDIANS)
def test_median_lower_bounds(auroc):
    """The best r of medians; the table's own r and simulations are unknown, so within a seventh, or 0.2 at m = 100."""
    mu = power.attack_mu(auroc)
    for m, (steinke, gaussian) in zip((100, 1000, 10000), MEDIANS[auroc], strict=True):
        tries = tuple(sorted({int(m * s) for s in np.geomspace(0.02, 1.0, 12) if m * s >= 5}))
        medians = np.median(power.simulated_rights(min(m, 10**4), mu, tries, 1)[:100], axis=0)
        games = [Guesses(m, r, int(v)) for r, v in zip(tries, medians, strict=True)]
        best = max(one_run.one_run_epsilon(game, 1e-5) for game in games)
        assert best == pytest.approx(steinke, rel=0.14, abs=0.2 if m == 100 else 0.05)
        mus = max(one_run.fdp_mu(game) for game in games)
        found = gaussian_epsilon(mus, 1e-5) if mus > 0 else 0.0
        assert found == pytest.approx(gaussian, rel=0.14, abs=0.45 if m == 100 else 0.08)


def test_the_price_of_choosing_r():
    """Section 7: at AUROC 0.75, m = 1000, six numbers of guesses: median certified 1.44; three cost less."""
    found = power.power(1000, 0.75, 1e-5)
    its = found.expected_one_run
    assert (its.low, its.median, its.high) == pytest.approx((1.19, 1.47, 1.81), abs=0.03)
    assert its.median > 1.44
    assert found.expected_gaussian.median > its.median
    assert found.largest.one_run == pytest.approx(5.78, abs=6e-3)
    assert found.largest.gaussian == pytest.approx(12.3, abs=0.06)
    assert found.largest.clopper_pearson == pytest.approx(4.91, abs=6e-3)
    assert its.high < found.largest.paid < found.largest.one_run
    json.dumps(found.as_dict())


def test_independent_trainings():
    assert power.trainings_reach(100, 100) == pytest.approx(3.28, abs=5e-3)


def test_typical_rights_are_those_of_simulated_runs():
    mu = power.attack_mu(0.75)
    tries = (20, 101, 1000)
    simulated = power.simulated_rights(1000, mu, tries, 0)
    for i, r in enumerate(tries):
        assert abs(power.typical_rights(1000, r, mu) - simulated[:, i].mean()) < 4.0
    assert gaussian_auroc(mu) == pytest.approx(0.75)


def test_many_users():
    """From LARGEST_SIMULATED on binomial draws: the same law, and seconds up to the limit."""
    mu = power.attack_mu(0.75)
    tries = (1000, 7000)
    exact = power.simulated_rights(power.LARGEST_SIMULATED, mu, tries, 0)
    drawn = power.simulated_rights(power.LARGEST_SIMULATED + 1, mu, tries, 0)
    np.testing.assert_allclose(drawn.mean(axis=0), exact.mean(axis=0), rtol=4e-3)
    np.testing.assert_allclose(drawn.std(axis=0), exact.std(axis=0), rtol=0.2)
    began = time.perf_counter()
    power.power(60_000, 0.75, 1e-5)
    assert time.perf_counter() - began < 10.0
    with pytest.raises(InputError, match="1000000000 users: power is computed for at most 1000000"):
        power.power(10**9, 0.75, 1e-5)


def test_users_that_a_claim_needs():
    claim = stated_claim(4.0, 1e-6)
    found = power.claim_power(500, 0.95, claim)
    assert found.in_reach
    assert found.probability < 0.2
    assert found.users_perfect == pytest.approx(254, abs=3)
    assert 1000 < found.users_at_auroc < 10_000
    enough = power.claim_power(2 * found.users_at_auroc, 0.95, claim)
    assert enough.probability > 0.8
    hopeless = power.claim_power(100, 0.75, claim)
    assert (hopeless.in_reach, hopeless.users_at_auroc) == (False, None)


def test_falsifying_uls_at_epsilon_4():
    """Section 4h: attacker 0.88 rejects from a few hundred users, attacker 0.75 never (m <= 10000)."""
    ceiling = ceiling_of(PoissonGaussian(0.92826, 16 / 1024), 1000, 1e-6)
    claim = curve_claim(ceiling, 4.0, 1e-6)
    strong = power.claim_power(1000, 0.88, claim)
    assert strong.probability > 0.9
    assert strong.users_at_auroc < 600
    weak = power.claim_power(10_000, 0.75, claim)
    assert weak.probability == 0.0
    assert weak.users_at_auroc is None or weak.users_at_auroc > 10_000


def test_table_says_it_in_words():
    text = power.table(power.power(500, 0.75, 1e-5, claims=(stated_claim(4, 1e-6),)))
    assert "500 users by fair coin, delta 1e-05, confidence 95 %" in text
    assert "claim: epsilon 4 at delta 1e-06" in text
    assert "users needed with AUROC 0.75: more than 100,000" in text


def test_bad_input():
    with pytest.raises(InputError, match=r"AUROC 0.4 is outside \[0.5, 1\)"):
        power.power(100, 0.4, 1e-5)
    with pytest.raises(InputError, match="3 users cannot support any statement"):
        power.power(3, 0.75, 1e-5)
    with pytest.raises(InputError, match=r"delta 2 is outside \(0, 1\)"):
        power.power(100, 0.75, 2)
