"""The mean-estimation study: its round is the trainer's, its cohorts and noise have the law that is accounted for."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from heldin.base.coins import keyed_positions, seed_key
from heldin.defenses.accounting.events import PoissonGaussian, with_noise
from heldin.defenses.accounting.guarantees import epsilon
from heldin.defenses.choices import ConstantDivisor, FlatClip, NoiseGenerator
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.noise import gaussian
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, plan_private_training
from replication import mean_estimation as sim
from replication import mean_estimation_sweeps as study
from replication.mean_estimation import Arm, Data, Pairs, Point, Setting, Task, TunedArm
from tests.documents import tokens
from tests.draws import draw
from tests.mean_model import MeanModel
from tests.oracles.mean_estimation import naive_step
from tests.refusals import refused

KEY = seed_key(7)
SMALL = Task(users=32, examples=4, dimension=4, rounds=24, delta=1e-5)


def _trainer_and_simulation(kind, *, noise_factor=1.0, rounds=12):
    """(theta of the trainer, theta of the simulation) after each round, under one key."""
    users, examples, d, group, clip, rate, sigma = 9, 5, 6, 3 if kind == "uls" else 5, 2.5, 0.4, 0.7
    table = np.random.default_rng(3).normal(size=(users * examples, d)) * 2 + 1
    names = [f"user{u}" for u in range(users)]
    ids = [f"record{i}" for i in range(len(table))]
    divisor = rate * users * (1 if kind == "uls" else examples)
    mechanism = Mechanism(
        unit="user",
        sampled="user" if kind == "uls" else "example",
        sampler=PoissonSampler(rate=rate),
        group_size=group,
        clip=FlatClip(norm=clip),
        noise_multiplier=sigma,
        steps=rounds,
        delta=1e-4,
        divisor=ConstantDivisor(value=divisor),
    )
    records = PrivateRecords(ids, [names[i // examples] for i in range(len(table))], [1] * len(table))
    training = plan_private_training(mechanism, KEY, records, NoiseGenerator.PHILOX)
    model = MeanModel(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    theta = np.zeros((1, 1, d))
    pairs = Pairs(np.array([0.5]), np.array([clip]))
    for step in range(rounds):
        if kind == "uls":
            drawn = [
                [
                    u * examples + i
                    for i in keyed_positions(KEY, f"records {step}", names[u], count=group, total=examples)
                ]
                for u in draw(mechanism.sampler, KEY, step, names)
            ]
        else:
            drawn = [[i] for i in draw(mechanism.sampler, KEY, step, [f"{name} copy 0" for name in ids])]
        points = np.array([table[rows].mean(0) for rows in drawn]).reshape(1, len(drawn), d)
        noise = gaussian(NoiseGenerator.PHILOX, KEY, step, "theta", torch.Size([d]), sigma, torch.device("cpu"))
        present = np.ones((1, len(drawn)), dtype=bool)
        theta = sim.step(theta, points, present, noise_factor * noise.numpy()[None], pairs, divisor)
        private_gradient(model, training, step, tokens([i, 0] for i in range(len(table))))
        optimizer.step()
        yield model.theta.detach().numpy(), theta[0, 0]


@pytest.mark.parametrize("kind", ["uls", "els"])
def test_a_round_is_the_trainers_round(kind):
    """Same coins, same choice of examples, same noise, same clipping and divisor: the same iterates."""
    for trained, simulated in _trainer_and_simulation(kind):
        np.testing.assert_allclose(simulated, trained, atol=1e-5)


def test_that_would_notice_another_noise():
    iterates = list(_trainer_and_simulation("uls", noise_factor=2 / 3))
    assert np.abs(iterates[-1][0] - iterates[-1][1]).max() > 0.05


def test_step_is_the_naive_step():
    rng = np.random.default_rng(0)
    theta, noise = rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 5))
    points = 3 * rng.normal(size=(3, 7, 5))
    present = rng.random((3, 7)) < 0.6
    present[2] = False  # an empty cohort steps, with noise
    pairs = Pairs(np.array([0.1, 0.5, 1.0, 2.0]), np.array([0.5, 2.0, 8.0, 1e6]))
    found = sim.step(theta, points, present, noise, pairs, 3.0)
    for repeat, pair in itertools.product(range(3), range(4)):
        eta, clip = pairs.learning_rate[pair], pairs.clip_norm[pair]
        units = [[x] for x, here in zip(points[repeat], present[repeat], strict=True) if here]
        expected = naive_step(theta[repeat, pair], units, noise[repeat], clip, eta, 3.0)
        np.testing.assert_allclose(found[repeat, pair], expected, atol=1e-10)


def test_a_point_at_theta_contributes_nothing():
    theta = np.full((1, 1, 3), 2.0)
    pairs = Pairs(np.ones(1), np.ones(1))
    found = sim.step(theta, theta, np.ones((1, 1), dtype=bool), np.zeros((1, 3)), pairs, 1.0)
    np.testing.assert_array_equal(found, theta)


def _numbered(repeats, users, examples):
    """Example j of user u has the one coordinate 2^(u examples + j): a sum says what it is a sum of."""
    values = 2.0 ** np.arange(users * examples).reshape(1, users, examples, 1)
    return Data(np.zeros((repeats, 1)), np.repeat(values, repeats, axis=0))


@pytest.mark.parametrize("group", [1, 2, 4])
def test_uls_draws_users_by_coin_and_distinct_examples(group):
    users, examples, repeats, cohort = 6, 4, 20_000, 2
    data = _numbered(repeats, users, examples)
    points, present = sim.draw_points(Arm("ULS", group, cohort, users), data, np.random.default_rng(1))
    sums = (points[..., 0] * group)[present].astype(np.int64)
    bits = np.array([[(s >> np.arange(users * examples)) & 1] for s in sums]).reshape(-1, users, examples)
    assert (bits.sum((1, 2)) == group).all()
    assert ((bits.sum(2) > 0).sum(1) == 1).all()
    counts = np.bincount(present.sum(1), minlength=users + 1)
    expected = repeats * stats.binom.pmf(np.arange(users + 1), users, cohort / users)
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    shares = bits.sum(0).ravel()
    assert stats.chisquare(shares).pvalue > 1e-6
    assert _subsets(sums, group) == users * math.comb(examples, group)


def _subsets(sums, group):
    """How many subsets were drawn; fails unless each was drawn about equally often."""
    values, counts = np.unique(sums, return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-6
    return len(values)


def test_els_draws_examples_by_coin():
    data = _numbered(20_000, 3, 4)
    points, present = sim.draw_points(Arm("ELS", 4, 3, 12), data, np.random.default_rng(1))
    counts = np.bincount(present.sum(1), minlength=13)[:13]
    likely = stats.binom.pmf(np.arange(13), 12, 0.25)
    likely[8] = likely[8:].sum()
    counts[8] = counts[8:].sum()
    assert stats.chisquare(counts[:9], 20_000 * likely[:9]).pvalue > 1e-6
    assert stats.chisquare(np.unique(points[..., 0][present], return_counts=True)[1]).pvalue > 1e-6


def test_noise_has_the_deviation_that_is_accounted_for():
    """Everyone in every round, no gradient clipped: theta_T - mean is an autoregression of known variance."""
    task, arm, sigma, eta, clip = Task(users=4, examples=2, dimension=8, rounds=40), Arm("ULS", 2, 4, 4), 0.9, 0.2, 100
    rng = np.random.default_rng(5)
    data = sim.draw_data(task, 1.0, 500, rng)
    centred = Data(data.user_means.mean(1), data.examples)  # errors are then about the sample's own mean
    errors = sim.run_arm(task, arm, sigma, Pairs(np.array([eta]), np.array([float(clip)])), centred, rng, rng)[:, 0]
    keep = 1 - eta
    variance = (eta * clip * sigma / 4) ** 2 * (1 - keep ** (2 * task.rounds)) / (1 - keep**2)

    def p_value(factor):
        return stats.kstest(errors / (factor**2 * variance), stats.chi2(task.dimension).cdf).pvalue

    assert p_value(1.0) > 1e-6
    assert p_value(2 / 3) < 1e-6
    assert p_value(3 / 2) < 1e-6


def test_data_have_the_stated_variances():
    task = Task(users=64, examples=8, dimension=4, between=0.5)
    data = sim.draw_data(task, 2.0, 300, np.random.default_rng(2))
    within = (data.examples - data.user_means[:, :, None]).ravel() * math.sqrt(8 / 7)
    between = data.user_means - data.user_means.mean(1, keepdims=True)
    assert data.mean.var() == pytest.approx(1.0, rel=0.2)
    assert within.var() == pytest.approx(4.0, rel=0.02)
    assert between.var() * 64 / 63 == pytest.approx(0.25 + 4.0 / 8, rel=0.04)
    sample = ((data.user_means.mean(1) - data.mean) ** 2).sum(-1)
    assert task.floor(2.0) == pytest.approx(sample.mean(), rel=0.2)


def test_arms_spend_the_budget():
    arms = sim.arms_of(Task(), 64)
    assert [(a.method, a.group_size, a.expected) for a in arms] == [
        ("ELS", 16, 64),
        *(("ULS", g, 64 // g) for g in (1, 2, 4, 8, 16)),
    ]
    assert arms[0].event == PoissonGaussian(1.0, 64 / 4096, 16)
    assert arms[-1].event == PoissonGaussian(1.0, 4 / 256)
    assert [a.group_size for a in sim.arms_of(Task(), 1024)] == [16, 4, 8, 16]  # a cohort is at most all users
    assert [a.group_size for a in sim.arms_of(Task(), 2)] == [16, 1, 2]


@pytest.mark.parametrize("method", ["ELS", "ULS"])
def test_noise_meets_epsilon_by_the_trainers_accountant(method):
    arm = next(a for a in sim.arms_of(Task(), 64) if a.method == method)
    sigma = arm.noise_multiplier(Task(), 1.0)
    event = with_noise(PoissonGaussian(1.0, 1 / 64, 16) if method == "ELS" else PoissonGaussian(1.0, 1 / 4), sigma)
    assert 0.999 < epsilon(event, 256, 1e-6) <= 1.0


def test_bad_settings():
    with refused(by="els_rate", naming=("5000", "4096")):
        sim.arms_of(Task(), 5000)
    with refused(by="arms_of", naming=("257", "256")):
        sim.arms_of(Task(), 257)
    with refused(by="measure_point", naming=("1 repeats", "2")):
        sim.measure_point(SMALL, Setting(), 1, 0)
    with refused(by="measure_point", naming=("-1", "0")):
        sim.measure_point(SMALL, Setting(within=-1), 4, 0)


def test_contrasts_cover_and_shorter_ones_do_not():
    """95 % intervals of the ratio of two correlated means, 32 repeats, true ratio 2."""
    rng = np.random.default_rng(4)
    missed = too_short = 0
    for _ in range(2000):
        shared = rng.gamma(8.0, size=32)
        found = study.contrast([2 * (shared + rng.gamma(8.0, size=32))], [shared + rng.gamma(8.0, size=32)], 0.95)
        off = abs(math.log(found.value / 2.0)) / math.log(found.high / found.value)
        missed += off > 1
        too_short += off > 2 / 3
    assert missed < stats.binom.isf(1e-6, 2000, 0.05)
    assert missed > stats.binom.ppf(1e-6, 2000, 0.05)
    assert too_short > stats.binom.isf(1e-6, 2000, 0.05)


def _points(level, factors, single=1.0, seed=0):
    """A point for each factor, the error of ULS over that of ELS, around `level`; G = 1 has `single` of ELS."""
    rng = np.random.default_rng(seed)

    def outcome(arm, mean):
        return TunedArm(arm, 1.0, 0.1, 1.0, mean, mean * rng.gamma(16.0, 1 / 16.0, size=128))

    return [
        Point(
            setting,
            outcome(Arm("ELS", 16, 64, 4096), level),
            (outcome(Arm("ULS", 1, 64, 256), single * level), outcome(Arm("ULS", 16, 4, 256), factor * level)),
        )
        for setting, factor in factors.items()
    ]


def _judged(here, there, single=1.0):
    sweeps = {
        "epsilon": _points(2.0, {Setting(epsilon=0.25): here, Setting(epsilon=16): there}, single, 1),
        "budget": _points(2.0, {Setting(budget=16): there, Setting(budget=1024): here}, single, 2),
        "within": _points(2.0, {Setting(within=0.25): there, Setting(within=8): here}, single, 3),
    }
    return [finding.confirmed for finding in study.judge({k: tuple(v) for k, v in sweeps.items()})]


@pytest.mark.parametrize(
    ("here", "there", "single", "confirmed"),
    [
        (0.6, 0.98, 0.9, [True, True, True, True]),
        (0.99, 0.99, 0.9, [False, False, False, True]),  # no difference anywhere
        (0.6, 0.6, 0.9, [False, False, False, True]),  # better, but no more so than at the other end
        (0.98, 0.6, 0.9, [False, False, False, True]),  # the wrong end
        (0.6, 0.98, 1.2, [True, True, True, False]),  # G = 1 is a fifth worse
    ],
)
def test_a_finding_is_confirmed_only_where_it_is_so(here, there, single, confirmed):
    assert _judged(here, there, single) == confirmed


SWEEPS = study.Sweeps(epsilon=(16.0, 1.0), budget=(8, 32, 64), within=(1.0, 4.0))


@pytest.fixture(scope="module")
def small():
    return study.run_study(40, 3, task=SMALL, sweeps=SWEEPS)


def test_a_study_measures_each_setting_once_and_is_a_function_of_its_seed(small):
    assert [p.setting.epsilon for p in small.sweeps["epsilon"]] == [1.0, 16.0]
    assert len(study.settings_of(SWEEPS)) == 5  # the default setting stands in all three sweeps
    assert small.sweeps["epsilon"][0] is small.sweeps["within"][0] is small.sweeps["budget"][2]
    counted = []
    again = study.run_study(40, 3, task=SMALL, sweeps=SWEEPS, advance=counted.append)
    assert counted == [1] * 5
    assert json.dumps(again.as_dict()) == json.dumps(small.as_dict())
    other = study.run_study(40, 4, task=SMALL, sweeps=SWEEPS)
    assert json.dumps(other.as_dict()) != json.dumps(small.as_dict())


def test_a_study_is_plausible(small):
    """More epsilon, less error; no arm beats all examples without privacy; errors of distinct repeats."""
    low, high = small.sweeps["epsilon"]
    assert study.mean_error(high.uls).high < study.mean_error(low.uls).low
    for points in small.sweeps.values():
        for point in points:
            assert study.mean_error(point.els).low > SMALL.floor(point.setting.within) / 2
            assert point.els.errors.shape == (40,)
            assert len(set(point.els.errors)) == 40
            assert point.uls.tuning_error == min(its.tuning_error for its in point.every_uls)


def test_the_table_says_it(small):
    text = study.table(small)
    assert "32 users x 4 examples, d = 4, 24 rounds, delta 1e-05, 40 repeats" in text
    assert text.count("ULS improves on ELS") == 3
    its = study.ratio(small.sweeps["within"][1])
    assert f"{its.value:.3f} ({its.low:.3f} to {its.high:.3f})" in text


@pytest.mark.long
@pytest.mark.slow
def test_the_papers_findings_hold():
    """Charles et al., section 4, at the ends of its sweeps."""
    ends = study.Sweeps(epsilon=(0.25, 16.0), budget=(16, 512), within=(0.25, 8.0))
    found = study.run_study(48, 1, sweeps=ends)
    assert [finding.confirmed for finding in found.findings] == [True, True, True, True]
    assert "end of the grid" not in study.table(found)
