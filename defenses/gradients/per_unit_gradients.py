"""The sum of the clipped gradients of a batch's privacy units, which DP training releases with added noise.

``clipped_gradient_sum`` guarantees the following:

* a unit's loss is the mean over its records of the record's mean loss over its tokens. The unit's gradient is the full
  gradient of this loss: every trainable tensor, a tied one once, as the sum of its uses, with position embeddings;
* apart from rounding, a unit's norm and contribution do not depend on the other units of the batch, on padding or on
  the order of the records; the norm of the contribution is at most the clip norm, to within 1e-4 of the clip norm;
* the norm is computed from the numbers that are summed: float32 gradients, in any precision of the pass;
* sums over batches of whole units add up to the sum over all units; a unit must never be split over two calls;
* products of float32 matrices are computed in float32, even if the environment allows TF32.

| unit | contribution |
|---|---|
| without records, or without any target | zero, loss 0 |
| with a loss, gradient or squared norm that is not finite | zero, by masking; marked in ``masked`` |
| with a gradient of zero | zero |

On a model's first batch, heldin compares the layer rules with plain autograd, one unit at a time.

The source of the clipping is Abadi et al. 2016, and of units with several records Charles et al. 2024, Algorithm 2.
"""

import functools
import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor, nn

from heldin.base.errors import InputError
from heldin.defenses.choices import LEAST_CLIP_NORM
from heldin.defenses.gradients.engine_choice import in_words, unit_by_unit
from heldin.defenses.gradients.held_gradients import Deferred, Sums, UnitGradients, norm_of_all
from heldin.defenses.gradients.layer_rules import NoRule, RecordLayout, lay_out, one_unit
from heldin.defenses.gradients.model_parts import (
    Parts,
    evaluating,
    even_width,
    take_apart,
    unit_losses,
)
from heldin.defenses.gradients.one_pass import Engine, one_pass, ways_of
from heldin.models.arithmetic import true_float32
from heldin.models.devices import is_out_of_memory
from heldin.models.objective import LANGUAGE_MODELLING, Objective, TokenBatch
from heldin.models.repeated import copied_sums, is_short, records, repeated, sums_of_recorded, without_compiling
from heldin.models.tokens import IGNORED

# A ghost norm's square is off by about 4 * 2^-24 of the square of the summed norms of its tokens; below this share of
# it, the norm may be off by 1e-4 and is computed again from the gradient itself.
CANCELLATION = 1.2e-3
PROBE_POSITIONS = 32  # of one record, so that the probe is cheap

_CHECKED: "weakref.WeakKeyDictionary[nn.Module, dict[object, str | None]]" = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class UnitBatch:
    """One micro-batch of whole units, on any device. If ``unit`` is on the CPU, a GPU pass need not wait for it.

    Attributes:
        inputs: token ids, (B, L), one record per row, padded on the right. A record with two compared answers has two
            rows.
        targets: token ids, (B, L), -100 if there is no target.
        unit: unit number 0..U-1 of each row, (B,), in any order; the rows of a record are consecutive.
        units: number U of units.
        reference: the field of ``TokenBatch`` with this name; None: zeros.
        objective: the field of ``TokenBatch`` with this name.
    """

    inputs: Tensor
    targets: Tensor
    unit: Tensor
    units: int
    reference: Tensor | None = None
    objective: Objective = LANGUAGE_MODELLING

    @classmethod
    def of(cls, batch: TokenBatch, unit: Tensor, units: int) -> "UnitBatch":
        """Return a batch with its units."""
        return cls(batch.inputs, batch.targets, unit, units, batch.reference, batch.objective)

    @property
    def batch(self) -> TokenBatch:
        """Return the rows of all units."""
        reference = torch.zeros(len(self.inputs)) if self.reference is None else self.reference
        return TokenBatch(self.inputs, self.targets, reference, self.objective)

    def __post_init__(self) -> None:
        if self.inputs.dim() != 2 or self.targets.shape != self.inputs.shape:
            raise InputError(
                f"inputs {tuple(self.inputs.shape)} and targets {tuple(self.targets.shape)} must have the same shape:"
                " (records, positions)"
            )
        if self.unit.shape != self.inputs.shape[:1]:
            raise InputError(
                f"{len(self.inputs)} records, but unit numbers of shape {tuple(self.unit.shape)}: give one unit"
                " number per record"
            )
        if len(self.unit) and not 0 <= int(self.unit.min()) <= int(self.unit.max()) < self.units:
            raise InputError(f"unit numbers must be from 0 to {self.units - 1}")


