"""Made-up users: the texts that they write, all different, and mail with an inserted sentence.

These are pure functions of public inputs (tokenizer, base model, seed). They read no record of a protected user, so
planting canary users costs nobody any privacy. A canary user's texts depend only on its name and the seed. One
generator makes all records of a canary user, so some can be set aside as fresh text.
"""

import random
from collections.abc import Callable
from typing import TypeVar

from heldin.base.errors import InputError
from heldin.corpus.made_up.synthetic import SyntheticCorpus, generate_user

TRIES = 40  # per wanted record, before giving up on a generator that repeats itself
_T = TypeVar("_T")


def first_new(draw: Callable[[], _T], taken: set[_T]) -> _T | None:
    """Return the first draw that is neither empty nor in ``taken``, or None after ``TRIES`` draws.

    The function adds the returned draw to ``taken``.
    """
    for _ in range(TRIES):
        drawn = draw()
        if drawn and drawn not in taken:
            taken.add(drawn)
            return drawn
    return None


def different(write: Callable[[], list[str]], count: int, subject: str) -> list[str]:
    """Return ``count`` different texts that are not blank. Raises InputError if ``write`` returns too few different
    texts."""
    texts: dict[str, None] = {}
    # A generator with too few texts would go on for ever: a signature of 2 tokens has few different short stretches.
    for _ in range(TRIES * count):
        texts |= dict.fromkeys(text for text in write() if not blank(text))
        if len(texts) >= count:
            return list(texts)[:count]
    raise InputError(f"heldin could make only {len(texts)} of {count} different {subject}: raise the number of tokens")


def blank(text: str) -> bool:
    """Return whether a text has nothing to train on, or has a null character, which no store keeps."""
    return not text.strip() or "\0" in text


def mail_with(
    sentence: Callable[[random.Random], str], records: int, dice: random.Random, *, places: int | None = None
) -> list[tuple[str, int]]:
    """Return different mails of the synthetic corpus at distinctiveness 0, each with an inserted sentence.

    Each mail comes with the position of the sentence.

    Args:
        places: number of first sentences before which the inserted sentence may be; None: all sentences.
    """
    # Text to position; a dict, because two mails may turn out equal and must not both count.
    mails: dict[str, int] = {}
    while len(mails) < records:
        # With mean and minimum equal a user has exactly this number of mails; the loop goes on where some were equal.
        spec = SyntheticCorpus(1, float(records), records, distinctiveness=0.0, seed=dice.getrandbits(31))
        mails |= dict(_with_sentence(mail.text, sentence(dice), dice, places) for mail in generate_user(spec, 0))
    return list(mails.items())[:records]


def _with_sentence(text: str, sentence: str, dice: random.Random, most: int | None) -> tuple[str, int]:
    """Insert the sentence before a random other sentence, and return the text and the position of the insertion."""
    # Positions are of the first character of a sentence; 0 is before the first one.
    places = [0, *(i + 2 for i in range(len(text) - 2) if text[i : i + 2] == ". ")]
    at = dice.choice(places[:most])
    return f"{text[:at]}{sentence} {text[at:]}", at
