"""Passes that repeat on a GPU: recorded and compiled they are what they were."""

import copy
import math

import pytest
import torch
from torch import nn

from heldin.base.errors import ResumableError
from heldin.defenses.gradients.model_parts import even_width, trainable
from heldin.finetune.batches import plain_batch_gradient
from heldin.finetune.passes import Passes, clipped_sum
from heldin.models import repeated
from heldin.models.attention import unscaled_attention, use_exact_attention, windowed_attention
from heldin.models.objective import TokenBatch, token_losses
from heldin.models.tokens import IGNORED
from tests.documents import tokens
from tests.finetune.test_step_operations import new_model, records

only_real = pytest.mark.parametrize("gpu", [pytest.param("real", marks=pytest.mark.gpu)], indirect=True)
VOCABULARY, BOUND = 335, 0.05


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Passes are recorded from the third on and not compiled."""
    monkeypatch.setattr(repeated, "RECORDED", 2)
    monkeypatch.setattr(repeated, "_cannot_record", False)
    monkeypatch.setattr(repeated, "_cannot_compile", False)
    yield
    for model in list(repeated._REPEATS):
        repeated.forget_recordings(model)


def on_gpu(gpu, *, tied=True, layers=1):
    """The last of the layers have local attention."""
    model = new_model(VOCABULARY, tied)
    model.transformer.h = model.transformer.h[-layers:]
    use_exact_attention(model)
    return model.to(gpu).eval()


def plain(model, batch, precision):
    plain_batch_gradient(model, batch, 2, precision)
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def private(model, batch, precision):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
        found = clipped_sum(model, [[batch[:3], batch[3:4], batch[4:]]], BOUND, Passes(8))
    assert found.engine == "auto: unit by unit"
    model.found = (found.norms.tolist(), found.losses.tolist(), found.masked.tolist())
    return {name: summed.clone() for name, summed in found.gradients.items()}


def trained(model, step, batches, precision):
    """The gradients of each step, after each of which the weights change."""
    of_steps = []
    for batch in batches:
        of_steps.append(step(model, batch, precision))
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.1 * of_steps[-1][name]
        model.zero_grad(set_to_none=True)
    return of_steps


def error(found, expected):
    """The largest relative error of a step."""

    def norm(tensors):
        return float(torch.stack([tensor.norm() for tensor in tensors]).norm())

    pairs = zip(found, expected, strict=True)
    return max(norm(one[name] - other[name] for name in other) / norm(other.values()) for one, other in pairs)


@pytest.fixture
def units_one_by_one(monkeypatch):
    monkeypatch.setattr("heldin.defenses.gradients.per_unit_gradients.unit_by_unit", lambda *_: True)


def batches(number=5):
    """Of three users, with records of several lengths; token 7 is nowhere. Two of five steps are recorded ones."""
    made = [records(VOCABULARY, (32, 9, 20, 32, 5)) for _ in range(number)]
    return [tokens(_moved(record.ids, i) for record in batch) for i, batch in enumerate(made)]


def _moved(ids, by):
    return [8 if t == 7 else (t + 3 * by) % 300 + 8 for t in ids]


@pytest.mark.parametrize("step", [plain, private])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.usefixtures("units_one_by_one")
def test_recorded_steps_are_those_that_were_not_recorded(gpu, step, precision, monkeypatch):
    model = on_gpu(gpu)
    again = copy.deepcopy(model)
    found = trained(model, step, batches(), precision)
    assert repeated._REPEATS[model].recordings
    monkeypatch.setattr(repeated, "RECORDED", math.inf)
    expected = trained(again, step, batches(), precision)
    assert not repeated._REPEATS[again].recordings
    assert error(found, expected) < (1e-5 if precision == "fp32" else 2e-2)


@pytest.mark.usefixtures("units_one_by_one")
def test_a_recorded_unit_that_is_not_finite_is_left_out_and_told(gpu):
    model = on_gpu(gpu, tied=False)
    for batch in batches():
        private(model, batch, "fp32")
    assert repeated._REPEATS[model].recordings
    model.transformer.wte.weight.data[7] = torch.nan
    batch = batches(1)[0]
    expected = private(model, batch, "fp32")
    assert model.found[2] == [False, False, False]
    batch[3].ids[4] = 7  # the only record of the second user
    found = private(model, batch, "fp32")
    assert model.found[2] == [False, True, False]
    alone = clipped_sum(model, [[batch[:3]], [batch[4:]]], BOUND, Passes(8)).gradients
    for name, summed in found.items():
        assert torch.isfinite(summed).all()
        torch.testing.assert_close(summed, alone[name], rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(expected[name], found[name]) for name in found)


@pytest.mark.usefixtures("units_one_by_one")
def test_a_sum_is_not_that_of_the_next_step(gpu):
    """Recorded passes add at one address, which nothing outside may see."""
    model, kept = on_gpu(gpu), []
    for batch in batches():
        with torch.autocast("cuda", enabled=False):
            found = clipped_sum(model, [[batch[:3], batch[3:]]], BOUND, Passes(8)).gradients
        kept.append((found, {name: g.clone() for name, g in found.items()}))
    assert all(torch.equal(found[name], before[name]) for found, before in kept for name in before)


def test_what_cannot_be_recorded_is_computed_and_said_once(gpu, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(repeated, "_capture", fail)
    model = on_gpu(gpu)
    again = copy.deepcopy(model)
    found = trained(model, plain, batches(), "fp32")
    assert [record.name for record in caplog.records if record.levelname == "WARNING"] == [repeated.__name__]
    assert repeated._cannot_record
    assert error(found, trained(again, plain, batches(), "fp32")) < 1e-5


@only_real
def test_a_gpu_still_draws_numbers_after_a_recording_that_failed(gpu):
    model = on_gpu(gpu)

    def wait(operand):
        operand.sum().item()  # nothing may wait within a recording
        return operand

    for _ in range(4):
        repeated.repeated(model, "waits", wait, (torch.ones(3, device=gpu),), recorded=True)
    assert repeated._cannot_record
    torch.manual_seed(1)
    first = torch.rand(5, device=gpu)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(5, device=gpu), first)


def test_recordings_are_given_up_before_a_pass_is_made_smaller(gpu):
    model, tried, lines = on_gpu(gpu), [], []
    for batch in batches(4):
        plain(model, batch, "fp32")
    passes = Passes(4, say=lines.append)

    def compute(most):
        tried.append((most, bool(repeated._REPEATS.get(model) and repeated._REPEATS[model].recordings)))
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return most

    assert passes.fitted(compute, lambda most: most) == 2
    assert tried == [(4, True), (4, False), (2, False)]
    tried.clear()
    with pytest.raises(ResumableError):
        Passes(1).fitted(compute, lambda most: most)


def test_what_draws_or_computes_again_is_not_recorded(gpu):
    model = on_gpu(gpu)

    def recorded():
        return repeated.records(model, model.modules(), trainable(model))

    assert recorded()
    assert repeated.is_short(model, 100)
    assert not repeated.is_short(model, 10**12)
    model.transformer.drop = nn.Dropout(0.1).eval()
    assert recorded()
    model.train()
    assert not recorded()
    model.eval()
    model.transformer.gradient_checkpointing = True
    assert not recorded()
    model.transformer.gradient_checkpointing = False
    model.transformer.wte.weight.requires_grad_(False)
    model.transformer.wte.weight.data = model.transformer.wte.weight.data.bfloat16()
    assert recorded()
    model.transformer.wte.weight.requires_grad_(True)
    assert not recorded()
    on_cpu = new_model(VOCABULARY)
    assert not repeated.records(on_cpu, on_cpu.modules(), trainable(on_cpu))


def test_what_was_recorded_of_weights_that_lie_elsewhere_now_is_given_up(gpu):
    model = on_gpu(gpu)
    for batch in batches(4):
        plain(model, batch, "fp32")
    assert repeated._REPEATS[model].recordings
    for p in model.parameters():
        p.data = p.data.clone() * 2
    again = copy.deepcopy(model)
    batch = batches(1)[0]
    found, expected = plain(model, batch, "fp32"), plain(again, batch, "fp32")
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_lengths_are_padded_within_the_context():
    model = new_model(VOCABULARY)  # its context is 32
    ids = torch.arange(18).view(2, 9)
    inputs, targets, _ = even_width(model, TokenBatch.of(ids, ids)).tensors
    assert inputs.shape == targets.shape == (2, 32)
    assert (inputs[:, 9:] == ids[:, :1]).all()
    assert (targets[:, 9:] == IGNORED).all()
    model.config.max_position_embeddings = 1000
    assert even_width(model, TokenBatch.of(ids, ids)).inputs.shape == (2, 64)
    assert even_width(nn.Linear(1, 1), TokenBatch.of(ids, ids)).inputs.shape == (2, 9)


@pytest.mark.filterwarnings("ignore")  # of torch itself while it compiles
@pytest.mark.parametrize("once", [True, False])
def test_compiled_losses_are_those_of_the_chunks(once, monkeypatch):
    monkeypatch.setattr("heldin.models.objective._compiled", lambda f: torch.compile(f, backend="aot_eager"))
    torch.manual_seed(0)
    logits = 20 * torch.randn(2, 7, 335).bfloat16()
    targets = torch.randint(0, 335, (2, 7))
    targets[0, 3:] = IGNORED
    found = []
    for compiled in (False, True):
        its = logits.clone().requires_grad_()
        token = repeated._IN_COMPILED.set(compiled)
        losses = token_losses(its.clone(), targets, once=once)
        repeated._IN_COMPILED.reset(token)
        (losses * torch.arange(7)).sum().backward()
        found.append((losses.detach(), its.grad.float()))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-2, atol=1e-4)


@only_real
@pytest.mark.parametrize("length", [300, 512])
def test_windows_of_flash_attention_are_those_of_the_mask(gpu, length):
    torch.manual_seed(0)
    window, shape = 256, (2, 3, length, 64)
    operands = [torch.randn(shape, device=gpu).bfloat16().requires_grad_() for _ in range(3)]
    both = torch.ones(length, length, dtype=torch.bool, device=gpu).tril()
    mask = (both & ~both.tril(-window))[None, None]
    delta = torch.randn(shape, device=gpu).bfloat16()
    expected = unscaled_attention(tuple(t.double() for t in operands), mask, None)
    exact = torch.autograd.grad(expected, operands, delta.double())
    found = windowed_attention(tuple(operands), window)
    ours = torch.autograd.grad(found, operands, delta)
    masked = unscaled_attention(tuple(operands), mask, None)
    theirs = torch.autograd.grad(masked, operands, delta)
    for one, other, true in zip((found, *ours), (masked, *theirs), (expected, *exact), strict=True):
        assert (one - true).norm() <= 1.2 * (other - true).norm() + 1e-3 * true.norm()


@only_real
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("units_one_by_one")
@pytest.mark.parametrize("step", [plain, private])
def test_compiled_and_recorded_steps(gpu, step, monkeypatch):
    model = on_gpu(gpu, layers=2)
    again = copy.deepcopy(model)
    monkeypatch.setattr(repeated, "REPEATED", 4)
    found = trained(model, step, batches(8), "bf16")
    assert any(recording.compiled for recording in repeated._REPEATS[model].recordings.values())
    assert not repeated._cannot_compile
    monkeypatch.setattr(repeated, "RECORDED", math.inf)
    monkeypatch.setattr(repeated, "REPEATED", math.inf)
    assert error(found, trained(again, step, batches(8), "bf16")) < 3e-2
