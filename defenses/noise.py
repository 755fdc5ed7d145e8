"""Gaussian noise as a function of (key, step, tensor name). A resumed run gets the same noise again.

There are two generators. The default is counter-based: Philox (numpy's on a CPU, torch's on a GPU) under a key derived
per step and block of a tensor by HMAC-SHA-256. The default is fast, but not cryptographic. The secure generator takes
its bits from AES-256 in counter mode under such a key. As far as is publicly known, nobody without the run's key can
distinguish the bits of AES and HMAC from coin flips. The inverse distribution function turns the bits into normal
numbers, on the GPU if there is one. Neither generator protects against attacks on floating point.

A tensor is cut into blocks of ``BLOCK`` numbers in memory order. Each block has a separate key. A process that has one
part of a tensor therefore draws only the numbers of this part.
"""

import functools
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from heldin.base.coins import keyed_digest
from heldin.base.wording import counted, in_bytes
from heldin.defenses.choices import NoiseGenerator
from heldin.models.devices import moved

BLOCK = 2**20
AHEAD_FROM = 8 * BLOCK  # numbers of a step; a core makes the bits of fewer in a thirtieth of a second
MOST_AHEAD = 2**28 // BLOCK  # blocks whose bits are held: 2 GiB
_Block = tuple[int, str, int]  # step, tensor, number


def block_digest(key: bytes, step: int, name: str, block: int) -> bytes:
    """Return the 32 bytes that determine a block's numbers."""
    # Keyed by the tensor's name: tensors of one shape that shared their noise would cancel it in their difference.
    return keyed_digest(key, f"noise {step} {block}" if block else f"noise {step}", name)


def block_sizes(numbers: int) -> list[int]:
    """Return the sizes of a tensor's blocks: ``BLOCK`` for all but the last block."""
    return [min(BLOCK, numbers - first) for first in range(0, numbers, BLOCK)]


def standard_normal(generator: NoiseGenerator, digest: bytes, count: int) -> NDArray[np.float32]:
    """Return the numbers of one block, N(0, 1), shape (count,).

    Args:
        generator: Philox, with the first 128 bits of the digest as its key, or AES-256, with the whole digest as its
            key.
    """
    match generator:
        case NoiseGenerator.PHILOX:
            philox = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))
            return philox.standard_normal(count, dtype=np.float32)
        case NoiseGenerator.SECURE:
            return _normal(secure_bits(digest, count)).numpy()


def secure_bits(digest: bytes, count: int) -> torch.Tensor:
    """Return 64 bits per number, int64, shape (count,): AES-256 of the counters 0, 1, ... under this key."""
    # Imported where it is needed, since it loads OpenSSL, which most runs do without.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    out = np.empty(8 * count + 15, dtype=np.uint8)  # space for a whole last block of the cipher
    Cipher(algorithms.AES(digest), modes.CTR(bytes(16))).encryptor().update_into(_zeros(count), out.data)
    return torch.from_numpy(out[: 8 * count].view(np.int64))


@functools.lru_cache(maxsize=4)
def _zeros(count: int) -> bytes:
    return bytes(8 * count)


def _normal(bits: torch.Tensor) -> torch.Tensor:
    """Return normal numbers, fp32, on the device of the bits."""
    # The middles of 2^52 cells: never 0 or 1, whose inverses are infinite. Of 2^53 cells the topmost rounds to 1.
    cells = (bits >> 12) & (2**52 - 1)
    normal: torch.Tensor = torch.special.ndtri((cells.double() + 0.5) * 2.0**-52)
    return normal.float()


