"""Banded noise for users: the coefficients, the groups, the guarantee by enumeration, and what is refused."""

import math

import numpy as np
import pytest
from scipy import stats

from heldin.base.coins import seed_key
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.bands import bands_option, best_bands
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.choices import (
    PREFIX_SUMS,
    ClipQuantile,
    ConcentrationFilter,
    FlatClip,
    LocalUpdates,
    RealisedCohortDivisor,
    Workload,
)
from heldin.defenses.correlation import banded_square_root, noise_response, workload_error
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.contract import Given
from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.defenses.samplers import BandedPoissonSampler, Draws, PoissonSampler, group_of
from heldin.words.guarantee import GuaranteeCondition
from tests.made_mechanisms import uls
from tests.oracles import banded, contour_accountant
from tests.refusals import refused
from tests.statements import states
from tests.theory_tables import numbers

KEY = seed_key(60)
NAMES = [f"user {i}" for i in range(400)]
CONFIG = {"kind": "banded", "population": 4400, "cohort": 220, "steps": 400}
GIVEN = Given(plain_steps=7, batch_size=4, clip_norm=1.0, checkpoint="last_step", data_steps=(), assumptions=())


def made(**settings):
    return MECHANISMS.find("banded").model_validate({**CONFIG, **settings})


def plan(**settings):
    return Mechanism(**made(**settings).plan(GIVEN))


@pytest.mark.parametrize("bands", [1, 2, 3, 8, 16])
def test_the_coefficients_are_those_of_the_square_root_and_no_column_is_longer_than_1(bands):
    c = banded.matrix(bands, 20)
    assert banded_square_root(bands) == pytest.approx(c[:bands, 0], abs=1e-15)
    assert np.linalg.norm(c, axis=0).max() == pytest.approx(1.0, abs=1e-14)
    # Of full length its square is the prefix sum, up to the scale.
    whole = banded.matrix(20, 20)
    assert whole @ whole / whole[0, 0] ** 2 == pytest.approx(np.tril(np.ones((20, 20))), abs=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 5, 8])
def test_errors_of_sums_equal_those_of_dense_matrices(bands):
    steps, momentum, decay = 30, 0.9, 0.05
    inverse = np.linalg.inv(banded.matrix(bands, steps))
    assert noise_response(banded_square_root(bands), steps) == pytest.approx(inverse[:, 0], abs=1e-12)
    assert workload_error(banded_square_root(bands), steps) == pytest.approx(banded.error(bands, steps), rel=1e-12)
    # Steps of torch's SGD, one after the other, on the unit gradients.
    moved, velocity, rows = np.zeros(steps), np.zeros(steps), []
    for gradient in np.eye(steps):
        velocity = momentum * velocity + gradient
        moved = (1 - decay) * moved + velocity
        rows.append(moved)
    expected = banded.error(bands, steps, np.stack(rows))
    assert workload_error(banded_square_root(bands), steps, momentum, decay) == pytest.approx(expected, rel=1e-12)


def test_the_table_of_banded_noise_is_what_the_accountant_gives():
    rows = numbers("table-of-banded-noise")
    assert len(rows) == 28
    for population, cohort, steps, epsilon, bands, noise, error in rows:
        rate = int(cohort), int(bands)
        option = bands_option(int(population), rate[0], int(steps), epsilon, population**-1.1, rate[1])
        # Figures of another grid of losses, rounded to the safe side.
        assert option.noise_multiplier == pytest.approx(noise, rel=3e-3)
        assert option.error == pytest.approx(error, rel=3e-3)
        assert option.error == pytest.approx(option.noise_multiplier * banded.error(int(bands), int(steps)), rel=1e-9)


def test_auto_takes_the_least_error_and_knows_the_optimizer():
    settled = {}
    for population, cohort, steps, epsilon, *_ in numbers("table-of-banded-noise"):
        case = int(population), int(cohort), int(steps), epsilon
        errors = {b: error for *other, b, _, error in numbers("table-of-banded-noise") if tuple(other) == case}
        settled[case] = best_bands(*case, population**-1.1).bands
        # A table that ends at 16 bands says nothing about 32.
        assert settled[case] == min(errors, key=errors.get) or settled[case] > max(errors)
    assert settled[1000, 100, 200, 2.0] == settled[4400, 220, 400, 2.0] == 1
    assert settled[4400, 220, 400, 8.0] == 8
    assert plan(target_epsilon=8.0).sampler.bands == 8
    shrinking = plan(target_epsilon=8.0, workload={"decay": 0.9}).sampler.bands
    assert shrinking == best_bands(4400, 220, 400, 8.0, 4400**-1.1, Workload(decay=0.9)).bands < 8


