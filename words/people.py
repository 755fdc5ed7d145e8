"""Words for those whose membership is audited: users, entities, both, canary users, or trainings."""

from dataclasses import dataclass

from heldin.words.evidence import REAL_USERS, Subjects
from heldin.words.statement import Statement


@dataclass(frozen=True)
class Wording:
    """Words for what is separated.

    Attributes:
        audited: key in ``AUDITED``.
        subjects: the people of a verdict.
        sides: the two sides, as in "tells held-in from held-out users".
        member: the held-in side.
        other: the held-out side.
        unit: the statistical unit, plural.
        singular: one of them.
        of_one: the same as an owner ("a user's texts").
    """

    audited: str
    subjects: Statement
    sides: str
    member: str
    other: str
    unit: str
    singular: str
    of_one: str


def _audited(audited: str, subjects: Statement, unit: str, singular: str, of_one: str) -> Wording:
    sides = (f"held-in from held-out {unit}", f"held-in {unit}", f"held-out {unit}")
    return Wording(audited, subjects, *sides, unit, singular, of_one)


USERS = _audited("users", REAL_USERS, "users", "user", "a user's")
ENTITIES = _audited("entities", Subjects.ENTITIES(), "entities", "entity", "an entity's")
BOTH = _audited(
    "both", Subjects.USERS_AND_ENTITIES(), "users and entities", "user or entity", "a user's or an entity's"
)
CANARIES = Wording(
    "canaries",
    Subjects.CANARIES(),
    "canary users that were held in from those that were not",
    "held-in canary users",
    "held-out canary users",
    "canary users",
    "canary user",
    "a canary user's",
)
TRAININGS = Wording(
    "trainings",
    Subjects.WORST_CASE_USER(),
    "trainings with the user from those without",
    "trainings with the user",
    "trainings without",
    "trainings",
    "training",
    "a training's",
)
# By ``split.audited``, and trainings.
AUDITED = {wording.audited: wording for wording in (USERS, ENTITIES, BOTH, CANARIES, TRAININGS)}
