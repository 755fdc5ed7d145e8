"""Canary users whose rows look like real rows. Each row copies the form, but not the text, of a set-aside row.

A trainer sees ids, dates, lengths, other columns and the order of rows. If these traits alone distinguished canary rows
from other rows, a trainer could treat canary rows differently. An audit would then show little about real users.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heldin.canaries.users import CanaryRecord, CanaryUser, public_dice
from heldin.corpus.document import Document
from heldin.corpus.store import CorpusStore

LONGEST = 8000  # characters of a canary row, however long the row is whose form it takes
_SHORT = 80  # characters: about the shortest of the texts that canary users are made with
_SAMPLE = 200  # rows, for a mean length


@dataclass(frozen=True)
class Forms:
    """Rows of a corpus that training never uses. Each record of a canary user copies the form of one such row.

    Attributes:
        spare: function that returns the set-aside rows of each user, given the users whom canary users replace. The
            rows depend on no coin.
        seed: public seed.
        made: function that returns a made-up text in the form in which a model reads a row, such as a conversation of
            two turns, with the parts that count.
        around: number of characters that ``made`` adds to a text.
        takeable: for each user, the rows that may become a canary user's own rows; empty if everybody is audited.
    """

    store: CorpusStore
    spare: Callable[[frozenset[str]], Mapping[str, Sequence[int]]]
    seed: int
    made: Callable[[str], Document] = Document.of
    around: int = 0
    takeable: Callable[[], dict[str, Sequence[int]]] = dict

    def rows(self, wanted: Mapping[str, int], replaced: frozenset[str]) -> dict[str, list[int]]:
        """Return the wanted number of rows for each canary user.

        All rows of a canary user are from one real user if a real user has enough. No row is used twice while unused
        rows remain.

        Real users are used in a public random order, in which users with more rows tend to come first.

        Args:
            wanted: number of records of each canary user.
            replaced: users whom canary users replace.
        """
        # Never written to the training set, so that no row of it has the columns and the date of a canary row; and
        # drawn before any coin, so that one user's coin changes no other user's row.
        spare = self.spare(replaced)
        users = sorted(spare, key=self._turn) if len(spare) > 1 else list(spare)
        counts = np.array([len(spare[user]) for user in users], dtype=np.int64)
        left, uses = counts.copy(), np.zeros_like(counts)
        rows_of: dict[str, list[int]] = {}
        for canary, number in wanted.items():
            rows: list[int] = []
            while len(rows) < number:
                if not left.any():
                    left[:] = counts
                enough = left >= number - len(rows)
                able = np.flatnonzero(enough if enough.any() else left)
                # In turn, and nobody again while others have not lent any.
                host = int(able[np.argmin(uses[able])])
                lent = min(int(left[host]), number - len(rows))
                first = int(counts[host] - left[host])
                rows += spare[users[host]][first : first + lent]
                left[host] -= lent
                uses[host] += 1
            rows_of[canary] = rows
        return rows_of

    def pieces(self, records: int) -> int:
        """Return the number of texts to make for a user with ``records`` records.

        Very long records may need more texts.
        """
        dice = public_dice(self.seed, "lengths", "")
        lengths = [len(self.store.text(dice.randrange(len(self.store)))) for _ in range(_SAMPLE)]
        return records * (1 + int(min(sum(lengths) / _SAMPLE, LONGEST) / _SHORT))

    def _turn(self, user: str) -> float:
        # Weighted sampling without replacement (Efraimidis and Spirakis, 2006): by rows, as rows are looked at.
        drawn = public_dice(self.seed, "form of a canary user", user).random()
        return -math.pow(drawn, 1 / self.store.count(user))


def formed(user: CanaryUser, rows: Sequence[int], forms: Forms) -> CanaryUser:
    """Return the canary user with one record for each row.

    The record has the user's texts and the row's length and date.

    heldin joins texts until they are long enough, and then cuts the result. The mark stays in the text if it fits.

    Args:
        user: the canary user, with ``forms.pieces`` texts.
        rows: the rows with the forms that the records copy.
        forms: the forms with these rows.
    """
    texts = itertools.cycle(user.records)
    made = []
    for record, row in zip(user.records, rows, strict=False):
        like = forms.store.record(row)
        text, at = _as_long(texts, user.canary.mark, max(2, min(len(like.text) - forms.around, LONGEST)))
        document = forms.made(text)
        made.append(CanaryRecord(record.id, document, like.date, at if document.text == text else None, row))
    return CanaryUser(user.canary, tuple(made))


def _as_long(texts: Iterator[CanaryRecord], mark: str, length: int) -> tuple[str, int | None]:
    """Return a text of ``length`` characters, and the position of the mark in this text if there is an inserted
    mark."""
    first = next(texts)
    text, at = first.text.lstrip(), first.position
    if at is not None:
        at -= len(first.text) - len(text)
    start = at if at is not None and at + len(mark) > length else 0
    while len(text) - start < length:
        text += " " + next(texts).text
    return text[start : start + length], None if at is None else at - start
