"""The clipped sum against one plain backward pass per unit, and what it must never depend on."""

import functools
import itertools
import math

import pytest
import torch
from torch import nn

from heldin.defenses.choices import FlatClip, NormalisedClip
from heldin.defenses.gradients import layer_rules, per_unit_gradients
from heldin.defenses.gradients.engine_choice import choose_ways
from heldin.defenses.gradients.held_gradients import norm_of_all
from heldin.defenses.gradients.layer_rules import lay_out
from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clip_factors, clipped_gradient_sum
from tests.oracles.per_unit_gradients import clipped_sum, norm_of, unit_gradients
from tests.refusals import refused
from tests.tiny_models import (
    ENGINES,
    MODELS,
    V,
    assert_same,
    batch,
    checkpoint,
    gpt2,
    new_model,
    opt,
    people,
    record,
    run,
    worst_error,
)

CPU = torch.device("cpu")


@functools.cache
def with_oracle(name="gpt-neo"):
    """A model, which no test may change, and each unit's gradient by plain backward passes."""
    model = new_model(name)
    return model, unit_gradients(model, people())


@pytest.mark.parametrize("name", MODELS)
def test_oracle(name):
    (model, oracle), units = with_oracle(name), people()
    norms = [norm_of(g) for _, g in oracle]
    assert norms[3] == norms[5] == 0
    bounds = [1e9, sorted(norms)[-2] * 0.9, 1e-3]
    for engine in ENGINES:
        for bound in bounds:
            expected, _ = clipped_sum(oracle, bound)
            found = run(model, batch(units), engine, clip_norm=bound)
            assert found.notice is None
            assert (found.engine == "loop") == (engine == "loop")
            assert found.gradients.keys() == expected.keys()
            assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4, (engine, bound)
            torch.testing.assert_close(found.norms.double(), torch.tensor(norms).double(), rtol=1e-4, atol=0)
            torch.testing.assert_close(
                found.losses.double(), torch.tensor([x for x, _ in oracle]).double(), rtol=1e-5, atol=1e-7
            )
            assert not found.masked.any()


def test_oracle_would_see_each_unit():
    """Every unit alone: no error may hide in a sum."""
    (model, oracles), units = with_oracle(), people()
    for number, oracle in enumerate(oracles):
        expected, _ = clipped_sum([oracle], 0.3)
        alone = [u if i == number else [] for i, u in enumerate(units)]
        if alone[number]:
            found = run(model, batch(alone), clip_norm=0.3)
            assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4


def test_auto_says_which_ways_it_took():
    found = run(new_model(), batch(people()), clip_norm=1.0)
    assert found.engine.startswith("auto: ")
    assert "materialise" in found.engine or "ghost" in found.engine
    assert "stream 13 weight matrices" in run(new_model(), batch(people()), "stream", clip_norm=1.0).engine


def test_choice_follows_size_and_memory():
    wide, narrow = {"w": torch.Size([768, 3072])}, {"w": torch.Size([32, 32])}
    short, long = lay_out(torch.arange(32), 32, CPU), lay_out(torch.arange(4).repeat_interleave(16), 4, CPU)
    cpu = torch.device("cpu")
    assert choose_ways(wide, short, 16, cpu, 10**12) == {"w": "ghost"}
    assert choose_ways(wide, short, 32, cpu, 10**12) == {"w": "materialise"}
    assert choose_ways(wide, short, 32, cpu, 10**6) == {"w": "ghost"}
    assert choose_ways(narrow, long, 64, cpu, 10**9) == {"w": "materialise"}
    assert choose_ways(wide, long, 128, cpu, 10**6) == {"w": "stream"}


