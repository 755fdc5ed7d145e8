"""Checks of a model, its tokenizer and its adapter before a text is scored.

Tokens fit the model, predictions look back only, and an adapter's file holds every tensor that its config asks for and
no other: PEFT leaves a tensor without a key as it was drawn, and only warns; such an adapter scores as its base.
"""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.models.arithmetic import tokens_rounded_apart

PROBE = "The quick brown fox met 12 people on Tuesday."
_CAUSAL_PROBE = 8  # tokens


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str, *, vocabulary: int) -> None:
    """Raises InputError for a tokenizer that yields no tokens, only unknown ones, or ids without an embedding."""
    # transformers makes an empty tokenizer of some folders without an error, and texts of no or unknown tokens say
    # nothing.
    ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    if not ids or set(ids) == {tokenizer.unk_token_id}:
        yielded = "no tokens" if not ids else "only unknown tokens"
        raise InputError(
            f"the tokenizer of '{name}' makes {yielded} of plain English: its vocabulary is empty or not its own"
            " (load it from a folder with tokenizer.json)"
        )
    highest = max(tokenizer.get_vocab().values())
    # Fewer ids than embeddings are fine: models pad their embeddings to a round number.
    if highest >= vocabulary:
        raise InputError(
            f"the tokenizer of '{name}' does not match the model: token ids go up to {highest},"
            f" the model has {vocabulary} embeddings"
        )


def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raises InputError for a model in which a later token changes an earlier prediction.

    BERT-like models load as such a model unless ``is_decoder`` is set.
    """
    # The model would score texts that it has already read; under private training the gradient of one unit would also
    # depend on the padding that other units cause.
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(1, _CAUSAL_PROBE + 1, device=model.device)[None] % vocabulary
    other = ids.clone()
    # The last token alone differs, so that every earlier prediction must be the same.
    other[0, -1] = (ids[0, -1] + 1) % vocabulary
    with torch.no_grad(), tokens_rounded_apart(model):
        first, second = (model(input_ids=x, use_cache=False).logits[0, :-1].float() for x in (ids, other))
    moved, scale = float((first - second).abs().max()), float(first.abs().max())
    if moved > 1e-5 * scale:  # a causal model gives the same numbers up to rounding
        raise InputError(
            f"'{name}' ({type(model).__name__}) is not a causal language model: changing the last token of a text moved"
            f" an earlier prediction by {moved:.2g}; a BERT-like model needs is_decoder: true in its config.json, and"
            " to have been trained with it"
        )


# Put before a parameter's name by training on several GPUs and by ``torch.compile``.
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module)\.")


def check_adapter_keys(adapted: Any, folder: Path) -> None:
    """Check that the folder's file sets every tensor of the adapter and nothing that the model does not have.

    Args:
        adapted: the PeftModel into which the folder was loaded.
        folder: contains ``adapter_model.safetensors``.

    Raises:
        InputError: gives the count and the first of the missing and of the unexpected keys.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    # Names are compared after loading, which translates those that older versions of PEFT wrote. The file is loaded
    # again because PEFT keeps most of its report of the first time to itself.
    report = set_peft_model_state_dict(adapted, load_peft_weights(str(folder), device="cpu"))
    # What the adapter itself leaves unset when it is saved and loaded again is the base's.
    base = set_peft_model_state_dict(adapted, get_peft_model_state_dict(adapted, save_embedding_layers=False))
    ignored = getattr(adapted.get_base_model(), "_keys_to_ignore_on_load_unexpected", None) or ()
    keys = {
        "missing": sorted(set(report.missing_keys) - set(base.missing_keys)),
        "unexpected": sorted(
            k for k in report.unexpected_keys if not any(re.search(pattern, k) for pattern in ignored)
        ),
    }
    if any(keys.values()):
        counts = [f"{len(names)} {kind}, such as '{_as_saved(names[0])}'" for kind, names in keys.items() if names]
        wrapped = any(map(_WRAPPERS.search, keys["unexpected"]))
        raise InputError(
            f"'{folder / 'adapter_model.safetensors'}' does not have the keys that its adapter_config.json asks for"
            f" ({'; '.join(counts)}): {'unwrap the model and save' if wrapped else 'save'} the adapter again"
        )


def _as_saved(key: str) -> str:
    """A tensor's key without the name that the adapter has in memory."""
    return key.replace(".default.", ".").removesuffix(".default")
