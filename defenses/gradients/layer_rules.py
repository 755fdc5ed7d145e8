"""Rules, one for each layer type, that give each unit's gradient from each use of a layer in a pass.

A linear layer that maps a to y adds to a unit's gradient the sum over its tokens of (dl/dy)^T a. An embedding adds
dl/dy to the rows that were looked up. A bias or a norm's scale adds a sum over tokens. The layer's input (kept by a
forward hook) and dl/dy are enough for all of these sums (Goodfellow 2015; book-keeping of Bu et al. 2023,
"Differentially Private Optimization on Large Model at Small Cost", Algorithm 1). So one forward and one backward pass
over all units are enough.

Axes: B records of the batch, U units, T tokens of one unit (its records x positions), M x N a weight, V rows of an
embedding, d its width, ``...`` any positions.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from heldin.models.devices import moved


class NoRule(Exception):
    """No rule covers this use of a layer. The message names the layer and the use."""


@dataclass(frozen=True)
class Product:
    """Adds left^T right over a unit's tokens. left: (B, ..., M), right: (B, ..., N), weight: (M, N)."""

    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Rows:
    """Adds each token's value to one row of the weight. ids: (B, ...), values: (B, ..., d), weight: (V, d)."""

    ids: Tensor
    values: Tensor


@dataclass(frozen=True)
class Total:
    """Adds the sum of the values over a unit's tokens. values: (B, ..., d), parameter: (d,)."""

    values: Tensor


@dataclass(frozen=True)
class UnitBlock:
    """A run of units with equal numbers of records.

    Attributes:
        start: index of the run's first record in the batch.
        rows: number of records per unit.
        last: end of the units (exclusive).
    """

    start: int
    rows: int
    first: int
    last: int

    @property
    def units(self) -> int:
        """Number of units."""
        return self.last - self.first

    def tokens(self, x: Tensor) -> Tensor:
        """Return the block's part of x (B, ..., n), shape (units, T, n)."""
        records = self.units * self.rows
        part = x if records == x.shape[0] else x[self.start : self.start + records]
        return part.reshape(self.units, -1, x.shape[-1])

    def pieces(self, floats_per_unit: int, most: int) -> Iterator["UnitBlock"]:
        """Yield pieces of the block. Each needs at most ``most`` floats, but has at least one unit."""
        size = max(1, most // max(1, floats_per_unit))
        for first in range(self.first, self.last, size):
            start = self.start + (first - self.first) * self.rows
            yield UnitBlock(start, self.rows, first, min(first + size, self.last))


@dataclass(frozen=True)
class RecordLayout:
    """An order of the records.

    Each unit's records are contiguous, and units with equal numbers of records are adjacent.

    Attributes:
        order: the caller's row of each record, (B,), on the CPU.
        unit: unit of each record, (B,). The units have the numbers 0, 1, ... in this order, not the caller's numbers.
        present: the caller's number of each unit, (U,); units without records are left out.
        sizes: number of records of each unit, (U,).
        blocks: the runs of units with equal numbers of records.
    """

    order: Tensor
    unit: Tensor
    present: Tensor
    sizes: Tensor
    blocks: tuple[UnitBlock, ...]

    @property
    def units(self) -> int:
        """The number U of units with records."""
        return len(self.present)


def lay_out(unit: Tensor, units: int, device: torch.device) -> RecordLayout:
    """Return the layout for the records' unit numbers (B,), for passes on this device."""
    # On the CPU: runs are found by looking at the numbers, for which a GPU would have to be waited for.
    unit = unit.cpu()
    counts = torch.bincount(unit, minlength=units)
    by_count = torch.argsort(counts, stable=True)
    # Units without records come first in this order and get negative ranks, which no record refers to.
    present = by_count[int((counts == 0).sum()) :]
    rank = torch.empty_like(by_count)
    rank[by_count] = torch.arange(-(units - len(present)), len(present))
    order = torch.argsort(rank[unit], stable=True)
    blocks: list[UnitBlock] = []
    start = first = 0
    sizes, numbers = torch.unique_consecutive(counts[present], return_counts=True)
    for rows, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        blocks.append(UnitBlock(start, rows, first, first + number))
        start, first = start + rows * number, first + number
    of_records, there, sizes = (moved(tensor, device) for tensor in (rank[unit][order], present, counts[present]))
    return RecordLayout(order, of_records, there, sizes, tuple(blocks))


def one_unit(records: int, device: torch.device) -> RecordLayout:
    """Return the layout of one unit with ``records`` records.

    The function makes the layout on the device, without a copy to the device.
    """
    unit, first = torch.zeros(records, dtype=torch.long, device=device), torch.zeros(1, dtype=torch.long, device=device)
    size = torch.full((1,), records, device=device)
    return RecordLayout(torch.arange(records), unit, first, size, (UnitBlock(0, records, 0, 1),))


Use = Product | Rows | Total
Uses = Iterator[tuple[str, Use]]


@dataclass(frozen=True)
class LayerRule:
    """The rule for the gradients of one layer type.

    Attributes:
        read: function from (layer, arguments, keyword arguments) to the values that ``uses`` needs from the forward
            pass.
        uses: function from (layer, values of ``read``, dl/dy) to pairs (parameter name in the layer, its use).
        weight: kind of the use that ``uses`` yields for ``weight``: "product" or "rows"; "total" if there is no matrix.
    """

    read: Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], Tensor]
    uses: Callable[[Any, Tensor, Tensor], Uses]
    weight: str


