"""The attack section of a config: the attacks and the attacker's dials (Kandpal et al. 2024, Tables 6 and 7).

One setting of each dial is primary, and heldin judges only the scores with primary settings. The report lists the other
settings without a verdict. Each other setting costs only its scoring.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from heldin.attacks.access import Access
from heldin.attacks.kinds import ATTACKS, DEFAULT_ATTACKS, DEFAULT_BY_LEVEL, get_attack
from heldin.attacks.protocol import AGGREGATIONS
from heldin.attacks.references import Reference
from heldin.attacks.sampling import SamplingConfig
from heldin.base.errors import InputError
from heldin.base.kinds import NameOfKind
from heldin.base.section import FEW, Count, ExpandedName, Few, Section
from heldin.corpus.document import Counting
from heldin.models.model_config import ScoringPrecision

Documents = Literal["fresh", "training"]


def one_of(names: Iterable[str]) -> WithJsonSchema:
    """Return a JSON schema with the choices, for docs and editors.

    A validator refuses any other name and lists the choices.
    """
    return WithJsonSchema({"type": "string", "enum": list(names)})


# A bare name is a list of one.
Levels = Annotated[
    tuple[Access, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value, json_schema_input_type=Access | tuple[Access, ...]
    ),
    Field(min_length=1),
]


def with_attacks_of_levels(content: Any) -> Any:
    """Return the section's content. Unless the section names attacks, it gets the attacks of the named levels."""
    if not isinstance(content, Mapping) or "access" not in content:
        return content
    stated = content["access"]
    named = [stated] if isinstance(stated, str) else stated
    levels = [level for level in Access if isinstance(named, list | tuple) and level in named]
    if not levels:  # what is wrong with them is said where they are read
        return content
    names = [name for level in levels for name in DEFAULT_BY_LEVEL[level]]
    given = content.get("names", names)
    return {"names": names, "primary": _first_at(levels[0], given), **content}


def _first_at(level: Access, names: Any) -> Any:
    usual = DEFAULT_BY_LEVEL[level][0]
    if not isinstance(names, list | tuple) or usual in names:
        return usual
    # A misspelt name is refused where names are read.
    known = (name for name in names if isinstance(name, str) and name in ATTACKS.ours)
    return next((name for name in known if get_attack(name).access is level), names[0] if names else usual)


class AttackConfig(Section):
    """The attacks to run, and the texts and access of the attacker."""

    access: Levels = (Access.LOG_PROBABILITIES,)
    """Access of the attackers to the model: log-probabilities of given texts, the top-k next tokens, or the text that
    the model writes. If you list several levels, heldin computes one answer per level and divides the error probability
    equally among the levels. The main answer is for the access level set in ``release``."""
    names: tuple[Annotated[str, NameOfKind(ATTACKS)], ...] = DEFAULT_ATTACKS
    """Attacks to run; by default, every attack that the levels in ``access`` permit."""
    primary: Annotated[str, NameOfKind(ATTACKS)] = "likelihood-ratio"
    """The primary attack, which must be in ``names``. heldin tests claims with the scores of this attack. By default,
    the primary attack is the first attack of the strongest access level."""
    aggregations: tuple[Annotated[str, one_of(AGGREGATIONS)], ...] = ("mean", "min", "max")
    """Ways to combine the statistics of a user's texts into one score. The first entry is the primary aggregation."""
    turns: Counting | None = None
    """Turns to score in a chat, or in a prompt with completion: all turns, the turns of one role, or the completion.
    null: the turns in finetune.loss_on."""
    max_characters: Count = 4000
    """Maximum number of characters to score in each text, counted from the beginning."""
    precision: ScoringPrecision = "fp32"
    """Precision of the models during scoring. bf16 needs half the memory of fp32. int8 and nf4 store the weights of
    linear layers in 8 and 4 bits (bitsandbytes). Below fp32, heldin records how much the precision changes the scores
    of the primary attack on a sample of texts.
    """
    reference: ExpandedName | None = None
    """Hub name or folder of the primary reference model; null: the base model."""
    references: tuple[Reference, ...] = ()
    """Other reference models. The report also shows the results with these reference models."""
    documents: tuple[Documents, ...] = Field(("fresh",), min_length=1)
    """Documents that the attacker has for each user. fresh: documents that training never saw. training: texts that
    training used if the user is a member. With these texts, the attacker is stronger. A cap, deduplication or
    de-identification may remove or change some of these texts before training. The primary attack uses the first entry.
    """
    training_documents: Few = 32
    """With "training" in ``documents``: maximum number of training records per user that the attacker has."""
    shadow_models: int = Field(0, ge=0, le=FEW)
    """Number of shadow models for the ideal attacker. The number must be even. heldin trains each shadow model like the
    audited model, but with newly drawn members. 0: no shadow models."""
    sampling: SamplingConfig = SamplingConfig()
    """Settings for attackers who cannot see log-probabilities of given texts."""

    @model_validator(mode="before")
    @classmethod
    def _of_levels(cls, content: Any) -> Any:
        return with_attacks_of_levels(content)

    @property
    def level(self) -> Access:
        """The strongest of the section's levels."""
        return next(level for level in Access if level in self.access)

    def at(self, level: Access) -> Self:
        """Return the section for an attacker at this level, with the attacks of this level and of weaker levels."""
        names = tuple(name for name in self.names if get_attack(name).access in level.covers)
        own = [name for name in names if get_attack(name).access is level]
        primary = self.primary if self.primary in own else _first_at(level, own)
        return self.model_copy(update={"access": (level,), "names": names, "primary": primary})

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
            raise ValueError(
                f"primary attack '{self.primary}' is not in names: add this attack to names, or choose another"
                " primary attack"
            )
        if not self.aggregations:
            raise ValueError("aggregations is empty: give at least one")
        return self

    @model_validator(mode="after")
    def _has_every_level(self) -> "AttackConfig":
        if twice := _twice(self.access):
            raise ValueError(f"access lists '{twice}' twice: keep one")
        at_level = {name: get_attack(name).access for name in self.names}
        idle = next((name for name, level in at_level.items() if level not in self.access), None)
        if idle is not None:
            raise ValueError(f"attack '{idle}' in names is at level {at_level[idle]}: add this level to access")
        without = next((level for level in self.access if level not in at_level.values()), None)
        if without is not None:
            raise ValueError(
                f"access has {without}, but names has no attack at this level: add one of"
                f" {', '.join(DEFAULT_BY_LEVEL[without])}, or leave names out"
            )
        if at_level[self.primary] is not self.level:
            raise ValueError(
                f"primary attack '{self.primary}' is at level {at_level[self.primary]}: choose an attack at level"
                f" {self.level}, the strongest level of access"
            )
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
                raise ValueError(f"{key} lists '{twice}' twice: keep one")
        if self.references and not get_attack(self.primary).needs_reference:
            raise ValueError(
                f"references need an attack that uses a reference model, and '{self.primary}' does not: leave"
                " references out"
            )
        if self.shadow_models and self.level is not Access.LOG_PROBABILITIES:
            raise ValueError(
                "shadow_models need access to log-probabilities: leave shadow_models out, or add log-probabilities"
                " to access"
            )
        if self.shadow_models % 2:
            raise ValueError(
                f"shadow_models is {self.shadow_models}, but heldin trains half of these models on each user: give"
                " an even number (8 or more for a useful result), or 0 for no shadow models"
            )
        return self


def _twice(settings: Sequence[str]) -> str | None:
    return next((setting for i, setting in enumerate(settings) if setting in settings[:i]), None)
