"""Small deltas from tilted pairs, against the contour integral, exact integers and extended precision; areas."""

import itertools
import math
import time

import numpy as np
import pytest

from heldin.defenses.accounting import closed_forms, composition, loss_pmf
from heldin.defenses.accounting.closed_forms import SMALLEST_DELTA
from heldin.defenses.accounting.events import CappedPoissonGaussian, PoissonGaussian
from heldin.defenses.accounting.guarantees import calibrate, delta_of, epsilon
from heldin.defenses.accounting.loss_pmf import (
    LossPmf,
    compose,
    compose_tilted,
    delta_at,
    epsilon_at,
    log_moment,
    order_at,
)
from heldin.defenses.accounting.rounding import rounding_mass
from heldin.defenses.accounting.step_pld import absence_loss, binomial_mixture, mixture_step, one_step
from tests.oracles import contour_accountant
from tests.oracles.composition import extended_delta, integer_power
from tests.refusals import refused

# noise multiplier, group size, rate, steps: at delta = 1e-11 whole pairs were up to 1.4 % too high, or refused
CELLS = [
    (10.0, 1, 0.01, 22_000),
    (1.0, 1, 0.01, 2_000),
    (3.0, 8, 0.05, 100_000),
    (0.5, 8, 0.001, 100_000),
    (10.0, 1, 1e-5, 10_000),
    (2.0, 64, 1e-3, 20_000),
]
LUMPY = [(1.0, 2, 1e-5, 10_000), (1.0, 1, 1e-5, 100_000), (0.7, 4, 1e-4, 50_000), (0.5, 1, 1e-3, 1_000)]


def excess(sigma, group, rate, steps, delta, found, *, most=40_000):
    """How far `found` is above the exact epsilon of the remove direction, relatively; None if the contour fails."""
    grid = contour_accountant.binomial_gaussian(sigma, group, rate)
    ends = [found, found * (1 - 5e-4)]
    exact = contour_accountant.deltas(*grid, steps, ends, "remove", most=most)
    if exact is None:
        return None
    slope = math.log(exact[1] / exact[0]) / (found * 5e-4)
    return math.log(delta / exact[0]) / slope / found


