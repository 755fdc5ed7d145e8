"""Running out of memory: smaller passes, the same mechanism, and a clear end where a unit does not fit."""

import pytest
import torch
from safetensors.torch import load_file

from heldin.base.errors import ResumableError
from heldin.finetune.loop import train
from heldin.finetune.passes import Passes
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Recipe, Select
from tests.finetune.test_private import _assert_same, _gradients, _training
from tests.refusals import names, refused


def _limit(model, most):
    """The model has memory for so many records a pass."""

    def check(_module, _arguments, keywords):
        if len(keywords["input_ids"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.register_forward_pre_hook(check, with_kwargs=True)


def test_a_private_step_goes_on_in_smaller_passes_with_the_same_gradient(make_lm, sequences):
    training = _training(sequences, micro_records=64)
    roomy, tight = make_lm(), make_lm()
    private_gradient(roomy.model, training, 1, sequences)
    _limit(tight.model, 5)
    said = []
    passes = Passes(64, said.append)
    private_gradient(tight.model, training, 1, sequences, passes)
    _assert_same(_gradients(tight.model), _gradients(roomy.model))
    assert passes.most <= 5
    assert len(said) == 2
    assert names(said[0], "auto", "materialise", "7")
    assert names(said[1], "64", passes.most)
    private_gradient(tight.model, training, 2, sequences, passes)
    assert len(said) == 2


def test_a_unit_that_does_not_fit_is_taken_in_several_passes_with_the_same_gradient(make_lm, sequences):
    training = _training(sequences, micro_records=64)
    roomy, tight = make_lm(), make_lm()
    private_gradient(roomy.model, training, 0, sequences)
    _limit(tight.model, 2)
    said = []
    passes = Passes(64, said.append)
    private_gradient(tight.model, training, 0, sequences, passes)
    _assert_same(_gradients(tight.model), _gradients(roomy.model))
    assert (passes.most, passes.splits) == (1, True)
    assert names(said[-1], "1")
    assert passes.most == 1
    assert any(way.startswith("auto: ") and "materialise" not in way for way in passes.effort.ways)


def test_memory_that_runs_out_while_the_layer_rules_are_tried_says_nothing_about_them(make_lm, sequences):
    """A CPU's error has no class of its own, and is not one of the rules."""
    lm, pairs = make_lm(), []

    def check(_module, _arguments, keywords):
        pairs.append(len(keywords["input_ids"]) == 2)
        if pairs[-1] and sum(pairs) == 2:  # the second time that two records are tried side by side
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    lm.model.register_forward_pre_hook(check, with_kwargs=True)
    passes = Passes(64)
    private_gradient(lm.model, _training(sequences, micro_records=64), 1, sequences, passes)
    assert sum(pairs) > 2
    assert passes.effort.ways[0] == "auto: materialise 7 weight matrices"
    assert not any("unit by unit" in its for its in passes.effort.ways)


def test_a_record_that_does_not_fit_ends_the_run_with_one_line(make_lm, sequences):
    lm = make_lm()
    _limit(lm.model, 0)
    with refused(by="Passes.fitted", naming=("1", "finetune.sequence_length"), kind=ResumableError):
        private_gradient(lm.model, _training(sequences, micro_records=64), 0, sequences)


def test_another_error_is_not_taken_for_memory():
    def broken(_most):
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        Passes(8).fitted(broken, lambda most: most)


def test_plain_training_goes_on_too(make_lm, sequences, tmp_path):
    recipe = Recipe(epochs=1, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31)
    train(make_lm(), sequences, recipe, tmp_path / "roomy")
    tight, said = make_lm(), []
    _limit(tight.model, 3)
    result = train(tight, sequences, recipe, tmp_path / "tight", say=said.append)
    assert result.steps == 5
    assert names(said[0], "8", "2")


def test_a_resume_begins_with_what_fitted(make_lm, sequences, tmp_path):
    """Nothing is tried again that failed before, so that steps of one shape stay alike."""
    training, steps = _training(sequences, micro_records=64, steps=5), []
    recipe = Recipe(learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=1)

    def stop(step):
        steps.append(step)
        if sum(steps) == 3:
            raise KeyboardInterrupt

    tight = make_lm()
    _limit(tight.model, 2)
    with pytest.raises(KeyboardInterrupt):
        train(tight, sequences, recipe, tmp_path / "tight", private=training, advance=stop)
    tight, said = make_lm(), []
    _limit(tight.model, 2)
    result = train(tight, sequences, recipe, tmp_path / "tight", private=training, say=said.append)
    assert (result.effort.memory.most, result.effort.memory.splits) == (1, True)
    assert not any("out of memory" in line for line in said)
    roomy = train(make_lm(), sequences, recipe, tmp_path / "roomy", private=training)
    assert (roomy.effort.memory.most, roomy.effort.memory.splits) == (None, False)
    one, two = (load_file(its.folder / "model.safetensors") for its in (result, roomy))
    for name, tensor in two.items():
        torch.testing.assert_close(one[name], tensor, rtol=1e-3, atol=1e-4)
