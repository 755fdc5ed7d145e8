"""Layers of a model in the form that a GPU computes fastest: GPT-Neo's attention, tanh-GELU and the vocabulary head.

transformers has only an eager form and FlashAttention for GPT-Neo.

GPT-Neo does not scale its logits, and half of its layers have a local window. transformers deliberately computes the
logits in float32, but autocast undoes this: in bfloat16 a logit of 300 is off by up to 1. Here the operands keep their
type, and torch's kernels compute logits and softmax in float32. These kernels never store the L x L weights of a layer.

On a CPU in float32, transformers' own form runs, so results there do not change.

GELU by its tanh formula takes one kernel here and eight in transformers. In float32 the result differs by at most 1e-6
of max(1, |x|). In bfloat16 it is the float32 result of the written-out formula, rounded once.

If the vocabulary size is not a multiple of ``ALIGNED``, rows of logits start at addresses for which cuBLAS has only
slow kernels. In half precision the head's weights get rows of zeros, and the extra logits are cut off.

In half precision, a local layer uses FlashAttention with a window if there is no padding and no dropout. If no text is
longer than the window, the layer computes global attention.

heldin packs no texts. Without a padding mask, transformers tests whether a row contains several texts, and the test
waits until the GPU has finished all its work. ``unpacked`` skips the test.
"""

import contextlib
import functools
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, masking_utils
from transformers.activations import NewGELUActivation
from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoMLP, GPTNeoSelfAttention

from heldin.models.devices import kind_of

ALIGNED = 64  # numbers of a row of logits; at least 8 of half precision are 16 bytes


def use_exact_attention(model: PreTrainedModel) -> None:
    """Replace GPT-Neo's attention, tanh-GELU and head with the forms in the module docstring, if the model has these
    layers.

    After this call, torch does not use cuDNN's attention in this process.
    """
    layers = list(model.modules())
    for layer in layers:
        # By its class: a function of the layer as its own attribute would be a cycle, and a model that nobody holds
        # any more would stay in a GPU's memory until Python looks for cycles.
        layer.__class__ = _FORMS.get(type(layer), type(layer))
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.out_features % ALIGNED:
        head.__class__ = AlignedHead
    if any(type(layer) is ExactAttention for layer in layers):
        # It builds a graph for each new shape of a batch: tens of milliseconds, longer than a pass of 125M. For good: a
        # block around each use would set and restore torch's one switch from several threads.
        torch.backends.cuda.enable_cudnn_sdp(False)
        # transformers then makes a mask only where there is padding, and kernels without masks can be used.
        model.config._attn_implementation = "sdpa"


def use_plain_head(model: PreTrainedModel) -> None:
    """Restore torch's own head, for libraries that identify a layer by its class or need unmodified logits."""
    head = model.get_output_embeddings()
    if isinstance(head, AlignedHead):
        head.__class__ = nn.Linear  # type: ignore[assignment]


