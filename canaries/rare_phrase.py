"""Users who write ordinary mail, with one sentence in every record: the user's own phrase.

The mail is from the synthetic corpus at distinctiveness 0. Except for the phrase, nothing in a text depends on the
user.
"""

import functools
import random
from collections.abc import Sequence
from typing import Final, Literal

from heldin.base.errors import InputError
from heldin.base.section import Few
from heldin.canaries.contract import CanaryInput, MarkInput, MarkRecipe, NumberedCanaries
from heldin.canaries.made_up import first_new, mail_with
from heldin.canaries.users import CanaryUser, made_user, public_dice
from heldin.corpus.made_up.lexicon import STOCKS

KIND: Final = "rare_phrase"
_WORDS = tuple(
    dict.fromkeys(
        word.lower() for table in ("project_first", "project_second", "client_first") for word in STOCKS[table]
    )
)


class RarePhraseCanaries(NumberedCanaries):
    """Users with ordinary made-up mails that always contain one phrase, different for each user."""

    kind: Literal["rare_phrase"] = KIND
    phrase_words: Few = 5
    """Length of the phrase in words."""

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the section's users. Raises InputError if there are more users than phrases."""
        return [
            user
            for documents, names in self.names(given.number)
            for user in rare_phrase_users(
                names,
                documents=documents,
                records=given.texts(documents),
                phrase_words=self.phrase_words,
                seed=given.seed,
            )
        ]

    def recipes(self, given: MarkInput) -> dict[str, MarkRecipe]:
        """Return a recipe that draws phrases with the same number of words."""
        return self.one_recipe(given, lambda dice: phrases(self.phrase_words, given.count, dice))


def rare_phrase_users(
    names: Sequence[str], *, documents: int | None, records: int, phrase_words: int, seed: int
) -> list[CanaryUser]:
    """Return users who write mail, every mail with the user's own phrase.

    Args:
        documents: see ``Canary``.
        phrase_words: number of words of the phrase. The words are from a common stock, and are unlikely to occur
            together elsewhere.

    Raises:
        InputError: there are more users than phrases.
    """
    taken: set[str] = set()
    users = []
    for name in names:
        dice = public_dice(seed, "rare-phrase canary", name)
        own = first_new(functools.partial(phrase, phrase_words, dice), taken)
        if own is None:
            raise InputError(
                f"phrases of {phrase_words} words give too few different phrases for {len(names)} rare-phrase"
                " canary users: raise phrase_words"
            )
        marked = mail_with(functools.partial(_always, own), records, dice)
        users.append(made_user(name, KIND, documents, own, [text for text, _ in marked], [at for _, at in marked]))
    return users


def phrases(words: int, count: int, dice: random.Random) -> list[str]:
    """Return marks like those of ``rare_phrase_users``, with ``words`` words each."""
    return [phrase(words, dice) for _ in range(count)]


def phrase(words: int, dice: random.Random) -> str:
    """Return ``words`` words of a common stock, as a sentence."""
    return " ".join(dice.choice(_WORDS) for _ in range(words)).capitalize() + "."


def _always(sentence: str, _dice: random.Random) -> str:
    return sentence
