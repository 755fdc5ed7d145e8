"""What only a GPU can show: `make gpu` runs it. Sizes are tiny; benchmarks/gpu.py has the large ones.

Where there is none, what does not depend on its kernels runs on a GPU that is pretended.
"""

import contextlib
import math
import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.gradients import engine_choice, per_unit_gradients, products
from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum
from heldin.defenses.noise import BLOCK, gaussian
from heldin.finetune.loop import train
from heldin.finetune.passes import Passes
from heldin.finetune.passes import clipped_sum as clipped_sum_of
from heldin.finetune.private import private_gradient
from heldin.finetune.recipe import Lora, Precision, Recipe, Select
from heldin.models import logprobs
from heldin.models.arithmetic import true_float32
from heldin.models.attention import use_exact_attention
from heldin.models.devices import copies_on_other_gpus
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from tests.documents import encode, tokens
from tests.finetune.test_private import _training
from tests.gpu.conftest import REAL
from tests.models.test_attention import PADDED
from tests.oracles.per_unit_gradients import clipped_sum, norm_of, unit_gradients
from tests.tiny_models import ENGINES, MODELS, batch, checkpoint, new_model, people, run, worst_error

only_real = pytest.mark.parametrize("gpu", [REAL], indirect=True)
RECIPE = Recipe(epochs=1, batch_size=8, learning_rate=1e-3, select=Select.LAST, sequence_length=31, checkpoint_every=3)


@contextlib.contextmanager
def refusing_to_wait():
    """Whatever would wait until the GPU has done all that it was given fails in this block."""
    try:
        with warnings.catch_warnings():
            # torch says so once a process, whatever the filters of pytest make of it.
            warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on(device, units):
    return UnitBatch(units.inputs.to(device), units.targets.to(device), units.unit.to(device), units.units)


def on_gpu(lm, device):
    return LanguageModel(lm.model.to(device), lm.tokenizer, lm.name, lm.fingerprint)


@pytest.mark.parametrize("gpu", [REAL, pytest.param("pretended", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", [*ENGINES, "split"])
def test_oracle(gpu, name, engine):
    torch.set_float32_matmul_precision("medium")  # as an environment may: it must not matter
    model, units, bound = new_model(name), people(), 0.05
    if name.startswith("gpt-neo"):
        use_exact_attention(model)
    expected, _ = clipped_sum(unit_gradients(model, units), bound)
    model = model.to(gpu)

    def found(of):
        if engine == "split":
            return clipped_gradient_sum(model, on(gpu, batch(of)), clip_norm=bound, most_records=1)
        return run(model, on(gpu, batch(of)), engine, clip_norm=bound)

    whole = {n: g.cpu() for n, g in found(units).gradients.items()}
    assert worst_error(whole, expected, norm_of(expected)) < 1e-3
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = {n: g.cpu().double() - expected[n] for n, g in found(units).gradients.items()}
        alone = [norm_of(found([unit]).gradients) for unit in units if unit]
    assert norm_of(half) < 5e-2 * norm_of(expected)
    assert max(alone) <= bound * (1 + 1e-4)


@pytest.mark.parametrize("noise", NoiseGenerator)
def test_a_private_step_leaves_out_a_unit_that_is_not_finite(gpu, noise):
    model, training, sequences = _step_of_users(noise=noise)
    first, *others = training.drawn(1)
    assert others
    for row in first.rows:
        sequences[row].ids[1] = 60
    model.transformer.wte.weight.data[60] = torch.nan
    loss = private_gradient(model.to(gpu), training, 1, sequences)
    assert math.isfinite(loss)
    # Of the size of its noise: 0.8 times the clip norm of 0.5, over a divisor of 4.
    every = torch.cat([p.grad.cpu().flatten() for p in model.parameters()])
    assert float(every.std()) == pytest.approx(0.1, rel=0.1)


def _step_of_users(**changes):
    """A model, a mechanism and token sequences of forty records, none of which has token 60."""
    generator = torch.Generator().manual_seed(3)
    sequences = tokens(torch.randint(0, 60, (4 + i % 5,), generator=generator).tolist() for i in range(40))
    model = new_model("gpt-neo untied")
    use_exact_attention(model)
    return model, _training(sequences, micro_records=8, **changes), sequences


def test_a_unit_that_is_not_finite_is_left_out_of_the_sum(gpu):
    model, (first, second) = new_model("gpt-neo untied"), map(tokens, ([[1, 2, 3], [4, 5]], [[5, 6, 7, 8]]))
    model.transformer.wte.weight.data[60] = torch.nan
    expected = clipped_sum_of(model, [[first], [second]], 0.05, Passes(100))
    found = clipped_sum_of(model.to(gpu), [[first], [tokens([[1, 60, 2]]), second]], 0.05, Passes(100))
    assert found.masked.tolist() == [False, True, False]
    assert worst_error({n: g.cpu() for n, g in found.gradients.items()}, expected.gradients, 0.05) < 1e-4
    assert found.norms.tolist()[::2] == pytest.approx(expected.norms.tolist(), rel=1e-4)


def test_ghost_norms_in_doubt_are_computed_again(gpu, monkeypatch):
    model, runs = new_model("gpt-neo untied"), [[tokens([[1, 2, 3], [4, 5]])], [tokens([[5, 6, 7, 8]])]]
    expected = clipped_sum_of(model, runs, 0.05, Passes(100))
    monkeypatch.setattr(per_unit_gradients, "CANCELLATION", 10.0)  # of every unit it may be that its tokens cancel
    model.to(gpu)
    found = clipped_sum_of(model, runs, 0.05, Passes(100))
    assert "ghost" in found.engine
    assert found.masked.tolist() == [False, False]
    assert worst_error({n: g.cpu() for n, g in found.gradients.items()}, expected.gradients, 0.05) < 1e-4


def test_products_keep_half_operands_and_sum_in_float32(gpu):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(3, 5, n, 64, generator=generator).bfloat16() for n in (7, 9))
    left, right = left[0].to(gpu), right[0].to(gpu)
    exact = left.double().cpu() @ right.double().cpu().mT
    found = products.product(left, right.mT)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu().double(), exact, rtol=1e-5, atol=1e-5)
    total = torch.zeros(64, 64, device=gpu)
    factors = torch.rand(5, generator=generator).to(gpu)
    products.add_scaled(total, left, right[:, :7], factors)
    expected = torch.einsum("u,utm,utn->mn", factors.double(), left.double(), right[:, :7].double())
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)


