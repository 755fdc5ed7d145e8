"""The parts of a model that per-unit gradients need: layers with trainable parameters, and the loss of each unit."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.gradients.layer_rules import LayerRule, RecordLayout, rule_of
from heldin.models.objective import TokenBatch
from heldin.models.reading import text_config
from heldin.models.repeated import WIDTHS
from heldin.models.tokens import IGNORED


@dataclass(frozen=True)
class Layer:
    """A module with trainable parameters of its own.

    Attributes:
        own: trainable parameters of the module, by their names in the module.
        rule: rule for the gradients of the module; None: there is no rule.
    """

    name: str
    module: nn.Module
    own: dict[str, nn.Parameter]
    rule: LayerRule | None


@dataclass(frozen=True)
class Parts:
    """The parts of a model.

    Attributes:
        layers: layers with trainable parameters of their own.
        trainable: trainable parameters by name; tied parameters occur once.
        dropping: pairs (module, its dropout as "name value"), for modules with active or inactive dropout.
    """

    model: nn.Module
    modules: tuple[nn.Module, ...]
    layers: tuple[Layer, ...]
    trainable: dict[str, nn.Parameter]
    dropping: tuple[tuple[nn.Module, str], ...]

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(iter(self.trainable.values())).device


def take_apart(model: nn.Module) -> Parts:
    """Return the parts of a model. Raises InputError for a batch norm, or if nothing is trainable."""
    named = list(model.named_modules())
    trainable: dict[str, nn.Parameter] = {}
    layers = []
    seen: set[int] = set()
    for name, module in named:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"layer '{name}' ({type(module).__name__}) mixes the records of a batch, so users have no separate"
                " gradients: replace it with a layer norm or group norm"
            )
        # The root module has no name, and its own parameters no dot.
        own = {key: p for key, p in module._parameters.items() if p is not None and p.requires_grad}
        if own:
            layers.append(Layer(name, module, own, rule_of(module)))
        # A tied weight under its first name only: under both, it would enter the norm twice.
        trainable.update((f"{name}.{key}".lstrip("."), p) for key, p in own.items() if id(p) not in seen)
        seen.update(id(p) for p in own.values())
    if not trainable:
        raise InputError("the model has no trainable parameter: unfreeze a layer")
    modules = tuple(module for _, module in named)
    dropping = tuple((module, how) for module in modules if (how := _dropout(module)) is not None)
    return Parts(model, modules, tuple(layers), trainable, dropping)


def unit_losses(model: nn.Module, batch: TokenBatch, layout: RecordLayout) -> Tensor:
    """Return the units' losses, shape (U,). Each is a mean over the unit's own records only."""
    # Every row has the loss of its record, and every record equally many rows.
    rows = batch.losses(model, once=True)
    return torch.zeros_like(rows[: layout.units]).index_add(0, layout.unit, rows / layout.sizes[layout.unit])


def even_width(model: nn.Module, batch: TokenBatch) -> TokenBatch:
    """Pad the batch on the right to a multiple of ``WIDTHS``, or to the model's context if the context is known and
    shorter."""
    inputs, targets, reference = batch.tensors
    width = inputs.shape[1]
    config = getattr(model, "config", None)
    context = width if config is None else getattr(text_config(config), "max_position_embeddings", width)
    more = min(-(-width // WIDTHS) * WIDTHS, max(context, width)) - width
    if not more:
        return batch
    padding = inputs[:, :1].expand(-1, more)  # any id would do, as in ``collate``
    return batch.with_tensors(torch.cat([inputs, padding], 1), F.pad(targets, (0, more), value=IGNORED), reference)


@contextlib.contextmanager
def evaluating(parts: Parts) -> Iterator[bool]:
    """Put the model into evaluation mode, except for gradient checkpointing. Yields whether dropout was on."""
    before = [m for m in parts.modules if m.training]
    checkpointed = [m for m in before if getattr(m, "gradient_checkpointing", False)]
    # transformers checkpoints activations only in training mode, so its modules stay there and must have no dropout.
    for module, how in parts.dropping:
        if module in checkpointed:
            raise InputError(
                f"gradient checkpointing needs training mode, in which {type(module).__name__} has {how}: load the"
                " model with dropout 0"
            )
    dropout = any(module.training for module, _ in parts.dropping)
    try:
        _train(before, on=False)
        _train(checkpointed, on=True)
        yield dropout
    finally:
        _train(before, on=True)


def _train(modules: Sequence[nn.Module], *, on: bool) -> None:
    for module in modules:
        # Past nn.Module's own assignment, which looks through parameters, buffers and modules each time.
        vars(module)["training"] = on


def _dropout(module: nn.Module) -> str | None:
    """Return the module's own positive dropout probability as "name value", or None."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return f"dropout {module.p}" if module.p > 0 else None
    own = ((key, value) for key, value in vars(module).items() if "drop" in key and isinstance(value, float))
    return next((f"{key} {value}" for key, value in own if value > 0), None)


@contextlib.contextmanager
def without_gradients(trainable: dict[str, nn.Parameter]) -> Iterator[None]:
    """Prevent autograd from computing gradients of these parameters."""
    try:
        for parameter in trainable.values():
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable.values():
            parameter.requires_grad_(True)


def trainable(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the model's trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
