"""How a model's weights are stored."""

from dataclasses import dataclass

import torch

from heldin.models.model_config import ScoringPrecision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Stored:
    """How a model's weights are stored.

    Attributes:
        precision: of most numbers, without quantised ones; None: not known.
        format: the format of quantised weights as the config names it, with bitsandbytes' types int8, nf4 and fp4 in
            place of "bitsandbytes"; None: they are not quantised.
        numbers: how many numbers are stored.
        size: bytes.
    """

    precision: ScoringPrecision | None = None
    format: str | None = None
    numbers: int = 0
    size: int = 0

    @property
    def own(self) -> ScoringPrecision:
        """The precision in which another model is loaded to be compared with this one."""
        match self.format:
            case "int8" | "nf4":
                return self.format
            case _:
                return self.precision or "fp32"

    def bytes_in(self, precision: ScoringPrecision) -> int:
        """Bytes of the weights when they are loaded in this precision."""
        each = {"fp32": 4, "int8": 1, "nf4": 0.5}.get(precision, 2)
        return self.size if self.format else int(each * self.numbers)
