"""Asi & Liu's filter: counts by brute force, the step by hand, halting, and what its plan says."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from heldin.base.coins import keyed_uniform, seed_key
from heldin.defenses.accounting.events import FilteredGaussian
from heldin.defenses.accounting.guarantees import calibrate, delta_of, epsilon
from heldin.defenses.choices import ConcentrationFilter, ConstantDivisor, FlatClip, NoiseGenerator
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.noise import gaussian
from heldin.defenses.samplers import FullBatchSampler
from heldin.finetune.filtered import (
    SCORE_SENSITIVITY,
    Halted,
    above_threshold,
    filtered_gradient,
    keep_probability,
    kept_users,
    neighbours,
)
from heldin.finetune.loop import train
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.units import plan_private_training
from heldin.words.guarantee import GuaranteeCondition
from replication.effective_noise import gaussian_mu
from tests.finetune.test_private import KEY, _gradients, _records
from tests.oracles.record_loss import record_loss
from tests.refusals import raised_apart, refused
from tests.statements import states


def _mechanism(tau=100.0, above=50.0, population=12, **changes):
    fields = {
        "unit": "user",
        "sampled": "user",
        "adjacency": "replace",
        "sampler": FullBatchSampler(population=population),
        "group_size": 2,
        "clip": ConcentrationFilter(tau=tau, above_epsilon=above),
        "noise_multiplier": 0.5,
        "steps": 4,
        "delta": 1e-4,
        "divisor": ConstantDivisor(value=population),
        **changes,
    }
    return Mechanism(**fields)


def _training(sequences, **changes):
    return plan_private_training(_mechanism(**changes), KEY, _records(sequences), NoiseGenerator.PHILOX)


def test_neighbours_are_those_of_brute_force():
    generator = torch.Generator().manual_seed(1)
    gradients = torch.randn(9, 5, generator=generator)
    people = [*gradients, *torch.zeros(3, 5)]
    for distance in (0.5, 2.0, 2.5, 9.0):
        expected = [sum(bool((a - b).norm() <= distance) for b in people) for a in people]
        assert neighbours(gradients, 3, distance).tolist() == expected


def test_replacing_one_user_moves_the_score_by_less_than_the_sensitivity():
    """The worst case: everyone is near everyone, and one goes far away."""
    for n in (5, 50, 500):
        near = torch.zeros(n, 1)
        away = near.clone()
        away[0] = 1e6
        moved = (neighbours(near, 0, 1.0).sum() - neighbours(away, 0, 1.0).sum()).item() / n
        assert moved == pytest.approx(2 * (n - 1) / n)
        assert moved < SCORE_SENSITIVITY


def test_above_threshold_compares_two_laplace_numbers_of_the_stated_scales():
    passed = np.mean([above_threshold(82.0, 100, 2.0, seed_key(i), 0) for i in range(4000)])
    rng = np.random.default_rng(0)
    draws = rng.laplace(scale=2 * 2 / 2.0, size=400_000) - rng.laplace(scale=4 * 2 / 2.0, size=400_000)
    expected = float(np.mean(draws <= 2.0))
    assert stats.binomtest(round(passed * 4000), 4000, expected).pvalue > 1e-6
    narrow = float(np.mean(draws * 2 / 3 <= 2.0))
    assert stats.binomtest(round(passed * 4000), 4000, narrow).pvalue < 1e-2


@pytest.mark.parametrize("u", [0.0, 1.0 - 2.0**-53])
def test_no_coin_gives_an_infinite_laplace_number(u, monkeypatch):
    monkeypatch.setattr("heldin.finetune.filtered.keyed_uniform", lambda *_: u)
    assert above_threshold(1e9, 100, 2.0, KEY, 0)
    assert not above_threshold(-1e9, 100, 2.0, KEY, 0)


@pytest.mark.parametrize(("near", "p"), [(0, 0.0), (50, 0.0), (55, 0.3), (60, 0.6), (67, 1.0), (100, 1.0)])
def test_users_are_kept_by_how_many_are_near(near, p):
    assert keep_probability(near, 100) == pytest.approx(p)


def test_a_step_is_the_noised_mean_of_the_kept_users(make_lm, sequences):
    training = _training(sequences)
    lm = make_lm()
    grads = []
    for unit in training.drawn(0):
        lm.model.zero_grad()
        records = training.contribution(unit, 0, sequences)
        (sum(record_loss(lm.model, record) for record in records) / len(records)).backward()
        grads.append(_gradients(lm.model))
    spent = epsilon(training.mechanism.assumed_event, 4, 1e-4)
    deviation = 0.5 * 100.0 * np.sqrt(8 * (spent + np.log(4 / 1e-4))) / 12
    found = make_lm()
    filtered_gradient(found.model, training, 0, sequences)
    for name, gradient in _gradients(found.model).items():
        mean = sum(g[name] for g in grads) / 12  # all ten are near each other, and so are the two who are absent
        noise = gaussian(NoiseGenerator.PHILOX, KEY, 0, name, mean.shape, deviation, torch.device("cpu"))
        torch.testing.assert_close(gradient, mean + noise, atol=1e-4, rtol=1e-4)


def test_outliers_are_left_out_and_too_many_halt_the_run():
    clip = ConcentrationFilter(tau=1.0, above_epsilon=1e9)
    names = [f"user{i}" for i in range(30)]
    gradients = torch.zeros(30, 4)
    gradients[3] = 50.0
    kept = kept_users(gradients, names, 0, clip, KEY, 0)
    assert [i for i, its in enumerate(kept) if not its] == [3]
    gradients[10:] += 9.0
    with refused(by=kept_users, naming="step 8", kind=Halted):
        kept_users(gradients, names, 0, clip, KEY, 7)


def test_the_loop_halts_as_a_result_and_again_on_resume(make_lm, sequences, tmp_path):
    recipe = Recipe(learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=2)
    training = _training(sequences, tau=0.01, above=1e9)
    for _ in range(2):
        result = train(make_lm(), sequences, recipe, tmp_path / "halts", private=training)
        assert (result.halted, result.steps) == (True, 0)
        assert not (tmp_path / "halts" / "final").exists()
    going = train(make_lm(), sequences, recipe, tmp_path / "goes", private=_training(sequences, above=1e9))
    assert (going.halted, going.steps) == (False, 4)


def test_coins_of_the_filter_belong_to_the_user():
    assert keyed_uniform(KEY, "kept 0", "user a") != keyed_uniform(KEY, "kept 1", "user a")


def test_its_epsilon_is_both_halves_and_its_noise_that_of_line_14():
    # Chua et al., Algorithm 3: half the budget for the Gaussian of all steps, and line 14 for its deviation.
    noise_multiplier = math.sqrt(500) / gaussian_mu(1.5, 5e-6)
    deviation_per_tau = noise_multiplier * math.sqrt(8.0 * (3.0 + math.log(500 / 1e-5))) / 1000
    event = FilteredGaussian(noise_multiplier, 1000, 1.5)
    assert epsilon(event, 500, 1e-5) == pytest.approx(3.0, rel=1e-6)
    assert calibrate(event, 500, 1e-5, 3.0) == pytest.approx(noise_multiplier, rel=2e-4)
    assert delta_of(event, 500, 3.0) == pytest.approx(1e-5, rel=1e-4)
    plan = _mechanism(tau=1.0, above=1.5, population=1000, steps=500, delta=1e-5, noise_multiplier=noise_multiplier)
    assert plan.noise_multiplier * plan.sensitivity / 1000 == pytest.approx(deviation_per_tau, rel=1e-6)
    promise = plan.guarantee()
    assert isinstance(promise, Guarantee)
    assert promise.epsilon == pytest.approx(3.0, rel=1e-6)
    assert states(promise.statement, GuaranteeCondition.FILTER_THEOREM)
    assert "(replace)" in promise.label
    weaker = plan.model_copy(update={"noise_multiplier": noise_multiplier * 2 / 3})
    assert weaker.guarantee().epsilon > 3.3


def test_what_does_not_go_together_is_refused():
    caught = []
    for changes in ({"clip": FlatClip(norm=1.0)}, {"adjacency": "add_remove"}):
        with refused(by="FilteredLevel.check") as error:
            _mechanism(**changes)
        caught.append(error)
    assert raised_apart(*caught)


def test_more_users_than_the_public_number_are_refused(make_lm, sequences):
    training = replace(_training(sequences), mechanism=_mechanism(population=9))
    with refused(by="_require_population", naming=("10", "9")):
        filtered_gradient(make_lm().model, training, 0, sequences)
