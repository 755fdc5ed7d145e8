"""The audit section of a config: how evidence is summed up."""

from typing import Annotated

from pydantic import Field

from heldin.base.section import Section


class AuditConfig(Section):
    """How evidence is summed up."""

    resamples: int = Field(2000, ge=100)
    """Bootstrap resamples of the users, for intervals that are labelled estimates."""
    delta: float = Field(1e-5, ge=1e-11, lt=1)
    """delta of the lower bounds on epsilon where nothing was promised; a promise brings its own."""
    fprs: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.001, 0.005, 0.01, 0.05, 0.1), min_length=1)
    """False-positive rates at which true-positive rates are told, where there are held-out users enough."""
    validation_texts: int = Field(400, ge=1)
    """Validation texts of held-in users on which each evaluation measures the loss, at most."""
    curve_texts_per_user: int = Field(5, ge=1)
    """Attacker's texts of each user that each evaluation scores for the AUROC over training, at most."""