@pytest.mark.parametrize("engine", ENGINES)
def test_micro_batches_of_whole_units_add_up(engine):
    model, units = with_oracle()[0], people()
    whole = run(model, batch(units), engine, clip_norm=0.5)
    parts = [run(model, batch(units[i:j]), engine, clip_norm=0.5) for i, j in ((0, 2), (2, 5), (5, 7))]
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(sum(p.gradients[name] for p in parts), gradient, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(torch.cat([p.norms for p in parts]), whole.norms, rtol=1e-5, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_order_padding_and_company_do_not_matter(engine):
    model, units = with_oracle()[0], people()
    base = run(model, batch(units), engine, clip_norm=0.5)
    assert_same(base, run(model, batch(units, seed=5), engine, clip_norm=0.5))
    assert_same(base, run(model, batch(units, padding=9), engine, clip_norm=0.5))
    other = [units[0], *([record(11, 77), record(4, 78)] for _ in units[1:])]
    found = run(model, batch(other), engine, clip_norm=0.5)
    torch.testing.assert_close(found.norms[0], base.norms[0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_more_unit_adds_exactly_its_contribution(engine):
    model, units = with_oracle()[0], people()
    newcomer = [record(10, 50), record(3, 51)]
    before, after = (run(model, batch(u), engine, clip_norm=0.5) for u in (units, [*units, newcomer]))
    ((_, gradient),) = unit_gradients(model, [newcomer])
    factor = min(1.0, 0.5 / norm_of(gradient))
    added = {n: after.gradients[n] - before.gradients[n] for n in gradient}
    error = norm_of({n: added[n] - factor * g for n, g in gradient.items()})
    assert error < 1e-5 * norm_of(before.gradients)
    assert norm_of(added) <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_sensitivity_is_at_most_the_clip_norm(engine):
    """Over units with aligned, huge, vanishing and cancelling gradients, alone and many times over."""
    bound = 0.7
    one = record(6, 1)
    adversaries = [[one], [one] * 4, [record(1, 2)], [([3] * 12, [4] * 12)], [([3] * 9, [-100] * 9)]]
    opposed = [[([5, 5, 5, 5], [a, b, a, b])] for a, b in [(0, 0), *itertools.combinations(range(4), 2)]]
    for scale in (1e-6, 1.0, 30.0):
        model = new_model("gpt-neo untied")
        model.lm_head.weight.data *= scale
        for unit in adversaries + opposed:
            found = run(model, batch([unit]), engine, clip_norm=bound)
            assert norm_of(found.gradients) <= bound * (1 + 1e-4)
    model, _ = with_oracle()
    crowd = run(model, batch([[one]] * 5), engine, clip_norm=bound)
    alone = run(model, batch([[one]]), engine, clip_norm=bound)
    assert norm_of(crowd.gradients) == pytest.approx(5 * norm_of(alone.gradients), rel=1e-5)
    assert norm_of(crowd.gradients) <= 5 * bound * (1 + 1e-5)


def test_a_ghost_norm_that_cancels_is_taken_again(monkeypatch):
    """Two tokens with opposite huge gradients and a small rest: a ghost norm alone misses the rest."""
    layer = nn.Linear(8, 8, bias=False)
    x = torch.randn(1, 2, 8)
    x[0, 1] = x[0, 0] + 1e-4 * torch.randn(8)
    model = Toy(layer, x, torch.tensor([1e3, -1e3]))
    units = UnitBatch(
        torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.long), 1
    )
    exact = clipped_gradient_sum(model, units, clip_norm=math.inf, engine="materialise")
    ghost = clipped_gradient_sum(model, units, clip_norm=math.inf, engine="ghost")
    assert exact.notice is ghost.notice is None
    assert float(ghost.norms[0]) == pytest.approx(float(exact.norms[0]), rel=1e-4)
    monkeypatch.setattr(per_unit_gradients, "CANCELLATION", 0.0)
    unguarded = clipped_gradient_sum(model, units, clip_norm=math.inf, engine="ghost")
    assert abs(float(unguarded.norms[0]) / float(exact.norms[0]) - 1) > 1e-4


class Toy(nn.Module):
    """Logits whose gradient at each token is a given multiple of that of the first; not a language model."""

    def __init__(self, layer, x, factors):
        super().__init__()
        self.layer, self.x, self.factors = layer, x, factors

    def forward(self, input_ids, use_cache):
        hidden = self.layer(self.x.expand(len(input_ids), -1, -1)[:, : input_ids.shape[1]])
        steep = hidden.sum(-1, keepdim=True) * self.factors[: input_ids.shape[1], None]
        logits = torch.cat([torch.zeros_like(steep), steep - steep.detach()], -1)
        return type("Output", (), {"logits": logits})


@pytest.mark.parametrize("engine", ENGINES)
def test_a_unit_that_is_not_finite_contributes_zero(engine):
    model, units = new_model("llama"), people()
    run(model, batch(units), engine, clip_norm=0.5)
    bad = 60
    clean = [[([i % 60 for i in a], [i % 60 if i >= 0 else i for i in b]) for a, b in u] for u in units]
    spoiled = [*clean, [([1, bad, 2], [3, 4, 5]), record(4, 11)]]
    spoiled[-1][1] = ([1, 2, 3, 4], [2, 3, 4, 5])
    base = run(model, batch(clean), engine, clip_norm=0.5)
    for value in (math.nan, math.inf):
        model.model.embed_tokens.weight.data[bad] = value
        found = run(model, batch(spoiled), engine, clip_norm=0.5)
        assert found.masked.tolist() == [False] * 7 + [True]
        assert all(bool(torch.isfinite(g).all()) for g in found.gradients.values())
        for name, gradient in base.gradients.items():
            torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-4, atol=1e-7)


def test_a_norm_over_tensors_of_any_shape_has_all_its_digits():
    shapes = [(0,), (), (3,), (1_000_000,), (7, 3000), (0, 4), (2, 3, 5)]
    tensors = [torch.full(shape, 0.1) for shape in shapes]
    exact = math.sqrt(sum(float(its.double().square().sum()) for its in tensors))
    assert float(norm_of_all(tensors)) == pytest.approx(exact, rel=1e-6)
    assert float(norm_of_all(iter([]))) == 0.0
    assert float(norm_of_all([torch.full((100_000,), 2.0**-4, dtype=torch.bfloat16)])) == pytest.approx(
        2.0**-4 * math.sqrt(100_000), rel=1e-6
    )


def test_clip_norms_below_what_float32_squares_hold_are_refused():
    for bound in (0.0, -1.0, 1e-13, math.nan):
        with refused(by=clipped_gradient_sum, naming="1e-12"):
            run(new_model(), batch(people()), clip_norm=bound)
    for clip in (FlatClip, NormalisedClip):
        with refused(by="Choice.__init__"):
            clip(norm=1e-13)
    # A factor that float32 would round up leaves the unit out.
    norms, masked = torch.tensor([1e27, 1e25], dtype=torch.float64), torch.zeros(2, dtype=torch.bool)
    factors = clip_factors(norms, masked, 1e-12)
    assert factors.tolist()[0] == 0.0
    assert float(factors[1]) == pytest.approx(1e-37, rel=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_records(engine):
    model = new_model()
    empty = UnitBatch(
        torch.zeros(0, 5, dtype=torch.long), torch.zeros(0, 5, dtype=torch.long), torch.zeros(0).long(), 0
    )
    found = run(model, empty, engine, clip_norm=1.0)
    assert found.norms.shape == found.losses.shape == found.masked.shape == (0,)
    assert {n: g.shape for n, g in found.gradients.items()} == {n: p.shape for n, p in model.named_parameters()}
    assert not any(g.any() for g in found.gradients.values())


def broken_position_rule(monkeypatch):
    """Position embeddings without a gradient of their own."""
    real = layer_rules._embedding

    def rows(layer, read, delta):
        return iter(()) if layer.num_embeddings == 32 else real(layer, read, delta)

    monkeypatch.setattr(layer_rules, "_embedding", rows)


def broken_tied_rule(monkeypatch):
    """The look-up is left out of a tied matrix."""
    real = layer_rules._embedding
    monkeypatch.setattr(
        layer_rules, "_embedding", lambda la, r, d: iter(()) if la.num_embeddings == V else real(la, r, d)
    )


@pytest.mark.parametrize("plant", [broken_position_rule, broken_tied_rule])
def test_a_rule_that_leaves_a_use_out_is_caught_twice(plant, monkeypatch):
    """By the comparison with the oracle, and by the check that every new model goes through."""
    (model, oracle), units = (new_model(), with_oracle()[1]), people()
    norms = [norm_of(g) for _, g in oracle]
    plant(monkeypatch)
    with monkeypatch.context() as unchecked:
        unchecked.setattr(per_unit_gradients, "_difference", lambda *_args, **_kw: None)
        found = run(new_model(), batch(units), "materialise", clip_norm=1e9)
    expected, _ = clipped_sum(oracle, 1e9)
    assert worst_error(found.gradients, expected, norm_of(expected)) > 1e-2
    assert max(abs(a - b) / b for a, b in zip(found.norms.tolist(), norms, strict=True) if b) > 1e-3
    checked = run(model, batch(units), "materialise", clip_norm=1e9)
    assert checked.engine == "loop"
    assert any(f"'{name}'" in checked.notice for name in found.gradients)
    assert worst_error(checked.gradients, expected, norm_of(expected)) < 1e-4


@functools.cache
def without_checkpointing(name, engine):
    return run(with_oracle(name)[0], batch(people()), engine, clip_norm=0.5)


@pytest.mark.parametrize("name", ["gpt-neo", "opt", "llama"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(name, engine, reentrant):
    model, units = new_model(name), people()
    expected = without_checkpointing(name, engine)
    checkpoint(model.train(), use_reentrant=reentrant)
    found = run(model, batch(units), engine, clip_norm=0.5)
    assert found.engine == expected.engine
    assert found.notice is None
    assert model.training
    assert_same(expected, found)


def test_dropout_is_off():
    model, units = MODELS["gpt2"](), people()
    expected = run(model.eval(), batch(units), clip_norm=0.5)
    torch.manual_seed(0)
    dropping = gpt2(resid_pdrop=0.4, embd_pdrop=0.4, attn_pdrop=0.4)
    dropping.load_state_dict(model.state_dict())
    found = run(dropping.train(), batch(units), clip_norm=0.5)
    assert found.notice is not None
    assert found.engine == expected.engine
    assert all(m.training for m in dropping.modules())
    assert_same(expected, found)
    checkpointed = opt(dropout=0.1).train()
    checkpoint(checkpointed)
    with refused(by="evaluating", naming="0.1"):
        run(checkpointed, batch(units), clip_norm=0.5)


@pytest.mark.parametrize("name", ["gpt-neo", "llama", "gpt2"])
@pytest.mark.parametrize("engine", ENGINES)
def test_half_precision_has_norms_of_what_is_summed(name, engine):
    model, units = with_oracle(name)[0], people()
    full = run(model, batch(units), engine, clip_norm=1e9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(model, batch(units), engine, clip_norm=1e9)
        for number in (0, 1, 4):
            alone = [u if i == number else [] for i, u in enumerate(units)]
            one = run(model, batch(alone), engine, clip_norm=0.1)
            assert norm_of(one.gradients) == pytest.approx(0.1, rel=1e-4)
    assert found.notice is None
    assert found.norms.dtype == torch.float32
    assert {g.dtype for g in found.gradients.values()} == {torch.float32}
    torch.testing.assert_close(found.norms, full.norms, rtol=5e-2, atol=0)
    half = new_model(name).to(torch.bfloat16)
    found = run(half, batch(units), engine, clip_norm=1e9)
    assert {g.dtype for g in found.gradients.values()} == {torch.float32}
    torch.testing.assert_close(found.norms, full.norms, rtol=5e-2, atol=0)


def test_frozen_parameters_are_left_out():
    model, units = new_model(), people()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("ln" in name or "wpe" in name or "c_fc" in name)
    expected, norms = clipped_sum(unit_gradients(model, units), 0.5)
    for engine in ENGINES:
        found = run(model, batch(units), engine, clip_norm=0.5)
        assert found.gradients.keys() == expected.keys()
        assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4
        torch.testing.assert_close(found.norms.double(), torch.tensor(norms).double(), rtol=1e-4, atol=0)


def test_bad_input():
    model, units = new_model(), batch(people())
    with refused(by=clipped_gradient_sum, naming="0"):
        run(model, units, clip_norm=0)
    with refused(by=clipped_gradient_sum, naming="'fast'"):
        run(model, units, "fast", clip_norm=1.0)
    with refused(by="take_apart", naming="parameter"):
        run(new_model().requires_grad_(False), units, clip_norm=1.0)
    with refused(by="UnitBatch.__post_init__", naming=("0", "1")):
        UnitBatch(units.inputs, units.targets, units.unit, 2)
    with refused(by="UnitBatch.__post_init__", naming=("11", "16", "15")):
        UnitBatch(units.inputs, units.targets[:, 1:], units.unit, units.units)


@pytest.mark.parametrize("name", ["gpt-neo", "gpt-neo untied", "llama", "lora"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_sums_are_added_to_those_of_earlier_calls(name, engine, kind, monkeypatch):
    """In place, in every way of holding gradients, also as a GPU would hold them."""
    monkeypatch.setattr("heldin.defenses.gradients.held_gradients.kind_of", lambda _: kind)
    (model, oracle), units = with_oracle(name), people()
    expected, _ = clipped_sum(oracle, 0.05)
    onto = None
    for some in (units[:2], units[2:3], units[3:]):
        onto = run(model, batch(some), engine, clip_norm=0.05, onto=onto).gradients
    assert worst_error(onto, expected, norm_of(expected)) < 1e-3
