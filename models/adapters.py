"""LoRA adapters: their folders, their bases, and how to load them.

In float32, heldin merges an adapter with its base if the base is not needed too. An adapter and its base can also share
one copy of the base's weights: the base is then the model with its adapter off. This works only if switching off the
adapter restores the base. An adapter with trained biases, for example, overwrites the base's biases, so switching off
does not restore the base.

An adapter's file must contain exactly the tensors that its config implies. If a tensor is missing, PEFT only warns and
keeps random initial values, so the adapter scores like its base.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.adapter_bases import AdapterBase
from heldin.models.loading import (
    PROBE,
    LanguageModel,
    check_tokenizer,
    load_tokenizer,
    with_tokens_of,
)
from heldin.models.logprobs import score_texts
from heldin.models.model_config import ScoringPrecision
from heldin.models.model_names import fingerprint_folder
from heldin.models.reading import reading

# Put before a parameter's name by training on several GPUs, by ``torch.compile`` and by Opacus.
_MOST_APART = {True: 1e-3, False: 0.05}  # nats per token, in float32 and in coarser arithmetic
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_module)\.")


def on_base(base: LanguageModel, folder: Path) -> tuple[Any, PreTrainedTokenizerBase]:
    """Return the base model with a folder's adapter switched on (a PeftModel), and the tokenizer.

    The adapter changes the base's own layers. Raises InputError if the adapter cannot be loaded, or its tokenizer does
    not fit the model.
    """
    from peft import PeftModel

    with reading(str(folder), f"cannot load the adapter '{folder}'"):
        try:
            adapted = PeftModel.from_pretrained(base.model, str(folder)).eval()
        except KeyError as error:  # for a layer that is trained whole and is not in the file
            raise InputError(
                f"'{folder / 'adapter_model.safetensors'}' lacks the key {error}: save the adapter again"
            ) from error
        check_adapter_keys(adapted, folder)
    tokenizer = load_tokenizer(str(folder)) if (folder / "tokenizer.json").is_file() else base.tokenizer
    check_tokenizer(tokenizer, str(folder), vocabulary=base.model.get_input_embeddings().weight.shape[0])
    return adapted, tokenizer


def load_adapter(folder: Path, at: AdapterBase, base: LanguageModel, precision: ScoringPrecision) -> LanguageModel:
    """Load the adapter in a folder on its base. This changes the base's layers. Raises InputError for the same reasons
    as ``on_base``."""
    adapted, tokenizer = on_base(base, folder)
    # Merged in float32, so that a forward pass costs what the base model's does. Coarser weights would round away what
    # the adapter adds: there it stays beside them.
    with reading(str(folder), f"cannot merge the adapter '{folder}' with its base"):
        model = adapted.merge_and_unload() if precision == "fp32" and base.stored.format is None else base.model
    name = text_sha256(base.fingerprint, fingerprint_folder(folder))
    return replace(base, model=model, tokenizer=tokenizer, name=str(folder), fingerprint=name, adapter=at)


def require_losses_of(
    merged: LanguageModel, folder: Path, base: LanguageModel, texts: Sequence[str], precision: ScoringPrecision
) -> float:
    """Load the adapter in a folder on its base, and check that its losses equal those of the merged model.

    Args:
        merged: the trained model, whose weights include its adapter.
        folder: folder of the adapter.
        base: the base model, loaded only for this comparison, because the adapter changes its layers.
        texts: at least one text.
        precision: precision of both models.

    Returns:
        The largest difference between the mean losses of a text, in nats per token.

    Raises:
        InputError: the losses differ from the merged model's, or equal the base's.
    """
    before, wanted = _losses(base, texts), _losses(merged, texts)
    loaded = _losses(load_adapter(folder, AdapterBase(base.name, None, None, ()), base, precision), texts)
    apart = float(np.abs(loaded - wanted).max())
    is_base = np.array_equal(loaded, before)
    if is_base or apart > _MOST_APART[precision == "fp32"]:
        fault = "has the losses of its base" if is_base else f"is {apart:.2g} nats per token from the trained model"
        raise InputError(
            f"'{folder}', loaded again, {fault}. Do not use this adapter: check finetune.lora, and train again"
        )
    return apart


def _losses(lm: LanguageModel, texts: Sequence[str]) -> NDArray[np.float64]:
    return np.array([-scores.logprobs.mean(dtype=np.float64) for scores in score_texts(lm, texts)])


def check_adapter_keys(adapted: Any, folder: Path) -> None:
    """Check that the folder's file sets every tensor of the adapter, and no tensor that the model does not have.

    Args:
        adapted: the PeftModel into which the folder was loaded.
        folder: folder that contains ``adapter_model.safetensors``.

    Raises:
        InputError: keys are missing or unexpected; the message has the number and the first key of each type.
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
            f"the keys of '{folder / 'adapter_model.safetensors'}' differ from those in its adapter_config.json"
            f" ({'; '.join(counts)}): {'unwrap the model and save' if wrapped else 'save'} the adapter again"
        )


