"""The operations of a training step: their types, their bytes, and that the forms of layers change no gradient.

Counted are eager operations; what kernels read and write inside themselves is not seen.
"""

import collections
import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import GPTNeoConfig, GPTNeoForCausalLM

from heldin.defenses.gradients import held_gradients, per_unit_gradients
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.finetune.batches import plain_batch_gradient
from heldin.finetune.memory import AutocastOfGpu, tensors_in
from heldin.finetune.passes import Passes, clipped_sum, whole_units
from heldin.models import attention, devices, repeated
from heldin.models.arithmetic import true_float32
from heldin.models.attention import AlignedHead, TanhGelu, use_exact_attention
from tests.documents import ids, record_losses, tokens

LENGTH, RECORDS = 32, 4
CPU = torch.device("cpu")


def new_model(vocabulary, tied=True, hidden=64):
    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=vocabulary,
        max_position_embeddings=LENGTH,
        hidden_size=hidden,
        num_layers=2,
        num_heads=4,
        window_size=8,
        attention_types=[[["global", "local"], 1]],
        resid_dropout=0.0,
        embed_dropout=0.0,
        attention_dropout=0.0,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPTNeoForCausalLM(config)


def records(vocabulary, lengths=(LENGTH,) * RECORDS):
    generator = torch.Generator().manual_seed(1)
    return tokens(torch.randint(0, vocabulary, (length + 1,), generator=generator).tolist() for length in lengths)


class Operations(TorchDispatchMode):
    """Bytes that operations in this block read and write, types of operands of products, and float32 tensors made."""

    def __init__(self):
        super().__init__()
        self.bytes, self.products, self.float32 = 0, collections.Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        operands, results = tensors_in((args, kwargs or {})), tensors_in(result)
        packet = func._overloadpacket
        if packet in flop_registry:
            self.products.update(t.dtype for t in operands if t.dim() > 1)
        held = {t.untyped_storage()._cdata for t in operands}
        made = [t for t in results if t.untyped_storage()._cdata not in held]
        self.float32 += [tuple(t.shape) for t in made if t.dtype == torch.float32 and t.dim()]
        if made or func._schema.is_mutable:
            self.bytes += sum(t.numel() * t.element_size() for t in (*operands, *results))
        return result


def plain_step(model, batch):
    plain_batch_gradient(model, batch, len(batch), "bf16")


def private_step(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        clipped_sum(model, [[batch[:2], batch[2:]]], 1.0, Passes(len(batch)))


def transformers_step(model, batch):
    """As transformers' own layers and ``F.cross_entropy`` take it."""
    whole = torch.tensor(ids(batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=whole[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), whole[:, 1:].flatten())
    loss.backward()


def operations(step, model, batch):
    step(model, batch)  # layer rules are checked in the first one
    with AutocastOfGpu(), Operations() as counted:
        step(model, batch)
    return counted


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setitem(devices.LOGITS_PER_CHUNK, False, 1003 * LENGTH)


@pytest.mark.parametrize("step", [plain_step, private_step])
@pytest.mark.usefixtures("small_chunks")
def test_a_bf16_step_multiplies_in_bf16_and_has_float32_logits_of_a_chunk_only(step, monkeypatch):
    # A CPU multiplies float32 copies for float32 results, where a GPU has products of half precision.
    monkeypatch.setattr(held_gradients, "multiply_into", lambda out, *_, **__: out.zero_())
    monkeypatch.setattr(per_unit_gradients, "why_not_rules", lambda *_: None)
    model, batch = new_model(1003), records(1003)
    use_exact_attention(model)
    counted = operations(step, model, batch)
    sums_of_units = {torch.float32} if step is private_step else set()
    assert set(counted.products) - sums_of_units == {torch.bfloat16}
    # The vocabulary's own matrices are as large as some logits.
    logits = [shape for shape in counted.float32 if shape[-1] in (1003, 1024)]
    assert logits
    assert max(torch.Size(shape[:-1]).numel() for shape in logits) == LENGTH
    usual = operations(transformers_step, new_model(1003), batch)
    assert any(shape[-1] == 1003 and torch.Size(shape[:-1]).numel() == RECORDS * LENGTH for shape in usual.float32)


def test_a_plain_step_moves_at_most_half_of_the_bytes_of_transformers_layers():
    """Those move 12 MB a token of a model of 125M; depth over vocabulary is here as it is there."""
    batch = records(335)
    ours, usual = new_model(335, hidden=32), new_model(335, hidden=32)
    use_exact_attention(ours)
    assert operations(plain_step, ours, batch).bytes <= 0.5 * operations(transformers_step, usual, batch).bytes


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [1003, 1024])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.usefixtures("small_chunks")
def test_losses_and_gradients_are_those_of_transformers_layers(vocabulary, tied, precision):
    """In bfloat16 both are as far from float32, up to rounding."""
    batch = records(vocabulary, (LENGTH, 9, 20, LENGTH))
    usual = new_model(vocabulary, tied)
    ours = copy.deepcopy(usual)
    use_exact_attention(ours)
    assert type(ours.lm_head) is (AlignedHead if vocabulary % 64 else torch.nn.Linear)
    exact_loss, exact = slow(usual, batch)
    loss = plain_batch_gradient(ours, batch, len(batch), precision)
    gradients = {name: p.grad.double() for name, p in ours.named_parameters()}
    # One record a unit without clipping: the sum is the gradient of the sum of the losses.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"), true_float32():
        found = clipped_gradient_sum(ours, whole_units([[record] for record in batch]), clip_norm=torch.inf)
    assert found.notice is None
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    whole = torch.stack([g.norm() for g in exact.values()]).norm()
    assert abs(float(loss) - exact_loss) < tolerance * exact_loss
    assert abs(float(found.losses.mean()) - exact_loss) < tolerance * exact_loss
    for gradient in (gradients, {name: g.double() / len(batch) for name, g in found.gradients.items()}):
        error = torch.stack([(gradient[name] - exact[name]).norm() for name in exact]).norm() / whole
        assert error < tolerance
    # The rows of the vocabulary alone, which are the smallest part.
    head = "lm_head.weight" if not tied else "transformer.wte.weight"
    assert (gradients[head] - exact[head]).norm() < tolerance * exact[head].norm()


def slow(model, batch):
    """The mean over records of their mean losses, by transformers' layers in float64, and its gradients."""
    model = copy.deepcopy(model).double()
    total = 0.0
    for own in ids(batch):
        record = torch.tensor([own])
        logits = model(input_ids=record[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits[0], record[0, 1:]) / len(batch)
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("step", [plain_step, private_step])
def test_products_with_an_odd_vocabulary_take_the_zeros_behind_the_logits(step, monkeypatch):
    """A copy of the gradient over the vocabulary would be as large as the logits."""
    copies, model = [], new_model(1003)
    use_exact_attention(model)
    monkeypatch.setattr(attention.F, "pad", lambda *arguments: copies.append(arguments))
    step(model, records(1003))
    assert not copies
    hidden, weight = torch.randn(6, 8).bfloat16().requires_grad_(), torch.randn(3, 8, requires_grad=True)
    monkeypatch.undo()
    logits = attention.AlignedProduct.apply(hidden, weight)
    assert logits.stride() == (64, 1)
    delta = torch.randn(6, 3).bfloat16()  # of other memory
    found = torch.autograd.grad(logits, (hidden, weight), delta)
    expected = (delta.float() @ weight.bfloat16().float(), delta.T.float() @ hidden.float())
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), two, rtol=2e-2, atol=2e-2)


