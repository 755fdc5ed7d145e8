"""Break-even rows against docs/theory.md#table-of-break-even-concentrations, and against the noises they compare."""

import math

import pytest

from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.guarantees import calibrate, epsilon
from replication import effective_noise as noise
from replication.effective_noise import break_even_concentration, filter_noise
from tests.refusals import names, refused
from tests.theory_tables import numbers


@pytest.fixture(scope="module")
def rows():
    return noise.effective_noise((18_195, 342_477), (256, 1_024), (1_000,), (3.0, 1.0))


def test_rows_are_those_of_the_page(rows):
    found = {(row.users, row.cohort): row.break_even for row in rows if row.epsilon == 3.0}
    page = {(u, c): ratio for u, c, _, _, ratio in numbers("table-of-break-even-concentrations")}
    assert found == pytest.approx({key: page[key] for key in found}, rel=5e-3)
    assert len(found) == 4
    assert [row.epsilon for row in rows] == [1.0] * 4 + [3.0] * 4


def test_at_break_even_the_noises_are_equal(rows):
    row = rows[-1]
    sigma = calibrate(PoissonGaussian(1.0, row.cohort / row.users), row.steps, row.delta, row.epsilon)
    assert row.uls_noise == pytest.approx(sigma / row.cohort, rel=1e-9)
    assert row.break_even * row.filter_noise == pytest.approx(row.uls_noise, rel=1e-9)


def test_cohorts_larger_than_the_population_are_left_out():
    rows = noise.effective_noise((64,), (64, 100), (10,), (1.0,))
    assert [(row.users, row.cohort) for row in rows] == [(64, 64)]
    with refused(by="effective_noise"):
        noise.effective_noise((64,), (100,), (10,), (1.0,))


def test_words_and_numbers_follow_the_rows(rows):
    limit, worthwhile = noise.summary([row for row in rows if row.epsilon == 3.0])
    assert names(limit, "tau / C", "0.1", "2 of 4", "0.003")
    assert names(worthwhile, "tau / C = 1", "0 settings")
    text = noise.table(rows)
    assert "   18195    1024" in text
    assert "0.0419" in text
    assert noise.as_dict(rows)["rows"][0]["users"] == 18195


@pytest.mark.parametrize(("users", "cohort", "steps", "target", "ratio"), numbers("table-of-break-even-concentrations"))
def test_asi_liu_against_uls(users, cohort, steps, target, ratio):
    found = break_even_concentration(int(users), int(cohort), int(steps), target, 1e-5)
    assert found == pytest.approx(ratio, **({"abs": 6e-5} if users == cohort else {"rel": 5e-3}))


def test_asi_liu_parts():
    added = filter_noise(100, 50, 3.0, 1e-5)
    per_tau = added.noise_multiplier * math.sqrt(8 * (3 + math.log(50 / 1e-5))) / 100
    assert added.deviation_per_tau == pytest.approx(per_tau)
    half = epsilon(UnamplifiedGaussian(added.noise_multiplier, 50), 50, 5e-6)
    assert half == pytest.approx(1.5, rel=1e-6)
    with refused(by="break_even_concentration", naming=("11", "10")):
        break_even_concentration(10, 11, 5, 1.0, 1e-5)
