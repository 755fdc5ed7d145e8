"""Opacus taken apart by the white-box audit: what it computes is ours, and what is wrong with it is found."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from heldin.base.coins import seed_key
from heldin.defenses.choices import FlatClip, NormalisedClip
from heldin.defenses.samplers import PoissonSampler
from heldin.finetune.private import private_gradient
from heldin.white_box.engine import audit_trainer
from heldin.white_box.opacus_step import OpacusStep, shuffled_batch
from heldin.white_box.outcome import AlarmKind, TrainerOutcome
from heldin.white_box.power import trainer_mechanism
from heldin.white_box.stage import StageModel, set_stage
from heldin.white_box.trainers import imported_step, stepwise
from tests.planted_bugs.trainers import changed
from tests.refusals import refused

pytest.importorskip("opacus", reason="Opacus (the extra 'trainers') is missing")


def _mechanism(kind="example", group_size=1, steps=6, rate=0.3):
    return trainer_mechanism(
        kind, PoissonSampler(rate=rate), steps=steps, delta=1e-5, group_size=group_size, target_epsilon=4.0
    )


def _gradients(model, step, training, sequences, number):
    for parameter in model.parameters():
        parameter.grad = None
    step(model, training, number, sequences)
    return {name: p.grad.double().numpy() for name, p in model.named_parameters()}


STEPS = [OpacusStep(), OpacusStep("fast"), OpacusStep("ghost"), OpacusStep(passes=3), OpacusStep("fast", passes=3)]


@pytest.mark.parametrize("theirs", STEPS, ids=lambda step: f"{step.mode} {step.passes}")
@pytest.mark.parametrize("rate", [0.3, 1e-9])
def test_without_noise_it_leaves_what_our_own_step_leaves(rate, theirs):
    stage = set_stage(_mechanism(), 40, quiet=64)
    quiet = changed(stage.mechanism, sampler=PoissonSampler(rate=rate), noise_multiplier=0.0, target_epsilon=None)
    training = replace(stage.training(seed_key(1), np.ones(40, dtype=np.bool_)), mechanism=quiet)
    model = stage.model().model.train()
    if theirs.mode == "ghost":
        # It refuses tied weights, as all other modes need not.
        if rate > 0.1:
            with refused(by="_WithPositions.__call__", kind=NotImplementedError):
                theirs(stage.model().model.train(), training, 0, stage.sequences)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    for number in range(3):
        ours, found = (
            _gradients(model, step, training, stage.sequences, number) for step in (private_gradient, theirs)
        )
        for name, gradient in ours.items():
            assert np.linalg.norm(found[name] - gradient) <= 1e-5 * np.linalg.norm(gradient), name
        # Half the clip norm is another step: the comparison would see it.
        half = changed(quiet, clip=quiet.clip.model_copy(update={"norm": quiet.clip.norm / 2}))
        other = _gradients(model, theirs, replace(training, mechanism=half), stage.sequences, number)
        assert rate < 0.1 or any(np.linalg.norm(other[n] - g) > 0.1 * np.linalg.norm(g) for n, g in ours.items())


@pytest.mark.parametrize("theirs", [OpacusStep(), OpacusStep("fast")], ids=lambda step: step.mode)
def test_the_same_of_a_gpt2_whose_weights_are_tied(theirs):
    stage = set_stage(_mechanism(), 40, quiet=64)
    quiet = changed(stage.mechanism, noise_multiplier=0.0, target_epsilon=None)
    training = replace(stage.training(seed_key(1), np.ones(40, dtype=np.bool_)), mechanism=quiet, canaries=None)
    training = replace(training, units=tuple(unit for unit in training.units if unit.canary is None))
    torch.manual_seed(0)
    config = stage.model().model.config
    shape = GPT2Config(vocab_size=config.vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(shape).train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    assert model.lm_head.weight is model.transformer.wte.weight
    ours, found = (_gradients(model, step, training, stage.sequences, 0) for step in (private_gradient, theirs))
    for name, gradient in ours.items():
        assert np.linalg.norm(found[name] - gradient) <= 1e-5 * np.linalg.norm(gradient) + 1e-9, name
    with pytest.raises(RuntimeError):
        replace(theirs, positions=False)(model, training, 0, stage.sequences)


def test_its_noise_has_the_stated_deviation_and_hangs_on_key_and_step():
    stage = set_stage(_mechanism(), 40, quiet=64)
    model = stage.model().model.train()
    nobody = PoissonSampler(rate=1e-9)
    mechanism = changed(stage.mechanism, sampler=nobody, noise_multiplier=2.0, target_epsilon=None)
    scale = mechanism.divisor.value / mechanism.sensitivity

    def noise(key, number):
        training = replace(stage.training(seed_key(key), np.zeros(40, dtype=np.bool_)), mechanism=mechanism)
        found = _gradients(model, OpacusStep(), training, stage.sequences, number)
        return scale * np.concatenate([its.ravel() for its in found.values()])

    first = noise(1, 0)
    # Relative error of a deviation 1 / sqrt(2 n): five of them are under 1e-6.
    assert abs(first.std() / mechanism.noise_multiplier - 1) < 5 / np.sqrt(2 * first.size)
    assert np.array_equal(first, noise(1, 0))
    for other in (noise(1, 1), noise(2, 0)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(first.size)


def test_it_stops_at_a_model_that_makes_one_row_of_positions_for_all_records():
    stage = set_stage(_mechanism(), 40, quiet=64)
    training = stage.training(seed_key(1), np.ones(40, dtype=np.bool_))
    model = stage.model().model.train()
    with refused(by="OpacusStep.__call__", kind=RuntimeError):
        OpacusStep(positions=False)(model, training, 0, stage.sequences)
    # Its hooks are gone: the model trains again.
    OpacusStep()(model, training, 0, stage.sequences)


def test_what_it_cannot_run_and_step_functions_that_are_not_there_are_refused(tmp_path, monkeypatch):
    stage = set_stage(_mechanism(), 40, quiet=64)
    training = stage.training(seed_key(1), np.ones(40, dtype=np.bool_))
    other = replace(
        training,
        mechanism=changed(stage.mechanism, clip=NormalisedClip(norm=1.0), noise_multiplier=1.0, target_epsilon=None),
    )
    with refused(by="OpacusStep._optimizer"):
        OpacusStep()(stage.model().model, other, 0, stage.sequences)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_training.py").write_text(
        "def private_step(*args):\n    return None\nnumber = 1\n", encoding="utf-8"
    )
    assert imported_step("my_training:private_step")() is None
    for name, naming in (
        ("my_training", ("--step", "'my_training'", "MODULE:NAME")),
        ("my_trainings:step", ("'my_trainings:step'", "'my_trainings'")),
        ("my_training:other", ("'my_training'", "'other'")),
        ("my_training:number", ("'my_training'", "'number'")),
    ):
        with refused(by=imported_step, naming=naming):
            imported_step(name)


def test_examples_sold_as_users_add_several_clip_norms_of_one_user():
    stage = set_stage(_mechanism("uls", group_size=4), 40, quiet=64)
    # So small a clip norm that every gradient is above it.
    mechanism = changed(
        stage.mechanism,
        sampler=PoissonSampler(rate=1.0),
        clip=FlatClip(norm=1e-4),
        noise_multiplier=0.0,
        target_epsilon=None,
    )
    training = replace(stage.training(seed_key(1), np.zeros(40, dtype=np.bool_)), mechanism=mechanism)
    several = next(unit for unit in training.units if len(unit.rows) >= 4)
    training, model = replace(training, units=(several,)), stage.model().model.train()
    added = []
    for step in (private_gradient, OpacusStep()):
        found = _gradients(model, step, training, stage.sequences, 0)
        whole = np.sqrt(sum(float((its**2).sum()) for its in found.values()))
        added.append(whole * mechanism.divisor.value / mechanism.clip.norm)
    assert added[0] == pytest.approx(1, rel=1e-4)
    assert added[1] > 1.5


def test_shuffled_batches_are_all_of_one_size_and_take_everybody_once_an_epoch():
    stage = set_stage(_mechanism(rate=0.25, steps=8), 40, quiet=64)
    training = stage.training(seed_key(1), np.ones(40, dtype=np.bool_))
    batches = [[unit.name for unit in shuffled_batch(training, step)] for step in range(8)]
    count = len(training.units)
    size = round(count / 4)
    assert {len(its) for its in batches} == {size}
    epoch = count // size
    first = [name for its in batches[:epoch] for name in its]
    assert len(set(first)) == len(first) > count - size
    assert batches[0] != batches[epoch]


NOT_FINITE = "unlike: beside a unit that is not finite"
OF_SHUFFLING = {
    "sampling: spread of whole cohorts",
    "sampling: spread of totals of texts",
    "sampling: spread of totals of canaries",
    "sampling: rate of a unit that is alone",
}
OF_USERS = {"sensitivity: what a writer adds, at most", "texts: clip norm as stated", "sampling: everybody of a crowd"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "kind", "model", "wanted"),
    [
        (OpacusStep(), "example", StageModel(), set()),
        pytest.param(OpacusStep("fast"), "example", StageModel("gpt2"), set(), marks=pytest.mark.long),
        pytest.param(OpacusStep(passes=3), "example", StageModel("gpt2"), set(), marks=pytest.mark.long),
        (OpacusStep("ghost"), "example", StageModel("gpt2", tied=False), set()),
        (OpacusStep(poisson=False), "example", StageModel(), OF_SHUFFLING),
        (OpacusStep(), "uls", StageModel("gpt2"), OF_USERS),
        pytest.param(OpacusStep("ghost"), "uls", StageModel(tied=False), OF_USERS, marks=pytest.mark.long),
    ],
    ids=lambda its: str(its) if isinstance(its, StageModel | str) else "",
)
def test_what_the_whole_battery_says_of_it(theirs, kind, model, wanted):
    mechanism = _mechanism(kind, group_size=1 if kind == "example" else 4, rate=1 / 64, steps=40)
    found = audit_trainer(mechanism, [seed_key(11)], canaries=300, trainer=stepwise(theirs), effort=1, model=model)
    alarms = {its.name for its in found.alarms}
    assert NOT_FINITE in alarms
    assert wanted <= alarms
    # At the example level, with Poisson sampling, there is no other.
    assert wanted or alarms == {NOT_FINITE}
    outcome, code, accepted = (TrainerOutcome.MECHANISM_CONTRADICTED, 7, 7) if wanted else (TrainerOutcome.UNSAFE, 6, 0)
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert replace(found, accepted=(AlarmKind.NON_FINITE,)).exit_code == accepted


def test_ghost_clipping_of_tied_weights_is_one_line():
    with refused(by="Stepwise.__call__", naming=("NotImplementedError", "step 0")):
        audit_trainer(_mechanism(), [seed_key(11)], canaries=40, trainer=stepwise(OpacusStep("ghost")), effort=1)
