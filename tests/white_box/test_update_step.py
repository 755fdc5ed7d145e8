"""A hand-written private update taken apart by the white-box audit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from heldin.base.coins import seed_key
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.private import private_gradient
from heldin.white_box.engine import audit_trainer
from heldin.white_box.power import trainer_mechanism
from heldin.white_box.stage import set_stage
from heldin.white_box.trainers import stepwise
from heldin.white_box.update_step import UpdateStep
from tests.planted_bugs.trainers import changed


def by_hand(gradients, mechanism, generator):
    """DP-SGD as it stands in textbooks (Abadi et al. 2016, Algorithm 1)."""
    norms = torch.sqrt(sum(its.flatten(1).double().square().sum(1) for its in gradients))
    factors = (mechanism.clip.norm / norms.clamp_min(1e-12)).clamp_max(1.0)
    # A unit whose gradient is not finite counts as nothing.
    factors = torch.where(torch.isfinite(norms), factors, 0.0).float()
    found = []
    for its in gradients:
        clean = torch.nan_to_num(its, nan=0.0, posinf=0.0, neginf=0.0)
        total = torch.einsum("u,u...->...", factors, clean)
        deviation = mechanism.noise_multiplier * mechanism.clip.norm
        noise = torch.randn(total.shape, generator=generator) * deviation
        found.append((total + noise) / mechanism.divisor.value)
    return found


def by_tensor(gradients, mechanism, generator):
    """Each tensor clipped by itself: the whole gradient has up to the root of their number times the clip norm."""
    return [by_hand([its], mechanism, generator)[0] for its in gradients]


def with_less_noise(gradients, mechanism, generator):
    """Noise x 2/3."""
    return by_hand(gradients, changed(mechanism, noise_multiplier=mechanism.noise_multiplier * 2 / 3), generator)


def _mechanism(kind, group_size=1, **more):
    sampler = PoissonSampler(rate=0.3)
    return trainer_mechanism(kind, sampler, steps=6, delta=1e-5, group_size=group_size, target_epsilon=4.0, **more)


def _gradients(model, step, training, sequences, number):
    for parameter in model.parameters():
        parameter.grad = None
    step(model, training, number, sequences)
    return {name: p.grad.double().numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("kind", "group_size"), [("example", 1), ("uls", 3)])
def test_without_noise_it_leaves_what_our_own_step_leaves(kind, group_size):
    stage = set_stage(_mechanism(kind, group_size), 40, quiet=64)
    quiet = changed(stage.mechanism, noise_multiplier=0.0, target_epsilon=None)
    training = replace(stage.training(seed_key(1), np.ones(40, dtype=np.bool_)), mechanism=quiet)
    model = stage.model().model.eval()
    for number in range(3):
        ours, theirs, wrong = (
            _gradients(model, step, training, stage.sequences, number)
            for step in (private_gradient, UpdateStep(by_hand), UpdateStep(by_tensor))
        )
        for name, gradient in ours.items():
            assert np.linalg.norm(theirs[name] - gradient) <= 1e-5 * np.linalg.norm(gradient), name
        assert any(np.linalg.norm(wrong[n] - g) > 0.1 * np.linalg.norm(g) for n, g in ours.items())


def test_nobody_drawn_leaves_noise_alone():
    stage = set_stage(_mechanism("example"), 40, quiet=64)
    nobody = changed(stage.mechanism, sampler=PoissonSampler(rate=1e-9), noise_multiplier=2.0, target_epsilon=None)
    training = replace(stage.training(seed_key(1), np.zeros(40, dtype=np.bool_)), mechanism=nobody)
    found = _gradients(stage.model().model, UpdateStep(by_hand), training, stage.sequences, 0)
    noise = nobody.divisor.value / nobody.clip.norm * np.concatenate([its.ravel() for its in found.values()])
    # Relative error of a deviation 1 / sqrt(2 n): five of them are under 1e-6.
    assert abs(noise.std() / 2.0 - 1) < 5 / np.sqrt(2 * noise.size)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("update", "alarms"), [(by_hand, False), (by_tensor, True), (with_less_noise, True)])
def test_the_audit_lets_a_right_update_pass_and_finds_wrong_ones(update, alarms):
    mechanism = trainer_mechanism(
        "example", PoissonSampler(rate=16 / 1024), steps=100, delta=1e-5, group_size=1, target_epsilon=4.0
    )
    found = audit_trainer(mechanism, [seed_key(7)], canaries=500, trainer=stepwise(UpdateStep(update)))
    assert bool(found.alarms) is alarms, found.alarms
