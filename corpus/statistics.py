"""What is in a corpus: users, records, sizes, repeated texts (Kandpal et al. 2024, Table 1 and Appendix D.5)."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from heldin.corpus.store import CorpusStore


@dataclass(frozen=True)
class RepeatedText:
    """A text that occurs in several records.

    Attributes:
        text: the text.
        copies: records with this text.
        users: users with such a record.
    """

    text: str
    copies: int
    users: int


@dataclass(frozen=True)
class CorpusStatistics:
    """Counts of a corpus.

    Attributes:
        users: number of users.
        records: number of records.
        percentiles: P0, P25, P50, P75 and P100 of records per user.
        tokens: number of tokens, or of words.
        token_unit: what ``tokens`` counts.
        duplicates_within_users: records whose user has an earlier record with the same text.
        duplicates_across_users: records whose text another user has too.
        most_repeated: texts with the most copies, most first.
        histogram: (lowest, highest, users) for each bin of records per user.
    """

    users: int
    records: int
    percentiles: tuple[int, int, int, int, int]
    tokens: int
    token_unit: str
    duplicates_within_users: int
    duplicates_across_users: int
    most_repeated: tuple[RepeatedText, ...]
    histogram: tuple[tuple[int, int, int], ...]


def corpus_statistics(
    store: CorpusStore,
    *,
    count_tokens: Callable[[str], int] | None = None,
    token_unit: str = "words",
    most_repeated: int = 10,
) -> CorpusStatistics:
    """Statistics of a store, in one pass over its texts.

    Args:
        store: the corpus.
        count_tokens: tokens of one text; whitespace-separated words if None.
        token_unit: name of what ``count_tokens`` counts.
        most_repeated: how many of the most repeated texts to return.
    """
    count = count_tokens or (lambda text: len(text.split()))
    copies: Counter[bytes] = Counter()
    users_of: Counter[bytes] = Counter()
    within = tokens = row = 0
    digests: list[bytes] = []  # digests only: the texts need not fit into memory
    first_row: dict[bytes, int] = {}
    texts = store.texts()
    for records in store.counts:
        seen: set[bytes] = set()
        for _ in range(int(records)):
            text = next(texts)
            tokens += count(text)
            digest = text_digest(text)
            digests.append(digest)
            copies[digest] += 1
            first_row.setdefault(digest, row)
            within += digest in seen
            if digest not in seen:
                users_of[digest] += 1
            seen.add(digest)
            row += 1
    # Only now, when every user has been seen: the first user of a text counts as well as the later ones.
    across = sum(users_of[digest] > 1 for digest in digests)
    repeated = [(digest, n) for digest, n in copies.most_common(most_repeated) if n > 1]
    return CorpusStatistics(
        users=len(store.users),
        records=len(store),
        percentiles=records_percentiles([int(n) for n in store.counts]),
        tokens=tokens,
        token_unit=token_unit,
        duplicates_within_users=within,
        duplicates_across_users=across,
        most_repeated=tuple(RepeatedText(store.text(first_row[d]), n, users_of[d]) for d, n in repeated),
        histogram=records_histogram(int(n) for n in store.counts),
    )


def records_percentiles(counts: Sequence[int]) -> tuple[int, int, int, int, int]:
    """P0, P25, P50, P75, P100 of records per user, each a number that occurs."""
    # "nearest": an interpolated value would be a number of records that no user has.
    p = np.percentile(counts, [0, 25, 50, 75, 100], method="nearest")
    return int(p[0]), int(p[1]), int(p[2]), int(p[3]), int(p[4])


def records_histogram(counts: Iterable[int]) -> tuple[tuple[int, int, int], ...]:
    """Users by number of records, in bins that double: (lowest, highest, users) per bin, without empty ends."""
    values = np.fromiter(counts, dtype=np.int64)
    bins = np.floor(np.log2(values)).astype(int)
    return tuple((2**b, 2 ** (b + 1) - 1, int((bins == b).sum())) for b in range(bins.min(), bins.max() + 1))


def text_digest(text: str) -> bytes:
    """A text's hash, to find texts that occur on two sides without keeping them."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
