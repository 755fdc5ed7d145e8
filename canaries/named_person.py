"""Made-up people, named in ordinary made-up mail: canaries for audits of guarantees to named people.

Everything except the name has the same distribution for all of these people, so only the name distinguishes them. Each
name has one coin, which decides all records that name the person.
"""

import functools
import random
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from heldin.base.errors import InputError
from heldin.base.section import Many
from heldin.canaries.contract import CanaryInput, Documents, MarkInput, MarkRecipe, NumberedCanaries
from heldin.canaries.made_up import first_new, mail_with
from heldin.canaries.users import CanaryUser, made_user, public_dice

KIND: Final = "named_person"
_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ei", "ou")
_ENDINGS = ("k", "l", "m", "n", "r", "s", "x", "nd", "rt")
_SENTENCES = (
    "Please ask {}.",
    "I met {} about this.",
    "{} will call you.",
    "{} has not signed yet.",
    "Copy {} on the reply.",
    "This is for {} alone.",
)


class NamedPersonCanaries(NumberedCanaries):
    """Made-up people who are named in ordinary made-up mails, for audits of guarantees to named people."""

    named_only: ClassVar[bool] = True

    kind: Literal["named_person"] = KIND
    users: Many
    """Number of made-up people for each entry of ``documents``."""
    documents: Documents = (4,)
    """Number of training records that name the made-up person, if this person is a member. heldin adds further
    records for the attacker and the evaluation."""

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the section's people. Raises InputError if there are more people than names."""
        return [
            user
            for documents, names in self.names(given.number)
            for user in named_people(names, documents=documents, records=given.texts(documents), seed=given.seed)
        ]

    def written(self) -> list[int]:
        """Return an empty list: no added user writes, because each record has a separate author."""
        return []

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return a recipe that draws names of further people."""
        return self.one_recipe(given, lambda dice: people(given.count, dice))


def named_people(names: Sequence[str], *, documents: int | None, records: int, seed: int) -> list[CanaryUser]:
    """Return canary users. All records of a canary user name one made-up person, and no other record names this person.

    Args:
        documents: see ``Canary``.
        records: number of texts per person, set-aside texts included.

    Raises:
        InputError: there are more people than names.
    """
    taken: set[str] = set()
    made = []
    for name in names:
        dice = public_dice(seed, "named-person canary", name)
        person = first_new(functools.partial(made_up_name, dice), taken)
        if person is None:
            raise InputError(
                f"heldin has too few made-up names for {len(names)} named-person canary users: lower users"
            )
        # Near the beginning, where training that cuts records sees it.
        mail = mail_with(functools.partial(_about, person), records, dice, places=2)
        made.append(made_user(name, KIND, documents, person, [text for text, _ in mail], [at for _, at in mail]))
    return made


def people(count: int, dice: random.Random) -> list[str]:
    """Return marks like those of ``named_people``."""
    return [made_up_name(dice) for _ in range(count)]


def _about(person: str, dice: random.Random) -> str:
    return dice.choice(_SENTENCES).format(person)


def made_up_name(dice: random.Random) -> str:
    """Return a first and a last name made of syllables, such as "Tavo Brunelka"."""
    first, last = (
        "".join(dice.choice(_ONSETS) + dice.choice(_VOWELS) for _ in range(syllables)) + dice.choice(_ENDINGS)
        for syllables in (2, 3)
    )
    return f"{first.capitalize()} {last.capitalize()}"