class ExactAttention(GPTNeoSelfAttention):  # type: ignore[misc]
    """A GPT-Neo attention layer in the form of the module docstring."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the attended values of hidden states (B, L, h), and the weights; transformers sets the signature."""
        return super().forward(cast_once(hidden_states), *args, **kwargs)

    def _attn(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended values (B, heads, L, d), and None for the weights; transformers sets the signature."""
        with torch.autocast(query.device.type, enabled=False):  # it would round the logits, or operands of float32
            if keeps_eager(query):
                attended: tuple[Tensor, Tensor] = super()._attn(
                    query, key, value, _additive(attention_mask, query.dtype)
                )
                return attended
            dropout = float(self.attn_dropout.p) if self.training else 0.0
            window = int(self.config.window_size) if self.attention_type == "local" else None
            if window is not None and key.shape[-2] <= window:
                window = None  # it holds all positions
            if attention_mask is None and window is not None and has_windows(query, key, dropout):
                return windowed_attention((query, key, value), window), None
            seen = None if window is None else self.bias
            return unscaled_attention((query, key, value), seen, attention_mask, dropout), None


class OnceCastMlp(GPTNeoMLP):  # type: ignore[misc]
    """The MLP of GPT-Neo, which casts its hidden states once."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the MLP's values of hidden states (B, L, h)."""
        values: Tensor = super().forward(cast_once(hidden_states))
        return values


def cast_once(hidden: Tensor) -> Tensor:
    """Cast hidden states once to autocast's type, instead of once in each layer that reads them."""
    device = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden


class TanhGelu(NewGELUActivation):  # type: ignore[misc]
    """GELU by its tanh formula (Hendrycks and Gimpel 2016, arXiv 1606.08415) in one kernel."""

    def forward(self, input: Tensor) -> Tensor:  # the name that transformers gives it
        """Return GELU of each number."""
        return F.gelu(input, approximate="tanh")


class AlignedHead(nn.Linear):
    """A linear layer whose products in half precision have aligned rows."""

    def forward(self, input: Tensor) -> Tensor:  # the name that torch gives it
        """Return the logits (..., V) of hidden states (..., h)."""
        hidden = cast_once(input)
        if hidden.dtype not in (torch.bfloat16, torch.float16):
            return F.linear(hidden, self.weight, self.bias)
        logits: Tensor = AlignedProduct.apply(hidden, self.weight)  # type: ignore[no-untyped-call]
        bias: Tensor | None = self.bias  # torch's own type leaves out that there may be none
        return logits if bias is None else logits + bias.to(hidden.dtype)

    # Of the function and not of the class: a subclass with a forward of its own may compute something else.
    forward.computes = nn.Linear.forward  # type: ignore[attr-defined]


_ZEROS_BEHIND: "weakref.WeakSet[torch.UntypedStorage]" = weakref.WeakSet()  # memory of logits of aligned rows


class AlignedProduct(torch.autograd.Function):
    """The product of hidden (..., h) and weight (V, h) transposed, shape (..., V). Its rows begin at multiples of
    ``ALIGNED``."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return the product, in the precision of ``hidden``."""
        rows = len(weight)
        padded = weight.new_zeros(-(-rows // ALIGNED) * ALIGNED, weight.shape[1], dtype=hidden.dtype)
        padded[:rows] = weight
        ctx.save_for_backward(hidden, padded)
        ctx.rows, ctx.dtype = rows, weight.dtype
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden, padded)
        _ZEROS_BEHIND.add(logits.untyped_storage())
        return logits[..., :rows]

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients with respect to ``hidden`` and ``weight``."""
        hidden, padded = ctx.saved_tensors
        delta = _with_zeros(delta.flatten(0, -2), len(padded))  # (T, V and the zeros)
        of_hidden = of_weight = None
        with torch.autocast(delta.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                of_hidden = (delta @ padded).view_as(hidden)
            if ctx.needs_input_grad[1]:
                of_weight = (delta.t() @ hidden.flatten(0, -2))[: ctx.rows].to(ctx.dtype)
        return of_hidden, of_weight


def _with_zeros(delta: Tensor, columns: int) -> Tensor:
    """Return delta (T, V) with zero columns appended. Reuses the logits' columns if delta is in their memory, else
    copies."""
    if delta.stride() == (columns, 1) and delta.untyped_storage() in _ZEROS_BEHIND:
        return delta.as_strided((len(delta), columns), (columns, 1))
    return F.pad(delta, (0, columns - delta.shape[1]))


def keeps_eager(query: Tensor) -> bool:
    """Return whether transformers' own form is used for this query."""
    return query.dtype in (torch.float32, torch.float64) and kind_of(query.device) == "cpu"


def unscaled_attention(
    operands: tuple[Tensor, Tensor, Tensor], window: Tensor | None, mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """Return causal attention with unscaled logits, (B, heads, L, d).

    Args:
        operands: query (B, heads, L, d), key and value (B, heads, K, d); the query is at the last L of K positions.
        window: boolean mask of the positions that each position may see, at least (1, 1, K, K); None: each position
            sees itself and all earlier positions.
        mask: mask made by transformers, (B, 1, L, K): boolean, or 0 at positions that may be seen; None without
            padding.
        dropout: dropout probability.
    """
    query, key, value = operands
    length, keys = query.shape[-2], key.shape[-2]
    of_one_type = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    query, key, value = query.to(of_one_type), key.to(of_one_type), value.to(of_one_type)
    if window is None and mask is None and length == keys:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, scale=1.0)
    if window is None:
        window = torch.ones(keys, keys, dtype=torch.bool, device=query.device).tril()[None, None]
    allowed = window[:, :, keys - length : keys, :keys]
    if mask is not None:
        both = allowed & (mask if mask.dtype == torch.bool else mask >= 0)
        # Padding that may look nowhere would be a division by zero; what it sees does not matter.
        allowed = torch.where(both.any(-1, keepdim=True), both, allowed)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout, scale=1.0)


def has_windows(query: Tensor, key: Tensor, dropout: float) -> bool:
    """Return whether torch's FlashAttention supports a window for this query and key."""
    flash = query.device.type == "cuda" and query.dtype in (torch.bfloat16, torch.float16) and query.dtype == key.dtype
    fits = query.shape[-2] == key.shape[-2] and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256 and not dropout
    return _TAKES_WINDOWS and flash and fits


# Asked here and not in a pass, where a compiler would follow the question.
_TAKES_WINDOWS = torch.backends.cuda.is_flash_attention_available() and {"window_size_left", "window_size_right"} <= {
    argument.name for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments
}


def windowed_attention(operands: tuple[Tensor, Tensor, Tensor], window: int) -> Tensor:
    """Return attention with unscaled logits, in which a position sees itself and ``window`` - 1 positions before it.

    Args:
        operands: query, key and value (B, heads, L, d), in half precision on a GPU.

    Returns:
        Attended values, (B, heads, L, d).
    """
    query, key, value = (operand.transpose(1, 2) for operand in operands)
    length = query.shape[1]
    # No public function of torch takes both a window and a scale, except FlexAttention, which has to be compiled.
    attended: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value.to(query.dtype),
        None,
        None,
        length,
        length,
        0.0,
        True,
        False,
        scale=1.0,
        window_size_left=window - 1,
        window_size_right=0,
    )[0]
    return attended.transpose(1, 2)


