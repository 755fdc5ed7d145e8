"""The sum of the clipped gradients of the privacy units of a batch: what DP training releases, before its noise.

What always holds of ``clipped_gradient_sum``:

* a unit's loss is the mean over its own records of the record's mean loss over its own tokens, and its gradient is that
  loss's full gradient: every trainable tensor, a tied one once, as the sum of its uses, position embeddings included;
* a unit's norm and contribution do not depend on who else is in the batch, on padding or on the order of the records,
  but for rounding; the contribution's norm is at most the clip norm (to 1e-4 of it);
* the norm is of the numbers that are summed: float32 gradients, whatever the precision of the pass;
* sums over batches of whole units add up to the sum over all; a unit must never be split.

| unit | contribution |
|---|---|
| without records, or without any target | zero, loss 0 |
| with a loss, gradient or squared norm that is not finite | zero, by masking; marked in ``masked`` |
| of gradient zero, or below 1e-12 | itself if flat, zero if normalised |

Clipping: Abadi et al. 2016 (flat), De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification
through Scale", section 3 (normalised); units of several records: Charles et al. 2024, Algorithm 2.
"""

import contextlib
import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from corpus.errors import InputError
from defenses.engine_choice import (
    Deferred,
    UnitGradients,
    Way,
    Workspace,
    choose_ways,
    hold,
    in_words,
)
from defenses.layer_rules import LayerRule, Layout, NoRule, Use, lay_out, rule_of, watch

IGNORED = -100
ClipKind = Literal["flat", "normalised"]
Engine = Literal["auto", "materialise", "ghost", "loop"]

ZERO = 1e-12  # norms below it count as zero: squares of their parts may have been lost to underflow
# A ghost norm's square is off by about 4 * 2^-24 of the square of the summed norms of its tokens; below this share of
# it, the norm may be off by 1e-4 and is taken again from the gradient itself.
CANCELLATION = 1.2e-3
PROBE_POSITIONS = 32


@dataclass(frozen=True)
class Units:
    """One micro-batch of whole units.

    Attributes:
        inputs: (B, L) token ids, a record a row, padded on the right.
        targets: (B, L) token ids, -100 where there is no target.
        unit: (B,) unit number 0..U-1 of each row, in any order.
        units: U.
    """

    inputs: Tensor
    targets: Tensor
    unit: Tensor
    units: int

    def __post_init__(self) -> None:
        if self.inputs.dim() != 2 or self.targets.shape != self.inputs.shape:
            raise InputError(
                f"inputs {tuple(self.inputs.shape)} and targets {tuple(self.targets.shape)} must be of one shape:"
                " (records, positions)"
            )
        if self.unit.shape != self.inputs.shape[:1]:
            raise InputError(f"{len(self.inputs)} records, but unit numbers of shape {tuple(self.unit.shape)}")
        if len(self.unit) and not 0 <= int(self.unit.min()) <= int(self.unit.max()) < self.units:
            raise InputError(f"unit numbers must lie in 0..{self.units - 1}")