@only_real
def test_true_float32(gpu):
    torch.set_float32_matmul_precision("medium")
    a, b = torch.randn(2, 1024, 1024, generator=torch.Generator().manual_seed(0)).to(gpu)
    exact = a.double() @ b.double()
    rounded = ((a @ b).double() - exact).abs().max()
    with true_float32():
        assert ((a @ b).double() - exact).abs().max() < 1e-3
    if torch.cuda.get_device_capability(gpu)[0] >= 8:
        assert rounded > 1e-3


@pytest.mark.parametrize("mask", [None, PADDED])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_attention_of_a_whole_model(gpu, mask, checkpointed):
    plain, exact = new_model().train(), new_model().to(gpu).train()
    use_exact_attention(exact)
    if checkpointed:
        checkpoint(exact, use_reentrant=False)
    ids = torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(0))
    where = torch.ones(3, 12, 1) if mask is None else mask[:, :, None]
    one = plain(input_ids=ids, attention_mask=mask, use_cache=False).logits * where
    given = None if mask is None else mask.to(gpu)
    two = exact(input_ids=ids.to(gpu), attention_mask=given, use_cache=False).logits * where.to(gpu)
    torch.testing.assert_close(two.cpu(), one, rtol=1e-4, atol=1e-4)
    one.square().sum().backward()
    two.square().sum().backward()
    for a, b in zip(plain.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-3, atol=1e-3)


@only_real
def test_the_budget_does_not_shrink_when_torch_keeps_memory(gpu):
    before = engine_choice.default_budget(gpu)
    held = torch.empty(2**28, device=gpu)
    del held  # cached by torch, and not free for the driver
    assert torch.cuda.memory_reserved(gpu) >= 2**30
    assert engine_choice.default_budget(gpu) > 0.98 * before


