"""Made-up people, named in ordinary made-up mail: canaries for audits of what is promised to those who are named.

Everything but the name is drawn from one distribution for all of them, so that only the name tells one from another. A
name has one coin, and all records that name it are in or out together.
"""

import functools
import random
from collections.abc import Sequence

from heldin.base.errors import InputError
from heldin.canaries.craft import first_new, made_user, mail_with
from heldin.canaries.kinds import CanaryUser, Kind, public_dice

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


def named_people(names: Sequence[str], *, documents: int | None, records: int, seed: int) -> list[CanaryUser]:
    """Canary users whose records all name one made-up person, whom no other record names.

    Args:
        documents: see ``Canary``.
        records: texts per person, set-asides included.

    Raises:
        InputError: there are more people than names.
    """
    taken: set[str] = set()
    made = []
    for name in names:
        dice = public_dice(seed, "named-person canary", name)
        person = first_new(functools.partial(made_up_name, dice), taken)
        if person is None:
            raise InputError(f"{len(names)} named-person canaries, more than there are made-up names: lower users")
        # Near the beginning, where training that cuts records sees it.
        mail = mail_with(functools.partial(_about, person), records, dice, places=2)
        made.append(
            made_user(name, Kind.NAMED_PERSON, documents, person, [text for text, _ in mail], [at for _, at in mail])
        )
    return made


def _about(person: str, dice: random.Random) -> str:
    return dice.choice(_SENTENCES).format(person)


def made_up_name(dice: random.Random) -> str:
    """A first and a last name of syllables, such as "Tavo Brunelka"."""
    first, last = (
        "".join(dice.choice(_ONSETS) + dice.choice(_VOWELS) for _ in range(syllables)) + dice.choice(_ENDINGS)
        for syllables in (2, 3)
    )
    return f"{first.capitalize()} {last.capitalize()}"
