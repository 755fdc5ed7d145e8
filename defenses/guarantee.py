"""What a mechanism promises, or why it promises nothing, in words and numbers."""

from dataclasses import dataclass
from typing import Literal

from heldin.base.wording import counted
from heldin.defenses.choices import Adjacency, Unit

ADJACENCIES: dict[Adjacency, str] = {"add_remove": "add/remove", "zero_out": "zero-out", "replace": "replace"}
NO_GUARANTEE = "no DP guarantee"
NO_UNIT, NO_NOISE, NO_CLIPPING = (
    "a privacy unit is missing",
    "noise is missing (noise multiplier 0)",
    "clipping is missing",
)
NO_PROTECTION = "no protection was applied"  # where all three are missing: nothing was meant to protect


@dataclass(frozen=True)
class EpsilonAt:
    """What holds for whoever is exposed so far.

    Attributes:
        exposed: number of records, or of holders (``Exposure.counted``).
        epsilon: of such a person.
    """

    exposed: int
    epsilon: float


@dataclass(frozen=True)
class Exposure:
    """What is promised by how exposed somebody is.

    Under text sampling by the number of records that a person wrote or is named in (docs/theory.md#text-sampling);
    under two-level sampling, for a user and an entity, by the number of other users who name the entity, its holders
    (docs/theory.md#two-level-sampling).

    Attributes:
        counted: what ``exposed`` counts.
        exposed: for which the guarantee's epsilon holds; G + k under caps.
        curve: by ascending exposure; of records it holds for whoever was named and not recognised too.
        group_size: G, most records of a user; None without caps.
        entity_cap: k, most records that name an entity; None without caps.
    """

    counted: Literal["records", "holders"]
    exposed: int
    curve: tuple[EpsilonAt, ...]
    group_size: int | None = None
    entity_cap: int | None = None

    def epsilon_at(self, exposed: int) -> float:
        """epsilon(m) of a point of the curve."""
        return next(point.epsilon for point in self.curve if point.exposed == exposed)

    @property
    def user_epsilon(self) -> float | None:
        """epsilon of a user alone; None where nothing bounds how many records a user has."""
        if self.counted == "holders":
            return self.epsilon_at(0)
        return None if self.group_size is None else self.epsilon_at(self.group_size)

    def words(self, delta: float) -> str:
        """Who is promised what."""
        if self.counted == "holders":
            alone, *others = self.curve
            said = ", ".join(f"{point.epsilon:.4g} by {point.exposed}" for point in others[:-1])
            return (
                f"epsilon {others[-1].epsilon:.4g}, delta {delta:g} for a user and a recognised entity that"
                f" {counted(others[-1].exposed, 'other user')} may name{', ' if said else ''}{said},"
                f" {alone.epsilon:.4g} for a user alone (add/remove)"
            )
        if self.group_size is None or self.entity_cap is None:
            first, *others = self.curve
            said = ", ".join(f"{point.epsilon:.4g} of {point.exposed}" for point in others)
            return (
                f"epsilon {first.epsilon:.4g}, delta {delta:g} for a person of {counted(first.exposed, 'record')},"
                f" {said} (written by the person or naming the person, add/remove)"
            )
        pair, user, entity = (self.epsilon_at(m) for m in (self.exposed, self.group_size, self.entity_cap))
        return (
            f"epsilon {pair:.4g}, delta {delta:g} for every user and recognised entity together, {user:.4g} for every"
            f" user ({counted(self.group_size, 'record')} used at most), {entity:.4g} for every recognised entity"
            f" ({self.entity_cap} at most), fixed incidence"
        )


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-DP of the model after the last step.

    Attributes:
        epsilon: of the guarantee.
        delta: of the guarantee.
        unit: what is protected.
        adjacency: which data sets count as neighbours.
        conditions: what the guarantee depends on, printed with it.
        warnings: printed with it.
        exposure: of text sampling and two-level sampling, whose epsilon depends on how exposed somebody is.
    """

    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    conditions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    exposure: Exposure | None = None

    @property
    def label(self) -> str:
        """One line for record, report and terminal."""
        text = f"epsilon {self.epsilon:.4g}, delta {self.delta:g} per {self.unit} ({ADJACENCIES[self.adjacency]})"
        return "; ".join([self.exposure.words(self.delta) if self.exposure else text, *self.conditions])


@dataclass(frozen=True)
class NoGuarantee:
    """Why the mechanism has no guarantee.

    Attributes:
        reasons: why, at least one.
        assumed_epsilon: what accounting would give if the reasons did not hold; None for a plain run.
        fallback: what still holds if shuffling (docs/theory.md#shuffled-cohorts), or the claim of Lai et al.
            (docs/theory.md#claims-of-user-entity-dp), is the only reason.
    """

    reasons: tuple[str, ...]
    assumed_epsilon: float | None = None
    fallback: Guarantee | None = None

    @property
    def label(self) -> str:
        """One line for record, report and terminal: "no DP guarantee: " and the reasons, or that nothing protects."""
        if {NO_UNIT, NO_NOISE, NO_CLIPPING} <= set(self.reasons):
            return NO_PROTECTION
        text = f"{NO_GUARANTEE}: " + "; ".join(self.reasons)
        if self.fallback is None:
            return text
        assumed = "none" if self.assumed_epsilon is None else f"{self.assumed_epsilon:.4g}"
        return f"{text} (assumed epsilon {assumed}; what holds without the assumption: {self.fallback.label})"