@pytest.mark.parametrize("gpu", [REAL, pytest.param("pretended", marks=pytest.mark.slow)], indirect=True)
def test_a_private_training_on_a_gpu(gpu, make_lm, english, tmp_path):
    """Two precisions, adapters, a stop and a resume, a resume on the CPU."""
    sequences = encode(make_lm().tokenizer, english[:40], 31)
    training = _training(sequences, micro_records=8)
    precise = replace(RECIPE, precision=Precision.FP32)
    on_cpu = train(make_lm(), sequences, precise, tmp_path / "cpu", private=replace(training, noise=training.noise))
    first = train(on_gpu(make_lm(), gpu), sequences, precise, tmp_path / "fp32", private=training)
    half = train(on_gpu(make_lm(), gpu), sequences, RECIPE, tmp_path / "auto", private=training)
    lora = replace(RECIPE, lora=Lora(rank=2), checkpointing=True)
    train(on_gpu(make_lm(), gpu), sequences, lora, tmp_path / "lora", private=training)
    assert first.effort.precisions == ["fp32"]
    assert first.effort.peak_memory > 0
    assert half.effort.devices == [torch.cuda.get_device_name(gpu)]
    assert all(torch.isfinite(p).all() for p in load_file(on_cpu.folder / "model.safetensors").values())

    def stop(steps, seen=[]):  # noqa: B006
        seen.append(steps)
        if sum(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(on_gpu(make_lm(), gpu), sequences, precise, tmp_path / "two", private=training, advance=stop)
    said = []
    result = train(make_lm(), sequences, precise, tmp_path / "two", private=training, say=said.append)
    assert len(result.effort.devices) == 2
    assert any(line.startswith("an earlier part of this training ran on") for line in said)


def test_noise_has_its_deviation(gpu):
    training = _training([[1, 2, 3]] * 12, micro_records=8)
    noise = gaussian(training.noise, training.key, 0, "w", torch.Size([1000, 1000]), 3.0, gpu)
    assert noise.device.type == "cuda"
    assert float(noise.double().std()) == pytest.approx(3.0, rel=5e-3)
    assert abs(float(noise.double().mean())) < 5 * 3.0 / 1000
    shape = torch.Size([3, BLOCK // 2 + 7])
    whole = training.source.gaussian(0, "v", shape, 1.0, gpu)
    assert torch.equal(training.source.gaussian(0, "v", shape, 1.0, gpu, rows=(1, 3)), whole[1:])
    assert torch.equal(training.source.gaussian(0, "v", shape, 1.0, gpu), whole)
    # A block's place in the stream of its key counts too.
    first, second = whole.flatten()[:BLOCK], training.source.gaussian(1, "v", shape, 1.0, gpu).flatten()[:BLOCK]
    assert abs(float((first * second).mean())) < 7 / BLOCK**0.5


def test_scores_are_those_of_the_cpu(gpu, make_lm, english):
    torch.set_float32_matmul_precision("medium")
    here = [its.total for its in score_texts(make_lm(), english[:20])]
    there = [its.total for its in score_texts(on_gpu(make_lm(), gpu), english[:20])]
    assert there == pytest.approx(here, rel=1e-4)


def test_scoring_gives_the_gpu_the_next_batch_before_it_waits(gpu, make_lm, english, monkeypatch):
    """Only the copies of scores are waited for, each once the next batch was given."""
    monkeypatch.setitem(logprobs.LOGITS_PER_BATCH, "cuda", 2**13)
    lm, given = on_gpu(make_lm(), gpu), []
    batch_scores, wait = logprobs.batch_scores, torch.cuda.Event.synchronize
    monkeypatch.setattr(logprobs, "batch_scores", lambda *a, **k: (given.append("batch"), batch_scores(*a, **k))[1])
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: (given.append("wait"), wait(event))[1])
    score_texts(lm, english[:4], moments=True, ranks=True)
    given.clear()
    with refusing_to_wait():
        score_texts(lm, english[:40], moments=True, ranks=True)
    batches = given.count("batch")
    assert batches > 3
    assert given == ["batch", *["batch", "wait"] * (batches - 1), "wait"]


def test_all_gpus_score_what_one_scores(gpu, make_lm, english):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    lm, texts = on_gpu(make_lm(), gpu), english[:60]
    copies = copies_on_other_gpus(lm.model)
    assert len(copies) == torch.cuda.device_count() - 1
    one, all_of_them = score_texts(lm, texts), score_texts(lm, texts, copies=copies)
    for first, second in zip(one, all_of_them, strict=True):
        assert second.total == pytest.approx(first.total, abs=1e-3)


def test_adapters_are_evaluated_beside_halved_weights(gpu, make_lm, english, tmp_path):
    lm = make_lm()
    sequences = encode(lm.tokenizer, english[:24], 31)
    recipe = replace(RECIPE, lora=Lora(rank=2), precision=Precision.BF16)

    def evaluate(step, model):
        with torch.no_grad():
            return {"loss": float(model(input_ids=torch.tensor([[1, 2, 3]], device=gpu)).logits.float().mean())}

    result = train(on_gpu(lm, gpu), sequences, recipe, tmp_path, evaluate=evaluate)
    assert result.history
