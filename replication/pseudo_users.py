"""Assign texts without users to pseudo-users, with normal numbers of texts per user (Lai et al. 2021, Appendix C)."""

import json
import random
import string
from collections.abc import Iterator, Sequence
from pathlib import Path

from heldin.base.coins import keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import private_directory, text_sha256, whole_file
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns

_NO_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))


def sizes(mean: float, spread: float, seed: int) -> Iterator[int]:
    """Yield the number of texts for one pseudo-user after another, each at least 1, without end."""
    dice = random.Random(seed)
    while True:
        yield max(1, round(dice.gauss(mean, spread)))


def plain(text: str) -> str:
    """Return the text in lower case, with a blank in place of punctuation."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def dealt(texts: Sequence[str], mean: float, spread: float, seed: int) -> Iterator[tuple[str, str]]:
    """Yield (user, text) for every distinct text. The assignment depends on the public seed and the texts, not their
    order.

    The last user gets the remaining texts.
    """
    by_name = {text_sha256(text): text for text in texts}
    rest = iter(keyed_order(seed_key(seed), "deal", list(by_name)))
    for user, size in enumerate(sizes(mean, spread, seed)):
        for _ in range(size):
            name = next(rest, None)
            if name is None:
                return
            yield f"user {user:06}", by_name[name]


def deal_file(
    file: Path, to: Path, *, text: str, mean: float, spread: float, lower: bool, seed: int
) -> tuple[int, int]:
    """Assign the texts of a file to users, and write them as JSON lines with user, id and text.

    Args:
        file: JSON lines, plain or compressed.
        to: file to write.
        text: column that contains the text.
        mean: mean number of texts per user.
        spread: standard deviation of the number of texts per user.
        lower: whether to assign ``plain`` texts.
        seed: public seed.

    Returns:
        The numbers of users and of texts.

    Raises:
        InputError: the file is unusable.
    """
    texts: list[str] = []
    # Both columns are the text: whom it is from nobody knows.
    for batch in Json(file, Columns(user=text, text=text)).batches(BadRows()):
        texts += batch["text"].to_pylist()
    pairs = list(dealt([plain(its) for its in texts] if lower else texts, mean, spread, seed))
    pairs = [(user, its) for user, its in pairs if its]
    if not pairs:
        raise InputError(f"'{file}' has no texts in column '{text}': name another file or column")
    private_directory(to.parent)
    with whole_file(to, private=True) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for number, (user, its) in enumerate(pairs):
            lines.write(json.dumps({"user": user, "id": str(number), "text": its}, ensure_ascii=False) + "\n")
    return len({user for user, _ in pairs}), len(pairs)
