"""Compare the sequences that training gave a model with the rows of the planted training set, and count reads per row.

A read without visible labels shows nothing about the loss. The module counts such reads, but not in any count of
losses.

The module compares rows by their tokens under the reference's tokenizer. It recognises a row that a trainer cuts by the
remaining tokens: the first tokens, the last tokens, or consecutive pieces.

If rows were joined and cut at one length without a mark at the end of each row, no row can be recognised. But the first
and last tokens of a sequence are usually inside some row. The canary users' share of all tokens gives the expected
number of such ends inside a canary user's row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldin.bounds.roc import error_at_chance, placements
from heldin.planting.training_log import READ, History, Reads, hash_of, own_bounds
from heldin.record.planted_facts import JoinedRows, ReadingOrder, TrainingCounts

GRAM = 8  # tokens in a row that are compared
_BETWEEN = 2  # tokens between two rows, at most
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, power, 2**64) for power in range(1, GRAM + 1)], dtype=np.uint64)

Grams = NDArray[np.uint64]


def grams_of(tokens: Sequence[int]) -> Grams:
    """Return a hash of each run of ``GRAM`` tokens, shape (tokens - GRAM + 1,); shape (0,) if there are fewer
    tokens."""
    if len(tokens) < GRAM:
        return np.zeros(0, dtype=np.uint64)
    values = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
    # Modulo 2**64, as unsigned integers are multiplied.
    hashes: Grams = (np.lib.stride_tricks.sliding_window_view(values, GRAM) * _FACTORS).sum(axis=1, dtype=np.uint64)
    return hashes


def joined_rows(edges: Grams, canary: Sequence[Grams], other: Sequence[Grams], tokens: int) -> JoinedRows:
    """Compare the ends of sequences with the rows from which the sequences were joined.

    Args:
        edges: hashes of the first and the last tokens of each distinct sequence.
        canary: hashes of each canary row; see ``grams_of``.
        other: hashes of each real row; see ``grams_of``.
        tokens: number of tokens in all rows.
    """
    mine = np.concatenate(canary) if canary else np.zeros(0, dtype=np.uint64)
    others = np.concatenate(other) if other else np.zeros(0, dtype=np.uint64)
    # A run of tokens that real rows have too shows no canary row.
    own = mine[~np.isin(mine, others)]
    within_own = np.isin(edges, own)
    within = within_own | np.isin(edges, others) | np.isin(edges, mine)
    runs = mine.size + others.size
    places = tokens + _BETWEEN * (len(canary) + len(other))
    return JoinedRows(
        ends=edges.size,
        foreign=int((~within).sum()),
        foreign_expected=edges.size * (1 - runs / places) if places else 0.0,
        canary=int(within_own.sum()),
        canary_expected=float(within.sum() * own.size / runs) if runs else 0.0,
    )


_HASH = READ["hash"]
_ENOUGH = 20  # rows that read like no other: so many show how often the whole set was read
_LEAST_USERS = 10  # of each kind, so that chance seldom puts all of one first
_ENDS = 2  # tokens at both ends of a row that a trainer may add, and that count for its length limit
_ONE_LENGTH, _UNKNOWN = 0.95, 0.8  # shares of sequences of one length, and that are no row: they look joined and cut


@dataclass(frozen=True)
class PlantedRow:
    """A row of the planted training set.

    Attributes:
        tokens: tokens of the row's text, without special tokens.
        user: name of the user who wrote the row.
        required: whether training must count a loss on the row, because a scored token is within the length limit.
        canary: whether the user is a canary user.
    """

    tokens: Sequence[int]
    user: str
    required: bool = True
    canary: bool = False


@dataclass(frozen=True)
class _Rows:
    """All rows as arrays of shape (rows,).

    Attributes:
        keys: hash of each row's own tokens, cut at the longest sequence.
        texts: hash of all own tokens of each row.
        ends_read: for a cut row, hash of its last own tokens, as many as the longest sequence has; otherwise the value
            in ``keys``.
        tokens: number of own tokens of each row, at most the length of the longest sequence.
        cut: whether a row has more tokens than the longest sequence.
        required: see ``PlantedRow``.
        canary: whether a canary user wrote the row.
        user: number of each row's user, from 0.
        pieces: sorted hashes of the pieces of all rows longer than the longest sequence, shape (pieces,).
        short: for each row that was cut below the length limit, the hashes of its pieces up to that limit, for each way
            of cutting.
        all_tokens: number of tokens in all rows before cutting.
        grams: for each row, hashes of its runs of tokens, and whether it is a canary user's row; empty if not needed.
            needed.
    """

    keys: NDArray[np.bytes_]
    texts: NDArray[np.bytes_]
    ends_read: NDArray[np.bytes_]
    tokens: NDArray[np.int64]
    cut: NDArray[np.bool_]
    required: NDArray[np.bool_]
    canary: NDArray[np.bool_]
    user: NDArray[np.int64]
    pieces: NDArray[np.bytes_]
    short: Sequence[tuple[frozenset[bytes], ...]]
    all_tokens: int
    grams: Sequence[tuple[Grams, bool]]


def count_given(history: History, rows: Iterable[PlantedRow], length: int) -> TrainingCounts:
    """Compare the sequences that the model was given with the rows, and count.

    Rows that are equal after cutting share their reads. The true number of missing rows is at least the counted number.

    Args:
        history: the logged reads.
        rows: rows of the planted training set.
        length: number of tokens of a row that training must read; for a shorter row, all tokens.
    """
    reads = history.reads
    longest = int(reads["tokens"].max(initial=0))
    table = _table(rows, history.ends, longest, length, grams=_has_one_length(reads))
    keys, members, sizes = np.unique(table.keys, return_inverse=True, return_counts=True)
    totals = _totals(history, keys)
    foreign, pieces = _others(reads, keys, table)
    # A row that is cut at its beginning is known by its last tokens.
    last, at_end = np.unique(table.ends_read, return_inverse=True)
    by_end = _totals(history, last)
    passes = _passes(totals.reads, sizes, history.epochs)

    def of_rows(counts: NDArray[np.int64], at_ends: NDArray[np.int64]) -> NDArray[np.int64]:
        mine = _shared_out(counts, sizes, members, passes)
        return np.where((mine == 0) & table.cut, at_ends[at_end], mine)

    read = of_rows(totals.reads, by_end.reads)
    labelled = of_rows(totals.labelled, by_end.labelled)
    bore = of_rows(totals.bearing, by_end.bearing)
    is_canary = table.canary
    expected = passes if history.epochs is None else max(1, int(np.ceil(history.epochs - 1e-6)))
    # Labels that nobody saw may bear a loss.
    may_bear = np.unique(table.user[is_canary & ((bore > 0) | (read > labelled))])
    some_labels = bool((reads["loss_tokens"] >= 0).any()) or not len(reads)
    share, has_share = totals.share[members], totals.labelled[members] > 0
    joined = _joined(reads, foreign, table)
    whole = set(reads["hash"].tolist()) if table.short else set()
    return TrainingCounts(
        starts=history.starts,
        processes=history.processes,
        steps=history.steps,
        epochs=history.epochs,
        sequences=len(reads),
        longest=longest,
        rows=len(read),
        late=int((~table.required).sum()),
        missing=int(((read == 0) & table.required).sum()),
        missing_canary_rows=int(((read == 0) & table.required & is_canary).sum()),
        foreign=foreign,
        silent=int(((labelled > 0) & (bore == 0) & table.required).sum()) if some_labels else None,
        unlabelled=int((reads["loss_tokens"] < 0).sum()),
        attention_unseen=int((~reads["attention"]).sum()),
        unreadable=history.unreadable,
        cut=int(table.cut.sum()),
        short=sum(not any(pieces <= whole for pieces in ways) for ways in table.short),
        pieces=pieces,
        alike=int(_differing(members, table.texts).sum()),
        repeated=int(np.maximum(totals.reads - sizes * (expected + (history.epochs is None)), 0).sum()),
        packed=int((reads["packed"] > 1).sum()),
        fewest_reads=int(read[table.required].min(initial=np.iinfo(np.int64).max)) if table.required.any() else 0,
        most_reads=int(read.max(initial=0)),
        joined=joined,
        silent_canary_users=int(np.unique(table.user[is_canary]).size - may_bear.size) if some_labels else None,
        reads_canaries=_mean(read[is_canary & table.required]),
        reads_others=_mean(read[~is_canary & table.required]),
        loss_share_canaries=_mean(share[is_canary & has_share]),
        loss_share_others=_mean(share[~is_canary & has_share]),
        order=None if joined is not None else _order(totals, sizes, members, table),
    )


@dataclass(frozen=True)
class _Totals:
    """Reads for each key, as arrays of shape (keys,).

    Attributes:
        labelled: number of reads whose labels were seen.
        bearing: number of reads with a loss.
        share: share of the tokens of labelled reads that have a loss; 0 without such reads.
        place: mean position of the reads in the training; NaN without reads.
        last: position of the last read; NaN without reads.
    """

    reads: NDArray[np.int64]
    labelled: NDArray[np.int64]
    bearing: NDArray[np.int64]
    share: NDArray[np.float64]
    place: NDArray[np.float64]
    last: NDArray[np.float64]


def _totals(history: History, keys: NDArray[np.bytes_]) -> _Totals:
    reads, number = history.reads, len(keys)
    at = np.minimum(np.searchsorted(keys, reads["hash"]), max(number - 1, 0))
    fits = keys[at] == reads["hash"] if number else np.zeros(len(reads), dtype=bool)
    there, loss = at[fits], reads["loss_tokens"][fits].astype(np.int64)
    seen, places = loss >= 0, history.places[fits]
    count = np.bincount(there, minlength=number)
    length = np.maximum(reads["tokens"][fits].astype(np.int64), 1)
    tokens = np.bincount(there[seen], weights=length[seen], minlength=number)
    lossy = np.bincount(there[seen], weights=loss[seen], minlength=number)
    last = np.full(number, -np.inf)
    np.maximum.at(last, there, places)
    none = np.where(count > 0, 0.0, np.nan)
    return _Totals(
        count,
        np.bincount(there[seen], minlength=number),
        np.bincount(there[loss > 0], minlength=number),
        lossy / np.maximum(tokens, 1),
        np.bincount(there, weights=places, minlength=number) / np.maximum(count, 1) + none,
        np.where(count > 0, last, np.nan),
    )


def _order(totals: _Totals, sizes: NDArray[np.int64], members: NDArray[np.int64], table: _Rows) -> ReadingOrder | None:
    """Compare when training read canary users' rows and when it read other rows; None if there are too few users.

    Args:
        totals: reads by key.
        sizes: number of rows with each key. The function ignores rows that share a key, because their reads cannot be
            separated.
        members: key of each row.
        table: the rows.
    """
    alone = (sizes[members] == 1) & (totals.reads[members] > 0)
    mine, others = alone & table.canary, alone & ~table.canary
    users = [np.unique(table.user[side]).size for side in (mine, others)]
    if min(users) < _LEAST_USERS:
        return None
    (earlier, deviation), (last_earlier, last_deviation) = (
        _earlier(places[members[mine]], places[members[others]], table.user[mine], table.user[others])
        for places in (totals.place, totals.last)
    )
    return ReadingOrder(
        canary_users=users[0],
        other_users=users[1],
        earlier=earlier,
        deviation=deviation,
        last_earlier=last_earlier,
        last_deviation=last_deviation,
    )


def _earlier(
    mine: NDArray[np.float64], others: NDArray[np.float64], my_users: NDArray[np.int64], users: NDArray[np.int64]
) -> tuple[float, float]:
    """Return how often an item of the first group precedes an item of the second group, and the difference from 1/2 in
    standard errors.

    A user's rows may be consecutive, so the standard error is for clustered data (Obuchowski 1997). If the standard
    error at chance is larger, the function uses the error at chance.
    """
    first, second = placements(-mine, -others)
    area = float(first.mean())
    variance = _between_users(first - area, my_users) + _between_users(second - area, users)
    return area, (area - 0.5) / max(float(np.sqrt(variance)), error_at_chance(mine.size, others.size))


def _between_users(deviations: NDArray[np.float64], users: NDArray[np.int64]) -> float:
    _, number = np.unique(users, return_inverse=True)
    sums = np.bincount(number, weights=deviations)
    return float((sums**2).sum() / deviations.size**2 * sums.size / (sums.size - 1))


def _others(reads: Reads, keys: NDArray[np.bytes_], table: _Rows) -> tuple[int, int]:
    """Return two numbers: reads that match neither a row nor a piece, and reads that match a later piece of a row."""
    rest = reads["hash"][~np.isin(reads["hash"], keys)]
    rest = rest[~np.isin(rest, table.ends_read)]
    pieces = np.isin(rest, table.pieces)
    return int((~pieces).sum()), int(pieces.sum())


def _passes(reads: NDArray[np.int64], sizes: NDArray[np.int64], epochs: float | None) -> int:
    """Return a lower limit on the number of passes over the whole set; 1 if no full pass is certain."""
    alone = reads[(sizes == 1) & (reads > 0)]
    if not alone.size:
        return 1
    # Of few rows all may have been read in a last epoch that was broken off.
    whole = int(epochs) if epochs is not None else int(reads.sum() // sizes.sum())
    return max(1, int(alone.min()) if epochs is None and alone.size >= _ENOUGH else min(int(alone.min()), whole))


def _shared_out(
    reads: NDArray[np.int64], sizes: NDArray[np.int64], members: NDArray[np.int64], passes: int
) -> NDArray[np.int64]:
    """Distribute the reads of each key over as many of its rows as one read per row and pass needs, shape (rows,)."""
    rows_read = np.minimum(sizes, -(-reads // passes))
    order = np.argsort(members, kind="stable")
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rank = np.empty(len(members), dtype=np.int64)
    rank[order] = np.arange(len(members)) - first[members[order]]
    each = reads // np.maximum(rows_read, 1)
    return np.where(rank < rows_read[members], each[members], 0)


def _differing(members: NDArray[np.int64], texts: NDArray[np.bytes_]) -> NDArray[np.bool_]:
    """Return, for each row, whether another row with the same key has a different text."""
    distinct, number = np.unique(texts, return_inverse=True)
    ways = np.bincount(np.unique(members * len(distinct) + number) // max(1, len(distinct)))
    return ways[members] > 1


def _joined(reads: Reads, foreign: int, table: _Rows) -> JoinedRows | None:
    """Return the counts of the ends of sequences. None unless the sequences look like rows that were joined and cut."""
    if not foreign or foreign < _UNKNOWN * len(reads) or not _has_one_length(reads):
        return None
    # Of the same joined rows in each epoch, once.
    _, first = np.unique(reads["hash"], return_index=True)
    edges = reads["ends"][first].ravel()
    canary, other = ([grams for grams, is_canary in table.grams if is_canary is wanted] for wanted in (True, False))
    return joined_rows(edges[edges > 0], canary, other, table.all_tokens)


def _has_one_length(reads: Reads) -> bool:
    # Special tokens at either end were left out of the count.
    return bool(len(reads)) and bool((reads["tokens"] + _ENDS >= reads["tokens"].max()).mean() >= _ONE_LENGTH)


def _mean(values: NDArray[np.float64] | NDArray[np.integer]) -> float | None:
    return float(values.mean()) if values.size else None


def _table(rows: Iterable[PlantedRow], ends: frozenset[int], longest: int, length: int, *, grams: bool) -> _Rows:
    keys: list[bytes] = []
    texts: list[bytes] = []
    last: list[bytes] = []
    pieces: set[bytes] = set()
    tokens: list[int] = []
    cut: list[bool] = []
    required: list[bool] = []
    canary: list[bool] = []
    user: list[int] = []
    short: list[tuple[frozenset[bytes], ...]] = []
    numbers: dict[str, int] = {}
    grams_of_rows: list[tuple[Grams, bool]] = []
    all_tokens = 0
    for row in rows:
        own = _own(row.tokens, ends)
        all_tokens += len(own)
        if grams:
            grams_of_rows.append((grams_of(own), row.canary))
        texts.append(hash_of(own))
        is_cut = len(own) > longest
        # Where a row is cut another end may come to stand at its border.
        keys.append(hash_of(_own(own[:longest], ends)) if is_cut else texts[-1])
        last.append(hash_of(_own(own[-longest:], ends)) if is_cut and longest else keys[-1])
        if is_cut and longest:
            pieces.update(*_pieces(own, ends, longest))
            if min(len(own), length) - longest > _ENDS:
                seen = min(len(own), length - _ENDS)
                short.append(tuple(frozenset(way) for way in _pieces(own, ends, longest, seen)))
        tokens.append(min(len(own), longest))
        cut.append(is_cut)
        required.append(row.required)
        canary.append(row.canary)
        user.append(numbers.setdefault(row.user, len(numbers)))
    return _Rows(
        np.array(keys, dtype=_HASH),
        np.array(texts, dtype=_HASH),
        np.array(last, dtype=_HASH),
        np.array(tokens, dtype=np.int64),
        np.array(cut, dtype=np.bool_),
        np.array(required, dtype=np.bool_),
        np.array(canary, dtype=np.bool_),
        np.array(user, dtype=np.int64),
        np.array(sorted(pieces), dtype=_HASH),
        short,
        all_tokens,
        grams_of_rows,
    )


def _pieces(
    own: Sequence[int], ends: frozenset[int], longest: int, first: int | None = None
) -> Iterator[Iterator[bytes]]:
    """Yield hashes of the pieces of a long row that is cut at one length, once without and once with a start token.

    With ``first``, only pieces that begin within the first ``first`` tokens.
    """
    for early in (0, 1):
        begins = [0, *range(longest - early, len(own), longest)]
        pairs = zip(begins, [*begins[1:], len(own)], strict=True)
        yield (hash_of(_own(own[begin:end], ends)) for begin, end in pairs if first is None or begin < first)


def _own(tokens: Sequence[int], ends: frozenset[int]) -> Sequence[int]:
    first, last = own_bounds(tokens, ends)
    return tokens[first:last]
