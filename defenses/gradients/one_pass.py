"""All units' gradients from one forward and one backward pass, computed with the rules of the layers."""

import weakref
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from heldin.defenses.gradients.engine_choice import Way, choose_ways
from heldin.defenses.gradients.held_gradients import (
    Deferred,
    Materialised,
    RowSums,
    UnitGradients,
    Vectors,
    Workspace,
)
from heldin.defenses.gradients.layer_rules import NoRule, RecordLayout, Use, watch
from heldin.defenses.gradients.model_parts import Parts, unit_losses, without_gradients
from heldin.models.objective import TokenBatch

Engine = Literal["auto", "materialise", "ghost", "loop"]

_WORKSPACES: "weakref.WeakKeyDictionary[nn.Module, Workspace]" = weakref.WeakKeyDictionary()


def one_pass(
    parts: Parts, batch: TokenBatch, layout: RecordLayout, ways: Mapping[str, Way]
) -> tuple[list[UnitGradients], Tensor]:
    """Return the gradients of all units, and the losses (U,).

    Args:
        batch: the rows of all units, on the model's device.
        ways: how the gradients of each parameter are held.

    Raises:
        NoRule: a layer, or a use of a layer, has no rule.
    """
    gradients = _held(parts, layout, ways)
    # By identity, so that both uses of a tied weight add up in one gradient: the norm of their sum is what is clipped.
    by_parameter = {id(p): (name, gradients[name]) for name, p in parts.trainable.items()}

    def take_in(parameter: nn.Parameter, use: Use) -> None:
        name, held = by_parameter[id(parameter)]
        held.add(name, use)

    # Token ids carry no gradient and the parameters' are off below: without the anchor there would be no graph.
    anchor = torch.zeros((), device=batch.inputs.device, requires_grad=True)
    records, positions = batch.inputs.shape
    handles: list[RemovableHandle] = []
    try:
        for layer in parts.layers:
            if layer.rule is None:
                raise NoRule(f"layer '{layer.name}' ({type(layer.module).__name__}) has no rule")
            handles.append(watch(layer.module, layer.rule, layer.name, layer.own, records, positions, anchor, take_in))
        # Autograd's own parameter gradients are off: the backward pass is only for the deltas.
        with without_gradients(parts.trainable), torch.enable_grad():
            losses = unit_losses(parts.model, batch, layout)
            # No unit's loss depends on another's records, so that the sum's deltas are each unit's own.
            torch.autograd.backward(losses.sum())
    finally:
        for handle in handles:
            handle.remove()
    return list(dict.fromkeys(gradients.values())), losses.detach()


def _held(parts: Parts, layout: RecordLayout, ways: Mapping[str, Way]) -> dict[str, UnitGradients]:
    """Choose a holder for the gradients of each parameter. All vectors share one holder."""
    workspace = _WORKSPACES.setdefault(parts.model, Workspace())
    looked_up = {
        id(p) for layer in parts.layers if layer.rule and layer.rule.weight == "rows" for p in layer.own.values()
    }
    vectors = {name: p.shape for name, p in parts.trainable.items() if ways[name] == "total"}
    together = Vectors(vectors, layout, workspace, parts.device)

    def hold(name: str, parameter: nn.Parameter) -> UnitGradients:
        shape, device = parameter.shape, parameter.device
        match ways[name]:
            case "total":
                return together
            case "rows":
                return RowSums(name, shape, layout, device)
            case "materialise":
                kept = workspace.take(name, layout.units, parameter.numel(), device)
                return Materialised(name, shape, layout, kept, looked_up=id(parameter) in looked_up)
            case "ghost" | "stream" as way:
                return Deferred(name, shape, layout, ghost=way == "ghost", device=device)

    return {name: hold(name, parameter) for name, parameter in parts.trainable.items()}


def ways_of(parts: Parts, layout: RecordLayout, positions: int, engine: Engine, budget: int | None) -> dict[str, Way]:
    """Choose the way for the gradients of each parameter: "rows" for a parameter that is only looked up, "total" for a
    vector.

    Args:
        engine: "auto" chooses for each matrix; any other engine applies to all matrices.
        budget: bytes that kept gradients may take under "auto"; None: the default of ``choose_ways``.
    """
    kinds: dict[int, set[str]] = {}
    for layer in parts.layers:
        for key, parameter in layer.own.items():
            if layer.rule is not None:
                kinds.setdefault(id(parameter), set()).add(layer.rule.weight if key == "weight" else "total")
    ways: dict[str, Way] = {}
    for name, parameter in parts.trainable.items():
        kind = kinds.get(id(parameter), {"total"})
        # The densest use decides: a tied embedding is looked up, but its gradient as the output head is a full matrix.
        ways[name] = "materialise" if "product" in kind else "rows" if "rows" in kind else "total"
    matrices = {name: parts.trainable[name].shape for name, way in ways.items() if way == "materialise"}
    if engine == "auto":
        device = next(iter(parts.trainable.values())).device
        return {**ways, **choose_ways(matrices, layout, positions, device, budget)}
    return {**ways, **dict.fromkeys(matrices, "ghost")} if engine == "ghost" else ways


def release_workspace(model: nn.Module) -> None:
    """Free the memory of this model's kept gradients. A later call allocates it again."""
    _WORKSPACES.pop(model, None)
