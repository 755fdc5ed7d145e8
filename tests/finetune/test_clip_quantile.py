"""A clip norm that follows a quantile of norms: the step against the oracle, the noise of both releases, resumes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from heldin.defenses.choices import ClipQuantile, FlatClip, LocalUpdates, NoiseGenerator, NormalisedClip
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.checkpoints import finished_state
from heldin.finetune.loop import train
from heldin.finetune.passes import Passes
from heldin.finetune.private import private_gradient
from heldin.white_box.stage import check_auditable
from tests.finetune.test_private import RECIPE, _assert_same, _gradients, _mechanism, _training
from tests.oracles.private_step import naive_step
from tests.refusals import refused

FOLLOWS = ClipQuantile(quantile=0.4, rate=0.7, share=0.1)


@pytest.mark.parametrize(
    ("kind", "clip", "noise"),
    [
        ("uls", FlatClip, NoiseGenerator.PHILOX),
        ("uls", NormalisedClip, NoiseGenerator.SECURE),
        ("els", FlatClip, NoiseGenerator.PHILOX),
        ("example", NormalisedClip, NoiseGenerator.PHILOX),
    ],
)
def test_steps_and_clip_norms_equal_the_oracles(make_lm, sequences, kind, clip, noise):
    training = _training(sequences, kind, clip=clip(norm=0.5, follows=FOLLOWS), noise=noise)
    lm, passes, norm = make_lm(), Passes(64), 0.5
    for step in range(4):
        expected, norm = naive_step(make_lm(), training, step, sequences, norm)
        private_gradient(lm.model, training, step, sequences, passes)
        _assert_same(_gradients(lm.model), expected)
        assert passes.effort.clip_norm == pytest.approx(norm, rel=1e-6)
    assert norm != 0.5


def test_of_local_updates_the_norm_of_the_difference_is_counted(make_lm, sequences):
    """Of one record and one step the difference is the gradient times the user's own learning rate."""
    steps = []
    for local, initial in ((None, 0.5), (LocalUpdates(learning_rate=0.01, batch_size=1), 0.005)):
        clip = FlatClip(norm=initial, follows=FOLLOWS)
        training = _training(sequences, clip=clip, local=local, group_size=1, noise_multiplier=0.0)
        passes = Passes(64)
        private_gradient(make_lm().model, training, 1, sequences, passes)
        steps.append(passes.effort.clip_norm / initial)
    assert steps[0] == pytest.approx(steps[1], rel=1e-9)
    assert steps[0] != 1.0


def test_without_noise_the_clip_norm_reaches_the_quantile(make_lm, sequences):
    clip = FlatClip(norm=1.0, follows=ClipQuantile(quantile=0.5, rate=0.2))
    everybody = PoissonSampler(rate=1.0)
    training = _training(sequences, "example", clip=clip, sampler=everybody, noise_multiplier=0.0)
    divisor = training.mechanism.divisor.model_copy(update={"value": float(len(training.units))})
    training = replace(training, mechanism=training.mechanism.model_copy(update={"divisor": divisor}))
    lm, passes = make_lm(), Passes(64)
    for _ in range(30):
        private_gradient(lm.model, training, 0, sequences, passes)
    norms = []
    for unit in training.units:
        alone = replace(
            training, units=(unit,), mechanism=training.mechanism.model_copy(update={"clip": FlatClip(norm=1e6)})
        )
        private_gradient(lm.model, alone, 0, sequences)
        size = math.sqrt(sum(float(g.double().square().sum()) for g in _gradients(lm.model).values()))
        norms.append(size * divisor.value)
    assert 0.95 * np.quantile(norms, 0.4) < passes.effort.clip_norm < 1.05 * np.quantile(norms, 0.6)


def _releases(make_lm, sequences, steps=300):
    """What steps in which nobody is drawn release: the deviates of the counts (T,) and of one tensor (T, d)."""
    clip = NormalisedClip(norm=1.0, follows=FOLLOWS)
    training = replace(_training(sequences, clip=clip, steps=steps), units=())
    lm, value = make_lm(), training.mechanism.divisor.value
    counts, gradients = [], []
    for step in range(steps):
        passes = Passes(64)
        private_gradient(lm.model, training, step, sequences, passes)
        below = FOLLOWS.quantile - math.log(passes.effort.clip_norm) / FOLLOWS.rate
        counts.append((below - 0.5) * value)
        gradients.append(next(iter(_gradients(lm.model).values())).flatten()[:20].numpy() * value)
    return np.array(counts), np.array(gradients)


def test_both_releases_have_the_noise_that_one_gaussian_of_the_plan_pays_for(make_lm, sequences):
    """A unit's clipped gradient and its count together are at most 1 / s deviations long, for every share."""
    s = _mechanism().noise_multiplier
    counts, gradients = _releases(make_lm, sequences)
    of_count, of_gradient = s / (2 * math.sqrt(FOLLOWS.share)), s / math.sqrt(1 - FOLLOWS.share)
    assert math.hypot(0.5 / of_count, 1.0 / of_gradient) == pytest.approx(1 / s, rel=1e-12)
    assert stats.kstest(counts / of_count, "norm").pvalue > 1e-6
    assert stats.kstest(gradients.ravel() / of_gradient, "norm").pvalue > 1e-6
    # Counts of 0 and 1 without centring would need twice as much, and a gradient that did not pay would have less.
    assert stats.kstest(counts / (2 * of_count), "norm").pvalue < 1e-6
    assert stats.kstest(gradients.ravel() / s, "norm").pvalue < 1e-2
    assert abs(np.corrcoef(counts, gradients[:, 0])[0, 1]) < 5.5 / math.sqrt(len(counts))


def test_epsilon_is_that_of_the_plan_and_says_what_it_pays_for():
    plain, follows = _mechanism(), _mechanism(clip=FlatClip(norm=0.5, follows=FOLLOWS))
    assert follows.epsilon() == plain.epsilon()
    told = {str(condition) for condition in follows.guarantee().conditions}
    assert len(told - {str(condition) for condition in plain.guarantee().conditions}) == 1


def test_a_run_that_was_killed_goes_on_with_its_clip_norm(make_lm, sequences, tmp_path):
    training = _training(sequences, clip=FlatClip(norm=0.5, follows=FOLLOWS))
    whole = train(make_lm(), sequences, RECIPE, tmp_path / "whole", private=training)
    done = []

    def interrupt(steps):
        done.append(steps)
        if sum(done) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_lm(), sequences, RECIPE, tmp_path / "killed", private=training, advance=interrupt)
    resumed = train(make_lm(), sequences, RECIPE, tmp_path / "killed", private=training)
    a, b = (load_file(result.folder / "model.safetensors") for result in (resumed, whole))
    assert all(torch.equal(a[name], b[name]) for name in b)
    norms = [finished_state(tmp_path / name / "resume").effort.clip_norm for name in ("whole", "killed")]
    assert norms[0] == norms[1] == whole.effort.clip_norm != 0.5


def test_the_white_box_audit_refuses_such_a_plan(sequences):
    training = _training(sequences, clip=FlatClip(norm=0.5, follows=FOLLOWS))
    with refused(by=check_auditable, naming="clip norm that changes"):
        check_auditable(training.mechanism)


def test_the_clip_norm_stays_a_number_that_training_can_clip_to():
    wild = ClipQuantile(rate=1e30)
    assert wild.next_norm(1.0, -1e300) < math.inf
    assert wild.next_norm(1e-12, 1e300) >= 1e-12
