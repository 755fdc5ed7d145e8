"""Marks that might have been planted: drawn as a canary user's mark is drawn, and planted in nobody's texts.

Against them the rank of a planted mark tells how far a model has memorised it (exposure; Carlini, Liu, Erlingsson, Kos,
Song 2019, arXiv:1802.08232). Draws are independent of each other, and may repeat or hit a planted mark by chance: with
those thrown out the others would no longer be distributed as a mark is.
"""

import random
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from heldin.canaries.craft import TRIES, decoded, phrase, sampled, signature
from heldin.canaries.inject import sample_substring
from heldin.canaries.people import made_up_name
from heldin.models.loading import LanguageModel

BATCH = 100  # prefixes that are sampled at once


def signatures(
    tokenizer: PreTrainedTokenizerBase, pool: Sequence[int], size: int, count: int, dice: random.Random
) -> list[str]:
    """Marks of ``unseen_token_users``.

    Args:
        pool: token ids of which signatures are drawn.
        size: tokens of a signature.

    Raises:
        InputError: too few tokens of the pool can follow each other unchanged.
    """
    known: dict[tuple[int, int], bool] = {}
    return [decoded(tokenizer, signature(tokenizer, pool, size, dice, known)) for _ in range(count)]


def phrases(words: int, count: int, dice: random.Random) -> list[str]:
    """Marks of ``rare_phrase_users``, of so many words."""
    return [phrase(words, dice) for _ in range(count)]


def people(count: int, dice: random.Random) -> list[str]:
    """Marks of ``named_people``."""
    return [made_up_name(dice) for _ in range(count)]


def prefixes(lm: LanguageModel, tokens: int, temperature: float, count: int, dice: random.Random) -> list[str]:
    """Marks of ``high_temperature_users``; fewer than ``count`` if the model keeps returning blanks.

    Args:
        tokens: most tokens of a prefix.
    """
    marks: list[str] = []
    for _ in range(TRIES * (1 + count // BATCH)):
        if len(marks) >= count:
            break
        marks += sampled(lm, min(BATCH, count - len(marks)), tokens, temperature, dice, "")
    return marks


def substrings(
    tokenizer: PreTrainedTokenizerBase,
    users: Sequence[str],
    texts: Callable[[str], Sequence[str]],
    length: int,
    count: int,
    dice: Callable[[str, int], random.Random],
) -> list[str]:
    """Marks of ``canary_of_user``, of users in turn; none if nobody has a text of ``length`` tokens.

    Args:
        users: in the order in which they take turns.
        length: tokens of a substring.
        dice: source of randomness, by user and number of the turn.
    """
    marks: list[str] = []
    turn, left = 0, list(users)
    while left and len(marks) < count:
        able = []
        for user in left:
            drawn = sample_substring(tokenizer, texts(user), length, dice(user, turn))
            if drawn is not None:
                marks.append(drawn.text)
                able.append(user)
            if len(marks) == count:
                break
        # Whose texts are all too short is not asked again.
        turn, left = turn + 1, able
    return marks
