"""A LoRA adapter and its base from one copy of the base's weights: the base is the model with its adapter off."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from heldin.base.files import text_sha256
from heldin.base.precision import ScoringPrecision
from heldin.models.loading import (
    LanguageModel,
    base_of,
    fingerprint_folder,
    is_adapter,
    load_language_model,
    on_base,
    with_tokens_of,
)


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
        """Where its inputs go."""
        its: torch.device = self.adapted.device
        return its

    def forward(self, **inputs: Any) -> Any:
        """The base model's output."""
        with self.adapted.disable_adapter():
            return self.adapted(**inputs)


def load_target_and_reference(
    target: str, reference: str, *, precision: ScoringPrecision = "fp32", revision: str | None = None
) -> tuple[LanguageModel, LanguageModel]:
    """Both models; the base's weights are held once if the target is an adapter on the reference.

    Scores equal those of the two loaded apart up to rounding: the adapter is added to a layer's output and not to its
    weights. The target has the reference's tokenizer if its own differs by added special tokens only.

    Args:
        target: folder or hub name; may be a LoRA adapter's folder.
        reference: folder or hub name.
        precision: of both.
        revision: of the reference, on the hub.

    Raises:
        InputError: for the reasons of ``load_language_model``.
    """
    base = load_language_model(reference, precision=precision, revision=revision)
    if not _is_on(target, reference, revision):
        return with_tokens_of(load_language_model(target, precision=precision), base), base
    folder = Path(target)
    adapted, tokenizer = on_base(base, folder)
    name = text_sha256(base.fingerprint, fingerprint_folder(folder))
    # The layers of the base model now have the adapter in them.
    on = LanguageModel(base.model, tokenizer, target, name, base.size)
    off = replace(base, model=cast(PreTrainedModel, BaseAlone(adapted)))
    return with_tokens_of(on, off), off


def _is_on(target: str, reference: str, revision: str | None) -> bool:
    """Whether the target is an adapter of this very reference."""
    if not is_adapter(Path(target)):
        return False
    named, at = base_of(Path(target))
    if Path(named).is_dir() or Path(reference).is_dir():
        return Path(named).resolve() == Path(reference).resolve()
    return named == reference and at == revision
