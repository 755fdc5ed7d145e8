"""Shape of the tiny model that is pre-trained where none can be fetched."""

from dataclasses import dataclass
from typing import ClassVar

from heldin.base.errors import InputError


@dataclass(frozen=True)
class TinyModel:
    """Shape of a tiny GPT-Neo; layers alternate global and local attention as in the released models."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # of a config that holds one

    vocabulary: int = 2048
    context: int = 128
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    window: int = 64

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "hidden", "layers", "heads", "window"):
            if getattr(self, name) < 1:
                raise InputError(f"model.pretrain.shape.{name} is {getattr(self, name)}: it must be at least 1")