@dataclass(frozen=True)
class ClippedSum:
    """The contribution of a batch.

    Attributes:
        gradients: for each parameter name, the sum of the units' clipped gradients, float32.
        norms: norms of the units before clipping, (U,), float32.
        losses: losses of the units, (U,), float32.
        masked: marks, (U,), of the units that were not finite and contribute zero.
        engine: the engine that computed the sum.
        notice: note for the user, such as the reason for a slower engine; None if there is no note.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    losses: Tensor
    masked: Tensor
    engine: str
    notice: str | None = None


def clipped_gradient_sum(
    model: nn.Module,
    units: UnitBatch,
    *,
    clip_norm: float,
    engine: Engine = "auto",
    memory_budget: int | None = None,
    most_records: int | None = None,
    parts: Parts | None = None,
    onto: Sums | None = None,
) -> ClippedSum:
    """Return the sum of the units' clipped gradients, with the guarantees in the module docstring.

    One forward and one backward pass cover all records. The model runs in evaluation mode, so dropout is off. The
    caller decides about autocast. The norm and the sum ignore parameters that require no gradient. The function changes
    no ``.grad``.

    Args:
        model: a causal language model; model(input_ids=, use_cache=False).logits has shape (B, L, V).
        clip_norm: C; a gradient is multiplied by min(1, C / norm). ``math.inf`` does not clip.
        engine: "auto" takes the fastest way of ``engine_choice`` for each weight matrix. "materialise" and "ghost" each
            take one way for all matrices. "loop" does one backward pass per unit; "auto" also does this if
            ``unit_by_unit`` finds it faster. If a trainable parameter has no rule, or the rules fail their check
            against plain autograd, the engine is "loop", and ``notice`` gives the reason.
        memory_budget: bytes that kept gradients may take under "auto"; None: the default of ``choose_ways``.
        most_records: maximum number of records in one forward pass. If a unit has more records, every engine computes
            the units one by one, in several passes each. None: every unit fits.
        parts: ``take_apart(model)``, to share over several calls; None computes it.
        onto: ``gradients`` of an earlier call, to which this call adds its gradients in place; None: there is no
            earlier call.

    Raises:
        InputError: the clip norm is below ``LEAST_CLIP_NORM``, nothing is trainable, or the model mixes records.
    """
    if not clip_norm >= LEAST_CLIP_NORM:
        raise InputError(f"clip norm is {clip_norm}: give at least {LEAST_CLIP_NORM:g}")
    if engine not in get_args(Engine):
        raise InputError(f"unknown engine '{engine}': choose from {', '.join(get_args(Engine))}")
    parts = parts or take_apart(model)
    if not len(units.inputs):
        return _nothing(parts, units, onto)
    # From here on records stand unit by unit; ``_spread`` puts the results back in the caller's order.
    device, clip = parts.device, _Clip(clip_norm, onto)
    layout = lay_out(units.unit, units.units, device)
    batch = units.batch.rows(layout.order)
    most_rows = None if most_records is None else most_records * batch.objective.rows
    why: str | None = None
    with evaluating(parts) as dropout_off, true_float32():
        if engine == "loop" or (most_rows is not None and layout.blocks[-1].rows > most_rows):
            ways, used = None, "loop" if engine == "loop" else f"{engine}: unit by unit"
        elif (why := why_not_rules(parts, batch.inputs, batch.targets)) is not None:
            ways, used = None, "loop"
        else:
            positions = batch.inputs.shape[1]
            ways = ways_of(parts, layout, positions, engine, memory_budget)
            used = in_words(engine, ways)
            weights = sum(parameter.numel() for parameter in parts.trainable.values())
            recorded = records(parts.model, parts.modules, parts.trainable)
            if engine == "auto" and unit_by_unit(ways, weights, layout, positions, device, recorded):
                ways, used = None, "auto: unit by unit"
        if ways is None:
            result = _loop(parts, batch, layout, clip, most_rows)
        else:
            gradients, losses = one_pass(parts, batch.at(device), layout, ways)
            with torch.autocast(device.type, enabled=False):  # or the sum would be in half precision
                result = _clipped(gradients, losses, clip)
    notices = (["dropout is off"] if dropout_off else []) + ([f"one backward pass per unit: {why}"] if why else [])
    total, norms, losses, masked = result
    return ClippedSum(
        gradients={name: total[name] for name in parts.trainable},
        norms=_spread(norms, layout, units.units),
        losses=_spread(losses, layout, units.units),
        masked=_spread(masked, layout, units.units),
        engine=used,
        notice="; ".join(notices) or None,
    )


Found = tuple[Sums, Tensor, Tensor, Tensor]  # sums, norms (U,), losses (U,), masked (U,)


@dataclass(frozen=True)
class _Clip:
    """The arguments ``clip_norm`` and ``onto`` of ``clipped_gradient_sum``."""

    norm: float
    onto: Sums | None


def _clipped(gradients: Sequence[UnitGradients], losses: Tensor, clip: _Clip) -> Found:
    norms = _norms(gradients, torch.zeros(len(losses), 0, device=losses.device))
    # In float32, as reported: a finite float64 norm that overflows there counts as not finite.
    masked = ~(torch.isfinite(norms.float()) & torch.isfinite(losses))
    if bool(masked.any()):
        for gradient in gradients:
            gradient.discard(masked)  # a weight of zero would not do: zero times NaN is NaN
    weights = clip_factors(norms, masked, clip.norm)
    sums = {name: total for gradient in gradients for name, total in gradient.weighted_sums(weights, clip.onto).items()}
    return sums, norms.float(), losses, masked


def _norms(gradients: Sequence[UnitGradients], none: Tensor) -> Tensor:
    """Return the norms over all parameters, (U,), float64. ``none``, (U, 0), stands for no parameter."""
    ghosts = [gradient for gradient in gradients if isinstance(gradient, Deferred) and gradient.ghost]
    others = [gradient.norms() for gradient in gradients if gradient not in ghosts]
    squares = torch.cat([*others, none], 1).double().square().sum(1)
    if ghosts:
        estimates = [ghost.squares_and_bounds() for ghost in ghosts]
        of_ghosts, bounds = (torch.stack(column).sum(0) for column in zip(*estimates, strict=True))
        # A norm that is too small by cancellation would let a unit contribute more than C: these are computed again.
        shaky = squares + of_ghosts < CANCELLATION * bounds
        if bool(shaky.any()):
            exact = torch.stack([ghost.taken_again(shaky) for ghost in ghosts]).sum(0)
            of_ghosts = torch.where(shaky, exact, of_ghosts)
        squares = squares + of_ghosts
    return squares.sqrt()


def clip_factors(norms: Tensor, masked: Tensor, clip_norm: float | Tensor) -> Tensor:
    """Return the factors for the units' gradients, (U,), float32.

    Args:
        norms: norms of the units, (U,), float64.
        masked: marks, (U,), of the units whose factor is zero.
    """
    factors = (clip_norm / norms).clamp_max(1.0)  # a norm of zero gives infinity, and so 1
    # A factor that float32 holds with fewer digits could be rounded up, by a tenth and more.
    lost = factors < torch.finfo(torch.float32).tiny
    return torch.where(masked | lost, 0.0, factors).float()


def _loop(parts: Parts, batch: TokenBatch, layout: RecordLayout, clip: _Clip, most_rows: int | None) -> Found:
    """Compute plain backward passes, one unit after the other."""
    starts = [start for b in layout.blocks for start in range(b.start, b.start + b.units * b.rows, b.rows)]
    of_units = [
        _without_padding(batch.rows(slice(start, end))) for start, end in itertools.pairwise([*starts, len(batch)])
    ]
    short = is_short(parts.model, min(unit.inputs.numel() for unit in of_units))
    recorded = short and records(parts.model, parts.modules, parts.trainable)
    total = clip.onto if clip.onto is not None or recorded else _zeros(parts)
    sums = sums_of_recorded(parts.model, parts.trainable) if recorded else total
    assert sums is not None

    # A tensor, so that passes are recorded once where the clip norm changes from step to step.
    clip_norm = torch.full((), clip.norm, dtype=torch.float64, device=parts.device)

    def add_unit(inputs: Tensor, targets: Tensor, reference: Tensor, clip_norm: Tensor) -> Tensor:
        loss, gradients = plain_gradient(parts, batch.with_tensors(inputs, targets, reference), most_rows)
        # Over all tensors together: a norm for each would allow sqrt(number of tensors) times C.
        norm = norm_of_all(gradients)
        masked = ~(torch.isfinite(norm.float()) & torch.isfinite(loss))
        _add_scaled(sums, gradients, clip_factors(norm, masked, clip_norm), masked)
        return torch.stack([norm, loss.double(), masked.double()])

    facts = []
    for unit in of_units:
        rows = (even_width(parts.model, unit) if recorded else unit).at(parts.device)
        operands = (*rows.tensors, clip_norm)
        kind = ("unit", most_rows, batch.objective)
        compute = functools.partial(repeated, parts.model, kind, add_unit, operands, recorded=recorded)
        facts.append(without_compiling(compute))
    if total is None:
        total = copied_sums(parts.model, parts.trainable)
    elif recorded:
        torch._foreach_add_([total[name] for name in sums], list(sums.values()))
    norms, losses, bad = torch.stack(facts, 1).float()
    return total, norms, losses, bad > 0


def _add_scaled(total: Sums, gradients: Sequence[Tensor], factor: Tensor, masked: Tensor) -> None:
    """Add the gradients times a factor unless they are masked.

    A factor of zero is no mask, because NaN times 0 is NaN.
    """
    if masked.device.type == "cuda":
        # Adds or does nothing without the host's knowing, in a few kernels.
        sums = [total[name] for name in total]
        skipped = masked.float()
        torch._fused_sgd_(
            sums,
            list(gradients),
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=factor,
            dampening=0.0,
            nesterov=False,
            maximize=True,
            is_first_step=False,
            found_inf=skipped,
        )
    elif not bool(masked):
        for summed, gradient in zip(total.values(), gradients, strict=True):
            summed.addcmul_(gradient, factor)


def _without_padding(unit: TokenBatch) -> TokenBatch:
    """Return a unit's rows (R, L) without the padding for other units.

    The rows stay on the CPU, to avoid waiting for a GPU.
    """
    asked = (unit.targets != IGNORED).any(0).nonzero()
    longest = int(asked.max()) + 1 if len(asked) else 1
    return unit.with_tensors(unit.inputs[:, :longest], unit.targets[:, :longest], unit.reference)


def _spread(values: Tensor, layout: RecordLayout, units: int) -> Tensor:
    """Return the values of the present units at the caller's unit numbers, (U,). Units without records have zero."""
    out = torch.zeros(units, dtype=values.dtype, device=values.device)
    out[layout.present] = values
    return out


