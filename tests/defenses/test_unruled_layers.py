"""Layers that per-unit gradients have no rule for, that are used twice, or that mix records."""

import pytest
import torch
from torch import nn

from heldin.defenses.gradients.layer_rules import rule_of
from heldin.models.attention import AlignedHead
from tests.oracles.per_unit_gradients import clipped_sum, norm_of, unit_gradients
from tests.refusals import refused
from tests.tiny_models import ENGINES, V, batch, people, run, worst_error


class Custom(nn.Module):
    """A small language model with parts that the tests swap."""

    def __init__(self, middle):
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(V, 8), middle, nn.Linear(8, V)

    def forward(self, input_ids, use_cache):
        return type("Output", (), {"logits": self.head(self.middle(self.embed(input_ids)))})


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * self.scale


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


class Outside(nn.Module):
    """Uses its layer's weight without calling the layer, beside a call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) + x @ self.layer.weight


class Swapped(nn.Module):
    """Position first."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Mixing(nn.Module):
    def forward(self, x):
        return x + x.mean(0, keepdim=True)


@pytest.mark.parametrize("engine", ["materialise", "ghost", "stream", "auto"])
@pytest.mark.parametrize(
    ("middle", "named"),
    [(Bare, "(Bare)"), (Outside, "'middle.layer.weight'"), (Swapped, "'middle.layer'")],
)
def test_what_has_no_rule_takes_the_loop_and_says_so(engine, middle, named):
    torch.manual_seed(0)
    model, units = Custom(middle()), people()
    expected, _ = clipped_sum(unit_gradients(model, units), 0.5)
    found = run(model, batch(units), engine, clip_norm=0.5)
    assert found.engine == "loop"
    assert named in found.notice
    assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_used_twice(engine):
    torch.manual_seed(0)
    model, units = Custom(Twice()), people()
    expected, _ = clipped_sum(unit_gradients(model, units), 0.5)
    found = run(model, batch(units), engine, clip_norm=0.5)
    assert found.notice is None
    assert worst_error(found.gradients, expected, norm_of(expected)) < 1e-4


def test_models_that_mix_records_are_refused():
    with refused(by="take_apart", naming=("'middle'", "BatchNorm1d")):
        run(Custom(nn.BatchNorm1d(8)), batch(people()), clip_norm=1.0)
    with refused(by="why_not_rules", naming="model"):
        run(Custom(Mixing()), batch(people()), clip_norm=1.0)


def test_a_head_with_a_forward_of_its_own_does_not_inherit_the_rule_of_the_aligned_head():
    """Its product is torch's but for rounding. A subclass may compute anything, and a wrong norm clips wrongly."""

    class Doubled(AlignedHead):
        def forward(self, input):
            return 2.0 * super().forward(input)

    assert rule_of(AlignedHead(4, 3)) == rule_of(nn.Linear(4, 3)) is not None
    assert rule_of(Doubled(4, 3)) is None