def rule_of(layer: nn.Module) -> LayerRule | None:
    """Return the rule for a layer's own parameters; None if there is no rule."""
    # By the forward function, not by class: a subclass with its own forward does not inherit the rule.
    # A function that computes what one of torch does, but for rounding, names it (``models.attention.AlignedHead``).
    forward = getattr(type(layer).forward, "computes", type(layer).forward)
    if forward is nn.Linear.forward:
        return LayerRule(_first, _linear, "product")
    if forward is Conv1D.forward:
        return LayerRule(_first, _conv1d, "product")
    if forward is nn.LayerNorm.forward and len(layer.normalized_shape) == 1:  # type: ignore[arg-type]
        return LayerRule(_first, _layer_norm, "total")
    # ``max_norm`` rewrites the weight in the forward pass, and ``scale_grad_by_freq`` divides by counts over the whole
    # batch, which makes one unit's gradient depend on the others'.
    if isinstance(layer, nn.Embedding) and layer.max_norm is None and not layer.scale_grad_by_freq:
        if forward is nn.Embedding.forward:
            return LayerRule(_first, _embedding, "rows")
        if type(layer).__name__ == "OPTLearnedPositionalEmbedding":
            return LayerRule(_opt_positions, _embedding, "rows")
    if _is_rms_norm(layer):
        return LayerRule(_first, _rms_norm, "total")
    return None


def watch(
    layer: nn.Module,
    rule: LayerRule,
    name: str,
    trainable: Mapping[str, nn.Parameter],
    records: int,
    positions: int,
    anchor: Tensor,
    report: Callable[[nn.Parameter, Use], None],
) -> torch.utils.hooks.RemovableHandle:
    """Report every use of the layer's trainable parameters to ``report`` during the backward pass.

    Args:
        trainable: the layer's reported parameters, by their names in the layer.
        records: number B of records.
        anchor: a scalar that requires a gradient, so the graph begins at the first trainable layer.
        report: called with (parameter, use).

    Raises:
        NoRule: during the forward pass, if the output's first dimension is not the records.
    """

    def arrived(read: Tensor, delta: Tensor) -> None:
        if len(delta) != records:
            read, delta = (x.reshape(records, positions, x.shape[-1]) for x in (read, delta))  # (B L, n) -> (B, L, n)
        device = delta.device.type
        autocast = torch.is_autocast_enabled(device)
        # Under autocast the products over tokens would be made in half precision.
        with torch.autocast(device, enabled=False) if autocast else contextlib.nullcontext():
            for key, use in rule.uses(layer, read, delta):
                if key in trainable:
                    report(trainable[key], use)

    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        read = rule.read(layer, args, kwargs).detach()
        # Position embeddings that were looked up once for all records are expanded to the records: otherwise their
        # gradient arrives summed over the batch, and no unit's norm can be known.
        if rule.weight == "rows" and output.dim() == 3 and output.shape[0] == 1 != records:
            output, read = output.expand(records, -1, -1), read.expand(records, -1)
        folded = output.dim() == 2 and output.shape[0] == records * positions  # as OPT's feed-forward layers
        if output.dim() < 2 or not (output.shape[0] == records or folded):
            shape = tuple(output.shape)
            raise NoRule(
                f"layer '{name}' returns a tensor of shape {shape}, whose first dimension is not the number of records"
            )
        if read.is_floating_point():
            read = read.to(output.dtype)  # under autocast: what the layer multiplied
        # The input is kept in autograd's graph, so that gradient checkpointing drops and recomputes it like any other
        # activation.
        tapped: Tensor = _Tap.apply(output, anchor, read, arrived)  # type: ignore[no-untyped-call]
        return tapped

    return layer.register_forward_hook(hook, with_kwargs=True)


