"""How a model's weights are stored."""

from dataclasses import dataclass

import torch

from heldin.models.model_config import ScoringPrecision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Stored:
    """How a model's weights are stored.

    Attributes:
        precision: precision of most numbers, quantised numbers excluded; None if unknown.
        format: format of the quantised weights, from the config; for bitsandbytes its type: int8, nf4 or fp4. None: the
            weights are not quantised.
        numbers: number of all stored numbers.
        size: number of bytes.
    """

    precision: ScoringPrecision | None = None
    format: str | None = None
    numbers: int = 0
    size: int = 0

    @property
    def own(self) -> ScoringPrecision:
        """Precision in which heldin loads another model for a comparison with this model."""
        match self.format:
            case "int8" | "nf4":
                return self.format
            case _:
                return self.precision or "fp32"

    def bytes_in(self, precision: ScoringPrecision) -> int:
        """Return the number of bytes of the weights in this precision."""
        each = {"fp32": 4, "int8": 1, "nf4": 0.5}.get(precision, 2)
        return self.size if self.format else int(each * self.numbers)
