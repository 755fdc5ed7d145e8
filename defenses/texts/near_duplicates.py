"""Find near-duplicates in text order, with MinHash sketches by rensa and an index that needs little memory.

heldin removes a text if its estimated Jaccard similarity to an earlier kept text reaches the threshold. heldin compares
a small number of texts directly. For many texts, locality-sensitive hashing proposes the pairs (Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", section 3.4). Sketches and band hashes are in a temporary folder (TMPDIR), and
only the bands that texts share are in memory. The index takes 0.2 KB per text if there are few copies. At a threshold
of 0.8, it takes 0.8 KB if every text has a copy. Lower thresholds have more bands and need more memory. heldin compares
texts that share most of their words, such as the same disclaimer, pair by pair.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

PERMUTATIONS = 128
MINHASH_SEED = 42
# rensa's own index takes 3 KB per text and finds 28 % of the pairs just above 0.8, hence the index below.
RECALL = 0.99  # of pairs at the threshold; lower for thresholds below 0.035, where even one row is too many
DIRECT = 1_000  # texts up to which every pair is compared
CHUNK = 10_000  # texts sketched or read at a time
_SKETCH_BYTES = 4 * PERMUTATIONS

Sketches: TypeAlias = npt.NDArray[np.uint32]  # (texts, PERMUTATIONS)


def first_of_similar(
    shingles: Iterable[Sequence[str]], threshold: float, fixed: int | None = None
) -> npt.NDArray[np.bool_]:
    """Mark the texts to keep, shape (texts,): the texts that are not similar to an earlier kept text.

    Args:
        shingles: shingles of each text; the function reads the iterable once.
        threshold: threshold of the estimated Jaccard similarity, in (0, 1].
        fixed: number of first texts, which are all kept. Only these first texts remove other texts; None: every kept
            text may remove other texts.
    """
    source = iter(shingles)
    first = list(islice(source, DIRECT + 1))
    if len(first) <= DIRECT:
        return _directly(first, threshold, fixed)
    with tempfile.TemporaryDirectory(prefix="heldin-near-duplicates-") as folder:
        return _by_bands(_chunks(first, source), threshold, Path(folder), fixed)


def rows_of_a_band(threshold: float) -> int:
    """Return the largest number of rows per band with a high enough recall.

    Pairs at the threshold must share a band with probability RECALL or more.
    """
    enough = [r for r in range(1, PERMUTATIONS + 1) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= RECALL]
    return max(enough, default=1)


def _directly(shingles: Sequence[Sequence[str]], threshold: float, fixed: int | None) -> npt.NDArray[np.bool_]:
    stays: list[bool] = []
    remove: list[RMinHash] = []
    for text, sketch in enumerate(RMinHash.from_token_sets(shingles, PERMUTATIONS, MINHASH_SEED)):
        own = fixed is not None and text < fixed
        stays.append(own or not any(sketch.jaccard(other) >= threshold for other in remove))
        if own or (fixed is None and stays[-1]):
            remove.append(sketch)
    return np.array(stays, dtype=np.bool_)


def _by_bands(
    chunks: Iterator[Sequence[Sequence[str]]], threshold: float, folder: Path, fixed: int | None
) -> npt.NDArray[np.bool_]:
    rows = rows_of_a_band(threshold)
    paths = [folder / f"band-{band}" for band in range(PERMUTATIONS // rows)]
    texts = 0
    with (folder / "sketches").open("wb") as out:
        for chunk in chunks:
            sketches = sketches_of(chunk)
            texts += len(sketches)
            out.write(sketches.tobytes())
            for band, path in enumerate(paths):
                # Opened anew for each chunk: at low thresholds there are 128 bands, too many files to keep open.
                with path.open("ab") as hashes:
                    hashes.write(_hashes(sketches[:, band * rows : (band + 1) * rows]).tobytes())
    return _first_of_buckets(_shared_buckets(paths), texts, threshold, folder / "sketches", fixed)


@dataclass(frozen=True)
class _Buckets:
    """The texts that share a bucket of a band with another text.

    Attributes:
        members: the texts, bucket by bucket, ascending within each bucket.
        starts: index in ``members`` at which the bucket of each member begins.
    """

    members: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]


def _shared_buckets(paths: Sequence[Path]) -> _Buckets:
    members, starts, before = [], [], 0
    for path in paths:
        hashes = np.fromfile(path, dtype=np.uint64)
        # Stable, so that the texts of a bucket stay in ascending order: "earlier" below is a slice.
        order = np.argsort(hashes, kind="stable")
        same = hashes[order[1:]] == hashes[order[:-1]]
        joins, shared = np.append(False, same), np.append(same, False)
        shared |= joins  # has a successor in the bucket, or a predecessor
        members.append(order[shared].astype(np.int32))
        first = np.flatnonzero(~joins[shared])
        lengths = np.diff(first, append=members[-1].size)
        starts.append(np.repeat(first + before, lengths).astype(np.int32))
        before += members[-1].size
    return _Buckets(np.concatenate(members), np.concatenate(starts))


def _first_of_buckets(
    buckets: _Buckets, texts: int, threshold: float, path: Path, fixed: int | None
) -> npt.NDArray[np.bool_]:
    stays = np.ones(texts, dtype=np.bool_)
    places = np.argsort(buckets.members, kind="stable").astype(np.int32)  # in ``members``, text by text
    ends = np.flatnonzero(np.diff(buckets.members[places], append=-1)) + 1
    row = np.full(texts, -1, dtype=np.int32)  # of a text that shares a bucket, in the sketches' low bytes
    row[buckets.members[places[ends - 1]]] = np.arange(ends.size, dtype=np.int32)
    low = _low_bytes(path, np.flatnonzero(row >= 0))
    file = os.open(path, os.O_RDONLY)
    try:
        # In the order of the texts, so that every earlier text's fate is decided when a later one is compared with it.
        for own, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
            mine = places[start:end]
            text = int(buckets.members[mine[0]])
            if fixed is not None and text < fixed:
                continue
            spans = zip(buckets.starts[mine].tolist(), mine.tolist(), strict=True)
            earlier = np.concatenate([buckets.members[first:place] for first, place in spans])
            # Only a text that stays removes others.
            earlier = earlier[stays[earlier] if fixed is None else earlier < fixed]
            alike = _equal_bytes(low[own], low.take(row[earlier], axis=0)) >= threshold * PERMUTATIONS
            near = earlier[alike].tolist()  # no other text can be near: equal entries have equal low bytes
            stays[text] = not (near and _any_like(file, text, near, threshold))
    finally:
        os.close(file)
    return stays


def _low_bytes(path: Path, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the low byte of every entry in these texts' sketches, shape (texts, PERMUTATIONS)."""
    low = np.empty((len(texts), PERMUTATIONS), dtype=np.uint8)
    first = 0
    with path.open("rb") as stream:
        while read := stream.read(_SKETCH_BYTES * CHUNK):
            chunk = np.frombuffer(read, dtype=np.uint32).reshape(-1, PERMUTATIONS)
            start, end = np.searchsorted(texts, [first, first + len(chunk)])
            low[start:end] = (chunk[texts[start:end] - first] & 0xFF).astype(np.uint8)
            first += len(chunk)
    return low


