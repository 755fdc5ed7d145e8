"""The attack section of a config: which attacks, and the attacker's dials (Kandpal et al. 2024, Tables 6 and 7).

One setting of each dial leads: what it says is judged. The others stand beside it, are never judged, and cost no more
than their scores.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from heldin.attacks.protocol import AGGREGATIONS
from heldin.attacks.statistics import ATTACKS
from heldin.base.section import ExpandedName, Section
from heldin.corpus.split import UserFilter

Documents = Literal["fresh", "training"]


class NamedReference(Section):
    """A model by hub name or folder, such as an independent model of the same size."""

    kind: Literal["named"]
    name: ExpandedName

    @property
    def label(self) -> str:
        """What the record calls it."""
        return self.name


class PretrainedReference(Section):
    """An independent model of the same size: pre-trained like the base model, on the same public texts, by ``seed``."""

    kind: Literal["pretrained"]
    seed: int = Field(ge=1, lt=2**31)

    @property
    def label(self) -> str:
        """What the record calls it."""
        return f"pre-trained anew, seed {self.seed}"


class PublicReference(Section):
    """The base model, fine-tuned by the run's recipe without any defense on users who are not audited.

    Attributes:
        users: who of those users.
        max_records_per_user: the first records of each; null: all.
    """

    kind: Literal["public"]
    users: UserFilter = UserFilter(min_records=1)
    max_records_per_user: int | None = Field(None, ge=1)

    @property
    def label(self) -> str:
        """What the record calls it."""
        return "fine-tuned on public users"


Reference = Annotated[
    Annotated[NamedReference | PretrainedReference | PublicReference, Field(discriminator="kind")],
    BeforeValidator(lambda value: {"kind": "named", "name": value} if isinstance(value, str) else value),
]


class AttackConfig(Section):
    """Which attacks, and how the attacker's dials stand.

    Attributes:
        names: attacks to run.
        primary: the attack that leads.
        aggregations: of a user's texts to one score; the first leads.
        max_characters: of a text that are scored.
        reference: the leading reference model; null: the base model.
        references: others side by side.
        documents: which documents of a user the attacker has: fresh ones of the same hand, or records of the training
            part, which training saw or would have seen (but for a cap or deduplication): the stronger attacker. The
            first leads.
        training_documents: of each user, at most, where ``documents`` has "training".
        shadow_models: trainings like the run's own under the attacker's coins, for the ideal attacker; 0: none.
    """

    names: tuple[str, ...] = tuple(ATTACKS)
    primary: str = "likelihood-ratio"
    aggregations: tuple[str, ...] = ("mean", "min", "max")
    max_characters: int = Field(4000, ge=1)
    reference: ExpandedName | None = None
    references: tuple[Reference, ...] = ()
    documents: tuple[Documents, ...] = Field(("fresh",), min_length=1)
    training_documents: int = Field(32, ge=1)
    shadow_models: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _known(self) -> "AttackConfig":
        for name in (*self.names, self.primary):
            if name not in ATTACKS:
                raise ValueError(f"unknown attack '{name}': choose from {', '.join(ATTACKS)}")
        for name in self.aggregations:
            if name not in AGGREGATIONS:
                raise ValueError(f"unknown aggregation '{name}': choose from {', '.join(AGGREGATIONS)}")
        if self.primary not in self.names:
            raise ValueError(f"primary attack '{self.primary}' is not among names")
        if not self.aggregations:
            raise ValueError("aggregations is empty")
        return self

    @model_validator(mode="after")
    def _dials(self) -> "AttackConfig":
        for what, settings in (
            ("aggregations", self.aggregations),
            ("references", [reference.label for reference in self.references]),
            ("documents", self.documents),
        ):
            if twice := _twice(settings):
                raise ValueError(f"{what} names '{twice}' twice")
        if self.references and not ATTACKS[self.primary].needs_reference:
            raise ValueError(f"references are for attacks with a reference model, which '{self.primary}' has not")
        if self.shadow_models % 2 or 0 < self.shadow_models < LEAST_SHADOW_MODELS:
            raise ValueError(
                f"shadow_models is {self.shadow_models}: each user is in half of them, so give an even number from"
                f" {LEAST_SHADOW_MODELS} on, 8 to say much, or 0"
            )
        return self


LEAST_SHADOW_MODELS = 4


def _twice(settings: Sequence[str]) -> str | None:
    return next((setting for i, setting in enumerate(settings) if setting in settings[:i]), None)