def test_users_take_part_only_in_their_groups_steps_and_independently():
    sampler = BandedPoissonSampler.of(400, 20, 8)
    assert sampler.rate == 0.4
    draws = Draws(sampler, KEY, NAMES, 800)
    taken = np.zeros((800, 400), dtype=bool)
    for step in range(800):
        taken[step, draws.at(step)] = True
    groups = np.array([group_of(KEY, name, 8) for name in NAMES])
    for user in range(400):
        assert set(np.flatnonzero(taken[:, user]) % 8) == {groups[user]}
    assert stats.chisquare(np.bincount(groups, minlength=8)).pvalue > 1e-6
    own = np.stack([taken[group::8, user] for user, group in enumerate(groups)])  # (users, rounds)
    assert stats.binomtest(int(own.sum()), own.size, 0.4).pvalue > 1e-6
    both = own[:, ::2] & own[:, 1::2]
    assert stats.binomtest(int(both.sum()), both.size, 0.16).pvalue > 1e-6
    assert stats.binomtest(int(own.sum()), own.size, 0.4 / 8).pvalue < 1e-6


def test_nobodys_group_or_coin_depends_on_others_or_on_the_order_of_asking():
    sampler = BandedPoissonSampler.of(400, 20, 4)
    whole, fewer = Draws(sampler, KEY, NAMES, 90), Draws(sampler, KEY, NAMES[7:][::-1], 90)
    steps = list(range(90))
    by_name = {step: {NAMES[i] for i in whole.at(step)} for step in steps}
    for step in (*steps, 41, 3):
        assert {NAMES[7:][::-1][i] for i in fewer.at(step)} == by_name[step] - set(NAMES[:7])
    other = [group_of(seed_key(61), name, 4) for name in NAMES]
    assert other != [group_of(KEY, name, 4) for name in NAMES]


def test_one_band_is_uls_to_the_last_digit():
    """Draws and epsilon here; noise and weights in tests/finetune/test_banded.py."""
    one, plain = BandedPoissonSampler.of(400, 20, 1), PoissonSampler.of(400, 20)
    ours, theirs = Draws(one, KEY, NAMES, 300), Draws(plain, KEY, NAMES, 300)
    assert [ours.at(step) for step in range(300)] == [theirs.at(step) for step in range(300)]
    mechanism = plan(bands=1, target_epsilon=4.0).calibrated(4.0)
    same = uls(
        sampler=PoissonSampler.of(4400, 220), steps=400, delta=mechanism.delta, group_size=1, clip=FlatClip(norm=1.0)
    ).calibrated(4.0)
    assert mechanism.noise_multiplier == same.noise_multiplier
    assert mechanism.epsilon() == same.epsilon()
    assert mechanism.dp_event == same.dp_event


@pytest.mark.parametrize(("bands", "steps"), [(4, 400), (8, 398)])
def test_epsilon_is_that_of_the_rounds_by_an_integral_without_a_grid(bands, steps):
    mechanism = plan(bands=bands, steps=steps, noise_multiplier=1.4)
    rounds = math.ceil(steps / bands)
    log_q, loss = contour_accountant.binomial_gaussian(1.4, 1, bands * 220 / 4400)
    exact = [
        contour_accountant.epsilon(log_q, loss, rounds, mechanism.delta, direction, (4.0, 16.0))
        for direction in ("remove", "add")
    ]
    assert max(exact) <= mechanism.epsilon() <= 1.002 * max(exact)
    # The rate of ULS is far too optimistic, and its number of steps at the larger rate too pessimistic.
    assert uls(sampler=PoissonSampler.of(4400, 220), steps=rounds, noise_multiplier=1.4).epsilon() < 0.5 * max(exact)
    assert states(mechanism.guarantee().statement, GuaranteeCondition.BANDED)


SIGMA = 1.3
RATE = 0.3


def _adversaries(user, step, before):
    """The protected user adds 1; the others answer to the last output, also within a block of bands."""
    if user == 0:
        return np.ones(len(before))
    last = before[:, -1] if step else np.zeros(len(before))
    return np.where(last > 0.3, 1.0, -0.7) * (-1) ** user