@dataclass(frozen=True)
class ClippedSum:
    """What a batch contributes.

    Attributes:
        gradients: by parameter name, the sum over units of the clipped gradients, float32.
        norms: (U,) norms before clipping, float32.
        losses: (U,) losses, float32.
        masked: (U,) which units were not finite and contribute zero.
        engine: how it was computed.
        notice: what the person should know, such as why a slower engine was taken; None if nothing.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    masked: Tensor
    engine: str
    notice: str | None = None


def clipped_gradient_sum(
    model: nn.Module,
    units: Units,
    *,
    clip_norm: float,
    clip_kind: ClipKind = "flat",
    engine: Engine = "auto",
    memory_budget: int | None = None,
) -> ClippedSum:
    """The sum over units of the unit's clipped gradient; the guarantees are those of this module's docstring.

    One forward and one backward pass over all records. The model runs as in evaluation, so without dropout; autocast
    is the caller's. Parameters that require no gradient are left out, of the norm too; no ``.grad`` is touched.

    Args:
        model: a causal language model: model(input_ids=, use_cache=False).logits is (B, L, V).
        units: the records.
        clip_norm: C; ``math.inf`` for no clipping.
        clip_kind: "flat": the gradient times min(1, C / norm); "normalised": times C / norm.
        engine: "auto": per weight matrix the fastest of the ways of ``engine_choice``; "materialise", "ghost": that
            one for all; "loop": a backward pass per unit. A model with a trainable parameter that has no rule, or on
            which the rules fail their check against plain autograd, takes the loop and says so in ``notice``.
        memory_budget: bytes that kept gradients may take under "auto".

    Raises:
        InputError: a clip norm that is not positive, no trainable parameter, or a model that mixes records.
    """
    if not clip_norm > 0 or (clip_kind == "normalised" and math.isinf(clip_norm)):
        raise InputError(f"clip norm is {clip_norm}: it must be positive, and finite where gradients are normalised")
    if clip_kind not in get_args(ClipKind) or engine not in get_args(Engine):
        raise InputError(f"unknown clip kind or engine: '{clip_kind}', '{engine}'")
    parts = _take_apart(model)
    if not len(units.inputs):
        return _nothing(parts, units)
    layout = lay_out(units.unit, units.units)
    inputs, targets = units.inputs[layout.order], units.targets[layout.order]
    with _evaluating(parts) as dropout_off:
        why = _why_not_rules(parts, inputs, targets) if engine != "loop" else None
        if engine == "loop" or why is not None:
            found, used = _loop(parts, inputs, targets, layout, clip_norm, clip_kind), "loop"
        else:
            ways = _ways(parts, layout, inputs.shape[1], engine, memory_budget)
            gradients, losses = _one_pass(parts, inputs, targets, layout, ways)
            with torch.autocast(inputs.device.type, enabled=False):  # or the sum would be in half precision
                found, used = _clip(gradients, losses, clip_norm, clip_kind), in_words(engine, ways)
    notices = (["dropout is off"] if dropout_off else []) + ([f"one backward pass per unit: {why}"] if why else [])
    total, norms, losses, masked = found
    return ClippedSum(
        gradients=total,
        norms=_spread(norms, layout, units.units),
        losses=_spread(losses, layout, units.units),
        masked=_spread(masked, layout, units.units),
        engine=used,
        notice="; ".join(notices) or None,
    )


@dataclass(frozen=True)
class _Parts:
    """A model in one walk: all its modules, those with trainable parameters of their own, and these parameters."""

    model: nn.Module
    modules: tuple[nn.Module, ...]
    layers: tuple[tuple[str, nn.Module, LayerRule | None], ...]
    trainable: dict[str, nn.Parameter]


def _take_apart(model: nn.Module) -> _Parts:
    named = list(model.named_modules())
    trainable: dict[str, nn.Parameter] = {}
    layers = []
    seen: set[int] = set()
    for name, module in named:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"layer '{name}' ({type(module).__name__}) mixes the records of a batch, so that no user has a gradient"
                " of their own: replace it by a layer norm or group norm"
            )
        own = {f"{name}.{key}".lstrip("."): p for key, p in module._parameters.items() if p is not None}
        own = {key: p for key, p in own.items() if p.requires_grad}
        if own:
            layers.append((name, module, rule_of(module)))
        trainable.update((key, p) for key, p in own.items() if id(p) not in seen)
        seen.update(id(p) for p in own.values())
    if not trainable:
        raise InputError("the model has no trainable parameter")
    return _Parts(model, tuple(m for _, m in named), tuple(layers), trainable)


Found = tuple[dict[str, Tensor], Tensor, Tensor, Tensor]  # sums, norms (U,), losses (U,), masked (U,)


def _unit_losses(model: nn.Module, inputs: Tensor, targets: Tensor, layout: Layout) -> Tensor:
    """(U,) losses; no unit's depends on another's records or padding."""
    logits = model(input_ids=inputs, use_cache=False).logits  # (B, L, V)
    losses: Tensor = _TokenLosses.apply(logits, targets)  # type: ignore[no-untyped-call]  # (B, L)
    records = losses.sum(1) / (targets != IGNORED).sum(1).clamp_min(1)
    sizes = torch.bincount(layout.unit, minlength=layout.units)
    return torch.zeros_like(records[: layout.units]).index_add(0, layout.unit, records / sizes[layout.unit])


class _TokenLosses(torch.autograd.Function):
    """Cross entropy of each token (B, L), zero at ignored targets, from logits (B, L, V).

    As F.cross_entropy, but with the gradient formed in the memory of the log-probabilities: of all tensors of a step,
    those over the vocabulary are the largest. For one backward pass only.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        scores = torch.log_softmax(logits, -1, dtype=torch.float32)
        kept = targets != IGNORED
        index = torch.where(kept, targets, 0).unsqueeze(-1)
        ctx.save_for_backward(scores, index, kept)
        ctx.dtype = logits.dtype
        return torch.where(kept, -scores.gather(-1, index).squeeze(-1), 0.0)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, None]:
        scores, index, kept = ctx.saved_tensors
        scale = torch.where(kept, delta, 0.0).unsqueeze(-1)
        gradient = scores.exp_().mul_(scale).scatter_add_(-1, index, -scale)
        return gradient.to(ctx.dtype), None