@pytest.mark.parametrize(("sigma", "group", "rate", "steps"), CELLS)
def test_the_smallest_delta(sigma, group, rate, steps):
    event = PoissonGaussian(sigma, rate, group)
    found = epsilon(event, steps, SMALLEST_DELTA)
    above = excess(sigma, group, rate, steps, SMALLEST_DELTA, found)
    assert 0.0 <= above < 2e-4
    too_few = epsilon(event, steps - steps // 100, SMALLEST_DELTA)
    assert excess(sigma, group, rate, steps, SMALLEST_DELTA, too_few) < 0.0, "1 % of the steps unpaid"
    assert SMALLEST_DELTA <= delta_of(event, steps, found) <= SMALLEST_DELTA * (1 + 1e-6)
    assert delta_of(event, steps, 0.8 * found) > 10 * SMALLEST_DELTA


@pytest.mark.parametrize(
    ("sigma", "group", "rate", "steps"), [LUMPY[0], *(pytest.param(*its, marks=pytest.mark.slow) for its in LUMPY[1:])]
)
def test_few_large_jumps_at_the_smallest_delta(monkeypatch, sigma, group, rate, steps):
    """Laws for which the contour needs minutes: against the limit of ever finer grids, whose error falls as h^2.

    Rounding is not charged on these, and their windows may be 8 times larger.
    """
    event = PoissonGaussian(sigma, rate, group)
    found = epsilon(event, steps, SMALLEST_DELTA)
    monkeypatch.setattr(loss_pmf, "tilted_rounding", lambda *_: 0.0)
    monkeypatch.setattr(loss_pmf, "MAX_WINDOW", 2**25)
    runs = ((event, steps),)
    step = composition.coarsest_grid(runs, composition.whole_pairs(runs))[0][0].remove
    order, width = order_at([(step, steps)], found), step.width
    finer = [math.inf]
    while not finer[-2:][0] - finer[-1] < 1e-4 * finer[-1]:
        width /= 2.0
        finer.append(epsilon_at(compose_tilted([(one_step(event, width).remove, steps)], order), SMALLEST_DELTA))
    exact = finer[-1] - (finer[-2] - finer[-1]) / 3.0
    print(f"{100 * (found / exact - 1):.4f} % above the limit")
    assert exact * (1 - 1e-5) <= found <= exact * (1 + 3e-4)


@pytest.mark.slow
def test_random_mechanisms_at_small_deltas():
    rng = np.random.default_rng(8)
    compared = []
    for _ in range(60):
        sigma, rate = float(np.exp(rng.uniform(-0.5, 2.5))), float(np.exp(rng.uniform(-7, -1)))
        group, steps = int(rng.choice([1, 2, 5, 20])), int(np.exp(rng.uniform(5, 11.5)))
        delta = float(np.exp(rng.uniform(math.log(1e-11), math.log(1e-8))))
        found = epsilon(PoissonGaussian(sigma, rate, group), steps, delta)
        if found < 1000.0:
            above = excess(sigma, group, rate, steps, delta, found, most=20_000)
            compared += [] if above is None else [above]
            assert above is None or -1e-7 <= above < 2e-3, (sigma, group, rate, steps, delta)
    print(f"{len(compared)} compared, at most {100 * max(compared):.4f} % above exact")
    assert len(compared) >= 40
    assert max(compared) < 3e-4


def exact_deltas(pmf, steps):
    """delta of the finite losses as a function, from the convolution in integers."""
    composed = [float(mass) for mass in integer_power(pmf.masses, steps)]
    losses = [(pmf.lowest * steps + i) * pmf.width + steps * pmf.offset for i in range(len(composed))]
    return lambda target: math.fsum(
        mass * -math.expm1(target - loss) for mass, loss in zip(composed, losses, strict=True) if loss > target
    )


@pytest.mark.parametrize(("sigma", "group", "rate", "width", "steps"), [(1.0, 1, 0.3, 0.4, 12), (1.0, 2, 0.05, 0.5, 8)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_tilted_composition_against_integers(sigma, group, rate, width, steps, direction):
    mixture = binomial_mixture(sigma, group, rate)
    for offset in (0.0, 0.07):
        pmf = getattr(mixture_step(mixture, width, offset), direction)
        exact = exact_deltas(pmf, steps)
        for order in (0.3, 1.0, 2.5):
            composed = compose_tilted([(pmf, steps)], order)
            for target in np.array([0.5, 1.0, 1.5]) * steps * log_moment(pmf, order)[1]:
                assert exact(target) <= delta_at(composed, target)
                assert exact(target) <= delta_at(compose(pmf, steps), target)
            target = steps * log_moment(pmf, order)[1]
            assert delta_at(composed, target) <= exact(target) * (1 + 1e-9) + 2 * steps * 1e-20
            assert delta_at(compose_tilted([(pmf, steps - 1)], order), target) < exact(target), "a step too few is seen"


@pytest.mark.parametrize("tail", [1e-3, 1e-6])
def test_what_the_window_cuts_is_charged(monkeypatch, tail):
    monkeypatch.setattr(loss_pmf, "TAIL_MASS", tail)
    pmf = mixture_step(binomial_mixture(1.0, 1, 0.3), 0.4).remove
    exact = exact_deltas(pmf, 12)
    for order, target in itertools.product((0.3, 1.0, 2.5), (-2.0, 0.0, 1.0, 4.0, 9.0, 15.0)):
        assert delta_at(compose_tilted([(pmf, 12)], order), target) >= exact(target)


@pytest.mark.parametrize(
    ("sigma", "group", "rate", "width", "steps", "target"),
    [
        (1.0, 1, 0.01, 2.0**-11, 2_000, 4.5857),
        (10.0, 1, 0.01, 2.0**-15, 22_000, 0.92439),
        (30.0, 8, 0.01, 2.0**-14, 100_000, 5.739),
        (0.7, 4, 1e-4, 2.0**-10, 50_000, 4.365),
        (1.0, 2, 1e-5, 2.0**-17, 10_000, 0.01732),
    ],
)
def test_the_charge_for_rounding_is_over_a_hundred_times_the_rounding(
    monkeypatch, sigma, group, rate, width, steps, target
):
    """The same grid in extended precision, whose rounding is 2,048 times smaller and tilted too."""
    pmf = mixture_step(binomial_mixture(sigma, group, rate), width).remove
    order = order_at([(pmf, steps)], target)
    exact = extended_delta(pmf, steps, target, order)
    cut = -math.expm1(steps * math.log1p(-pmf.infinity))
    charged = delta_at(compose_tilted([(pmf, steps)], order), target) - cut - exact
    monkeypatch.setattr(loss_pmf, "tilted_rounding", lambda *_: 0.0)
    rounding = delta_at(compose_tilted([(pmf, steps)], order), target) - cut - exact
    print(f"rounding {rounding / exact:.1e}, charged {charged / exact:.1e} of delta")
    assert charged > 100.0 * abs(rounding)
    assert charged < composition.VISIBLE * exact
    whole = delta_at(compose(pmf, steps), target) - cut - exact
    assert whole > 10.0 * charged  # what the tilt is for


def test_order_is_that_of_the_least_chernoff_bound():
    pmf = mixture_step(binomial_mixture(1.0, 2, 0.1), 0.01).remove
    order = order_at([(pmf, 100)], 20.0)
    bounds = [100 * log_moment(pmf, s)[0] - 20.0 * s for s in (0.9 * order, order, 1.1 * order)]
    assert bounds[1] == min(bounds)
    assert order_at([(pmf, 100)], -1e6) == 0.0
    assert order_at([(pmf, 1)], 1e6) == pytest.approx(1e6)


def test_below_its_window_a_tilted_distribution_promises_nothing():
    pmf = mixture_step(binomial_mixture(1.0, 1, 0.3), 0.05).remove
    composed = compose_tilted([(pmf, 400)], 3.0)
    assert composed.losses[0] > 100.0
    assert delta_at(composed, 99.0) > 0.6
    assert epsilon_at(composed, 0.5) >= 99.0


def test_calibration_at_the_smallest_delta():
    for rate, group, steps, target in ((0.01, 1, 20_000, 1.0), (1e-3, 8, 10_000, 8.0)):
        noise = calibrate(PoissonGaussian(1.0, rate, group), steps, SMALLEST_DELTA, target)
        assert epsilon(PoissonGaussian(noise, rate, group), steps, SMALLEST_DELTA) <= target
        assert epsilon(PoissonGaussian(noise * (1 - 3e-4), rate, group), steps, SMALLEST_DELTA) > target


def test_both_ways_agree_where_both_are_good():
    """At delta 1e-7 rounding does not show in the whole pair: the tilted one gives the same to 1e-5."""
    event, steps, delta = PoissonGaussian(1.0, 0.01, 4), 2000, 1e-7
    whole = epsilon(event, steps, delta)
    assert composition.tilted_epsilon(((event, steps),), delta) == pytest.approx(whole, rel=1e-5)


def test_more_steps_than_a_whole_pair_could_bear():
    event = PoissonGaussian(50.0, 0.001)
    found = [epsilon(event, steps, 1e-10) for steps in (10**5, 10**6, 10**7)]
    assert found[0] < found[1] < found[2]
    assert found[2] == pytest.approx(closed_forms.gaussian_epsilon(math.sqrt(10**7) * 0.001 / 50.0, 1e-10), rel=2e-3)


def test_a_hard_cap_keeps_its_limit():
    capped = CappedPoissonGaussian(20.0, 0.1, 100, 60)
    with refused(by="check_rounding", naming=("1e-11", "40000")):
        epsilon(capped, 40_000, 1e-11)
    assert epsilon(capped, 400, 1e-11) > 0.0


def test_interactive_at_the_smallest_delta():
    took = []
    for sigma, group, rate, steps in CELLS:
        composition.tilted_epsilon.cache_clear()
        began = time.perf_counter()
        epsilon(PoissonGaussian(sigma, rate, group), steps, SMALLEST_DELTA)
        took.append(time.perf_counter() - began)
    assert max(took) < 3.0


def test_offset_grids():
    """A grid shifted by any offset is a valid bound too, and composes with it."""
    mixture = binomial_mixture(0.8, 3, 0.2)
    plain, shifted = mixture_step(mixture, 0.02), mixture_step(mixture, 0.02, 0.0123)
    assert (shifted.remove.offset, shifted.add.offset) == (0.0123, -0.0123)
    for side in ("remove", "add"):
        one, other = compose(getattr(plain, side), 5), compose(getattr(shifted, side), 5)
        assert other.offset == 5 * getattr(shifted, side).offset
        for target in (0.0, 0.4, 1.7):
            assert delta_at(other, target) == pytest.approx(delta_at(one, target), rel=2e-3)
        assert epsilon_at(other, 1e-4) == pytest.approx(epsilon_at(one, 1e-4), rel=1e-3)


def test_absence_loss_is_the_floor_of_the_loss():
    event = PoissonGaussian(0.3, 0.05, 8)
    pmf = mixture_step(binomial_mixture(0.3, 8, 0.05), 0.01, absence_loss(event)).remove
    assert pmf.losses[pmf.masses > 0][0] == pytest.approx(8 * math.log(0.95), abs=1e-9)
    assert absence_loss(PoissonGaussian(0.3, 1.0, 8)) == 0.0


def test_rounding_of_the_whole_pair():
    pmf = LossPmf(0.1, -1, np.array([0.5, 0.5]), 0.0)
    assert compose(pmf, 1000).infinity >= rounding_mass(1000)
