"""The models on which a trainer is audited: what the stage promises holds on each, and ours passes on each."""

from dataclasses import replace

import numpy as np
import pytest
from transformers import GPT2LMHeadModel, GPTNeoForCausalLM

from heldin.base.coins import seed_key
from heldin.defenses.samplers import PoissonSampler
from heldin.white_box import engine, oracle
from heldin.white_box.power import trainer_mechanism
from heldin.white_box.stage import StageModel, set_stage, stage_model
from heldin.white_box.trainers import changed, stepwise
from tests.oracles.private_step import naive_private_gradient
from tests.planted_bugs.trainers import noise_times
from tests.refusals import refused

MODELS = [StageModel(a, tied) for a in ("gpt-neo", "gpt2") for tied in (True, False)]


def _mechanism(rate=0.3, steps=6):
    return trainer_mechanism("uls", PoissonSampler(rate=rate), steps=steps, delta=1e-5, group_size=2, target_epsilon=4)


@pytest.mark.parametrize("kind", MODELS, ids=str)
def test_the_model_is_the_one_that_is_named_and_always_the_same(kind):
    stage = set_stage(_mechanism(), 40, quiet=64, kind=kind)
    model = stage.model().model
    assert isinstance(model, GPT2LMHeadModel if kind.architecture == "gpt2" else GPTNeoForCausalLM)
    assert (model.lm_head.weight is model.transformer.wte.weight) == kind.tied
    assert list(stage.canaries.shapes) == [name for name, _ in model.named_parameters()]
    again = stage.model().model
    for (name, one), (_, other) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert one.equal(other), name
    # Head and table begin alike, so that both models have the same logits.
    assert model.lm_head.weight.equal(model.transformer.wte.weight)


@pytest.mark.parametrize("kind", MODELS, ids=str)
@pytest.mark.parametrize("norm", [0.01, 1e3])
def test_a_step_is_the_sum_of_contributions_and_leaves_the_canaries_places_alone(kind, norm):
    stage = set_stage(_mechanism(), 40, quiet=64, kind=kind)
    mechanism = changed(stage.mechanism, clip_norm=norm, rate=1.0, steps=1, noise_multiplier=0.0)
    training = replace(stage.planned(seed_key(3), stage.names_of_writers), mechanism=mechanism)
    expected = naive_private_gradient(stage.model(), training, 0, stage.sequences)
    flat = np.concatenate([g.numpy().ravel() for g in expected.values()]) * mechanism.divisor.value / norm
    assert not flat[stage.canaries.coordinates].any()
    assert not flat[stage.canaries.quiet].any()
    alike = oracle.alike_in(training, training.units, 0, stage.sequences)
    columns = oracle.columns_of(stage.model(), alike, norm)
    everybody = np.array([len(names) for names in columns.names], dtype=float)
    assert columns.off(flat, everybody) < 1e-5
    assert columns.off(flat, everybody - (np.arange(everybody.size) == 0)) > 0.05


def test_a_model_that_there_is_not_is_refused():
    with refused(by=stage_model, naming=("'bert'", "gpt2")):
        stage_model("bert")


def test_a_step_function_that_fails_is_one_line_that_says_where():
    def breaks(model, training, step, sequences):
        raise NotImplementedError("no such\n  layer")

    with refused(by="Stepwise.__call__", naming=("NotImplementedError", "step 0", "white_box/test_stage_model.py")):
        engine.audit_trainer(_mechanism(), [seed_key(1)], canaries=40, trainer=stepwise(breaks), effort=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS[1:], ids=str)
def test_our_own_trainer_raises_no_alarm_and_too_little_noise_does(kind):
    keys = [seed_key(40 + MODELS.index(kind))]
    found = engine.audit_trainer(_mechanism(), keys, canaries=300, effort=1, model=kind)
    assert (found.alarms, found.exit_code, str(found.model)) == ((), 0, str(kind))
    loud = stepwise(noise_times(2 / 3))
    assert engine.audit_trainer(_mechanism(), keys, canaries=300, effort=1, model=kind, trainer=loud).alarms
