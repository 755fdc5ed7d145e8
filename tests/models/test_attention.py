"""GPT-Neo's attention against transformers' own: float32, bfloat16, windows, padding, gradients."""

import copy
import gc
import json
import weakref

import pytest
import torch
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

from heldin.models import attention
from heldin.models.attention import ExactAttention, unscaled_attention, use_exact_attention
from tests.oracles.per_unit_gradients import clipped_sum, norm_of, unit_gradients
from tests.tiny_models import batch, checkpoint, gpt_neo, new_model, people, run, worst_error

CPU = torch.device("cpu")
KINDS = ["global", "local"]
PADDED = torch.tensor([[1] * 12, [1] * 9 + [0] * 3, [0] * 4 + [1] * 8])


def layer(kind, **changes):
    model = gpt_neo(**changes)
    return model.transformer.h[KINDS.index(kind)].attn.attention


def exact_layer(kind):
    model = gpt_neo()
    use_exact_attention(model)
    return model.transformer.h[KINDS.index(kind)].attn.attention


def operands(scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(3, 3, 2, 12, 8, generator=generator, dtype=torch.float64)
    return [(scale**0.5 * x).to(dtype).requires_grad_() for x in found[:2]] + [found[2].to(dtype).requires_grad_()]


def additive(mask, dtype):
    """As transformers' eager masks: 0, or the least number where a position may not look."""
    allowed = mask[:, None, None, :].bool() & torch.ones(12, 12, dtype=torch.bool).tril()
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)


def oracle(kind, given, mask=None):
    """transformers' form in float64."""
    exact = [x.detach().double().requires_grad_() for x in given]
    mask = None if mask is None else additive(mask, torch.float64)

    def in_double(self, query, key, value, mask):
        scores = query @ key.mT
        scores = scores.masked_fill(~self.bias[:, :, : query.shape[2], : key.shape[2]], torch.finfo(scores.dtype).min)
        return torch.softmax(scores if mask is None else scores + mask, -1) @ value

    return in_double(layer(kind), *exact, mask), exact


def ours(kind, given, mask=None):
    window = layer(kind).bias if kind == "local" else None
    return unscaled_attention(tuple(given), window, mask)


