"""In which arithmetic models are loaded to score texts, named here so that configs are read without torch."""

from typing import Literal

ScoringPrecision = Literal["fp32", "bf16", "int8", "nf4"]
