"""The sampler draws what the accountant assumes: binomial, independent, by name, and never by position."""

import numpy as np
import pytest
from scipy import stats

from heldin.base.coins import seed_key
from heldin.base.errors import InputError
from heldin.defenses.choices import CappedPoissonSampler, PoissonSampler, ShuffledSampler
from heldin.defenses.sampling import draw

NAMES = [f"user{i}" for i in range(60)]
KEY = seed_key(11)
STEPS = 1500
ALARM = 1e-6


def _cohorts(sampler, names=NAMES, steps=STEPS, key=KEY):
    return [draw(sampler, key, step, names) for step in range(steps)]


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
    repeated = [draw(PoissonSampler(rate=0.2), KEY, step // 2, NAMES) for step in range(STEPS)]
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
    for step in range(STEPS):
        cohort, whole = draw(capped, KEY, step, NAMES), draw(plain, KEY, step, NAMES)
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
    with pytest.raises(InputError, match="the corpus has 60 units, more than the public population 59"):
        draw(sampler, KEY, 0, NAMES)