def gradients(out, given, where):
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.autograd.grad((out.double() * weights * where).sum(), given, retain_graph=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [None, "boolean", "additive"])
def test_it_is_transformers_attention_in_float32(kind, padded):
    given = operands(scale=4.0)
    mask = None if padded is None else additive(PADDED, torch.float32)
    eager, _ = GPTNeoSelfAttention._attn(layer(kind), *given, mask)
    found = ours(kind, given, mask if padded != "boolean" else mask == 0)
    # Where a position may look nowhere, nothing is right or wrong.
    where = 1.0 if padded is None else PADDED[:, None, :, None]
    torch.testing.assert_close(found * where, eager * where, rtol=1e-5, atol=1e-5)
    for one, two in zip(gradients(found, given, where), gradients(eager, given, where), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(found).all()
    exact, doubled = oracle(kind, given, None if padded is None else PADDED)
    torch.testing.assert_close((found * where).double(), exact * where, rtol=1e-5, atol=1e-5)
    for one, two in zip(gradients(found, given, where), gradients(exact, doubled, where), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-5)


def test_a_scale_or_a_window_that_is_off_by_one_would_be_seen():
    given = operands(scale=4.0)
    exact, _ = oracle("local", given)
    window = layer("local").bias
    assert (ours("local", given).double() - exact).abs().max() < 1e-5
    wider = layer("local", window_size=5).bias
    assert (unscaled_attention(tuple(given), wider, None).double() - exact).abs().max() > 1e-2
    scaled = [given[0] / 8**0.5, *given[1:]]
    assert (unscaled_attention(tuple(scaled), window, None).double() - exact).abs().max() > 1e-2
    assert (ours("global", given).double() - exact).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_logits_stay_in_float32_under_autocast(kind):
    """At logits of 300 bfloat16 is off by up to one: transformers' form has other weights then, ours has not."""
    given = operands(dtype=torch.bfloat16)
    with torch.no_grad():
        for its in given[:2]:
            its[..., 0] = 17.25  # all logits near 300, where neighbours in bfloat16 differ by two
    exact, doubled = oracle(kind, given)
    module = layer(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = exact_layer(kind)._attn(*given)
        theirs, _ = GPTNeoSelfAttention._attn(module, *given)
    assert found.dtype == torch.bfloat16
    wrong, error = ((x.double() - exact).abs().max() for x in (theirs, found))
    assert error < 2e-2
    assert wrong > 10 * error
    right = gradients(exact, doubled, 1.0)
    for ours, others, two in zip(gradients(found, given, 1.0), gradients(theirs, given, 1.0), right, strict=True):
        # Without the first numbers, whose gradients are zero but for rounding.
        error, wrong = (float((g.double() - two)[..., 1:].norm() / two[..., 1:].norm()) for g in (ours, others))
        assert error < 2e-2
        assert wrong > 10 * error


@pytest.mark.parametrize("kind", KINDS)
def test_operands_of_float32_stay_so_under_autocast(kind):
    """As those of adapters may be: autocast would round them."""
    given = operands(scale=4.0)
    exact, _ = oracle(kind, given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = exact_layer(kind)._attn(*given)
        theirs, _ = GPTNeoSelfAttention._attn(layer(kind), *given)
    assert (found.double() - exact).abs().max() < 1e-5
    assert (theirs.double() - exact).abs().max() > 1e-3


@pytest.fixture
def everywhere(monkeypatch):
    """Also in float32 on a CPU, where transformers' own form is kept."""
    monkeypatch.setattr(attention, "keeps_eager", lambda _: False)


@pytest.mark.parametrize("mask", [None, PADDED])
def test_a_whole_model(everywhere, mask):
    plain, exact = new_model(), new_model()
    use_exact_attention(exact)
    ids = torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(0))
    where = 1.0 if mask is None else mask[:, :, None]
    one, two = (m(input_ids=ids, attention_mask=mask, use_cache=False).logits * where for m in (plain, exact))
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)
    one.square().sum().backward()
    two.square().sum().backward()
    for a, b in zip(plain.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-4, atol=1e-4)


def test_with_a_cache_the_last_tokens_see_those_before(everywhere):
    model = new_model().eval()
    ids = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=ids).logits[:, 9:]
    use_exact_attention(model)
    first = model(input_ids=ids[:, :9], use_cache=True)
    for step in range(9, 12):
        first = model(input_ids=ids[:, step : step + 1], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(first.logits[:, 0], expected[:, step - 9], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["loop", "materialise", "ghost"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_per_unit_gradients_through_it(everywhere, engine, checkpointed):
    model, units = new_model(), people()
    expected, _ = clipped_sum(unit_gradients(model, units), 0.5)
    use_exact_attention(model)
    if checkpointed:
        checkpoint(model.train(), use_reentrant=False)
    found = run(model, batch(units), engine, clip_norm=0.5)
    assert found.notice is None
    assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4


def test_on_a_cpu_in_float32_nothing_changes(tmp_path):
    """To the bit, and in what is saved: fingerprints and runs stay what they were."""
    plain, exact = new_model(), new_model()
    use_exact_attention(exact)
    ids = torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(0))
    for mask in (None, PADDED):
        given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        assert torch.equal(plain(**given).logits, exact(**given).logits)
    for model, name in ((plain, "plain"), (exact, "exact")):
        model.save_pretrained(tmp_path / name)
    one, two = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "exact"))
    assert one == two


def test_a_copy_attends_by_itself(everywhere):
    model = new_model()
    use_exact_attention(model)
    copied = copy.deepcopy(model)
    layers = [m.transformer.h[1].attn.attention for m in (model, copied)]
    layers[1].bias.fill_(True)
    ids = torch.arange(12)[None]
    assert not torch.equal(model(input_ids=ids).logits, copied(input_ids=ids).logits)


def test_a_model_that_nobody_holds_is_gone_at_once():
    """Its memory is a GPU's, and waits for no collection of cycles."""
    model = new_model()
    use_exact_attention(model)
    model(input_ids=torch.arange(12)[None]).logits.sum().backward()
    layer = weakref.ref(model.transformer.h[0].attn.attention)
    gc.disable()
    try:
        del model
        assert layer() is None
    finally:
        gc.enable()


def test_other_models_are_left_alone():
    model = new_model("gpt2")
    before = model.config._attn_implementation
    use_exact_attention(model)
    assert model.config._attn_implementation == before


def test_loaded_and_new_models_use_it(make_lm, tmp_path):
    from heldin.models.opening import load_language_model

    lm = make_lm()
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    for model in (lm.model, load_language_model(str(tmp_path), device=CPU).model):
        assert all(type(block.attn.attention) is ExactAttention for block in model.transformer.h)