def _gap(c, parts, steps, rounds, rate=RATE, epsilons=(0.0, 0.2, 0.5, 1.0)):
    """The largest excess of the true delta over the accountant's, in either direction; and the smallest."""
    points, cell = banded.grid(steps, 8.5, {2: 341, 3: 121}[steps])
    with_user = banded.densities(c, SIGMA, parts, _adversaries, points)
    nobody = [((), RATE), *parts[1:]]
    alone = banded.densities(c, SIGMA, nobody, _adversaries, points)
    assert with_user.sum() * cell == pytest.approx(1.0, abs=1e-5)
    gaps = []
    for epsilon in epsilons:
        stated = accounting.delta_of(PoissonGaussian(SIGMA, rate), rounds, epsilon)
        true = max(
            banded.divergence(with_user, alone, cell, epsilon), banded.divergence(alone, with_user, cell, epsilon)
        )
        gaps.append(true - stated)
    return max(gaps), min(gaps)


def test_by_enumeration_no_law_of_outputs_is_above_the_guarantee():
    """Two bands. The user's group has steps 0 and 2; another group answers to outputs within the same block."""
    others = [((0, 2), RATE), ((1,), RATE), ((1,), 0.8)]
    # Of others whose coins are known it is as tight as it is true: the one column has norm 1.
    highest, lowest = _gap(banded.matrix(2, 2), [((0,), RATE), ((0,), 1.0), ((1,), 1.0)], 2, 1)
    assert abs(highest) < 1e-3
    assert abs(lowest) < 1e-3
    highest, _ = _gap(banded.matrix(2, 3), [((0, 2), RATE), *others], 3, 2)
    assert highest < 1e-3


@pytest.mark.parametrize(
    ("c", "parts", "rounds", "rate"),
    [
        (banded.matrix(2, 2) * 1.3, [((0,), RATE)], 1, RATE),
        (banded.matrix(2, 2), [((0, 1), RATE)], 1, RATE),
        (banded.matrix(2, 2), [((0,), RATE)], 1, RATE / 2),
        (banded.matrix(2, 3), [((0, 2), RATE)], 1, RATE),
    ],
    ids=["columns above 1", "a user in two groups", "accounted with M / N", "a round too few"],
)
def test_by_enumeration_what_breaks_the_proof_is_above_it(c, parts, rounds, rate):
    assert _gap(c, parts, len(c), rounds, rate)[0] > 5e-3


@pytest.mark.parametrize("key", ["cap", "local", "clip_quantile", "sampler", "tau"])
def test_what_is_not_proved_is_refused_in_the_config_by_name(key):
    with refused(by="BandedDefense._refused", naming=(key, "uls"), kind=ValueError):
        made(target_epsilon=8.0, **{key: {}})


def _banded(**changes):
    sampler = BandedPoissonSampler.of(1024, 16, 4)
    return uls(**{"sampler": sampler, "group_size": 1, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"sampled": "example"},
        {"unit": "example", "sampled": "example"},
        {"unit": "user-entity", "sampled": "example", "exposed": 1, "record_selection": "all"},
        {"clip": FlatClip(norm=0.5, follows=ClipQuantile())},
        {"clip": ConcentrationFilter(tau=1.0, above_epsilon=1.0)},
        {"divisor": RealisedCohortDivisor()},
        {"divisor": RealisedCohortDivisor(), "adjacency": "zero_out"},
    ],
)
def test_what_is_not_proved_is_refused_in_a_plan(changes):
    assert _banded().epsilon() < math.inf
    with refused(by="BandedLevel.check", naming="banded"):
        _banded(**changes)


@pytest.mark.parametrize(
    ("build", "by", "naming"),
    [
        (lambda: _banded(local=LocalUpdates(learning_rate=0.1)), "Mechanism._check", "Poisson"),
        (lambda: _banded(adjacency="replace"), "SamplerKind.check", "replace"),
        (lambda: _banded(steps=3), "BandedPoissonSampler.check", (4, 3)),
        (lambda: BandedPoissonSampler.of(1000, 200, 6), "BandedPoissonSampler.of", (6, 200, "1,000", 5)),
        (lambda: plan(bands=21, noise_multiplier=1.0), "BandedPoissonSampler.of", (21, 20)),
    ],
)
def test_impossible_sizes_are_one_line(build, by, naming):
    with refused(by=by, naming=naming):
        build()


def test_a_choice_of_bands_needs_a_target():
    with refused(by="BandedDefense._auto_has_a_target", naming="target_epsilon", kind=ValueError):
        made(noise_multiplier=1.0)
    with refused(by="BandedDefense._auto_has_a_target", naming="workload", kind=ValueError):
        made(noise_multiplier=1.0, bands=4, workload={"momentum": 0.9})
    assert made(noise_multiplier=1.0, bands=4).workload == PREFIX_SUMS
