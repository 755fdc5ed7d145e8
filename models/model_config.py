"""The model sections of a config: the precision for scoring, and the shape of tiny models.

This module does not import torch, so heldin reads configs quickly.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION, Few, Many

ScoringPrecision = Literal["fp32", "bf16", "fp16", "int8", "nf4"]
# auto: that in which the target's weights are stored.
PrecisionChoice = Literal[ScoringPrecision, "auto"]
# default: nobody asked, and float32 fits; own: auto was asked for; memory: nobody asked, and float32 does not fit.
PrecisionReason = Literal["asked", "default", "own", "memory"]


@dataclass(frozen=True)
class TinyModel:
    """Shape of a tiny GPT-Neo, in which layers with global and local attention alternate as in the released models."""

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    vocabulary: Annotated[Many, Field(ge=257)] = 2048
    """Size of the vocabulary, which heldin learns from the pre-training texts."""
    context: Many = 128
    """Context length of the model, in tokens."""
    hidden: Many = 128
    """Width of the hidden layers, a multiple of ``heads``."""
    layers: Few = 4
    """Number of transformer layers."""
    heads: Few = 4
    """Number of attention heads in each layer."""
    window: Many = 64
    """Window of local attention in tokens, including the current token."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "hidden", "layers", "heads", "window"):
            if getattr(self, name) < 1:
                raise InputError(f"model.pretrain.shape.{name} is {getattr(self, name)}: give at least 1")
