"""The one-step build and its composition against dp-accounting's own, and the disk cache."""

import functools
import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from heldin.defenses.accounting import composition, step_pld
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.composition import cached_pair
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.accounting.loss_pmf import (
    LossPair,
    LossPmf,
    compose_pair,
    delta_at,
    deltas_on_grid,
    epsilon_at,
    mix,
    pair_delta,
)
from heldin.defenses.accounting.rounding import rounding_mass
from heldin.defenses.accounting.step_pld import GridError, Mixture, binomial_mixture, mixture_step


@functools.cache
def library_pld(sigma, group, rate, width):
    k = np.arange(group + 1)
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, k, stats.binom.pmf(k, group, rate), value_discretization_interval=width
    )


@pytest.mark.parametrize(("sigma", "group", "rate", "width"), [(2.0, 1, 0.01, 1e-3), (1.0, 3, 0.1, 5e-3)])
@pytest.mark.parametrize("steps", [1, 7, 300])
def test_equals_dp_accounting_on_the_same_grid(sigma, group, rate, width, steps):
    theirs = library_pld(sigma, group, rate, width).self_compose(steps)
    ours = compose_pair(mixture_step(binomial_mixture(sigma, group, rate), width), steps)
    for target in (0.0, 0.1, 1.0, 3.0):
        assert pair_delta(ours, target) == pytest.approx(theirs.get_delta_for_epsilon(target), rel=1e-6, abs=1e-12)
    remove, add = (
        pld_pmf.DensePLDPmf(p.width, p.lowest, p.masses, p.infinity, pessimistic_estimate=True)
        for p in (ours.remove, ours.add)
    )
    composed = privacy_loss_distribution.PrivacyLossDistribution(remove, add)
    assert composed.get_epsilon_for_delta(1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=1e-6)


def test_pairs_are_distributions_and_keep_both_masses():
    for width in (1e-3, 0.05, 3.0):
        pair = mixture_step(binomial_mixture(0.8, 6, 0.05), width)
        for pmf in (pair.remove, pair.add):
            assert np.all(pmf.masses >= 0)
            assert pmf.masses.sum() + pmf.infinity == pytest.approx(1.0, abs=1e-12)
            lower = float(pmf.masses @ np.exp(-pmf.losses))
            assert lower <= 1 + 1e-12


def one_step_deltas(sigma, group, rate, target):
    """Exact H_a(P, Q) and H_a(Q, P), a = e^target: the crossing of the densities by bisection, then normal tails."""
    k = np.arange(group + 1)
    weights, log_weights = stats.binom.pmf(k, group, rate), stats.binom.logpmf(k, group, rate)

    def crossing(level):
        if level <= log_weights[0]:
            return -math.inf
        low, high = -1e5 * sigma**2, 1e5 * sigma**2
        for _ in range(120):
            x = 0.5 * (low + high)
            below = np.logaddexp.reduce(log_weights + k * x / sigma**2 - k**2 / (2 * sigma**2)) < level
            low, high = (x, high) if below else (low, x)
        return low

    a, up, down = math.exp(target), crossing(target), crossing(-target)
    remove = weights @ stats.norm.sf(up, loc=k, scale=sigma) - a * stats.norm.sf(up, scale=sigma)
    add = stats.norm.cdf(down, scale=sigma) - a * (weights @ stats.norm.cdf(down, loc=k, scale=sigma))
    return remove, add


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sigma=st.floats(0.3, 5.0),
    group=st.integers(1, 40),
    rate=st.floats(1e-4, 1.0),
    width=st.floats(5e-3, 0.5),
    target=st.floats(-1.0, 4.0),
)
def test_discretisation_is_pessimistic_in_both_directions(sigma, group, rate, width, target):
    mixture = binomial_mixture(sigma, group, rate)
    low, high = step_pld.loss_range(mixture)
    pair = mixture_step(mixture, max(width, (high - low) / 2**16))
    for pmf, exact in zip((pair.remove, pair.add), one_step_deltas(sigma, group, rate, target), strict=True):
        assert delta_at(pmf, target) >= exact - 1e-12


@settings(max_examples=40, deadline=None)
@given(
    masses=st.lists(st.just(0.0) | st.floats(1e-6, 1.0), min_size=2, max_size=30).filter(any),
    lowest=st.integers(-10, 10),
)
def test_delta_and_epsilon_readers_agree(masses, lowest):
    total = sum(masses) + 0.1
    pmf = LossPmf(0.25, lowest, np.array(masses) / total, 0.001)

    def direct(t):
        terms = (m * max(0.0, -math.expm1(t - v)) for v, m in zip(pmf.losses, pmf.masses, strict=True))
        return pmf.infinity + sum(terms)

    np.testing.assert_allclose(deltas_on_grid(pmf), [direct(t) for t in pmf.losses], atol=1e-12)
    for t in (-0.3, 0.0, 0.4, 1.7):
        assert delta_at(pmf, t) == pytest.approx(min(1.0, direct(t)), abs=1e-12)
    for delta in (0.0005, 0.01, 0.2):
        found = epsilon_at(pmf, delta)
        if math.isinf(found):
            assert pmf.infinity > delta
        else:
            assert delta_at(pmf, found) <= delta * (1 + 1e-9)
            assert found == 0.0 or delta_at(pmf, found - 1e-3) > delta


