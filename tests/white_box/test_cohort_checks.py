"""Noise that depends on the cohort's size or on the loss is caught wherever it is too small; correct noise is not."""

import numpy as np
import pytest

from heldin.base.coins import keyed_digest, seed_key
from heldin.defenses.choices import ConstantDivisor
from heldin.white_box.cohort_checks import (
    LIKELY,
    batch_of_loss,
    cohort_size_checks,
    loss_at,
    loss_checks,
    made_cohorts,
    sampled_cohorts,
    sizes_above,
)
from heldin.white_box.coordinate_checks import SHARED
from heldin.white_box.engine import clip_norms
from heldin.white_box.stage import set_stage
from heldin.white_box.trainers import stepwise
from tests.documents import ids
from tests.planted_bugs import checks, wrong_data_noise
from tests.planted_bugs.plain import Plain
from tests.planted_bugs.trainers import changed
from tests.planted_bugs.wrong_data_noise import NoiseTimes

KEY = seed_key(4)


def test_the_cohorts_are_of_two_and_above_the_stated_multiples_of_both_means():
    stage = checks.stage()
    assert stage.mechanism.divisor == ConstantDivisor(value=20.0)
    assert sizes_above(stage) == [26, 31, 41]
    cohorts = made_cohorts(stage, KEY)
    assert [len(run.drawn(0)) for run in cohorts] == [2, 2, 2, 26, 31, 41]
    assert len({unit.name for unit in cohorts[-1].units}) == 41
    run = sampled_cohorts(stage, KEY).training
    sizes = np.array([len(run.drawn(step)) for step in range(run.mechanism.steps)])
    mean = run.mechanism.sampler.rate * len(run.units)
    assert mean == pytest.approx(1.25)
    assert (sizes == 2).any()
    assert (sizes > 2.0 * mean).any()


def test_cohorts_that_are_too_large_to_make_are_printed_as_not_tested():
    large = changed(checks.sampled(), divisor=ConstantDivisor(value=300.0))
    stage = set_stage(large, 10, quiet=1000)
    assert sizes_above(stage) == [376]
    found = cohort_size_checks(stage, stepwise(Plain()), KEY)
    (untested,) = [check.untested for check in found if check.untested]
    assert "400" in untested
    assert not any(check.alarm for check in found)
    everything = set_stage(changed(large, divisor=ConstantDivisor(value=5000.0)), 10, quiet=1000)
    assert sizes_above(everything) == []


def test_the_batches_have_low_middle_and_high_losses_at_least_every_two_and_a_half_nats():
    stage = checks.stage()
    losses = [loss_at(stage, likely) for likely in LIKELY]
    assert losses == sorted(losses)
    assert losses[0] < 0.1
    assert losses[-1] > 10.0
    assert max(np.diff([loss for loss in losses if loss < 8.0])) < 1.5
    run = batch_of_loss(stage, KEY, 1.0, LIKELY[3])
    texts = ids(stage.sequences[row] for unit in run.training.drawn(0) for row in unit.rows)
    model = stage.model(run.weights).model
    assert wrong_data_noise.mean_loss(model, texts) == pytest.approx(losses[3], rel=1e-4)


@pytest.mark.slow
def test_correct_noise_raises_no_alarm_and_a_tenth_less_always_does_under_many_keys():
    """Twenty keys: smallest p-values as of exact laws, and the wrong noise below the level each time."""
    stage, right = checks.stage(), stepwise(Plain())
    two, loss = wrong_data_noise.less_for_two(), NoiseTimes(lambda drawn: 0.9 if drawn.records() else 1.0)
    high = clip_norms(stage, KEY)[1]
    values = []
    for i in range(20):
        key = keyed_digest(KEY, "many", str(i))
        its = (*cohort_size_checks(stage, right, key), *loss_checks(stage, right, key, high))
        values += [check.p_value for check in its]
        assert cohort_size_checks(stage, stepwise(two), key)[0].p_value < SHARED
        assert loss_checks(stage, stepwise(loss), key, high)[0].p_value < SHARED
    print(f"{len(values)} p-values, smallest {min(values):.2g}, below a tenth: {np.mean(np.array(values) < 0.1):.2f}")
    assert min(values) > SHARED
    assert np.mean(np.array(values) < 0.1) < 0.3
