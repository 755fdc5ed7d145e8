"""The audit section of a config: how evidence is summed up."""

from typing import Annotated

from pydantic import Field

from heldin.base.section import Section


class AuditConfig(Section):
    """How evidence is summed up."""

    resamples: int = Field(2000, ge=100)
    delta: float = Field(1e-5, ge=1e-11, lt=1)
    fprs: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.001, 0.005, 0.01, 0.05, 0.1), min_length=1)
    validation_texts: int = Field(400, ge=1)
    curve_texts_per_user: int = Field(5, ge=1)
