"""Clipping without noise against the formulas of Kandpal et al., D.3, by plain autograd."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from heldin.finetune.holding import PlainClipping, clipped_batch_gradient
from heldin.finetune.loop import train
from heldin.finetune.passes import Passes
from heldin.finetune.recipe import Optimizer, Recipe, Select
from tests.oracles.record_loss import record_loss
from tests.refusals import refused

RECIPE = Recipe(epochs=1, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31)


def _example_gradients(lm, batch):
    found = []
    for record in batch:
        lm.model.zero_grad()
        record_loss(lm.model, record).backward()
        found.append({n: p.grad.clone() for n, p in lm.model.named_parameters()})
    return found


def _norm(gradient):
    return float(sum(g.double().square().sum() for g in gradient.values())) ** 0.5


@pytest.mark.parametrize("most", [3, 8])
@pytest.mark.parametrize("unit", ["example", "batch"])
def test_it_clips_what_it_says(make_lm, sequences, unit, most):
    batch = sequences[:8]
    examples = _example_gradients(make_lm(), batch)
    norms = [_norm(g) for g in examples]
    if unit == "example":
        clip = sorted(norms)[3]
        factors = [min(1.0, clip / n) for n in norms]
        expected = {n: sum(f * g[n] for f, g in zip(factors, examples, strict=True)) / 8 for n in examples[0]}
    else:
        mean = {n: sum(g[n] for g in examples) / 8 for n in examples[0]}
        norms, clip = [_norm(mean)], _norm(mean) / 2
        expected = {n: g / 2 for n, g in mean.items()}
    lm = make_lm()
    _, found = clipped_batch_gradient(lm.model, PlainClipping(unit, clip), batch, Passes(most))
    assert found == pytest.approx(norms, rel=1e-4)
    for name, parameter in lm.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=2e-6, rtol=2e-4)


def test_with_an_infinite_norm_it_is_plain_training_that_measures(make_lm, sequences, tmp_path):
    plain = train(make_lm(), sequences, RECIPE, tmp_path / "plain")
    measured = train(make_lm(), sequences, RECIPE, tmp_path / "measured", clipping=PlainClipping("batch", float("inf")))
    a, b = (load_file(Path(r.folder) / "model.safetensors") for r in (plain, measured))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=2e-4, rtol=2e-2)
    assert plain.smallest_norm is None
    assert 0 < measured.smallest_norm < 10
    again = train(make_lm(), sequences, RECIPE, tmp_path / "measured", clipping=PlainClipping("batch", float("inf")))
    assert again.smallest_norm == measured.smallest_norm


def test_a_norm_of_zero_is_refused():
    with refused(by="PlainClipping.__post_init__", naming=("0.0", "1e-12")):
        PlainClipping("batch", 0.0)


def test_adafactor_trains_and_resumes_bitwise(make_lm, sequences, tmp_path):
    recipe = Recipe(
        epochs=2,
        batch_size=8,
        learning_rate=1e-2,
        select=Select.LAST,
        sequence_length=31,
        optimizer=Optimizer.ADAFACTOR,
        checkpoint_every=3,
    )
    whole = train(make_lm(), sequences, recipe, tmp_path / "whole")
    done = []

    def interrupt(steps):
        done.append(steps)
        if sum(done) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(make_lm(), sequences, recipe, tmp_path / "cut", advance=interrupt)
    cut = train(make_lm(), sequences, recipe, tmp_path / "cut")
    a, b = (load_file(r.folder / "model.safetensors") for r in (whole, cut))
    base = make_lm().model.state_dict()
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], base[n]) for n in a)
