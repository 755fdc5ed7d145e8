"""Sample continuations of a prefix, or compute in one pass the exact probability that sampling emits given tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from heldin.base.errors import InputError
from heldin.models.arithmetic import true_float32
from heldin.models.devices import in_chunks
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import keeps_logits, stated_batch_size, tokens_per_batch
from heldin.models.tokens import require_context


def continuation_logprobs(
    lm: LanguageModel,
    windows: NDArray[np.int32],
    prefix: int,
    *,
    temperature: float,
    top_k: int | None,
    advance: Callable[[int], object] | None = None,
) -> NDArray[np.float64]:
    """Return the log-probability, in nats, that sampling after each window's prefix emits the rest of it, shape (n,).

    The model reads the start token and then the prefix, as for every scored text. Sampling is as in transformers. It
    uses the softmax of logits / temperature over the ``top_k`` greatest logits and all logits equal to the smallest of
    them. The result is minus infinity if a token is outside this set.

    Args:
        windows: token ids, shape (n, prefix + k).
        prefix: number of given tokens, at least 1.
        temperature: temperature of the sampling, above 0.
        top_k: number of tokens to draw from; None: all.
        advance: called with the number of windows that are done.

    Raises:
        InputError: the windows exceed the model's context, or a probability is not a number.
    """
    require_context(lm, windows.shape[1])
    # By logits of the suffixes, as other passes are by those of their tokens.
    budget = tokens_per_batch(lm.model)
    size = min(max(1, budget // windows.shape[1]), stated_batch_size() or len(windows))
    batches = [np.empty(0)]
    for start in range(0, len(windows), size):
        batch = torch.from_numpy(windows[start : start + size].astype(np.int64))
        with true_float32():
            batches.append(_of_batch(lm, batch, prefix, temperature, top_k))
        if advance:
            advance(len(batch))
    values = np.concatenate(batches)
    if np.isnan(values).any():
        raise InputError(f"model '{lm.name}' gives a text a probability that is not a number: check the model")
    return values


@torch.inference_mode()
def _of_batch(
    lm: LanguageModel, windows: torch.Tensor, prefix: int, temperature: float, top_k: int | None
) -> NDArray[np.float64]:
    """Return log-probabilities, shape (B,), of windows (B, L). All windows have equal length, so there is no padding.

    Args:
        windows: token ids.
        prefix: number of given tokens.
        top_k: number of tokens to draw from; None: all.
    """
    suffix = windows[:, prefix:].to(lm.device)  # (B, k)
    first = torch.full((len(windows), 1), lm.start_token)
    inputs = torch.cat([first, windows[:, :-1]], dim=1).to(lm.device)  # (B, L)
    # Logits of the prefix are not asked for: in a small model they are most of the pass.
    kept: dict[str, Any] = {"logits_to_keep": suffix.shape[1]} if keeps_logits(lm) else {}
    logits = lm.model(input_ids=inputs, use_cache=False, **kept).logits[:, -suffix.shape[1] :]  # (B, k, V)
    chunks = in_chunks(logits.flatten(0, 1), suffix.flatten())  # of (B*k, V) and (B*k,)
    logprobs = torch.cat([_drawn(part.float(), wanted, temperature, top_k) for part, wanted in chunks])  # (B*k,)
    # In float64: fifty terms of a few nats each.
    return logprobs.view(suffix.shape).double().sum(dim=1).cpu().numpy()


def _drawn(logits: torch.Tensor, targets: torch.Tensor, temperature: float, top_k: int | None) -> torch.Tensor:
    """Return the log-probability of each target, shape (N,), if sampling draws from the greatest of logits (N, V)."""
    if top_k is None or top_k >= logits.shape[1]:
        return -F.cross_entropy(logits / temperature, targets, reduction="none")
    least = logits.topk(top_k, dim=1).values[:, -1:]  # (N, 1)
    # Compared before they are divided, which may make unequal logits equal.
    kept = torch.where(logits < least, -torch.inf, logits / temperature)
    return -F.cross_entropy(kept, targets, reduction="none")


@torch.inference_mode()
def sample_texts(
    lm: LanguageModel, count: int, *, seed: int, temperature: float = 1.0, max_tokens: int = 128, prompt: str = ""
) -> list[str]:
    """Sample texts, without top-k or top-p, each up to the end-of-text token.

    Args:
        temperature: temperature of the sampling; 1 gives the model's own distribution.
        max_tokens: maximum number of new tokens in a text.
        prompt: text that each sample continues; the result does not include it.

    Raises:
        InputError: the temperature is not positive, or the prompt fills the model's context.
    """
    if temperature <= 0:
        raise InputError(f"temperature is {temperature}: give a number above 0")
    # As texts are scored: after the start token.
    ids = [lm.start_token, *lm.tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    room = lm.context - len(ids)
    if room < 1:
        raise InputError(
            f"the prompt and the start token have {len(ids)} tokens, and the context of '{lm.name}' has {lm.context},"
            " so no token can follow: shorten the prompt"
        )
    # Drawn on the CPU, so that a seed gives the same draws on every device.
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tokens = torch.tensor([ids] * count, device=lm.device)  # (count, L)
    ended = torch.zeros(count, dtype=torch.bool)
    for _ in range(min(max_tokens, room)):
        logits = lm.model(input_ids=tokens, use_cache=False).logits[:, -1].float().cpu()  # (count, V)
        # For ended texts too: every step draws as many numbers, so that a text does not depend on when another one
        # ends.
        drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)  # (count, 1)
        if lm.tokenizer.eos_token_id is not None:
            ended |= drawn[:, 0] == lm.tokenizer.eos_token_id
        tokens = torch.cat([tokens, drawn.to(lm.device)], dim=1)
        if bool(ended.all()):
            break
    return [_until_end(row[len(ids) :], lm) for row in tokens.tolist()]


def _until_end(ids: list[int], lm: LanguageModel) -> str:
    # What was drawn after the end, while other texts went on, is dropped.
    end = ids.index(lm.tokenizer.eos_token_id) if lm.tokenizer.eos_token_id in ids else len(ids)
    text: str = lm.tokenizer.decode(ids[:end])
    return text