_FORMS: dict[type[nn.Module], type[nn.Module]] = {
    GPTNeoSelfAttention: ExactAttention,
    GPTNeoMLP: OnceCastMlp,
    NewGELUActivation: TanhGelu,
}


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a boolean mask as an additive mask, which transformers' eager attention uses."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


_ASKS, _TRACES = "find_packed_sequence_indices", "is_tracing"
_UNPACKED: ContextVar[bool] = ContextVar("unpacked", default=False)


@contextlib.contextmanager
def unpacked() -> Iterator[None]:
    """Skip transformers' check for packed rows in this block and thread, also while a pass is recorded.

    Outside the block, transformers checks as before.
    """
    _listen()
    token = _UNPACKED.set(True)
    try:
        yield
    finally:
        _UNPACKED.reset(token)


@functools.cache
def _listen() -> None:
    """Wrap two checks of transformers, once per process. Does nothing in a transformers release without these
    checks."""
    asks, traces = getattr(masking_utils, _ASKS, None), getattr(masking_utils, _TRACES, None)
    if asks is not None:

        @functools.wraps(asks)
        def unless_unpacked(*args: Any, **kwargs: Any) -> Any:
            return None if _UNPACKED.get() else asks(*args, **kwargs)

        setattr(masking_utils, _ASKS, unless_unpacked)
    if traces is not None:

        @functools.wraps(traces)
        def unless_recorded(*args: Any, **kwargs: Any) -> Any:
            # While a pass is recorded, transformers would make a mask where it makes none before and after.
            recorded = _UNPACKED.get() and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
            return False if recorded else traces(*args, **kwargs)

        setattr(masking_utils, _TRACES, unless_recorded)
