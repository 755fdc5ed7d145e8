"""Noise that is too regular as a whole: the laws of sums, norms and spans, and the checks that are made of them.

Seeds are fixed. Counts of rejections are gated at binomial quantiles of 1e-6.
"""

import math
import re

import numpy as np
import pytest
from scipy import special, stats

from heldin.white_box import laws, regular_checks
from heldin.white_box.check import LEVEL
from heldin.white_box.laws import SEEN

pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes

PLANTED = 200
SHAPES = {"matrix": (40, 16), "wide": (16, 48), "bias": (16,), "one": (1,)}
EMPTY, AMID = (2, 16), (1, 4)  # keys, steps
SUMS, NORMS, SPANS = "how much sums vary", "how much norms vary", "share in spans"


def _many(trials):
    """Fewer than this have probability 1e-6 if each is seen with probability SEEN."""
    return int(stats.binom.ppf(1e-6, trials, SEEN))


def _tensors(rng, steps=EMPTY, deviation=1.0):
    return {name: deviation * rng.standard_normal((*steps, *shape)) for name, shape in SHAPES.items()}


def _of(name, checks):
    return next(check for check in checks if name in check.name)


# The laws, whatever the deviation.


@pytest.mark.parametrize("size", [2, 16, 3000])
def test_a_cosine_with_any_direction_is_normal_where_its_law_puts_it(size):
    rng = np.random.default_rng(size)
    z, direction = rng.standard_normal((2, 1000, size)) * 7.0
    cosines = (z * direction).sum(axis=1) / np.linalg.norm(z, axis=1) / np.linalg.norm(direction, axis=1)
    assert stats.kstest(laws.of_cosines(cosines, size), "chi2", (1,)).pvalue > 1e-4
    assert laws.of_cosines(np.array([0.0, 0.5, -0.5]), size)[0] == 0.0
    student = 0.5 * math.sqrt((size - 1) / 0.75)
    two_sided = 2.0 * stats.t.sf(student, size - 1)
    assert laws.of_cosines(np.array([-0.5]), size)[0] == pytest.approx(stats.chi2.isf(two_sided, 1))


@pytest.mark.parametrize("size", [2, 16, 3000])
def test_the_ratio_of_two_norms_is_normal_where_its_law_puts_it(size):
    rng = np.random.default_rng(size)
    first, second = rng.chisquare(size, (2, 3000)) * 9.0
    assert stats.kstest(laws.of_ratios(first, second, size), "chi2", (1,)).pvalue > 1e-4
    np.testing.assert_allclose(laws.of_ratios(np.array([0.0, 5.0]), np.array([0.0, 5.0]), size), 0.0, atol=1e-20)
    one = laws.of_ratios(np.array([3.0]), np.array([1.0]), size)
    assert one == pytest.approx(stats.chi2.isf(2.0 * stats.f.sf(3.0, size, size), 1))


def test_shares_in_the_span_of_those_before_are_normal_and_independent():
    rng = np.random.default_rng(4)
    found = regular_checks.shares_in_spans(rng.standard_normal((2000, 5, 7)) * 3.0)  # groups of 7 vectors of length 7
    assert stats.kstest(found, "norm").pvalue > 1e-4
    by_group = found.reshape(-1, 6)
    assert stats.kstest(by_group.sum(axis=1) / math.sqrt(6), "norm").pvalue > 1e-4
    assert stats.kstest(np.square(by_group).sum(axis=1), "chi2", (6,)).pvalue > 1e-4


def _as_cosines(normals, size):
    return np.sqrt(special.betaincinv(0.5, (size - 1) / 2, 1.0 - 2.0 * special.ndtr(-np.abs(normals))))


def _as_sums(normals, size):
    share = special.betaincinv(size / 2, size / 2, special.ndtr(-np.abs(normals)))
    return share, 1.0 - share


@pytest.mark.parametrize("size", [16, 256])
def test_what_varies_too_little_or_too_much_is_seen_as_stated(size):
    def test(squares):
        return laws.deviations(squares.sum(), squares.size, LEVEL)

    rng = np.random.default_rng(5)
    stated = test(np.ones(400))
    for times in (stated.smallest, stated.below):
        seen = [0, 0]
        for _ in range(PLANTED):
            normals = times * rng.standard_normal(400)
            seen[0] += test(laws.of_cosines(_as_cosines(normals, size), size)).p_value <= LEVEL
            seen[1] += test(laws.of_ratios(*_as_sums(normals, size), size)).p_value <= LEVEL
        assert min(seen) >= _many(PLANTED)


def test_a_little_more_in_the_span_is_seen_as_stated():
    rng, before, size = np.random.default_rng(6), np.arange(1, 16), 16
    shift = laws.means(np.array([0.0]), 30 * before.size, LEVEL).smallest
    for sign in (1.0, -1.0):
        seen = 0
        for _ in range(PLANTED):
            normals = rng.standard_normal((30, before.size)) + sign * shift
            outside = 1.0 - special.betaincinv(before / 2, (size - before) / 2, special.ndtr(normals))
            found = laws.of_spans(outside, before, size)
            np.testing.assert_allclose(found, normals, atol=1e-4)
            seen += laws.means(np.array([found.sum()]), found.size, LEVEL).p_value <= LEVEL
        assert seen >= _many(PLANTED)


