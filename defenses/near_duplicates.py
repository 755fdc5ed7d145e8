"""Near-duplicates in the order that texts come: MinHash sketches by rensa, and an index whose memory stays small.

A text goes if its estimated Jaccard similarity to an earlier text that stayed reaches the threshold. Few texts are
compared with each other directly. For many, locality-sensitive hashing proposes the pairs (Leskovec, Rajaraman, Ullman,
"Mining of Massive Datasets", section 3.4): sketches and band hashes lie in a temporary folder, and only what texts that
share a band need is in memory, some 30 bytes a text (rensa's own index takes 3 KB).
"""

import os
import tempfile
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
    stayed: defaultdict[int, list[int]] = defaultdict(list)  # by bucket
    file = os.open(folder / "sketches", os.O_RDONLY)
    try:
        for text, buckets in _shared_buckets(paths):
            candidates = sorted({other for bucket in buckets for other in stayed[bucket]})
            stays[text] = not (candidates and _like_any(_read(file, [text]), _read(file, candidates), threshold))
            if stays[text]:
                for bucket in buckets:
                    stayed[bucket].append(text)
    finally:
        os.close(file)
    return stays


def _shared_buckets(paths: Sequence[Path]) -> Iterator[tuple[int, list[int]]]:
    """Every text that shares a bucket of a band with another, in order, and the buckets that it shares."""
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
    text, its = text[order], its[order]
    starts = np.flatnonzero(np.diff(text, prepend=-1)).tolist()
    for start, end in pairwise([*starts, text.size]):
        yield int(text[start]), its[start:end].tolist()


def _like_any(sketch: Sketches, others: Sketches, threshold: float) -> bool:
    """Whether the share of equal entries, which estimates the Jaccard similarity, reaches the threshold for any."""
    return bool(((others == sketch).sum(axis=1) >= threshold * PERMUTATIONS).any())


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
