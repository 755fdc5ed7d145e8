"""Operands that stay in bfloat16, and units that are larger than a pass: no contribution above the clip norm."""

import math

import pytest
import torch
from torch import nn

from heldin.defenses.gradients import held_gradients, products
from heldin.defenses.gradients.engine_choice import choose_ways, unit_by_unit
from heldin.defenses.gradients.held_gradients import Deferred
from heldin.defenses.gradients.layer_rules import lay_out
from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum
from tests.defenses.test_per_unit_gradients import Toy, with_oracle
from tests.oracles.per_unit_gradients import clipped_sum, norm_of
from tests.tiny_models import ENGINES, MODELS, assert_same, batch, checkpoint, new_model, people, run, worst_error

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def half():
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("name", ["gpt-neo", "gpt-neo untied", "llama tied", "opt", "lora"])
@pytest.mark.parametrize("engine", ENGINES)
def test_oracle_in_half_precision(name, engine):
    """The sum within what bfloat16 passes allow, every contribution at most C, and C where it is clipped."""
    (model, oracle), units, bound = with_oracle(name), people(), 0.05
    expected, norms = clipped_sum(oracle, bound)
    with half():
        found = run(model, batch(units), engine, clip_norm=bound)
        alone = [run(model, batch([unit]), engine, clip_norm=bound) for unit in units if unit]
    assert found.notice is None
    error = norm_of({n: found.gradients[n].double() - g for n, g in expected.items()})
    assert error < 2e-2 * norm_of(expected)
    contributions = [norm_of(its.gradients) for its in alone]
    assert max(contributions) <= bound * (1 + 1e-4)
    for contribution, norm in zip(contributions, [n for n, u in zip(norms, units, strict=True) if u], strict=True):
        assert contribution == pytest.approx(min(norm, bound), rel=2e-2 if norm < 1.05 * bound else 1e-4)


def cancelling():
    """Pairs of tokens whose inputs are neighbours in bfloat16 and whose deltas are opposite: little is left of them."""
    x = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(3)).bfloat16()
    x[0, 1::2] = (x[0, 0::2].float() * (1 + 2**-7)).bfloat16()
    layer = nn.Linear(8, 8, bias=False)
    zeros = torch.zeros(1, 16, dtype=torch.long)
    signs = 1e3 * torch.tensor([1.0, -1.0]).repeat(8)
    return Toy(layer, x.float(), signs), UnitBatch(zeros, zeros, torch.zeros(1, dtype=torch.long), 1)


def contribution(engine, bound):
    model, units = cancelling()
    with half():
        return norm_of(run(model, units, engine, clip_norm=bound).gradients)


@pytest.mark.parametrize("engine", ENGINES)
def test_cancelling_tokens_contribute_at_most_the_clip_norm(engine):
    for bound in (0.1, 0.7, 1.3):
        assert contribution(engine, bound) == pytest.approx(bound, rel=1e-4)


def sums_by_a_product(monkeypatch):
    """Norms of cancelling units are taken again, and their sums are not."""
    real = Deferred.taken_again

    def norms_alone(self, cancelling):
        squares = real(self, cancelling)
        self._cancelling = None
        return squares

    monkeypatch.setattr(Deferred, "taken_again", norms_alone)


@pytest.mark.parametrize("terms", [1, 2])
def test_fewer_terms_of_a_scaled_operand_would_break_the_bound(terms, monkeypatch):
    sums_by_a_product(monkeypatch)
    monkeypatch.setattr(products, "TERMS", terms)
    worst = max(contribution("ghost", bound) / bound for bound in (0.1, 0.7, 1.3, 1.7))
    assert worst > 1 + (1e-4 if terms == 2 else 1e-2)


def nearly_nothing(scale, rest, seed):
    """Four tokens of this size and their opposites, apart from this share of them, in float32."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 8, 64, generator=generator)
    x[0, 4:] = x[0, :4] + rest * torch.randn(4, 64, generator=generator)
    sizes = scale * torch.randn(4, generator=generator)
    zeros = torch.zeros(1, 8, dtype=torch.long)
    toy = Toy(nn.Linear(64, 64, bias=False), x, torch.cat([sizes, -sizes]))
    return toy, UnitBatch(zeros, zeros, torch.zeros(1, dtype=torch.long), 1)


def worst_of_cancelling(engine):
    return max(
        norm_of(run(*nearly_nothing(scale, rest, seed), engine, clip_norm=bound).gradients) / bound
        for scale, bound in ((1e3, 1e-3), (1e5, 1e-3), (1e7, 1.0))
        for rest in (1e-6, 1e-7, 0.0)
        for seed in range(3)
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_far_larger_than_what_is_left_of_them_contribute_at_most_the_clip_norm(engine):
    assert worst_of_cancelling(engine) < 1 + 1e-4


def test_a_sum_by_another_product_than_the_norm_s_would_break_the_bound(monkeypatch):
    sums_by_a_product(monkeypatch)
    assert worst_of_cancelling("ghost") > 1.1


def test_a_cancelling_unit_beside_one_that_does_not_cancel():
    toy, one = nearly_nothing(1e3, 1e-2, 0)
    targets = one.targets.repeat(2, 1)
    targets[1, 4:] = -100  # the first half alone
    units = UnitBatch(one.inputs.expand(2, -1), targets, torch.tensor([0, 1]), 2)
    for bound in (1e-3, 1e9):
        expected = run(toy, units, "loop", clip_norm=bound).gradients
        for engine in ENGINES:
            found = run(toy, units, engine, clip_norm=bound).gradients
            assert worst_error(found, expected, norm_of(expected)) < 1e-4, (engine, bound)


def test_terms_add_up_to_the_operand():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-12, 12, 1000)
    parts = list(products.terms(x, torch.bfloat16))
    assert [p.dtype for p in parts] == [torch.bfloat16] * 3
    assert torch.equal(sum(p.double() for p in parts), x.double())
    assert not torch.equal(sum(p.double() for p in parts[:2]), x.double())
    (same,) = products.terms(x, torch.float32)
    assert same is x


def test_streamed_sums_are_of_the_gradients_whose_norms_were_taken(monkeypatch):
    """In either precision; ghost norms' sum is one product for all units."""
    used = []
    real = held_gradients.add_scaled
    monkeypatch.setattr(held_gradients, "add_scaled", lambda *a: (used.append(a[1].dtype), real(*a)))
    model = new_model()
    with half():
        found = run(model, batch(people()), "stream", clip_norm=0.05)
    assert "stream" in found.engine
    run(model, batch(people()), "stream", clip_norm=0.05)
    assert used == []
    run(model, batch(people()), "ghost", clip_norm=0.05)
    assert set(used) == {torch.float32}


