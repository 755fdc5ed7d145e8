"""Estimates of epsilon, which are not bounds, against known truths."""

import math

import numpy as np
import pytest

from heldin.bounds import estimates
from heldin.bounds.thresholds import Counts, clopper_pearson
from heldin.defenses.accounting.closed_forms import gaussian_epsilon
from tests.oracles import bounds as slow
from tests.oracles.two_gaussians import two_gaussian_epsilon
from tests.refusals import names, refused

M = (100, 200, 500, 1000, 2000, 5000, 10000)


def test_andrew_is_near_the_truth_where_two_variances_are_not():
    pooled, own = [], []
    for seed in range(50):
        observed = np.random.default_rng(seed).normal(1 / math.sqrt(1.01), 1.0, 200)
        pooled.append(estimates.andrew_estimate(observed, 1e-5, resamples=50).epsilon)
        own.append(two_gaussian_epsilon(observed.mean(), observed.std(ddof=1), 1e-5))
    assert np.median(pooled) == pytest.approx(4.38, rel=0.05)
    assert np.median(own) > np.median(pooled)
    assert two_gaussian_epsilon(0.99, 0.913, 1e-5) > 6.5


def test_andrew_with_scored_controls_and_its_warnings():
    rng = np.random.default_rng(0)
    found = estimates.andrew_estimate(
        rng.normal(2, 1, 1500), 1e-5, unobserved=rng.normal(0, 1, 1500), dimension=10_000, resamples=200
    )
    assert found.mu == pytest.approx(2.0, abs=0.15)
    assert found.lower < found.epsilon < found.upper
    assert names(found.warning, "1500", "10000", "0.01")
    few = estimates.andrew_estimate(rng.normal(-1, 1, 20), 1e-5, resamples=50)
    assert few.epsilon == 0.0
    assert names(few.warning, "20", "1000")
    with refused(by="andrew_estimate", naming="2"):
        estimates.andrew_estimate(np.array([1.0, math.nan]), 1e-5)


def test_two_gaussians():
    for mu in (0.3, 1.0, 3.0):
        assert two_gaussian_epsilon(mu, 1.0, 1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), abs=1e-6)
    x = np.linspace(-30, 30, 600_001)
    for mean, deviation in ((1.0, 0.8), (0.5, 1.4)):
        epsilon = two_gaussian_epsilon(mean, deviation, 1e-3)
        p = np.exp(-0.5 * ((x - mean) / deviation) ** 2) / deviation / math.sqrt(2 * math.pi)
        q = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
        one = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)
        other = np.trapezoid(np.maximum(q - math.exp(epsilon) * p, 0), x)
        assert max(one, other) == pytest.approx(1e-3, rel=1e-4)


def test_bayesian_interval_against_simulation():
    counts = Counts(60, 100, 30, 100)
    found = estimates.bayesian_interval(counts, 1e-5)
    for level, epsilon in ((0.05, found.lower), (0.5, found.epsilon), (0.95, found.upper)):
        assert slow.region_mass(counts, 1e-5, epsilon, 0.5, 200_000, 1) == pytest.approx(level, abs=0.006)
    assert found.lower > clopper_pearson(counts, 1e-5, alpha=0.05)