def _equal_bytes(row: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return, for each row in ``others``, the number of its bytes that equal the byte of ``row`` at the same place."""
    # Eight counts per 64-bit word; the multiplication sums them in the top byte, which holds at most 128.
    counts = np.einsum("ij->i", (others == row).view(np.uint64))
    return np.asarray(counts * np.uint64(0x0101010101010101) >> np.uint64(56))


def _any_like(file: int, text: int, others: Sequence[int], threshold: float) -> bool:
    """Return whether the estimated similarity to any of ``others`` reaches the threshold.

    The share of equal entries estimates the Jaccard similarity.
    """
    own, sketches = _read(file, [text]), _read(file, others)
    return bool(((sketches == own).sum(axis=1) >= threshold * PERMUTATIONS).any())


def _hashes(rows: Sketches) -> npt.NDArray[np.uint64]:
    """Return one 64-bit hash of each row (FNV-1a over its entries). A collision costs only a comparison."""
    hashes = np.full(len(rows), 0xCBF29CE484222325, dtype=np.uint64)
    for column in rows.T:
        hashes = (hashes ^ column) * np.uint64(0x100000001B3)
    return hashes


def sketches_of(shingles: Sequence[Sequence[str]]) -> Sketches:
    """Return the MinHash sketch of each text, shape (texts, ``PERMUTATIONS``)."""
    digests = RMinHash.digests_from_token_sets(shingles, PERMUTATIONS, MINHASH_SEED)
    return np.array(digests, dtype=np.uint32).reshape(-1, PERMUTATIONS)


def _chunks(first: Sequence[Sequence[str]], rest: Iterator[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    yield first
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _read(file: int, texts: Sequence[int]) -> Sketches:
    parts = [os.pread(file, _SKETCH_BYTES, _SKETCH_BYTES * text) for text in texts]
    return np.frombuffer(b"".join(parts), dtype=np.uint32).reshape(-1, PERMUTATIONS)