class _Tap(torch.autograd.Function):
    """The identity function. In the backward pass, it reports the kept values and the gradient."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, read: Tensor, arrived: Callable[[Tensor, Tensor], None]
    ) -> Tensor:
        ctx.save_for_backward(read)
        ctx.arrived = arrived
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, None, None, None]:
        ctx.arrived(*ctx.saved_tensors, delta)
        # None at the first trainable layer, before which nothing needs a gradient.
        return (delta if ctx.needs_input_grad[0] else None), None, None, None


def _first(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    value = args[0] if args else next(iter(kwargs.values()))
    assert isinstance(value, Tensor)
    return value


def _opt_positions(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    ids = kwargs.get("position_ids", args[2] if len(args) > 2 else None)
    if not isinstance(ids, Tensor):
        raise NoRule("OPT's position embedding was called without position ids")
    offset: int = layer.offset  # type: ignore[assignment]
    return torch.add(ids, offset)


def _linear(layer: nn.Module, read: Tensor, delta: Tensor) -> Uses:
    yield "weight", Product(delta, read)
    if layer.bias is not None:
        yield "bias", Total(delta)


def _conv1d(layer: nn.Module, read: Tensor, delta: Tensor) -> Uses:
    yield "weight", Product(read, delta)  # (in, out), where nn.Linear has (out, in)
    yield "bias", Total(delta)


def _embedding(layer: nn.Embedding, read: Tensor, delta: Tensor) -> Uses:
    if layer.padding_idx is not None:  # as in torch, a look-up never trains that row
        delta = torch.where((read == layer.padding_idx).unsqueeze(-1), 0.0, delta)
    yield "weight", Rows(read, delta)


def _layer_norm(layer: nn.LayerNorm, read: Tensor, delta: Tensor) -> Uses:
    if layer.weight is not None:
        yield "weight", Total(delta * F.layer_norm(read.float(), layer.normalized_shape, None, None, layer.eps))
    if layer.bias is not None:
        yield "bias", Total(delta)


def _rms_norm(layer: nn.Module, read: Tensor, delta: Tensor) -> Uses:
    yield "weight", Total(delta * _rms_normalised(layer, read))


def _rms_normalised(layer: nn.Module, x: Tensor) -> Tensor:
    epsilon = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    # Without an epsilon torch takes that of the input's type, not of the float32 copy.
    return F.rms_norm(x.float(), x.shape[-1:], None, torch.finfo(x.dtype).eps if epsilon is None else float(epsilon))


_RMS_NORMS: dict[type[nn.Module], bool] = {}


def _is_rms_norm(layer: nn.Module) -> bool:
    """Return whether the layer computes w * x / rms(x), or (1 + w) instead of w as in Gemma."""
    # Each model of transformers has its own class for it, so each type is tried once rather than known by name.
    weight = getattr(layer, "weight", None)
    if not type(layer).__name__.endswith("RMSNorm") or not isinstance(weight, nn.Parameter) or weight.dim() != 1:
        return False
    if type(layer) not in _RMS_NORMS:
        generator = torch.Generator().manual_seed(0)
        x, w = torch.randn(5, len(weight), generator=generator).to(weight.device).tensor_split([4])
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            try:
                output = torch.func.functional_call(layer, {"weight": w[0].to(weight.dtype)}, (x.to(weight.dtype),))
            # A forward of another signature or shape: NaN is close to nothing, so that there is no rule.
            except (TypeError, RuntimeError):
                output = torch.full_like(x, torch.nan)
            expected = _rms_normalised(layer, x.to(weight.dtype))
        tolerance = 1e-4 if weight.dtype == torch.float32 else 3e-2
        _RMS_NORMS[type(layer)] = any(
            torch.allclose(output.float(), scale * expected, rtol=tolerance, atol=tolerance) for scale in (w, 1 + w)
        )
    return _RMS_NORMS[type(layer)] and len(list(layer.parameters())) == 1