def _as_saved(key: str) -> str:
    """Return a tensor's key without the adapter's name in memory."""
    return key.replace(".default.", ".").removesuffix(".default")


class BaseAlone(torch.nn.Module):
    """The base model inside an adapted model; its forward pass skips the adapter."""

    def __init__(self, adapted: Any) -> None:
        super().__init__()
        self.adapted = adapted

    @property
    def config(self) -> Any:
        """The base model's config."""
        return self.adapted.config

    @property
    def architecture(self) -> str:
        """Class of the base model."""
        return type(self.adapted.get_base_model()).__name__

    @property
    def device(self) -> torch.device:
        """Return the device for inputs."""
        device: torch.device = self.adapted.device
        return device

    def forward(self, **inputs: Any) -> Any:
        """Return the base model's output."""
        with self.adapted.disable_adapter():
            return self.adapted(**inputs)


def load_from_one_copy(
    folder: Path, at: AdapterBase, base: LanguageModel
) -> tuple[LanguageModel, LanguageModel] | None:
    """Load the adapter in a folder on its base; return the adapted model and the base.

    Returns None if loading the adapter changed the base.
    """
    weights, logits = _weights(base.model), _logits(base)
    adapted, tokenizer = on_base(base, folder)
    off = replace(base, model=cast(PreTrainedModel, BaseAlone(adapted)))
    # Both: a text may not read the weights that were written, such as those of other tokens.
    if _changed(weights) or not torch.equal(logits, _logits(off)):
        return None
    name = text_sha256(base.fingerprint, fingerprint_folder(folder))
    # The layers of the base model now have the adapter in them.
    on = replace(base, tokenizer=tokenizer, name=str(folder), fingerprint=name, adapter=at)
    return with_tokens_of(on, off), off


def _weights(model: torch.nn.Module) -> list[tuple[torch.Tensor, int]]:
    """Return every weight with its version counter, which each write to the weight increases."""
    # Counted by torch for autograd: a copy to compare with would take the memory that one copy saves.
    return [(weight, weight._version) for weight in model.parameters()]


def _changed(weights: list[tuple[torch.Tensor, int]]) -> bool:
    return any(weight._version != before for weight, before in weights)


def _logits(lm: LanguageModel) -> torch.Tensor:
    """Return a model's logits for a short text, shape (1, tokens, vocabulary)."""
    ids = lm.tokenizer(PROBE, add_special_tokens=False)["input_ids"][: lm.stated_context]
    with torch.no_grad(), warnings.catch_warnings():
        # peft warns where switching off does not give the base, which is what is looked at here.
        warnings.filterwarnings("ignore", "Careful, disabling adapter layers")
        logits: torch.Tensor = lm.model(input_ids=torch.tensor([ids], device=lm.device), use_cache=False).logits
    return logits
