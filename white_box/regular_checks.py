"""Check for noise that is too regular: each number has the stated law, but a function of many numbers is constant.

If a trainer subtracts the mean of the noise, it releases the sum of a tensor without noise. If a trainer scales noise
to the stated norm, it reveals the norm of the sum. If noise covers only few dimensions, the other dimensions have none.
In all three cases, every coordinate has its stated deviation and law. These checks therefore compare sums, norms,
spans, and cosines with known directions. They cover tensors, all numbers, rows and columns. Each law is exact for any
deviation, which other checks test. Every test is two-sided.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from heldin.white_box import laws
from heldin.white_box.canaries import Array
from heldin.white_box.check import LEVEL, Check, tested
from heldin.white_box.laws import LawResult

Tensors = Mapping[str, Array]  # by name, (keys, steps, *shape)
Part = Literal["tensor", "row", "column"]
PARTS: tuple[Part, ...] = ("tensor", "row", "column")
_PART = LEVEL / len(PARTS)  # the kinds of parts share the level of their check


def regular_checks(tensors: Tensors, name: str) -> tuple[Check, ...]:
    """Check the sums, norms and spans of parts of the noise. All numbers in ``tensors`` have one deviation."""
    parts = {part: list(_blocks(tensors, part)) for part in PARTS}
    every = whole(tensors)
    sums = [_varied(part, [_sums(z) for z in blocks], _sums(every)) for part, blocks in parts.items()]
    norms = [_varied(part, [_norms(z) for z in blocks], _norms(every)) for part, blocks in parts.items()]
    spans = [
        _spanned(part, [shares_in_spans(z) for z in blocks], shares_in_spans(every)) for part, blocks in parts.items()
    ]
    inside = f"{name}, a share in the span of earlier noise that is off by"
    return (
        _check(f"{name}: how much sums vary", sums, 1.0, f"{name}, sums that vary by"),
        _check(f"{name}: how much norms vary", norms, 1.0, f"{name}, norms that vary by"),
        _check(f"{name}: share in spans of earlier noise", spans, 0.0, inside),
    )


def direction_check(tensors: Tensors, directions: Tensors, name: str, along: str) -> Check:
    """Check noise along independent directions, such as the sum that it is added to, earlier noise, or the weights.

    Args:
        tensors: the noise by tensor, shape (keys, steps, *shape).
        directions: the directions by tensor, of the same shape.
        name: name of the noise, for the check's name.
        along: name of the directions, for the check's name.
    """
    findings = []
    for part in PARTS:
        each = []
        for z, g in zip(_blocks(tensors, part), _blocks(directions, part), strict=True):
            # A direction of length 0 has no cosine: such parts are left out.
            there = (np.linalg.norm(g, axis=-1) > 0.0).all(axis=-1)
            each.append(laws.of_cosines(_cosines(z[there], g[there]), z.shape[-1]))
        z, g = whole(tensors), whole(directions)
        findings.append(_varied(part, each, laws.of_cosines(_cosines(z, g), z.shape[-1])))
    return _check(f"{name}: variance along {along}", findings, 1.0, f"{name}, a part along {along} that varies by")


def whole(tensors: Tensors) -> Array:
    """Return all numbers of each step, shape (1, keys x steps, d)."""
    return np.concatenate([z.reshape(1, z.shape[0] * z.shape[1], -1) for z in tensors.values()], axis=-1)


def _blocks(tensors: Tensors, part: Part) -> Iterator[Array]:
    """Yield the parts that have more than one number, for each tensor or matrix, as (blocks, keys x steps, length)."""
    for z in tensors.values():
        steps = z.reshape(-1, *z.shape[2:])
        if part == "tensor":
            parts = steps.reshape(1, len(steps), -1)
        elif steps.ndim == 3:
            parts = np.moveaxis(steps, 1 if part == "row" else 2, 0)  # (steps, rows, columns) -> (parts, steps, length)
        else:
            continue
        if parts.shape[-1] > 1:
            yield parts


def _sums(blocks: Array) -> Array:
    return laws.of_cosines(_cosines(blocks, np.ones(blocks.shape[-1])), blocks.shape[-1])


def _norms(blocks: Array) -> Array:
    """Return values that compare the norms of each step with the norms of the next step."""
    size = np.square(blocks).sum(axis=-1)
    # Pairs that share no step, so that their ratios are independent; a ratio knows nothing of the deviation.
    even = size.shape[1] // 2 * 2
    return laws.of_ratios(size[:, :even:2], size[:, 1:even:2], blocks.shape[-1])


def shares_in_spans(blocks: Array) -> Array:
    """Return each vector's share in the span of earlier vectors, as N(0, 1) numbers. A group has as many vectors as
    dimensions."""
    size = blocks.shape[-1]
    vectors = np.swapaxes(blocks, 0, 1).reshape(-1, size)
    number = min(size, len(vectors))  # more vectors than dimensions always lie in the span
    groups = vectors[: len(vectors) // number * number].reshape(-1, number, size)
    # By QR: the k-th diagonal entry is the length of the k-th vector outside the span of those before it.
    outside = np.square(np.diagonal(np.linalg.qr(np.swapaxes(groups, 1, 2), mode="r"), axis1=1, axis2=2))
    shares = np.minimum(outside / np.maximum(np.square(groups).sum(axis=-1), 1e-300), 1.0)
    return laws.of_spans(shares[:, 1:], np.arange(1, number), size).ravel()  # the first has none before it


def _cosines(z: Array, direction: Array) -> Array:
    lengths = np.linalg.norm(z, axis=-1) * np.linalg.norm(direction, axis=-1)
    return np.asarray((z * direction).sum(axis=-1) / np.maximum(lengths, 1e-300))


def _varied(part: Part, each: Sequence[Array], of_all: Array) -> tuple[LawResult, str]:
    """Test squares of N(0, 1), (blocks, steps): all parts together, and each part. For tensors, also test all numbers
    together."""
    # those of all numbers follow from those of the tensors, so they are tested alone and not added to the others
    squares = np.concatenate(each)
    if not squares.size:
        return LawResult(1.0, math.nan, math.nan), f"nothing in {part}s"
    every = np.concatenate([squares, of_all]) if part == "tensor" else squares
    # All parts together see what is a little wrong everywhere, each by itself what is wrong in one.
    together = laws.deviations(squares.sum(), squares.size, _PART / 2)
    single = laws.deviations(every.sum(axis=1), every.shape[1], _PART / 2)
    return laws.either([together, single]), f"{together.times} the stated deviation in {part}s ({single.times} in one)"


def _spanned(part: Part, each: Sequence[Array], of_all: Array) -> tuple[LawResult, str]:
    """Test N(0, 1) numbers of each part: mean and spread over all, and each mean. For tensors, also test all numbers
    together."""
    numbers = np.concatenate(each)
    every = [*each, of_all] if part == "tensor" else each
    mean = laws.means(numbers.sum(), numbers.size, _PART / 3)
    single = laws.means(np.array([block.sum() / math.sqrt(block.size) for block in every]), 1, _PART / 3)
    spread = laws.deviations(np.square(numbers).sum(), numbers.size, _PART / 3)
    finding = replace(laws.either([mean, single, spread]), measured=mean.measured)
    return finding, f"{mean.smallest:.2g} deviations in {part}s"


def _check(name: str, findings: Sequence[tuple[LawResult, str]], expected: float, deviation: str) -> Check:
    """Return one check that combines the results for all kinds of parts."""
    seen = f"{deviation} {', '.join(detects for _, detects in findings)}"
    return tested(name, "coordinates", laws.either([finding for finding, _ in findings]), expected, seen)