def test_losses_beyond_700_do_not_underflow():
    pmf = LossPmf(0.5, 2000, np.array([0.5, 0.5]), 0.0)
    assert epsilon_at(pmf, 1e-6) == pytest.approx(1000.5, abs=1e-4)


def test_mix_is_the_weighted_mean_of_deltas():
    one, two = (mixture_step(binomial_mixture(s, 1, 0.2), 0.01).remove for s in (0.7, 2.0))
    both = mix(one, two, 0.3)
    for t in (0.0, 0.5, 1.5):
        assert delta_at(both, t) == pytest.approx(0.3 * delta_at(one, t) + 0.7 * delta_at(two, t), rel=1e-12)


def test_rounding_is_charged():
    pair = compose_pair(mixture_step(binomial_mixture(1.0, 1, 0.01), 1e-3), 2000)
    assert pair.remove.infinity > rounding_mass(2000)


def test_rare_atoms_are_dropped_upwards():
    mixture = binomial_mixture(2.0, 256, 1e-3)
    assert mixture.sensitivities.size < 30
    assert mixture.missing > 0
    full = Mixture(2.0, np.arange(60.0), stats.binom.pmf(np.arange(60), 256, 1e-3))
    for ours, theirs in zip(
        *((pair.remove, pair.add) for pair in (mixture_step(mixture, 0.01), mixture_step(full, 0.01))), strict=True
    ):
        assert delta_at(ours, 0.5) == pytest.approx(delta_at(theirs, 0.5), rel=1e-9)


@pytest.mark.parametrize("target", [-1.0, 0.0, 0.3, 2.0])
def test_what_is_cut_is_charged(monkeypatch, target):
    """With a coarse cut every tail is visible: nothing of it may be lost, in either direction."""
    monkeypatch.setattr(step_pld, "STEP_TAIL", 1e-2)
    for sigma, group, rate in ((0.5, 40, 0.05), (2.0, 1, 1.0), (1.0, 6, 0.3)):
        pair = mixture_step(binomial_mixture(sigma, group, rate), 0.01)
        for pmf, exact in zip((pair.remove, pair.add), one_step_deltas(sigma, group, rate, target), strict=True):
            assert delta_at(pmf, target) >= exact - 1e-12
            assert pmf.masses.sum() + pmf.infinity >= 1 - 1e-12


def test_too_fine_a_grid_is_refused_and_the_accountant_copes():
    with pytest.raises(GridError, match="at most"):
        mixture_step(binomial_mixture(0.1, 32, 0.5), 1e-6)
    assert accounting.epsilon(PoissonGaussian(0.02, 0.5, 64), 50, 1e-6) > 1e5


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The folder of stored pairs, empty."""
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pld"


@pytest.fixture
def pair():
    return mixture_step(binomial_mixture(1.0, 2, 0.1), 0.05)


def same(a, b):
    return all(
        (x.width, x.lowest, x.infinity) == (y.width, y.lowest, y.infinity) and np.array_equal(x.masses, y.masses)
        for x, y in ((a.remove, b.remove), (a.add, b.add))
    )


def test_cache_round_trip_and_damage(stored, pair):
    built = []

    def build():
        built.append(1)
        return pair

    key = {"event": "x", "width": "0.05"}
    assert same(cached_pair(key, build), pair)
    assert same(cached_pair(key, build), pair)
    assert len(built) == 1
    (file,) = stored.iterdir()
    for damage in (b"", b"PK\x03\x04 no zip", file.read_bytes()[:200], file.read_bytes()[:-40]):
        file.write_bytes(damage)
        count = len(built)
        assert same(cached_pair(key, build), pair)
        assert len(built) == count + 1
    cached_pair({**key, "width": "0.1"}, build)
    assert len(list(stored.iterdir())) == 2
    assert not list(stored.rglob("*.tmp"))


def test_cache_rejects_a_wrong_distribution_and_another_key(stored, pair):
    key = {"event": "x"}
    doubled = LossPair(*(LossPmf(p.width, p.lowest, 2 * p.masses, p.infinity) for p in (pair.remove, pair.add)))
    cached_pair(key, lambda: doubled)
    assert same(cached_pair(key, lambda: pair), pair)
    (file,) = stored.iterdir()
    cached_pair({"event": "y"}, lambda: mixture_step(binomial_mixture(9.0, 1, 0.1), 0.05))
    next(its for its in stored.iterdir() if its != file).replace(file)
    assert same(cached_pair(key, lambda: pair), pair)


def test_cache_that_cannot_be_written_is_passed_over(tmp_path, monkeypatch, pair):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "file"))
    assert same(cached_pair({"event": "x"}, lambda: pair), pair)


def test_a_cache_that_the_accountant_makes_is_its_owners_only(stored, pair):
    cached_pair({"event": "x"}, lambda: pair)
    assert [folder.stat().st_mode & 0o777 for folder in (stored, stored.parent)] == [0o700, 0o700]


def test_cache_is_used_for_large_steps(stored, monkeypatch):
    monkeypatch.setattr(composition, "WORTH_STORING", 100)
    composition.settled_pair.cache_clear()
    event = PoissonGaussian(1.0, 0.01, 8)
    first = accounting.epsilon(event, 500, 1e-6)
    files = list(stored.iterdir())
    assert files
    composition.settled_pair.cache_clear()
    monkeypatch.setattr(composition, "one_step", lambda *_: pytest.fail("built again"))
    assert accounting.epsilon(event, 500, 1e-6) == first
