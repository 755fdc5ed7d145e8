"""Words for the units whose membership is audited: users, entities, both, canary users, or trainings."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """Words for the units that an attack classifies as members or non-members.

    Attributes:
        audited: key of these words in ``AUDITED``.
        sides: the two groups, as in "distinguishes members from non-members".
        member: name of the group of members, such as "members" or "trainings with the user".
        other: name of the other group, such as "non-members" or "trainings without the user".
        unit: plural name of the statistical unit.
        singular: singular name of the statistical unit.
        members: text that explains members to readers who do not know the term.
    """

    audited: str
    sides: str
    member: str
    other: str
    unit: str
    singular: str
    members: str


def _audited(audited: str, unit: str, singular: str, members: str) -> Wording:
    # Users are meant where nothing else is said.
    member, other = ("members", "non-members") if audited == "users" else (f"member {unit}", f"non-member {unit}")
    return Wording(audited, f"{member} from {other}", member, other, unit, singular, members)


USERS = _audited("users", "users", "user", "people whose data was used")
ENTITIES = _audited("entities", "entities", "entity", "people whom the training texts name")
BOTH = _audited(
    "both",
    "users and entities",
    "user or entity",
    "people who wrote the training texts or are named in them",
)
CANARIES = Wording(
    "canaries",
    "canary users that were trained on from those that were not",
    "canary users that were trained on",
    "canary users that were not",
    "canary users",
    "canary user",
    "planted users whose texts were used",
)
TRAININGS = Wording(
    "trainings",
    "training runs with the user from those without",
    "training runs with the user",
    "training runs without",
    "training runs",
    "training run",
    "training runs that used the user's texts",
)
# By ``split.audited``, and trainings.
AUDITED = {wording.audited: wording for wording in (USERS, ENTITIES, BOTH, CANARIES, TRAININGS)}
