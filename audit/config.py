"""The audit section of a config: how evidence is summed up."""

from typing import Annotated

from pydantic import Field

from heldin.base.section import Count, Many, Section


class AuditConfig(Section):
    """How evidence is summed up."""

    resamples: Annotated[Many, Field(ge=100)] = 2000
    """Number of bootstrap resamples of the users, for intervals that are labelled estimates."""
    delta: float = Field(1e-5, ge=1e-11, lt=1)
    """delta of the lower bounds on epsilon where nothing is claimed; a claim states its own."""
    fprs: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.001, 0.005, 0.01, 0.05, 0.1), min_length=1)
    """False-positive rates at which true-positive rates are reported, if there are enough held-out users."""
    validation_texts: Count = 400
    """Largest number of held-in users' validation texts on which an evaluation measures the loss."""
    test_texts_per_user: Count = 10
    """Largest number of each held-out user's test texts on which the chosen checkpoint's loss is measured."""
    curve_users: Annotated[Count, Field(ge=50)] = 2000
    """Largest number of audited users whose texts an evaluation scores, chosen without regard to who is held in."""
    exposure_users: Annotated[Count, Field(ge=50)] = 5000
    """Largest number of held-in users whose exposure is set beside what they wrote; words are compared with those of as
    many others."""
    curve_texts_per_user: Count = 5
    """Largest number of each user's attacker texts that an evaluation scores, for the AUROC during training."""
