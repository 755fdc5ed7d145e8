"""Weights that do not follow from the releases alone are caught; optimizers that are as stated are not accused."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from heldin.base.coins import keyed_digest, seed_key
from heldin.defenses.samplers import PoissonSampler
from heldin.white_box import engine
from heldin.white_box.canaries import flat
from heldin.white_box.coins import observe
from heldin.white_box.outcome import TrainerOutcome
from heldin.white_box.power import trainer_mechanism
from heldin.white_box.stage import set_stage
from heldin.white_box.trainers import loop_trainer, stepwise, watched
from heldin.white_box.weight_checks import GIVEN, RECOMPUTED, given_checks, recomputed_check, watching
from tests.planted_bugs.optimizers import CORRECT, WRONG, Stating, WholeTrainer, adam, momentum, wrong
from tests.planted_bugs.plain import Plain, trainable

KEY = seed_key(4)


def _mechanism(steps):
    sampler = PoissonSampler(rate=0.5)
    return trainer_mechanism("uls", sampler, steps=steps, delta=1e-5, group_size=4, target_epsilon=1.0)


@pytest.fixture(scope="module")
def stage():
    """Of ten gradient canaries: weights are compared at any number of them."""
    return set_stage(_mechanism(6), 10, quiet=64)


def _recomputed(stage, trainer, key=KEY):
    return recomputed_check(observe(stage, key, trainer).recomputed, stage.mechanism.steps)


def _given(stage, trainer):
    (check,) = given_checks(stage, trainer, KEY)
    return check


def _first(names, first):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in first)) for name in names]


@pytest.mark.parametrize("name", _first(WRONG, ("weights without noise mixed in", "slower when the loss rises")))
def test_weights_that_depend_on_more_than_the_releases_are_caught_whatever_is_stated(stage, name):
    given, recomputed = _given(stage, wrong(name)), _recomputed(stage, wrong(name, stated=True))
    assert (given.name.startswith(GIVEN), given.alarm, given.p_value) == (True, True, 0.0)
    assert (recomputed.name.startswith(RECOMPUTED), recomputed.alarm) == (True, True)
    assert recomputed.measured > 5.0
    # With copies of its gradients it cannot be given others; the optimizer that it states still says what they do.
    assert _recomputed(stage, wrong(name, stated=True, copies=True)).alarm


@pytest.mark.parametrize("name", _first(CORRECT, ("decay and a schedule", "adam by hand", "copies, stated")))
def test_optimizers_that_are_as_stated_are_not_accused(stage, name):
    trainer = CORRECT[name]
    recomputed, given = _recomputed(stage, trainer), _given(stage, trainer)
    assert not recomputed.alarm
    assert not given.alarm
    assert bool(recomputed.untested) == ("not stated" in name)
    assert bool(given.untested) == ("copies" in name)
    # Far from the tolerance, of which other forms of the same optimizer need little.
    assert recomputed.untested or recomputed.measured < 0.5


@pytest.mark.parametrize("trainer", [loop_trainer, stepwise(Plain())], ids=["loop", "plain"])
def test_heldins_own_trainers_state_the_optimizer_that_they_use(stage, trainer):
    assert _recomputed(stage, trainer).measured == 0.0
    assert _given(stage, trainer).measured == 0.0


def test_another_optimizer_than_the_stated_one_is_caught(stage):
    def faster(parameters, steps):
        return torch.optim.Adam(parameters.values(), 1.001e-3), None

    for stated in (faster, momentum):
        assert _recomputed(stage, Stating(adam, stated=stated)).alarm
    # Whoever states nothing claims nothing.
    assert _recomputed(stage, WholeTrainer(momentum)).untested


@pytest.mark.slow
def test_a_leak_of_a_millionth_is_seen_where_releases_are_given(stage):
    """The comparison is bit for bit: it needs no tolerance, since both runs do the same operations."""

    def leak(step):
        with torch.no_grad():
            next(iter(trainable(step.model).values()))[0, 0] += 1e-6 * (0.0 if math.isnan(step.loss()) else 1.0)
        return True

    assert _given(stage, WholeTrainer(mistake=leak)).alarm


def test_a_model_that_was_trained_before_the_first_step_is_caught(stage):
    right = Stating()

    @dataclasses.dataclass(frozen=True)
    class Before(Stating):
        def __call__(self, base, training, sequences):
            with torch.no_grad():
                base.model.transformer.wte.weight[sequences[0].ids[1]] *= 1.5
            right(base, training, sequences)

    assert _recomputed(stage, Before()).measured == math.inf


@pytest.mark.slow
def test_a_trainer_whose_runs_differ_by_themselves_is_not_compared(stage):
    generator = torch.Generator().manual_seed(0)

    def jitter(step):
        with torch.no_grad():
            weight = next(iter(trainable(step.model).values()))
            weight.add_(1e-5 * torch.randn(weight.shape, generator=generator))
        return True

    check = _given(stage, WholeTrainer(mistake=jitter))
    assert check.untested
    assert not check.alarm


def test_the_given_releases_are_what_the_optimizer_reads(stage):
    """By hand: gradients of ones move a step of plain gradient descent by the rate in each coordinate."""

    def descent(parameters, steps):
        return torch.optim.SGD(parameters.values(), 0.5), None

    def ones(step, gradients):
        for gradient in gradients.values():
            gradient.fill_(1.0)

    base = stage.model()
    before = flat(base)
    training = stage.planned(keyed_digest(KEY, "ones", ""), stage.names_of_writers)
    watched(watching(WholeTrainer(descent), ones), base, training, stage.sequences, lambda step, released: None)
    np.testing.assert_allclose(flat(base) - before, -0.5 * training.mechanism.steps, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "outcome", "code"),
    [
        (WholeTrainer(), TrainerOutcome.CONSISTENT, 0),
        (WholeTrainer(copies=True), TrainerOutcome.INCONCLUSIVE, 0),
        (wrong("momentum before the noise"), TrainerOutcome.MECHANISM_CONTRADICTED, 7),
        (wrong("weights without noise mixed in"), TrainerOutcome.MECHANISM_CONTRADICTED, 7),
    ],
    ids=["right", "copies", "momentum", "mixed in"],
)
def test_the_audit_contradicts_at_60_canaries_and_does_not_call_unseen_weights_consistent(trainer, outcome, code):
    found = engine.audit_trainer(_mechanism(6), [seed_key(9)], canaries=60, trainer=trainer, effort=1)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert bool(found.alarms) == (code == 7)
    assert all(alarm.subject == "weights" for alarm in found.alarms)


@pytest.mark.slow
def test_rounding_stays_far_from_the_tolerance_in_long_trainings_and_under_many_keys():
    """100 steps of each correct trainer under each of three keys: at most half of the tolerance."""
    stage = set_stage(_mechanism(100), 10, quiet=64)
    worst = {
        name: max(_recomputed(stage, trainer, seed_key(20 + i)).measured for i in range(3))
        for name, trainer in CORRECT.items()
        if "not stated" not in name
    }
    print({name: f"{value:.2g}" for name, value in worst.items()})
    assert max(worst.values()) < 0.5