def _zeros(parts: Parts) -> Sums:
    return {name: torch.zeros(p.shape, device=p.device) for name, p in parts.trainable.items()}


def _nothing(parts: Parts, units: UnitBatch, onto: Sums | None) -> ClippedSum:
    zeros = torch.zeros(units.units, device=parts.device)
    return ClippedSum(_zeros(parts) if onto is None else onto, zeros, zeros.clone(), zeros > 0, "no records")


def plain_gradient(parts: Parts, unit: TokenBatch, most_rows: int | None = None) -> tuple[Tensor, list[Tensor]]:
    """Return loss and float32 gradients of one unit from plain autograd, on the model's device.

    Args:
        unit: the unit's rows, on the model's device.
        most_rows: maximum number of rows in a forward pass, a multiple of the rows of a record. The gradients of
            several passes are added. None: one pass takes all rows.
    """
    count, device = len(unit), parts.device
    parameters = list(parts.trainable.values())
    # Restored below: accumulated gradients of the caller are not this function's to change.
    before = [p.grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        loss = torch.zeros((), device=device)
        for start in range(0, count, most_rows or count):
            of_pass = unit.rows(slice(start, start + (most_rows or count)))
            with torch.enable_grad():
                part = unit_losses(parts.model, of_pass, one_unit(len(of_pass), device))[0]
                if len(of_pass) < count:
                    # The mean over this pass's records counts as their share of the unit's.
                    part = part * (len(of_pass) / count)
                torch.autograd.backward(part)  # not autograd.grad, which reentrant checkpointing refuses
            loss = loss + part.detach()
        return loss, [torch.zeros(p.shape, device=p.device) if p.grad is None else p.grad.float() for p in parameters]
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def why_not_rules(parts: Parts, inputs: Tensor, targets: Tensor) -> str | None:
    """Return the reason why the one-pass engines do not work on this model, or None. The check runs once per parameter
    set.

    Raises InputError if a record's loss depends on the other records of its batch.
    """
    # The rules are tried on two records, the first with weight one and the second with zero: the result must be plain
    # autograd's gradient of the first record. That catches what no rule can see: a parameter that is used outside its
    # layer, a layer that is not used as its type suggests, and records that influence each other.
    device = parts.device
    autocast = torch.is_autocast_enabled(device.type)
    checkpointed = any(getattr(m, "gradient_checkpointing", False) for m in parts.modules)
    key = (tuple((name, id(p)) for name, p in parts.trainable.items()), autocast, checkpointed)
    # All that decides whether the rules hold, and not the batch, so that the price is paid once.
    known = _CHECKED.setdefault(parts.model, {})
    if key in known:
        return known[key]
    within = (targets[:, :PROBE_POSITIONS] != IGNORED).sum(1)
    row = int(within.argmax())  # the record with the most targets there
    # An encoder's one target stands at the end: then the whole record is tried.
    shown = PROBE_POSITIONS if within[row] else inputs.shape[1]
    inputs, targets = inputs[row, :shown], targets[row, :shown]
    # Rules are of layers, whatever the objective.
    tried = _without_padding(TokenBatch.of(inputs[None], targets[None]))
    loss, expected = plain_gradient(parts, tried.at(device))
    if not bool(torch.isfinite(loss)) or not any(bool(g.any()) for g in expected):
        # Not remembered: the next batch may have one.
        return "no record of this batch has a finite gradient other than zero to test the rules with"
    half = autocast or any(p.dtype != torch.float32 for p in parts.trainable.values())
    pair = lay_out(torch.arange(2), 2, device)
    other = torch.where(inputs == inputs.flip(0), (inputs == 0).long(), inputs.flip(0))  # differs at every position
    both = TokenBatch.of(torch.stack([inputs, other]), torch.stack([targets, targets])).at(device)
    with torch.enable_grad():  # without it, reentrant checkpointing warns
        beside = unit_losses(parts.model, both, pair)[0].detach()
    if abs(float(beside - loss)) > (3e-2 if half else 1e-3) * max(1.0, abs(float(loss))):
        raise InputError(
            "the model mixes the records of a batch, so users have no separate gradients: use a model without such"
            " layers"
        )
    try:
        gradients, _ = one_pass(parts, both, pair, ways_of(parts, pair, len(inputs), "materialise", None))
        first = torch.tensor([1.0, 0.0], device=device)
        with torch.autocast(device.type, enabled=False):
            for gradient in gradients:
                gradient.norms()
            sums = {
                name: total for gradient in gradients for name, total in gradient.weighted_sums(first, None).items()
            }
            known[key] = _difference(expected, {name: sums[name] for name in parts.trainable}, half=half)
    except (NoRule, RuntimeError) as error:  # from autograd, for instance if a layer writes into another's output
        if is_out_of_memory(error):  # says nothing about the rules: the caller retries with fewer records
            raise
        known[key] = str(error).splitlines()[0]
    return known[key]


def _difference(expected: list[Tensor], sums: dict[str, Tensor], *, half: bool) -> str | None:
    whole = math.sqrt(sum(float(g.double().square().sum()) for g in expected))
    # Relative to the tensor's own norm, but not below a share of the whole gradient's: a tensor that hardly counts may
    # consist of rounding.
    share, floor = (1e-1, 1e-2) if half else (1e-3, 1e-4)
    for (name, gradient), plain in zip(sums.items(), expected, strict=True):
        if float((gradient - plain).norm()) > share * max(float(plain.norm()), floor * whole):
            return f"the rules for '{name}' do not give the gradient of autograd"
    return None