@dataclass
class NoiseSource:
    """The noise of one run. If secure bits take long, threads compute them one step ahead.

    Attributes:
        key: the run's secret key. Two runs must never share a key, or their difference would contain no noise.
    """

    generator: NoiseGenerator
    key: bytes = field(repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)
    _drawn: dict[_Block, "Future[torch.Tensor]"] = field(default_factory=dict, repr=False)

    def gaussian(
        self,
        step: int,
        name: str,
        shape: torch.Size,
        deviation: float,
        device: torch.device,
        rows: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Return independent N(0, deviation^2) numbers, fp32, for one tensor of one step.

        Args:
            shape: shape of the whole tensor.
            rows: first row to return, and the row after the last; None: all rows.

        Returns:
            The requested rows. Their numbers do not depend on which rows are requested.
        """
        first, last = _span(shape, rows)
        wanted = shape if rows is None else torch.Size([rows[1] - rows[0], *shape[1:]])
        numbers = torch.empty(last - first, device=device)
        sizes = block_sizes(shape.numel())
        blocks = _numbers(first, last)

        def span(number: int) -> tuple[slice, slice]:
            """Return the places of a block's numbers in the result, and the part of the block that they are."""
            begin = number * BLOCK
            low, high = max(first, begin), min(last, begin + sizes[number])
            return slice(low - first, high - first), slice(low - begin, high - begin)

        if self.generator is NoiseGenerator.PHILOX and device.type == "cuda":
            source = torch.Generator(device=device)
            for number in blocks:
                place, part = span(number)
                whole = part == slice(0, sizes[number])
                values = numbers[place] if whole else torch.empty(sizes[number], device=device)
                _fill(values, deviation, block_digest(self.key, step, name, number), source)
                if not whole:
                    numbers[place] = values[part]
            return numbers.view(wanted)
        for number, values in self._blocks(step, name, blocks, sizes):
            place, part = span(number)
            if self.generator is NoiseGenerator.SECURE:
                numbers[place] = _normal(moved(values[part], device))
            else:
                numbers[place] = values[part].to(device)
        return numbers.mul_(deviation).view(wanted)

    def ahead(
        self, step: int, shapes: Mapping[str, torch.Size], rows: Mapping[str, tuple[int, int]] | None = None
    ) -> str | None:
        """Begin to compute the bits of ``step``. The first call returns a line on the cost.

        heldin computes only the secure noise of large models ahead, because Philox takes less time than the rest of the
        step.

        Args:
            shapes: shape of each whole tensor.
            rows: rows of each tensor that this process will request (see ``gaussian``); None: all rows.
        """
        spans = {name: _span(shape, rows[name] if rows else None) for name, shape in shapes.items()}
        # Blocks are drawn whole, also where a part of one is wanted.
        total = sum(block_sizes(shapes[name].numel())[n] for name, span in spans.items() for n in _numbers(*span))
        if self.generator is not NoiseGenerator.SECURE or total < AHEAD_FROM:
            return None
        notice = None
        if self._pool is None:
            # Those that train together on a machine share its cores.
            cores = max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1)
            self._pool = ThreadPoolExecutor(cores)  # the cipher lets other threads work
            notice = _cost(total, cores)
        # What was made for a step that is over is not asked for again.
        self._drawn = {block: drawing for block, drawing in self._drawn.items() if block[0] >= step - 1}
        for name, shape in shapes.items():
            sizes = block_sizes(shape.numel())
            for number in _numbers(*spans[name]):
                if len(self._drawn) < MOST_AHEAD and (step, name, number) not in self._drawn:
                    digest = block_digest(self.key, step, name, number)
                    self._drawn[step, name, number] = self._pool.submit(secure_bits, digest, sizes[number])
        return notice

    def close(self) -> None:
        """End the threads that compute ahead."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        self._drawn.clear()

    def _blocks(self, step: int, name: str, numbers: range, sizes: list[int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the numbers of these blocks, computed on a CPU. For secure noise, yield their bits."""

        def drawn(number: int) -> torch.Tensor:
            # Taken out: each block is asked for once, and the next step's need the memory.
            ready = self._drawn.pop((step, name, number), None)
            if ready is not None:
                return ready.result()
            digest = block_digest(self.key, step, name, number)
            if self.generator is NoiseGenerator.SECURE:
                return secure_bits(digest, sizes[number])
            return torch.from_numpy(standard_normal(self.generator, digest, sizes[number]))

        if len(numbers) < 2:
            for number in numbers:
                yield number, drawn(number)
        else:
            # numpy's loops and the cipher let other threads work.
            with ThreadPoolExecutor(torch.get_num_threads()) as threads:
                yield from zip(numbers, threads.map(drawn, numbers), strict=True)


def _span(shape: torch.Size, rows: tuple[int, int] | None) -> tuple[int, int]:
    """Return the index of the first number in a tensor's rows, and of the number after the last."""
    each = shape[1:].numel() if len(shape) else 1
    return (0, shape.numel()) if rows is None else (rows[0] * each, rows[1] * each)


def _numbers(first: int, last: int) -> range:
    """Return the blocks that contain these numbers."""
    return range(first // BLOCK, -(-last // BLOCK)) if last > first else range(0)


def gaussian(
    generator: NoiseGenerator,
    key: bytes,
    step: int,
    name: str,
    shape: torch.Size,
    deviation: float,
    device: torch.device,
) -> torch.Tensor:
    """Return the noise of one tensor of one step, without a ``NoiseSource``."""
    return NoiseSource(generator, key).gaussian(step, name, shape, deviation, device)


def _fill(block: torch.Tensor, deviation: float, digest: bytes, source: torch.Generator) -> None:
    """Fill a block on a GPU with torch's Philox, under 124 bits of the digest: a 64-bit key and a stream position.

    The numbers differ from the numbers on a CPU, and may differ between GPU models. One kernel draws and scales the
    numbers, because scaling 1.3 billion numbers later would move another 10 GB.
    """
    source.manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    # torch takes multiples of 4.
    source.set_offset(4 * (int.from_bytes(digest[8:16], "big") >> 4))
    block.normal_(std=deviation, generator=source)


def _cost(numbers: int, cores: int) -> str:
    began = time.perf_counter()
    secure_bits(bytes(32), BLOCK)
    seconds = (time.perf_counter() - began) * numbers / BLOCK
    held = in_bytes(8 * min(numbers, MOST_AHEAD * BLOCK))
    return (
        f"secure noise: the bits of {numbers:,} numbers per step take about {seconds:.1f} s of processor time."
        f" heldin computes them a step ahead, on {counted(cores, 'core')}, and holds them in {held}"
    )
