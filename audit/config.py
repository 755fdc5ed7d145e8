"""The audit section of a config: how evidence is summed up."""

from typing import Annotated

from pydantic import Field

from heldin.base.section import Section


class AuditConfig(Section):
    """How evidence is summed up."""

    resamples: int = Field(2000, ge=100)
    """Number of bootstrap resamples of the users, for intervals that are labelled estimates."""
    delta: float = Field(1e-5, ge=1e-11, lt=1)
    """delta of the lower bounds on epsilon where nothing is claimed; a claim states its own."""
    fprs: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.001, 0.005, 0.01, 0.05, 0.1), min_length=1)
    """False-positive rates at which true-positive rates are reported, if there are enough held-out users."""
    validation_texts: int = Field(400, ge=1)
    """Largest number of held-in users' validation texts on which an evaluation measures the loss."""
    test_texts_per_user: int = Field(10, ge=1)
    """Largest number of each held-out user's test texts on which the chosen checkpoint's loss is measured."""
    curve_users: int = Field(2000, ge=50)
    """Largest number of audited users whose texts an evaluation scores, chosen without regard to who is held in."""
    curve_texts_per_user: int = Field(5, ge=1)
    """Largest number of each user's attacker texts that an evaluation scores, for the AUROC during training."""
