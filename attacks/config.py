"""The attack section of a config: which attacks, and the attacker's dials (Kandpal et al. 2024, Tables 6 and 7).

One setting of each dial leads, and only its scores are judged. The others are reported next to it, are never judged,
and cost no more than scoring them.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import (
    Field,
    WithJsonSchema,
    model_validator,
)

from heldin.attacks.kinds import ATTACKS, DEFAULT_ATTACKS, get_attack
from heldin.attacks.protocol import AGGREGATIONS
from heldin.attacks.references import Reference
from heldin.base.errors import InputError
from heldin.base.kinds import NameOfKind
from heldin.base.section import FEW, Count, ExpandedName, Few, Section
from heldin.corpus.document import Counting
from heldin.models.model_config import ScoringPrecision

Documents = Literal["fresh", "training"]


def one_of(names: Iterable[str]) -> WithJsonSchema:
    """The choices, for docs and editors; a validator refuses any other name and lists them."""
    return WithJsonSchema({"type": "string", "enum": list(names)})


class AttackConfig(Section):
    """Which attacks to run, and the settings of the attacker's dials."""

    names: tuple[Annotated[str, NameOfKind(ATTACKS)], ...] = DEFAULT_ATTACKS
    """Attacks to run."""
    primary: Annotated[str, NameOfKind(ATTACKS)] = "likelihood-ratio"
    """The primary attack, whose scores test claims; one of ``names``."""
    aggregations: tuple[Annotated[str, one_of(AGGREGATIONS)], ...] = ("mean", "min", "max")
    """Ways to combine the statistics of a user's texts into one score; the first is the primary one."""
    turns: Counting | None = None
    """Which turns of a row are scored, where rows are turns: all, those of one role, or the completion; null: those
    that bear the loss."""
    max_characters: Count = 4000
    """Characters of a text that are scored, from its beginning."""
    precision: ScoringPrecision = "fp32"
    """Arithmetic in which models are loaded to be scored. bf16 has half the bytes of fp32. int8 and nf4 have 8 and 4
    bits for a weight of a linear layer (bitsandbytes). The record has how far a precision below fp32 moves the primary
    attack on a sample of texts."""
    reference: ExpandedName | None = None
    """Hub name or folder of the primary reference model; null: the base model."""
    references: tuple[Reference, ...] = ()
    """Other reference models, reported next to the primary one."""
    documents: tuple[Documents, ...] = Field(("fresh",), min_length=1)
    """Which documents of a user the attacker has: fresh ones by the same user, or records of the training part, which
    training saw or would have seen (except for a cap, deduplication or de-identification). These are for a stronger
    attacker. The first is the primary one."""
    training_documents: Few = 32
    """Records of each user, at most, where ``documents`` has "training"."""
    shadow_models: int = Field(0, ge=0, le=FEW)
    """Shadow models of the ideal attacker, trained like the run's own under the attacker's coins: an even number; 0:
    none."""

    @model_validator(mode="after")
    def _known(self) -> "AttackConfig":
        for name in (*self.names, self.primary):
            try:
                get_attack(name)
            except InputError as error:
                raise ValueError(str(error)) from error
        for name in self.aggregations:
            if name not in AGGREGATIONS:
                raise ValueError(f"unknown aggregation '{name}': choose from {', '.join(AGGREGATIONS)}")
        # An attack that leads but is not run has no scores to judge.
        if self.primary not in self.names:
            raise ValueError(f"primary attack '{self.primary}' is not among names")
        if not self.aggregations:
            raise ValueError("aggregations is empty")
        return self

    @model_validator(mode="after")
    def _dials(self) -> "AttackConfig":
        for key, settings in (
            ("aggregations", self.aggregations),
            ("references", [reference.label for reference in self.references]),
            ("documents", self.documents),
        ):
            # Given twice, one setting would count as two attacks in the test of the whole family.
            if twice := _twice(settings):
                raise ValueError(f"{key} names '{twice}' twice")
        if self.references and not get_attack(self.primary).needs_reference:
            raise ValueError(f"references are for attacks with a reference model, which '{self.primary}' has not")
        if self.shadow_models % 2:
            raise ValueError(
                f"shadow_models is {self.shadow_models}: each user is in half of them, so give an even number, 8 to say"
                " much, or 0"
            )
        return self


def _twice(settings: Sequence[str]) -> str | None:
    return next((setting for i, setting in enumerate(settings) if setting in settings[:i]), None)
