"""Canary users whose rows look like others': each takes the form of a row of the corpus, and none of its text.

Who trains sees ids, dates, lengths and the order of rows. If canary rows could be told from others by these alone, a
trainer could treat them otherwise, and an audit would say nothing of real users.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heldin.canaries.kinds import CanaryRecord, CanaryUser, public_dice
from heldin.corpus.store import CorpusStore, Record

LONGEST = 8000  # characters of a canary row, however long the row is whose form it takes
_SHORT = 80  # characters: about the shortest of the texts that canary users are made with
_SAMPLE = 200  # rows, for a mean length
_PROBE = "two words"


@dataclass(frozen=True)
class Forms:
    """Rows of a corpus, of which each record of a canary user takes the form of one.

    Attributes:
        store: the corpus.
        weight: by user, the probability, above 0, with which a row of theirs will be trained on, before any coin.
        seed: public.
        made: a made-up text as a model reads it in a row of this form, such as a conversation of two turns.
    """

    store: CorpusStore
    weight: Callable[[str], float]
    seed: int
    made: Callable[[str], str] = str

    @property
    def around(self) -> int:
        """Characters that ``made`` adds to a text."""
        return len(self.made(_PROBE)) - len(_PROBE)

    def of(self, record: str) -> Record:
        """The row whose form the record of this id takes; like a random row of the training set, by a public draw."""
        dice = public_dice(self.seed, "form of a canary record", record)
        while True:
            found = self.store.record(dice.randrange(len(self.store)))
            if dice.random() < self.weight(found.user):
                return found

    def pieces(self, records: int) -> int:
        """How many texts to make for a user of so many records: enough to fill them, but for unusually long ones."""
        dice = public_dice(self.seed, "lengths", "")
        lengths = [len(self.store.text(dice.randrange(len(self.store)))) for _ in range(_SAMPLE)]
        return records * (1 + int(min(sum(lengths) / _SAMPLE, LONGEST) / _SHORT))


def formed(user: CanaryUser, records: int, forms: Forms) -> CanaryUser:
    """The canary user with so many records of its own texts, each as long as the row whose form it takes.

    Texts are joined until they are long enough, and cut; the mark stays in what is left wherever it fits.

    Args:
        user: with ``forms.pieces`` texts.
        records: number of its records.
        forms: the rows whose forms they take.
    """
    texts = itertools.cycle(user.records)
    made = []
    for record in user.records[:records]:
        like = forms.of(record.id)
        text, at = _as_long(texts, user.canary.mark, max(2, min(len(like.text), LONGEST) - forms.around))
        stands = forms.made(text)
        made.append(CanaryRecord(record.id, stands, like.date, at if stands == text else None))
    return CanaryUser(user.canary, tuple(made))


def _as_long(texts: Iterator[CanaryRecord], mark: str, length: int) -> tuple[str, int | None]:
    """A text of so many characters, and where the mark is in it if it was inserted."""
    first = next(texts)
    text, at = first.text.lstrip(), first.position
    if at is not None:
        at -= len(first.text) - len(text)
    start = at if at is not None and at + len(mark) > length else 0
    while len(text) - start < length:
        text += " " + next(texts).text
    return text[start : start + length], None if at is None else at - start
