"""A LoRA adapter and its base from one copy of the base's weights: the base is the model with its adapter off.

Only where switching off gives the base again: an adapter with trained biases, for one, writes them over the base's.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from heldin.base.files import text_sha256
from heldin.models.checks import PROBE
from heldin.models.loading import LanguageModel, on_base, with_tokens_of
from heldin.models.model_names import fingerprint_folder


class BaseAlone(torch.nn.Module):
    """The base model inside an adapted one: a forward pass without the adapter."""

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
        """The base model's output."""
        with self.adapted.disable_adapter():
            return self.adapted(**inputs)


def load_from_one_copy(folder: Path, base: LanguageModel) -> tuple[LanguageModel, LanguageModel] | None:
    """Load the adapter in a folder on its base, and the base; None if the base is no longer what it was."""
    weights, logits = _weights(base.model), _logits(base)
    adapted, tokenizer = on_base(base, folder)
    off = replace(base, model=cast(PreTrainedModel, BaseAlone(adapted)))
    # Both: a text may not read the weights that were written, such as those of other tokens.
    if _changed(weights) or not torch.equal(logits, _logits(off)):
        return None
    name = text_sha256(base.fingerprint, fingerprint_folder(folder))
    # The layers of the base model now have the adapter in them.
    on = LanguageModel(base.model, tokenizer, str(folder), name, base.size)
    return with_tokens_of(on, off), off


def _weights(model: torch.nn.Module) -> list[tuple[torch.Tensor, int]]:
    """Every weight, with how often it was written."""
    # Counted by torch for autograd: a copy to compare with would take the memory that one copy saves.
    return [(weight, weight._version) for weight in model.parameters()]


def _changed(weights: list[tuple[torch.Tensor, int]]) -> bool:
    return any(weight._version != before for weight, before in weights)


def _logits(lm: LanguageModel) -> torch.Tensor:
    """Return a model's logits of a text, shape (1, tokens, vocabulary)."""
    ids = lm.tokenizer(PROBE, add_special_tokens=False)["input_ids"][: lm.stated_context]
    with torch.no_grad(), warnings.catch_warnings():
        # peft warns where switching off does not give the base, which is what is looked at here.
        warnings.filterwarnings("ignore", "Careful, disabling adapter layers")
        logits: torch.Tensor = lm.model(input_ids=torch.tensor([ids], device=lm.device), use_cache=False).logits
    return logits