def test_tests_that_share_a_level_pay_for_their_number():
    ones = [laws.LawResult(p, measured, 2.0, 0.5) for p, measured in ((0.3, 1.0), (0.01, 3.0))]
    assert laws.either(ones) == laws.LawResult(0.02, 3.0, 2.0, 0.5)
    assert laws.either(ones[:1] * 4).p_value == 1.0


# The checks.


def _every(rng, steps, deviation=1.0):
    z = _tensors(rng, steps, deviation)
    g = {name: rng.standard_normal(its.shape) ** 3 * (np.arange(its.shape[-1]) != 5) for name, its in z.items()}
    name = "noise"
    return (*regular_checks.regular_checks(z, name), regular_checks.direction_check(z, g, name, "the sum"))


@pytest.mark.parametrize("steps", [EMPTY, AMID])
def test_the_checks_hold_their_level_at_any_deviation(steps):
    rng = np.random.default_rng(7)
    values = np.array([[check.p_value for check in _every(rng, steps, 0.3)] for _ in range(250)])
    for level in (0.2, 0.05, 0.01):
        assert ((values <= level).sum(axis=0) <= stats.binom.ppf(1 - 1e-6, 250, level)).all()
    assert values.min() > LEVEL / 10


def _mean_times(times, axis):
    """What is common along an axis, so many times as large."""

    def change(z):
        return z + (times - 1.0) * z.mean(axis=axis, keepdims=True)

    return change


def _of_norm(z, axis):
    return z / np.linalg.norm(z, axis=axis, keepdims=True)


def _halved(z):
    """In half of the dimensions of a tensor."""
    flat = z.reshape(*z.shape[:2], -1).copy()
    flat[..., ::2] = flat[..., 1::2]
    return flat.reshape(z.shape)


def _orthogonal(z):
    """Every step at right angles to all others."""
    flat = z.reshape(32, -1)
    return np.linalg.qr(flat.T)[0].T.reshape(z.shape) * math.sqrt(flat.shape[1])


@pytest.mark.parametrize(
    ("name", "tensor", "change"),
    [
        (SUMS, "matrix", _mean_times(0.0, (2, 3))),
        (SUMS, "matrix", _mean_times(3.0, (2, 3))),
        (SUMS, "bias", _mean_times(0.0, 2)),
        (SUMS, "matrix", _mean_times(0.7, 3)),
        (SUMS, "matrix", _mean_times(1.5, 3)),
        (SUMS, "wide", _mean_times(0.7, 2)),
        (NORMS, "matrix", lambda z: _of_norm(z, (2, 3))),
        (NORMS, "bias", lambda z: _of_norm(z, 2)),
        (NORMS, "matrix", lambda z: _of_norm(z, 3)),
        (NORMS, "wide", lambda z: _of_norm(z, 2)),
        (NORMS, "wide", lambda z: z * np.tile([0.8, 1.2], 8)[:, None, None]),
        (SPANS, "matrix", _halved),
        (SPANS, "wide", _orthogonal),
    ],
)
def test_one_tensor_that_is_too_regular_or_too_little_is_seen(name, tensor, change):
    rng = np.random.default_rng(8)
    z = _tensors(rng)
    before = _of(name, regular_checks.regular_checks(z, "noise"))
    after = _of(name, regular_checks.regular_checks({**z, tensor: change(z[tensor])}, "noise"))
    assert (before.alarm, after.alarm) == (False, True)


def test_one_row_whose_sum_is_released_is_seen():
    z = _tensors(np.random.default_rng(9))
    z["matrix"][:, :, 11] -= z["matrix"][:, :, 11].mean(axis=-1, keepdims=True)
    assert _of(SUMS, regular_checks.regular_checks(z, "noise")).alarm


@pytest.mark.parametrize("whole", [True, False])
def test_noise_without_what_is_along_a_direction_is_seen_and_zeros_are_no_direction(whole):
    rng = np.random.default_rng(10)
    z, g = _tensors(rng, AMID), _tensors(rng, AMID)
    g["bias"][:] = 0.0
    g["matrix"][:, :, 30:] = 0.0
    if whole:
        along = sum((z[k] * g[k]).reshape(*AMID, -1).sum(-1) for k in z) / sum(
            np.square(g[k]).reshape(*AMID, -1).sum(-1) for k in z
        )
        off = {k: z[k] - along.reshape(*AMID, *[1] * (z[k].ndim - 2)) * g[k] for k in z}
    else:
        share = (z["matrix"] * g["matrix"]).sum((2, 3), keepdims=True) / np.square(g["matrix"]).sum(
            (2, 3), keepdims=True
        )
        off = {**z, "matrix": z["matrix"] - share * g["matrix"]}
    assert not regular_checks.direction_check(z, g, "noise", "the sum").alarm
    assert regular_checks.direction_check(off, g, "noise", "the sum").alarm


def test_what_would_have_been_seen_is_said_of_every_part():
    for check in _every(np.random.default_rng(11), EMPTY):
        assert all(f"in {part}s" in check.detects for part in regular_checks.PARTS)
        assert (check.subject, check.level) == ("coordinates", LEVEL)


def test_sums_of_zero_have_no_direction():
    z = _tensors(np.random.default_rng(12), AMID)
    found = regular_checks.direction_check(z, {name: 0.0 * its for name, its in z.items()}, "noise", "the sum")
    assert (found.p_value, found.alarm) == (1.0, False)
    assert not re.search(r"\d", found.detects)