def test_losses_of_records_may_have_several_backward_passes():
    """As Opacus takes them for ghost clipping."""
    model, batch = new_model(1003), torch.tensor(ids(records(1003)))
    use_exact_attention(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = record_losses(model, batch[:, :-1], batch[:, 1:])
    first, again = (torch.autograd.grad(losses.sum(), model.lm_head.weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert first.any()


def test_gelu_in_one_kernel_is_the_written_out_formula():
    x = torch.linspace(-12, 12, 10_001, requires_grad=True)
    doubled = x.detach().double().requires_grad_()
    written = 0.5 * doubled * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (doubled + 0.044715 * doubled**3)))
    fused = TanhGelu()(x)
    assert ((fused - written).abs() <= 1e-6 * x.abs().clamp_min(1)).all()
    for one in (fused, written):
        one.sum().backward()
    assert (x.grad - doubled.grad).abs().max() < 1e-5
    half = TanhGelu()(x.detach().bfloat16())
    again = x.detach().bfloat16().double()
    written = 0.5 * again * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (again + 0.044715 * again**3)))
    assert ((half - written).abs() <= 2**-8 * written.abs() + 1e-6).all()


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.filterwarnings("ignore")  # of torch itself while it compiles
def test_a_step_with_compiled_layers_and_one_where_compiling_fails_are_eager_steps(works, monkeypatch, caplog):
    model, batch = new_model(335), records(335)
    use_exact_attention(model)
    expected = plain_batch_gradient(model, batch, 2, "bf16")
    gradients = {name: p.grad for name, p in model.named_parameters()}
    calls = []

    def compiled(layer):
        call = torch.compile(layer._call_impl, backend="aot_eager")

        def counted(*arguments, **named):
            calls.append(layer)
            if not works and len(calls) > 3:  # in the second pass
                raise RuntimeError("there is no compiler\nand more")
            return call(*arguments, **named)

        return counted

    def through_compiled(model, kind, compute, operands, *, recorded):
        with contextlib.nullcontext() if repeated._cannot_compile else repeated.compiled_layers(model):
            return compute(*operands)

    layers = model.transformer.h
    monkeypatch.setattr(repeated, "_cannot_compile", False)
    monkeypatch.setattr(repeated, "_COMPILED", {model: {layer: compiled(layer) for layer in layers}})
    monkeypatch.setattr("heldin.finetune.batches.repeated", through_compiled)
    monkeypatch.setattr("heldin.models.objective._compiled", lambda f: f)
    loss = plain_batch_gradient(model, batch, 2, "bf16")
    assert len(calls) == 4
    assert repeated._cannot_compile is not works
    assert [its.name for its in caplog.records if its.levelname == "WARNING"] == [repeated.__name__] * (not works)
    assert not any("_compiled_call_impl" in vars(layer) for layer in layers)
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], rtol=2e-2, atol=1e-3)