def _one_pass(
    parts: _Parts, inputs: Tensor, targets: Tensor, layout: Layout, ways: Mapping[str, Way]
) -> tuple[dict[str, UnitGradients], Tensor]:
    """Each parameter's gradients of all units, and the losses (U,).

    Autograd's own gradients of the parameters are off: the pass back brings the deltas only.
    """
    workspace = _WORKSPACES.setdefault(parts.model, Workspace())
    looked_up = {id(layer.weight) for _, layer, rule in parts.layers if rule is not None and rule.weight == "rows"}
    gradients = {
        name: hold(name, p, ways[name], layout, workspace, looked_up=id(p) in looked_up)
        for name, p in parts.trainable.items()
    }
    by_parameter = {id(p): gradients[name] for name, p in parts.trainable.items()}

    def found(parameter: nn.Parameter, use: Use) -> None:
        by_parameter[id(parameter)].add(use)

    anchor = torch.zeros((), device=inputs.device, requires_grad=True)
    records, positions = inputs.shape
    handles: list[RemovableHandle] = []
    try:
        for name, layer, rule in parts.layers:
            if rule is None:
                raise NoRule(f"layer '{name}' ({type(layer).__name__}) has no rule")
            handles.append(watch(layer, rule, name, records, positions, anchor, found))
        with _without_gradients(parts.trainable), torch.enable_grad():
            losses = _unit_losses(parts.model, inputs, targets, layout)
            torch.autograd.backward(losses.sum())
    finally:
        for handle in handles:
            handle.remove()
    return gradients, losses.detach()


def _clip(gradients: dict[str, UnitGradients], losses: Tensor, clip_norm: float, clip_kind: ClipKind) -> Found:
    squares: dict[str, Tensor] = {}
    bound = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
    ghosts = {name: g for name, g in gradients.items() if isinstance(g, Deferred) and g.ghost}
    for name, gradient in gradients.items():
        if name in ghosts:
            squares[name], of_tokens = ghosts[name].squares_and_bounds()
            bound += of_tokens
        else:
            squares[name] = gradient.squares()
    shaky = torch.stack(list(squares.values())).sum(0) < CANCELLATION * bound
    if bool(shaky.any()):
        for name, ghost in ghosts.items():
            squares[name] = torch.where(shaky, ghost.exact_squares(shaky), squares[name])
    norms = torch.stack(list(squares.values())).sum(0).sqrt()
    masked = ~(torch.isfinite(norms.float()) & torch.isfinite(losses))
    if bool(masked.any()):
        for gradient in gradients.values():
            gradient.discard(masked)
    weights = _clip_factors(norms, masked, clip_norm, clip_kind)
    return {name: g.weighted_sum(weights) for name, g in gradients.items()}, norms.float(), losses, masked


def _clip_factors(norms: Tensor, masked: Tensor, clip_norm: float, clip_kind: ClipKind) -> Tensor:
    """(U,) float32 factors from float64 norms; zero where masked."""
    match clip_kind:
        case "flat":
            factors = (clip_norm / norms).clamp_max(1.0)
        case "normalised":
            factors = torch.where(norms > ZERO, clip_norm / norms, 0.0)
    return torch.where(masked, 0.0, factors).float()


