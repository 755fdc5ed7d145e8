"""Power before cost, against the tables of docs/theory.md#conditions-of-one-run."""

import json
import re
import time

import numpy as np
import pytest

from heldin.bounds import one_run, power
from heldin.bounds.one_run import Guesses
from heldin.bounds.verdict import curve_claim, stated_claim
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.guarantees import ceiling_of
from tests.oracles.ceilings import gaussian_auroc
from tests.refusals import names, refused
from tests.theory_tables import numbers

# AUROC, true epsilon, m, then one-run and Gaussian medians at delta 1e-5, best number of guesses in hindsight
MEDIANS = numbers("table-of-median-bounds")
LARGEST = {int(row[0]): row for row in numbers("table-of-largest-certifiable-epsilons")}


@pytest.mark.parametrize(("auroc", "truth", "m", "steinke", "gaussian"), MEDIANS)
def test_median_lower_bounds(auroc, truth, m, steinke, gaussian, monkeypatch):
    """The best r of medians; the table's own r and simulations are unknown, so within a seventh, or 0.2 at m = 100."""
    monkeypatch.setattr(one_run, "SIMULATIONS", 100)
    mu, m = one_run.attack_mu(auroc), int(m)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(truth, rel=0.02)
    tries = tuple(sorted({int(m * s) for s in np.geomspace(0.02, 1.0, 12) if m * s >= 5}))
    medians = np.median(one_run.simulated_rights(m, mu, tries, 2), axis=0)
    games = [Guesses(m, r, int(v)) for r, v in zip(tries, medians, strict=True)]
    best = max(one_run.one_run_epsilon(game, 1e-5) for game in games)
    assert best == pytest.approx(steinke, rel=0.14, abs=0.2 if m == 100 else 0.05)
    mus = max(one_run.fdp_mu(game) for game in games)
    found = gaussian_epsilon(mus, 1e-5) if mus > 0 else 0.0
    assert found == pytest.approx(gaussian, rel=0.14, abs=0.45 if m == 100 else 0.08)


def test_the_price_of_choosing_r():
    """docs/theory.md#price-of-the-number-of-guesses: three numbers cost less than six, whose median was 1.44."""
    found = power.power(1000, 0.75, 1e-5)
    its = found.expected_one_run
    assert (its.low, its.median, its.high) == pytest.approx((1.19, 1.47, 1.81), abs=0.03)
    assert its.median > 1.44
    assert found.expected_gaussian.median > its.median
    _, _, one, _, _, gaussian, clopper_pearson = LARGEST[1000]
    assert found.largest.one_run == pytest.approx(one, abs=6e-3)
    assert found.largest.gaussian == pytest.approx(gaussian, abs=0.06)
    assert found.largest.clopper_pearson == pytest.approx(clopper_pearson, abs=6e-3)
    assert its.high < found.largest.paid < found.largest.one_run
    json.dumps(found.as_dict())


def test_independent_trainings():
    assert power.trainings_reach(100, 100) == pytest.approx(LARGEST[200][-1], abs=5e-3)


def test_typical_rights_are_those_of_simulated_runs():
    mu = one_run.attack_mu(0.75)
    tries = (20, 101, 1000)
    simulated = one_run.simulated_rights(1000, mu, tries, 0)
    for i, r in enumerate(tries):
        assert abs(one_run.typical_rights(1000, r, mu) - simulated[:, i].mean()) < 4.0
    assert gaussian_auroc(mu) == pytest.approx(0.75)


def test_many_users():
    """From LARGEST_SIMULATED on binomial draws: the same law, and seconds up to the limit."""
    mu = one_run.attack_mu(0.75)
    tries = (1000, 7000)
    exact = one_run.simulated_rights(one_run.LARGEST_SIMULATED, mu, tries, 0)
    drawn = one_run.simulated_rights(one_run.LARGEST_SIMULATED + 1, mu, tries, 0)
    np.testing.assert_allclose(drawn.mean(axis=0), exact.mean(axis=0), rtol=4e-3)
    np.testing.assert_allclose(drawn.std(axis=0), exact.std(axis=0), rtol=0.2)
    began = time.perf_counter()
    power.power(60_000, 0.75, 1e-5)
    assert time.perf_counter() - began < 10.0
    with refused(by="power", naming=("1000000000", "1000000")):
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


def test_groups_that_share_the_error_probability_can_certify_less():
    claim = stated_claim(9.0, 1e-5)
    alone, shared = (power.forecast(100, 1e-5, [claim], sharing=n) for n in (1, 3))
    assert names(alone[0], "epsilon 3.05")
    assert names(shared[0], "epsilon 2.83")
    least = [int(re.findall(r" ([\d,]+) users", its[1])[-1].replace(",", "")) for its in (alone, shared)]
    assert least[0] < least[1]


def test_falsifying_uls_at_epsilon_4():
    """docs/theory.md#price-of-the-number-of-guesses: attacker 0.88 from a few hundred users, attacker 0.75 never."""
    ceiling = ceiling_of(PoissonGaussian(0.92826, 16 / 1024), 1000, 1e-6)
    claim = curve_claim(ceiling, 4.0, 1e-6)
    strong = power.claim_power(1000, 0.88, claim)
    assert strong.probability > 0.9
    assert strong.users_at_auroc < 600
    weak = power.claim_power(10_000, 0.75, claim)
    assert weak.probability == 0.0
    assert weak.users_at_auroc is None or weak.users_at_auroc > 10_000
    registered = (20, 25, 30, 35, 40, 44, 50)
    mu = one_run.attack_mu(0.88)
    right = np.concatenate([one_run.simulated_rights(100, mu, registered, s) for s in range(5)])
    rejects = [[claim.rejected_by(Guesses(100, r, v), 0.05) for v in range(r + 1)] for r in registered]
    shares = [np.take(row, right[:, i]).mean() for i, row in enumerate(rejects)]
    assert 0.3 < min(shares) < 0.45 < 0.55 < max(shares) < 0.7


def test_table_says_it_in_words():
    text = power.table(power.power(500, 0.75, 1e-5, claims=(stated_claim(4, 1e-6),)))
    assert names(text, "500 users", "delta 1e-05", "95 %", "epsilon 4 at delta 1e-06")
    assert names(text.splitlines()[-1], "AUROC 0.75", "100,000")


def test_bad_input():
    with refused(by="attack_mu", naming=("AUROC 0.4", "[0.5, 1)")):
        power.power(100, 0.4, 1e-5)
    with refused(by="paid_tries", naming="3"):
        power.power(3, 0.75, 1e-5)
    with refused(by="check_delta", naming=("delta 2", "(0, 1)")):
        power.power(100, 0.75, 2)
