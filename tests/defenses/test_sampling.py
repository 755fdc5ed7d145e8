"""The sampler draws what the accountant assumes: binomial, independent, by name, and never by position."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from heldin.base.coins import keyed_digest, seed_key
from heldin.defenses import gaps
from heldin.defenses.gaps import LONGEST_TABLE, gap_table
from heldin.defenses.samplers import CappedPoissonSampler, Draws, PoissonSampler, ShuffledSampler
from tests.draws import draw
from tests.oracles.gap_coins import coins
from tests.refusals import refused

NAMES = [f"user{i}" for i in range(60)]
KEY = seed_key(11)
STEPS = 1500
ALARM = 1e-6


def _cohorts(sampler, names=NAMES, steps=STEPS, key=KEY):
    draws = Draws(sampler, key, names, steps)
    return [draws.at(step) for step in range(steps)]


def _p_values(cohorts, rate):
    """Of binomial cohort sizes, of every unit's rate, of independence within pairs of units and of steps."""
    drawn = np.zeros((len(cohorts), len(NAMES)), dtype=bool)
    for step, cohort in enumerate(cohorts):
        drawn[step, cohort] = True
    sizes = np.bincount(drawn.sum(1), minlength=len(NAMES) + 1)
    expected = stats.binom.pmf(np.arange(len(NAMES) + 1), len(NAMES), rate) * len(cohorts)
    keep = expected > 5
    observed = np.append(sizes[keep], sizes[~keep].sum())
    size = stats.chisquare(observed, np.append(expected[keep], expected[~keep].sum())).pvalue
    units = stats.binomtest(int(drawn.sum()), drawn.size, rate).pvalue
    pairs = stats.binomtest(int((drawn[:, ::2] & drawn[:, 1::2]).sum()), drawn.size // 2, rate**2).pvalue
    steps = stats.binomtest(int((drawn[::2] & drawn[1::2]).sum()), drawn.size // 2, rate**2).pvalue
    return size, units, pairs, steps


def test_cohorts_are_binomial_and_inclusions_independent():
    assert min(_p_values(_cohorts(PoissonSampler(rate=0.2)), 0.2)) > ALARM


def test_the_same_test_rejects_fixed_sizes_and_coins_shared_by_pairs_or_steps():
    fixed = _cohorts(ShuffledSampler(population=60, cohort=12))
    assert _p_values(fixed, 0.2)[0] < ALARM
    paired = [sorted({i ^ 1 for i in c} | set(c)) for c in _cohorts(PoissonSampler(rate=0.106))]
    assert _p_values(paired, 0.2)[2] < ALARM
    repeated = [cohort for cohort in _cohorts(PoissonSampler(rate=0.2), steps=STEPS // 2) for _ in range(2)]
    assert _p_values(repeated, 0.2)[3] < ALARM
    wrong_rate = _cohorts(PoissonSampler(rate=0.22))
    assert _p_values(wrong_rate, 0.2)[1] < ALARM


def test_a_units_coin_does_not_depend_on_who_else_there_is_or_where_it_stands():
    sampler = PoissonSampler(rate=0.3)
    for step in range(50):
        whole = {NAMES[i] for i in draw(sampler, KEY, step, NAMES)}
        fewer = NAMES[7:][::-1]
        assert {fewer[i] for i in draw(sampler, KEY, step, fewer)} == whole - set(NAMES[:7])


def test_the_ranks_draws_together_are_the_draw_of_one_process():
    sampler = PoissonSampler(rate=0.3)
    for step in range(50):
        ranks = [[n for n in NAMES if hash_rank(n) == rank] for rank in range(3)]
        union = {names[i] for names in ranks for i in draw(sampler, KEY, step, names)}
        assert union == {NAMES[i] for i in draw(sampler, KEY, step, NAMES)}


def hash_rank(name):
    return int(name[4:]) % 3


def test_draws_differ_by_key_and_step_and_may_be_empty():
    sampler = PoissonSampler(rate=0.02)
    one, two = _cohorts(sampler, steps=200), _cohorts(sampler, steps=200, key=seed_key(12))
    assert one == _cohorts(sampler, steps=200)
    assert one != two
    assert [] in one


def test_the_hard_cap_keeps_a_random_part_of_the_poisson_cohort():
    capped = CappedPoissonSampler(rate=0.2, population=60, cap=13)
    plain = PoissonSampler(rate=0.2)
    kept = np.zeros(60)
    for cohort, whole in zip(_cohorts(capped), _cohorts(plain), strict=True):
        assert set(cohort) <= set(whole)
        assert len(cohort) == min(13, len(whole))
        kept[cohort] += 1
    assert stats.chisquare(kept).pvalue > ALARM


def test_shuffled_cohorts_take_everyone_once_a_pass_even_with_empty_places():
    sampler = ShuffledSampler(population=64, cohort=12)
    per_pass = 6
    for number in range(5):
        cohorts = [draw(sampler, KEY, number * per_pass + i, NAMES) for i in range(per_pass)]
        assert sorted(i for c in cohorts for i in c) == list(range(60))
        assert all(len(c) <= 12 for c in cohorts)
    dropping = ShuffledSampler(population=64, cohort=12, drop_incomplete=True)
    taken = [i for step in range(5) for i in draw(dropping, KEY, step, NAMES)]
    assert len(taken) == len(set(taken)) <= 60


@pytest.mark.parametrize(
    "sampler", [ShuffledSampler(population=59, cohort=12), CappedPoissonSampler(rate=0.2, population=59, cap=30)]
)
def test_more_units_than_the_public_population_are_refused(sampler):
    with refused(by="_require_population", naming=("60", "59")):
        draw(sampler, KEY, 0, NAMES)


@pytest.mark.parametrize("rate", [1e-4, 0.003, 0.05, 0.5, 0.9, 0.9999, 1.0])
def test_the_draws_are_the_coins_of_the_slow_twin_whatever_the_order_of_asking(rate):
    steps = 40 if rate < 1e-3 else 200
    names = NAMES[:20] if rate > 1e-3 else [f"user{i}" for i in range(2000)]
    sampler = PoissonSampler(rate=rate)
    taken = np.array([coins(rate, KEY, name, steps) for name in names])
    wanted = [np.flatnonzero(column).tolist() for column in taken.T]
    assert _cohorts(sampler, names, steps) == wanted
    draws = Draws(sampler, KEY, names, steps)
    for step in (17, 17, 3, steps - 1, 0):
        assert draws.at(step) == wanted[step]
        # Nor on how long the run is.
        assert Draws(sampler, KEY, names, step + 1).at(step) == wanted[step]
    with refused(by="Draws.at", kind=ValueError):
        draws.at(steps)


@pytest.mark.parametrize("rate", [5e-324, 1e-9, 1e-4, 0.003, 0.05, 0.5, 0.9, 1 - 2.0**-53])
def test_each_coin_of_a_table_has_its_rate_to_2_to_the_minus_50(rate):
    table = [int(entry) for entry in gap_table(rate)]
    assert len(table) <= LONGEST_TABLE
    exact = Fraction(rate)
    assert table == sorted(table)
    # Given that a unit still waits, it takes part with the rate.
    for j in (0, 1, 2, len(table) // 2, len(table) - 1):
        if j < len(table):
            waiting = Fraction(2**64 - (table[j - 1] if j else 0), 2**64)
            coin = Fraction(table[j] - (table[j - 1] if j else 0), 2**64) / waiting
            assert abs(coin - exact) < Fraction(1, 2**50)
    waits = 1 - Fraction(table[-1], 2**64)
    assert waits >= Fraction(1, 2**10) or len(table) == 1


def test_gaps_off_by_one_are_rejected(monkeypatch):
    """The coins' own tests see a gap that is one too long, one too short, or of another rate."""

    def p_values():
        return min(_p_values(_cohorts(PoissonSampler(rate=0.2)), 0.2))

    assert p_values() > ALARM
    table = gap_table(0.2)
    # No unit twice in a row; a unit at once where it should wait a step; the mean gap of another rate.
    for wrong in (np.append(np.uint64(0), table), table[1:], gap_table(0.21)):
        monkeypatch.setattr(gaps, "gap_table", lambda rate, its=wrong: its)
        assert p_values() < ALARM


def test_a_run_asks_for_one_digest_of_each_unit_and_one_for_each_time_it_takes_part(monkeypatch):
    asked = []
    monkeypatch.setattr(gaps, "keyed_digest", lambda *of: asked.append(of) or keyed_digest(*of))
    steps, rate = 300, 0.01
    for units in (1000, 10_000):
        asked.clear()
        names = [f"user{i}" for i in range(units)]
        # Whoever takes part in the last step needs no gap after it.
        taken = sum(map(len, _cohorts(PoissonSampler(rate=rate), names, steps)[:-1]))
        # A table of this rate covers 689 steps, so that nobody needs a second digest to wait.
        assert len(asked) == units + taken
        assert len(set(asked)) == len(asked)
        assert abs(taken / (units * steps * rate) - 1) < 0.1
