"""Keyed coins: pseudo-random functions of (key, purpose, identity), independent of the order in which they are asked.

HMAC-SHA-256 under a 256-bit key (docs/theory.md#keys-and-coins). Under a secret key coins are secret and independent
for every identity; under a public seed they are only a reproducible choice.
"""

import hashlib
import hmac
import secrets

KEY_BYTES = 32


def new_key() -> bytes:
    """256 bits of the operating system's entropy. Never derived from a seed, never shared between runs."""
    # Under a shared key two models get the same noise, which cancels in their difference
    # (docs/theory.md#keys-and-coins).
    return secrets.token_bytes(KEY_BYTES)


def seed_key(seed: int) -> bytes:
    """A public key for reproducible choices (set-asides, samples of users), from a config seed."""
    # Anyone who reads the config can recompute these coins: noise or membership under this key would protect nobody.
    return hashlib.sha256(b"heldin public seed " + str(seed).encode()).digest()


def keyed_digest(key: bytes, purpose: str, identity: str) -> bytes:
    """32 pseudo-random bytes for one purpose and one identity."""
    # The purpose's length comes first, so that ("ab", "c") and ("a", "bc") are different messages.
    message = len(purpose).to_bytes(4, "big") + purpose.encode() + identity.encode()
    return hmac.digest(key, message, "sha256")


def fair_coin(key: bytes, purpose: str, identity: str) -> bool:
    """A fair coin for one identity, independent of every other identity's coin."""
    # One bit of a digest of this identity alone, so that no coin moves when another user joins: condition 1 of
    # docs/theory.md#conditions-of-one-run.
    return bool(keyed_digest(key, purpose, identity)[0] & 1)


def keyed_uniform(key: bytes, purpose: str, identity: str) -> float:
    """A number in [0, 1) of 53 bits for one identity, independent of every other identity's."""
    # 53 bits are what a double holds exactly, so the result is never rounded up to 1.
    return (int.from_bytes(keyed_digest(key, purpose, identity)[:8], "big") >> 11) * 2.0**-53


def keyed_order(key: bytes, purpose: str, identities: list[str]) -> list[str]:
    """The identities in a pseudo-random order that does not depend on the order in which they are given."""
    # Sorting by a digest of each identity, and not shuffling the list: adding or removing one identity leaves the
    # relative order of all others as it is.
    return sorted(identities, key=lambda identity: keyed_digest(key, purpose, identity))
