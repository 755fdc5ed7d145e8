"""The tests that the white-box audit is made of: they hold their levels, and see what they say that they would see.

All keys and seeds are fixed. Counts of rejections are gated at binomial quantiles of 1e-6.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from heldin.white_box import laws
from heldin.white_box.laws import SEEN

LEVEL = 1e-3  # of the simulations; the audit's own is 1e-4
NULL, PLANTED = 1500, 200


def _few(trials, level):
    """More rejections than this have probability 1e-6 under the null."""
    return int(stats.binom.ppf(1 - 1e-6, trials, level))


def _many(trials):
    """Fewer than this have probability 1e-6 if each is seen with probability SEEN."""
    return int(stats.binom.ppf(1e-6, trials, SEEN))


def _holds(draw, test, trials=NULL, seed=0):
    """Rejections of a null at 0.05 and at LEVEL are no more than the levels allow."""
    rng = np.random.default_rng(seed)
    values = np.array([test(draw(rng)).p_value for _ in range(trials)])
    for level in (0.05, LEVEL):
        assert (values <= level).sum() <= _few(trials, level), (level, (values <= level).sum())


def _sees(draw, test, trials=PLANTED, seed=1):
    rng = np.random.default_rng(seed)
    seen = sum(test(draw(rng)).p_value <= LEVEL for _ in range(trials))
    assert seen >= _many(trials), seen


def test_deviations():
    def test(z):
        return laws.deviations(np.square(z).sum(axis=0), len(z), LEVEL)

    _holds(lambda rng: rng.standard_normal((40, 7)), test)
    found = test(np.zeros((40, 7)))
    assert found.p_value == 0.0
    for factor in (found.smallest, found.below):
        one = np.where(np.arange(7) == 3, factor, 1.0)
        _sees(lambda rng, one=one: rng.standard_normal((40, 7)) * one, test)
        nearer = np.where(np.arange(7) == 3, 1.0 + 0.3 * (factor - 1.0), 1.0)
        rng = np.random.default_rng(2)
        assert sum(test(rng.standard_normal((40, 7)) * nearer).p_value <= LEVEL for _ in range(PLANTED)) < 100


def test_means():
    def test(z):
        return laws.means(z.sum(axis=0), len(z), LEVEL)

    _holds(lambda rng: rng.standard_normal((30, 5)), test)
    shift = test(np.zeros((30, 5))).smallest * (np.arange(5) == 1)
    _sees(lambda rng: rng.standard_normal((30, 5)) - shift, test)


@pytest.mark.parametrize("size", [4, 60])
def test_correlations(size):
    def test(pair):
        x, y = pair
        values = np.einsum("ij,ij->i", x, y) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
        return laws.correlations(values, np.full(len(x), size), LEVEL)

    _holds(lambda rng: rng.standard_normal((2, 6, size)), test)
    r = test(np.random.default_rng(0).standard_normal((2, 6, size))).smallest

    def planted(rng):
        x, y = rng.standard_normal((2, 6, size))
        y[2] = r * x[2] + math.sqrt(1.0 - r * r) * y[2]
        return x, y

    _sees(planted, test)


def test_correlations_of_the_largest_pay_for_all_of_them():
    one, all_of_them = (laws.correlations(np.array([0.3]), np.array([100]), LEVEL, n) for n in (1, 50))
    assert all_of_them.p_value == pytest.approx(50 * one.p_value)
    assert one.p_value == pytest.approx(_by_student())
    assert all_of_them.smallest > one.smallest
    repeated = laws.correlations(np.array([0.1, 1.0]), np.array([1000, 3]), LEVEL, 500)
    assert (repeated.p_value, repeated.measured) == (0.0, 1.0)


def _by_student():
    """Of r = 0.3 about zero in 100 dimensions, by the t statistic of 99 degrees of freedom."""
    t = 0.3 * math.sqrt(99 / (1 - 0.09))
    return 2.0 * float(stats.t.sf(t, 99))


@pytest.mark.parametrize("shape", [(3, 8), (20, 300)])
def test_products_at_every_lag(shape):
    def test(z):
        return laws.products(*laws.lag_sums(z), LEVEL)

    _holds(lambda rng: rng.standard_normal(shape), test)
    found = test(np.random.default_rng(0).standard_normal(shape))
    naive = [sum((row[i] * row[i + 2]) for row in np.ones(shape) for i in range(shape[1] - 2))]
    sums, counts = laws.lag_sums(np.ones(shape))
    assert sums[1] == pytest.approx(naive[0]) == counts[1]
    if found.smallest < 0.5:  # a moving average of that correlation at a lag of half the length
        lag = shape[1] // 2
        a = (1.0 - math.sqrt(1.0 - 4.0 * found.smallest**2)) / (2.0 * found.smallest)

        def planted(rng):
            z = rng.standard_normal((shape[0], shape[1] + lag))
            return (z[:, lag:] + a * z[:, :-lag]) / math.sqrt(1.0 + a * a)

        _sees(planted, test)


def test_the_bound_for_products_is_a_bound_and_a_close_one():
    """Independent products of 200 pairs: the exact tail by simulation lies below the bound, and not far."""
    rng = np.random.default_rng(3)
    sums = np.array(
        [(rng.standard_normal((2000, 200)) * rng.standard_normal((2000, 200))).sum(axis=1) for _ in range(50)]
    )
    for at in (30.0, 45.0):
        share = float((np.abs(sums) >= at).mean())
        bound = laws.products(np.array([at]), np.array([200.0]), LEVEL).p_value
        assert share <= bound <= 12.0 * share


@pytest.mark.parametrize(("trials", "rate"), [(80, 0.2), (2000, 1 / 64)])
def test_counts(trials, rate):
    def test(found):
        return laws.counts(found, trials, rate, LEVEL)

    _holds(lambda rng: rng.binomial(trials, rate, 9), test)
    found = test(np.full(9, round(trials * rate)))
    for other in (found.smallest, found.below):
        rates = np.where(np.arange(9) == 4, other, rate)
        _sees(lambda rng, rates=rates: rng.binomial(trials, rates), test)
    one = laws.counts(np.array([found.from_count]), trials, rate, LEVEL).p_value
    assert one * 9 <= LEVEL < 9 * laws.counts(np.array([found.from_count - 1]), trials, rate, LEVEL).p_value


def test_counts_of_different_numbers_of_trials():
    found = laws.counts(np.array([5, 30]), np.array([10, 100]), 0.3, LEVEL)
    alone = [2.0 * min(stats.binom.cdf(k, n, 0.3), stats.binom.sf(k - 1, n, 0.3)) for k, n in ((5, 10), (30, 100))]
    assert found.p_value == pytest.approx(2.0 * min(alone))
    assert (found.measured, np.isnan(laws.counts(np.array([1]), 3, 0.3, LEVEL).smallest)) == (0.5, True)


@pytest.mark.parametrize(("number", "trials", "rate"), [(11, 80, 0.2), (100, 13, 0.2), (40, 100, 1 / 64)])
def test_squares(number, trials, rate):
    def test(found):
        return laws.squares(found, trials, rate, LEVEL)

    _holds(lambda rng: rng.binomial(trials, rate, number), test)
    centre = round(trials * rate)
    assert test(np.full(number, trials)).p_value == pytest.approx(0.0, abs=1e-12)
    found = test(np.full(number, centre))
    # more spread: a rate of each column's own, from a beta distribution that multiplies the variance by so much
    spread = (found.smallest - 1.0) / (trials - 1)
    if 0.0 < spread < 1.0:
        a, b = rate * (1 / spread - 1), (1 - rate) * (1 / spread - 1)
        rng = np.random.default_rng(5)
        values = [test(rng.binomial(trials, rng.beta(a, b, number))).p_value for _ in range(PLANTED)]
        assert np.mean(np.array(values) <= LEVEL) > 0.8  # the beta's own spread varies more than the factor says


def test_the_law_of_squares_is_exact():
    """Three counts of four trials, enumerated."""
    centre, law = laws.law_of_squares(4, 0.3, 3)
    assert centre == 1
    weights = stats.binom.pmf(np.arange(5), 4, 0.3)
    expected = np.zeros(law.size)
    for each in itertools.product(range(5), repeat=3):
        expected[sum((k - 1) ** 2 for k in each)] += math.prod(weights[k] for k in each)
    np.testing.assert_allclose(law, expected, atol=1e-14)


def test_distances():
    def test(z):
        return laws.distances([z[:100], z[100:]], LEVEL)

    _holds(lambda rng: rng.standard_normal(400), test, trials=300)
    far = test(np.zeros(400)).smallest
    shift = 2.0 * float(special.ndtri(0.5 + far / 2))  # the distribution functions are so far apart in the middle
    _sees(lambda rng: rng.standard_normal(400) + shift * (np.arange(400) < 100), test, trials=150)


def test_tails():
    def test(z):
        return laws.tails(z, (2.0, 3.0), LEVEL)

    _holds(lambda rng: rng.standard_normal(20_000), test, trials=1000)
    found = test(np.random.default_rng(0).standard_normal(20_000))
    chance = 2.0 * float(special.ndtr(-3.0))
    for times in (found.smallest, found.below):

        def planted(rng, times=times):
            z = rng.standard_normal(20_000)
            inner = z[np.abs(z) < 3.0]
            beyond = rng.binomial(20_000, chance * times)
            return np.concatenate([np.resize(inner, 20_000 - beyond), np.full(beyond, 3.5)])

        _sees(planted, test, trials=150)


@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_areas(mu):
    limit = float(stats.norm.cdf(mu / math.sqrt(2.0)))

    def scores(rng, shift=mu):
        return rng.normal(shift, 1.0, 60), rng.standard_normal(80)

    def test(both):
        held_in, held_out = both
        area = float((held_in[:, None] > held_out[None, :]).mean())
        return laws.areas(area, 0.04, limit, 60, LEVEL)

    _holds(scores, test)
    best = laws.areas(0.5, 0.04, limit, 60, LEVEL).smallest
    if best < 1.0:
        higher = math.sqrt(2.0) * float(special.ndtri(best))
        _sees(lambda rng: scores(rng, higher), test)
    assert np.isnan(laws.areas(0.5, 0.04, 0.999, 60, LEVEL).smallest)
    # Its threshold is below 1, but none up to 1 would be relied on to be above it.
    assert not np.isnan(laws.areas(0.5, 0.0, limit, 60, LEVEL).smallest)
    assert np.isnan(laws.areas(0.5, 0.5, limit, 60, LEVEL).smallest)


def test_close_pairs():
    size, within = 3000, 1e-4

    def test(z):
        return laws.close_pairs(z, within, LEVEL)

    _holds(lambda rng: rng.standard_normal(size), test, trials=1500)
    width = test(np.random.default_rng(0).standard_normal(size)).smallest
    _sees(lambda rng: np.round(rng.standard_normal(size) / width) * width, test)