def _loop(
    parts: _Parts, inputs: Tensor, targets: Tensor, layout: Layout, clip_norm: float, clip_kind: ClipKind
) -> Found:
    """One plain backward pass per unit."""
    total = {name: torch.zeros(p.shape, device=p.device) for name, p in parts.trainable.items()}
    of_units: list[Tensor] = []
    for number in range(layout.units):
        rows = layout.unit == number
        loss, gradients = _plain_gradient(parts, inputs[rows], targets[rows])
        norm = torch.stack([torch.linalg.vector_norm(g.double()) for g in gradients]).square().sum().sqrt()
        masked = ~(torch.isfinite(norm.float()) & torch.isfinite(loss))
        factor = _clip_factors(norm, masked, clip_norm, clip_kind)
        for summed, gradient in zip(total.values(), gradients, strict=True):
            summed += torch.where(masked, 0.0, gradient * factor)
        of_units.append(torch.stack([norm, loss.double(), masked.double()]))
    norms, losses, bad = torch.stack(of_units, 1).float()
    return total, norms, losses, bad > 0


def _plain_gradient(parts: _Parts, inputs: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Loss and float32 gradients of one unit, by autograd alone."""
    asked = (targets != IGNORED).any(0).nonzero()
    longest = int(asked.max()) + 1 if len(asked) else 1
    one = lay_out(torch.zeros(len(inputs), dtype=torch.long, device=inputs.device), 1)
    parameters = list(parts.trainable.values())
    before = [p.grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            loss = _unit_losses(parts.model, inputs[:, :longest], targets[:, :longest], one)[0]
            torch.autograd.backward(loss)  # not autograd.grad, which reentrant checkpointing refuses
        return loss.detach(), [
            torch.zeros(p.shape, device=p.device) if p.grad is None else p.grad.float() for p in parameters
        ]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


_WORKSPACES: "weakref.WeakKeyDictionary[nn.Module, Workspace]" = weakref.WeakKeyDictionary()
_CHECKED: "weakref.WeakKeyDictionary[nn.Module, dict[object, str | None]]" = weakref.WeakKeyDictionary()


def _why_not_rules(parts: _Parts, inputs: Tensor, targets: Tensor) -> str | None:
    """Why the one-pass engines cannot be used on this model, or None; found out once for each set of parameters.

    The rules are tried on two records, of which the first is given weight one and the second zero: the result must be
    plain autograd's gradient of the first record alone. That catches what no rule can see: a parameter that is used
    outside its layer, a layer that is used in another way than its type says, and records that influence each other.

    Raises:
        InputError: a record's loss depends on the other records of its batch.
    """
    autocast = torch.is_autocast_enabled(inputs.device.type)
    checkpointed = any(getattr(m, "gradient_checkpointing", False) for m in parts.modules)
    key = (tuple((name, id(p)) for name, p in parts.trainable.items()), autocast, checkpointed)
    known = _CHECKED.setdefault(parts.model, {})
    if key in known:
        return known[key]
    row = int((targets[:, :PROBE_POSITIONS] != IGNORED).sum(1).argmax())
    inputs, targets = inputs[row, :PROBE_POSITIONS], targets[row, :PROBE_POSITIONS]
    loss, expected = _plain_gradient(parts, inputs[None], targets[None])
    if not bool(torch.isfinite(loss)) or not any(bool(g.any()) for g in expected):
        return "this batch has no record with a finite gradient that is not zero, to try the rules on"
    half = autocast or any(p.dtype != torch.float32 for p in parts.trainable.values())
    pair = lay_out(torch.arange(2, device=inputs.device), 2)
    other = torch.where(inputs == inputs.flip(0), (inputs == 0).long(), inputs.flip(0))  # differs somewhere, at least
    both, answers = torch.stack([inputs, other]), torch.stack([targets, targets])
    with torch.enable_grad():  # reentrant checkpointing warns without
        beside = _unit_losses(parts.model, both, answers, pair)[0].detach()
    if abs(float(beside - loss)) > (3e-2 if half else 1e-3) * max(1.0, abs(float(loss))):
        raise InputError("the model mixes the records of a batch, so that no user has a gradient of their own")
    try:
        gradients, _ = _one_pass(parts, both, answers, pair, _ways(parts, pair, len(inputs), "materialise", None))
        first = torch.tensor([1.0, 0.0], device=inputs.device)
        with torch.autocast(inputs.device.type, enabled=False):
            for gradient in gradients.values():
                gradient.squares()
            known[key] = _difference(expected, {n: g.weighted_sum(first) for n, g in gradients.items()}, half=half)
    except torch.OutOfMemoryError:
        raise
    except (NoRule, RuntimeError) as error:  # autograd's own, such as of a layer that writes into another's output
        known[key] = str(error).splitlines()[0]
    return known[key]


def _difference(expected: list[Tensor], found: dict[str, Tensor], *, half: bool) -> str | None:
    whole = math.sqrt(sum(float(g.double().square().sum()) for g in expected))
    share, floor = (1e-1, 1e-2) if half else (1e-3, 1e-4)
    for (name, gradient), plain in zip(found.items(), expected, strict=True):
        if float((gradient - plain).norm()) > share * max(float(plain.norm()), floor * whole):
            return f"the rules for '{name}' do not give the gradient that autograd gives"
    return None


def _ways(parts: _Parts, layout: Layout, positions: int, engine: Engine, budget: int | None) -> dict[str, Way]:
    """How each parameter's gradients are held: "rows" where it is only looked up, "total" where it is a vector."""
    kinds: dict[int, set[str]] = {}
    for _, layer, rule in parts.layers:
        for key, parameter in layer._parameters.items():
            if rule is not None and parameter is not None:
                kinds.setdefault(id(parameter), set()).add(rule.weight if key == "weight" else "total")
    ways: dict[str, Way] = {}
    for name, parameter in parts.trainable.items():
        kind = kinds.get(id(parameter), {"total"})
        ways[name] = "materialise" if "product" in kind else "rows" if "rows" in kind else "total"
    matrices = {name: parts.trainable[name].shape for name, way in ways.items() if way == "materialise"}
    if engine == "auto":
        device = next(iter(parts.trainable.values())).device
        return {**ways, **choose_ways(matrices, layout, positions, device, budget)}
    return {**ways, **dict.fromkeys(matrices, "ghost")} if engine == "ghost" else ways


def _spread(values: Tensor, layout: Layout, units: int) -> Tensor:
    """Values (U,) of the units present, at the caller's unit numbers; zero for units without records."""
    out = torch.zeros(units, dtype=values.dtype, device=values.device)
    out[layout.present] = values
    return out


def _nothing(parts: _Parts, units: Units) -> ClippedSum:
    zeros = torch.zeros(units.units, device=units.inputs.device)
    gradients = {name: torch.zeros(p.shape, device=p.device) for name, p in parts.trainable.items()}
    return ClippedSum(gradients, zeros, zeros.clone(), zeros > 0, "no records")


def release_workspace(model: nn.Module) -> None:
    """Give back the memory that kept gradients of this model took; a later call takes it anew."""
    _WORKSPACES.pop(model, None)


@contextlib.contextmanager
def _evaluating(parts: _Parts) -> Iterator[bool]:
    """The model as in evaluation, but for gradient checkpointing, which needs training mode; yields: dropout was on."""
    before = [m for m in parts.modules if m.training]
    checkpointed = [m for m in before if getattr(m, "gradient_checkpointing", False)]
    for module in checkpointed:
        if (dropped := _dropout(module)) is not None:
            raise InputError(
                f"gradient checkpointing needs training mode, in which {type(module).__name__} has {dropped}: load the"
                " model with its dropout set to 0"
            )
    dropout = any(_dropout(m) is not None for m in before)
    try:
        for module in before:
            module.training = False
        for module in checkpointed:
            module.training = True
        yield dropout
    finally:
        for module in before:
            module.training = True


def _dropout(module: nn.Module) -> str | None:
    """The module's own positive dropout probability, as 'name value', or None."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return f"dropout {module.p}" if module.p > 0 else None
    own = ((key, value) for key, value in vars(module).items() if "drop" in key and isinstance(value, float))
    return next((f"{key} {value}" for key, value in own if value > 0), None)


@contextlib.contextmanager
def _without_gradients(trainable: dict[str, nn.Parameter]) -> Iterator[None]:
    try:
        for parameter in trainable.values():
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable.values():
            parameter.requires_grad_(True)