@pytest.mark.parametrize("name", [*MODELS])
@pytest.mark.parametrize("most", [1, 2])
def test_a_unit_larger_than_a_pass_equals_the_unsplit_one(name, most):
    (model, oracle), units = with_oracle(name), people()
    expected, norms = clipped_sum(oracle, 0.5)
    sizes = []
    handle = model.register_forward_pre_hook(lambda _m, _a, k: sizes.append(len(k["input_ids"])), with_kwargs=True)
    found = clipped_gradient_sum(model, batch(units), clip_norm=0.5, most_records=most)
    handle.remove()
    assert max(sizes) == most
    assert found.engine.startswith("auto: ")
    assert found.notice is None
    assert_same(found, run(model, batch(units), "loop", clip_norm=0.5))
    assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4
    torch.testing.assert_close(found.norms.double(), torch.tensor(norms).double(), rtol=1e-4, atol=0)
    whole = run(model, batch(units), clip_norm=0.5)
    error = norm_of({n: g - whole.gradients[n] for n, g in found.gradients.items()})
    assert error < 1e-5 * norm_of(whole.gradients)
    torch.testing.assert_close(found.losses, whole.losses, rtol=1e-5, atol=1e-6)


def test_clipping_the_passes_of_a_unit_apart_would_be_seen():
    """The wrong answer: a contribution for each pass, each at most C."""
    model, unit, bound = new_model(), people()[4], 0.05
    right = clipped_gradient_sum(model, batch([unit]), clip_norm=bound, most_records=1)
    wrong = clipped_gradient_sum(model, batch([[its] for its in unit]), clip_norm=bound)
    assert norm_of(right.gradients) == pytest.approx(bound, rel=1e-4)
    assert norm_of(wrong.gradients) > 1.5 * bound


def test_a_split_unit_in_half_precision_checkpointed_and_not_finite():
    model, units = new_model("llama"), people()
    with half():
        for unit in units:
            one = clipped_gradient_sum(model, batch([unit]), clip_norm=0.05, most_records=1) if unit else None
            assert one is None or norm_of(one.gradients) <= 0.05 * (1 + 1e-4)
    expected = clipped_gradient_sum(model, batch(units), clip_norm=0.5)
    checkpoint(model.train(), use_reentrant=False)
    assert_same(clipped_gradient_sum(model, batch(units), clip_norm=0.5, most_records=1), expected, 1e-4)
    model = new_model("llama")
    model.model.embed_tokens.weight.data[60] = math.nan
    spoiled = [[([1, 2], [2, 3]), ([1, 60, 2], [3, 4, 5])], [([1, 2], [2, 3])]]
    found = clipped_gradient_sum(model, batch(spoiled), clip_norm=0.5, most_records=1)
    assert found.masked.tolist() == [True, False]
    assert all(bool(torch.isfinite(g).all()) for g in found.gradients.values())


def test_units_are_taken_alone_on_a_gpu_where_gradients_would_be_computed_twice():
    wide = {"w": torch.Size([2048, 8192])}
    large, small = lay_out(torch.arange(4).repeat_interleave(16), 4, CPU), lay_out(torch.arange(32), 32, CPU)
    streamed = choose_ways(wide, large, 512, CUDA, 10**6)
    assert streamed == {"w": "stream"}

    def alone(ways, weights, layout, device=CUDA, recorded=False):
        return unit_by_unit(ways, weights, layout, 512, device, recorded)

    assert alone(streamed, 1, large)
    assert not alone(streamed, 1, large, CPU)
    assert not alone(choose_ways(wide, large, 512, CUDA, 10**12), 1, large)  # kept: one pass for all
    assert not alone({"w": "stream"}, 1, small)  # 512 tokens leave a GPU idle
    kept = choose_ways(wide, large, 512, CUDA, 10**12)
    assert alone(kept, 1_300_000_000, large)  # a pass of each lasts longer than its start
    assert not alone(kept, 1_300_000_000, large, CPU)
    assert not alone(kept, 1_300_000_000, small)
    assert alone(kept, 1, large, recorded=True)  # the host starts each as a whole
    assert not alone(kept, 1, small, recorded=True)
    assert not alone(kept, 1, large, CPU, recorded=True)


def test_pieces_follow_the_device(monkeypatch):
    class Card:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card)
    assert products.piece_floats(torch.device("cpu")) == 2**22
    assert products.piece_floats(CUDA) == 2**28
    Card.total_memory = 16 * 2**30
    assert products.piece_floats(CUDA) * 4 == 2**28
