"""Keyed coins: pseudo-random functions of (key, purpose, identity). The order of the calls does not matter.

The function is HMAC-SHA-256 under a 256-bit key (docs/theory.md#keys-and-coins). Under a secret key, coins are secret,
and independent for every identity. Under a public seed, they are only a reproducible choice.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable, Sequence

import numpy as np

KEY_BYTES = 32


def new_key() -> bytes:
    """Return 256 bits of the operating system's entropy. heldin never derives a key from a seed, and never shares a key
    between runs."""
    # Under a shared key two models get the same noise, which cancels in their difference
    # (docs/theory.md#keys-and-coins).
    return secrets.token_bytes(KEY_BYTES)


def seed_key(seed: int) -> bytes:
    """Return a public key, from a config seed, for reproducible choices (set-asides, samples of users)."""
    # Anyone who reads the config can recompute these coins: noise or membership under this key would protect nobody.
    return hashlib.sha256(b"heldin public seed " + str(seed).encode()).digest()


def keyed_digest(key: bytes, purpose: str, identity: str) -> bytes:
    """Return 32 pseudo-random bytes for one purpose and one identity."""
    return hmac.digest(key, _purpose(purpose) + identity.encode(), "sha256")


def keyed_digests(key: bytes, purpose: str, identities: Iterable[str]) -> bytes:
    """Return the ``keyed_digest`` of each identity, 32 bytes each, joined.

    One call takes less than half the time of separate calls.
    """
    # HMAC (RFC 2104) with the hash states after key and purpose kept: a key of 32 bytes fills half a block of 64.
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {len(key)} bytes instead of {KEY_BYTES}")
    block = key + bytes(64 - KEY_BYTES)
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
    inner.update(_purpose(purpose))
    digests = bytearray()
    for identity in identities:
        within, around = inner.copy(), outer.copy()
        within.update(identity.encode())
        around.update(within.digest())
        digests += around.digest()
    return bytes(digests)


def _purpose(purpose: str) -> bytes:
    # The purpose's length comes first, so that ("ab", "c") and ("a", "bc") are different messages.
    return len(purpose).to_bytes(4, "big") + purpose.encode()


def fair_coin(key: bytes, purpose: str, identity: str) -> bool:
    """Flip a fair coin for one identity, independent of every other identity's coin."""
    # One bit of a digest of this identity alone, so that no coin moves when another user joins: condition 1 of
    # docs/theory.md#conditions-of-one-run.
    return bool(keyed_digest(key, purpose, identity)[0] & 1)


def keyed_uniform(key: bytes, purpose: str, identity: str) -> float:
    """Return a 53-bit number in [0, 1) for one identity, independent of every other identity's number."""
    # 53 bits are what a double holds exactly, so the result is never rounded up to 1.
    return (int.from_bytes(keyed_digest(key, purpose, identity)[:8], "big") >> 11) * 2.0**-53


def keyed_order(key: bytes, purpose: str, identities: list[str]) -> list[str]:
    """Return the identities in a pseudo-random order that does not depend on their input order."""
    # Sorting by a digest of each identity, and not shuffling the list: adding or removing one identity leaves the
    # relative order of all others as it is.
    return sorted(identities, key=lambda identity: keyed_digest(key, purpose, identity))


def first_in_keyed_order(key: bytes, purpose: str, identities: Sequence[str], count: int) -> list[int]:
    """Return the positions of the first ``count`` identities in ``keyed_order``; needs 32 bytes per identity.

    Args:
        purpose: name of the order.
        identities: unique names.
        count: maximum number of positions.
    """
    digests = np.frombuffer(keyed_digests(key, purpose, identities), dtype=">u8").reshape(-1, 4)
    near = np.arange(len(digests))
    if count < len(digests):
        # Whatever is beyond the count by the first 64 bits alone is beyond it by all 256.
        first = digests[:, 0].astype(np.uint64)
        near = np.flatnonzero(first <= np.partition(first, count)[count])
    order: list[int] = near[np.lexsort(digests[near].T[::-1])][:count].tolist()
    return order


def keyed_positions(key: bytes, purpose: str, identity: str, *, count: int, total: int) -> list[int]:
    """Return ``count`` different positions below ``total``, increasing. Every set is equally likely.

    If there are fewer than ``count`` positions, the function returns all positions. The cost is O(count) for every
    ``total`` (Floyd's algorithm, Bentley and Floyd 1987). A position comes from 64 bits, so its probability is exact to
    within ``total`` times 2^-64.

    Args:
        purpose: name of the choice; another name gives another choice.
        identity: name of the person or thing that gets the positions.
        count: number of positions to choose.
        total: number of available positions.
    """
    if count >= total:
        return list(range(total))
    chosen: set[int] = set()
    for number, last in enumerate(range(total - count, total)):
        # A digest has the bits of four draws.
        if number % 4 == 0:
            words = struct.unpack(">4Q", keyed_digest(key, f"{purpose} draw {number}", identity))
        drawn = words[number % 4] * (last + 1) >> 64
        chosen.add(last if drawn in chosen else drawn)
    return sorted(chosen)
