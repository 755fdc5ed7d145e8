"""Near-duplicates in the order that texts come: MinHash sketches by rensa, and an index whose memory stays small.

A text goes if its estimated Jaccard similarity to an earlier text that stayed reaches the threshold. Few texts are
compared with each other directly. For many, locality-sensitive hashing proposes the pairs (Leskovec, Rajaraman, Ullman,
"Mining of Massive Datasets", section 3.4): sketches and band hashes lie in a temporary folder, and only what texts that
share a band need is in memory: at most half a kilobyte a text, and mostly 30 bytes. (rensa's own index takes 3 KB, and
finds 28 % of pairs just above a threshold of 0.8.) Texts that share most of their words, such as one disclaimer under
all of them, are compared pair by pair.
"""

import os
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

PERMUTATIONS = 128
MINHASH_SEED = 42
RECALL = 0.99  # of pairs whose similarity is just the threshold
DIRECT = 1_000
CHUNK = 10_000
_SKETCH_BYTES = 4 * PERMUTATIONS

Sketches: TypeAlias = npt.NDArray[np.uint32]  # (texts, PERMUTATIONS)


def first_of_similar(shingles: Iterable[Sequence[str]], threshold: float) -> npt.NDArray[np.bool_]:
    """Which texts stay, shape (texts,): those that are like no earlier text that stays.

    Args:
        shingles: of every text, read once.
        threshold: of the estimated Jaccard similarity, in (0, 1].
    """
    source = iter(shingles)
    first = list(islice(source, DIRECT + 1))
    if len(first) <= DIRECT:
        return _directly(first, threshold)
    with tempfile.TemporaryDirectory(prefix="heldin-near-duplicates-") as folder:
        return _by_bands(_chunks(first, source), threshold, Path(folder))


def rows_of_a_band(threshold: float) -> int:
    """The most rows of a band with which pairs at the threshold still share a band with probability RECALL."""
    enough = [r for r in range(1, PERMUTATIONS + 1) if 1 - (1 - threshold**r) ** (PERMUTATIONS // r) >= RECALL]
    return max(enough, default=1)


def _directly(shingles: Sequence[Sequence[str]], threshold: float) -> npt.NDArray[np.bool_]:
    stays: list[bool] = []
    stayed: list[RMinHash] = []
    for sketch in RMinHash.from_token_sets(shingles, PERMUTATIONS, MINHASH_SEED):
        stays.append(not any(sketch.jaccard(other) >= threshold for other in stayed))
        if stays[-1]:
            stayed.append(sketch)
    return np.array(stays, dtype=np.bool_)


def _by_bands(chunks: Iterator[Sequence[Sequence[str]]], threshold: float, folder: Path) -> npt.NDArray[np.bool_]:
    rows = rows_of_a_band(threshold)
    paths = [folder / f"band-{band}" for band in range(PERMUTATIONS // rows)]
    texts = 0
    with (folder / "sketches").open("wb") as out:
        for chunk in chunks:
            sketches = _sketches(chunk)
            texts += len(sketches)
            out.write(sketches.tobytes())
            for band, path in enumerate(paths):
                with path.open("ab") as hashes:
                    hashes.write(_hashes(sketches[:, band * rows : (band + 1) * rows]).tobytes())
    stays = np.ones(texts, dtype=np.bool_)
    text, bucket = _shared_buckets(paths)
    shared, place = np.unique(text, return_inverse=True)
    low = _low_bytes(folder / "sketches", shared)
    stayed: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))  # by bucket, places in ``shared``
    starts = np.flatnonzero(np.diff(place, prepend=-1)).tolist()
    file = os.open(folder / "sketches", os.O_RDONLY)
    try:
        for own, (start, end) in enumerate(pairwise([*starts, place.size])):
            its = bucket[start:end].tolist()
            candidates = np.concatenate([np.array(stayed[b], dtype=np.int64) for b in its])
            alike = _equal_bytes(low[own], low.take(candidates, axis=0)) >= threshold * PERMUTATIONS
            near = shared[candidates[alike]].tolist()  # and nothing else can be, for equal entries have equal bytes
            stays[shared[own]] = not (near and _any_like(file, int(shared[own]), near, threshold))
            if stays[shared[own]]:
                for b in its:
                    stayed[b].append(own)
    finally:
        os.close(file)
    return stays


def _shared_buckets(paths: Sequence[Path]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(text, bucket) wherever a text shares a bucket of a band with another, ascending by text."""
    texts, buckets, base = [], [], 0
    for path in paths:
        hashes = np.fromfile(path, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        same = hashes[order[1:]] == hashes[order[:-1]]
        shared = np.append(same, False) | np.append(False, same)
        bucket = np.cumsum(~np.append(False, same)) + base
        texts.append(order[shared])
        buckets.append(bucket[shared])
        base = int(bucket[-1]) + 1
    text, its = np.concatenate(texts), np.concatenate(buckets)
    order = np.argsort(text, kind="stable")
    return text[order], its[order]


def _low_bytes(path: Path, texts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The low byte of every entry of these texts' sketches, shape (texts, PERMUTATIONS)."""
    found = np.empty((len(texts), PERMUTATIONS), dtype=np.uint8)
    first = 0
    with path.open("rb") as stream:
        while read := stream.read(_SKETCH_BYTES * CHUNK):
            chunk = np.frombuffer(read, dtype=np.uint32).reshape(-1, PERMUTATIONS)
            start, end = np.searchsorted(texts, [first, first + len(chunk)])
            found[start:end] = (chunk[texts[start:end] - first] & 0xFF).astype(np.uint8)
            first += len(chunk)
    return found


def _equal_bytes(row: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """How many bytes are equal in each of the others: eight counts in a word, summed in its top byte (at most 128)."""
    counts = np.einsum("ij->i", (others == row).view(np.uint64))
    return np.asarray(counts * np.uint64(0x0101010101010101) >> np.uint64(56))


def _any_like(file: int, text: int, others: Sequence[int], threshold: float) -> bool:
    """Whether the share of equal entries, which estimates the Jaccard similarity, reaches the threshold for any."""
    own, sketches = _read(file, [text]), _read(file, others)
    return bool(((sketches == own).sum(axis=1) >= threshold * PERMUTATIONS).any())


def _hashes(rows: Sketches) -> npt.NDArray[np.uint64]:
    """One 64-bit hash of each row (FNV-1a over its entries); a collision only costs a comparison."""
    found = np.full(len(rows), 0xCBF29CE484222325, dtype=np.uint64)
    for column in rows.T:
        found = (found ^ column) * np.uint64(0x100000001B3)
    return found


def _sketches(shingles: Sequence[Sequence[str]]) -> Sketches:
    digests = RMinHash.digests_from_token_sets(shingles, PERMUTATIONS, MINHASH_SEED)
    return np.array(digests, dtype=np.uint32).reshape(-1, PERMUTATIONS)


def _chunks(first: Sequence[Sequence[str]], rest: Iterator[Sequence[str]]) -> Iterator[Sequence[Sequence[str]]]:
    yield first
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _read(file: int, texts: Sequence[int]) -> Sketches:
    parts = [os.pread(file, _SKETCH_BYTES, _SKETCH_BYTES * text) for text in texts]
    return np.frombuffer(b"".join(parts), dtype=np.uint32).reshape(-1, PERMUTATIONS)
