"""The audited users, their set-aside records, and the users who become members.

heldin decides them in this order. An audit is valid only in this order (docs/theory.md#conditions-of-one-run). The
procedure follows Kandpal et al. (2024), Appendix D.1, with independent coins instead of their exact half.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from heldin.base.coins import fair_coin, keyed_order
from heldin.base.errors import InputError
from heldin.corpus.user_filter import MIN_RECORDS_TO_SPLIT


class Part(StrEnum):
    """The purpose of a record of an audited user."""

    TRAIN = "train"
    ATTACKER = "attacker"
    VALIDATION = "validation"
    TEST = "test"


class Role(StrEnum):
    """A user's role. Chance decides between member and non-member. A user who is always in training is not audited."""

    HELD_IN = "held_in"
    HELD_OUT = "held_out"
    ALWAYS_IN = "always_in"


class Audited(StrEnum):
    """The people whose membership chance decides."""

    USERS = "users"
    ENTITIES = "entities"
    BOTH = "both"


class SplitRule(StrEnum):
    """How membership is decided. Only independent fair coins support a certified bound."""

    COIN = "coin"
    EXACT_HALF = "exact_half"


def set_aside_sizes(records: int, *, attacker_fraction: float, evaluation_fraction: float) -> tuple[int, int]:
    """Return the number of a user's records for the attacker, and the number for validation and test together."""
    spare = records - 1  # one record always stays for training
    # Capped so that one record is left for the attacker, who has no score of a user without a text.
    evaluation = min(max(2, round(evaluation_fraction * records)), spare - 1)
    return min(max(1, round(attacker_fraction * records)), spare - evaluation), evaluation


def records_to_train_on(documents: int, *, attacker_fraction: float, evaluation_fraction: float) -> int:
    """Return the fewest records that leave at least ``documents`` for training after the set-asides."""
    records = MIN_RECORDS_TO_SPLIT
    while True:
        attacker, evaluation = set_aside_sizes(
            records, attacker_fraction=attacker_fraction, evaluation_fraction=evaluation_fraction
        )
        if records - attacker - evaluation >= documents:
            return records
        records += 1


def check_pool(users: int, size: int | None) -> None:
    """Raise InputError for a pool of fewer than two users, or of more users than there are."""
    if size is not None and size > users:
        raise InputError(f"audit_pool is {size}, but only {users} users have enough records: lower audit_pool")
    if (pool := users if size is None else size) < 2:
        raise InputError(f"the audit has {pool} user(s): give at least 2 users (100 for a useful result)")


def assign(pool: Sequence[str], *, assignment: SplitRule, key: bytes) -> dict[str, Role]:
    """Decide which users of the pool are members.

    Args:
        pool: the fixed pool of audited users.
        assignment: independent fair coins, or an exact half. An exact half supports no certified bound, because its
            coins depend on each other (docs/theory.md#conditions-of-one-run).
        key: secret key of the coins.

    Raises:
        InputError: all coins put users into one group.
    """
    match assignment:
        case SplitRule.COIN:
            held_in = {name for name in pool if fair_coin(key, "membership", name)}
        case SplitRule.EXACT_HALF:
            held_in = set(keyed_order(key, "membership", list(pool))[: len(pool) // 2])
    roles = {name: Role.HELD_IN if name in held_in else Role.HELD_OUT for name in pool}
    require_both_sides(roles)
    return roles


def require_both_sides(roles: Mapping[str, Role]) -> None:
    """Raise InputError if all coins put users into one group."""
    # With one side empty there is nothing to compare. That both sides have somebody raises the probability of an error
    # by a factor, close to 1 from 10 users on (docs/theory.md#conditions-of-one-run).
    if len(set(roles.values())) < 2:
        raise InputError(
            f"all {len(roles)} coins put users in the same group: audit more users, or start again for new coins"
        )


def assign_canaries(canaries: Sequence[str], *, key: bytes) -> dict[str, Role]:
    """Flip a fair coin for every canary user. The assignment of other users does not matter."""
    # Under the purpose of real users' coins, since no canary user may have the name of a real one.
    return {user: Role.HELD_IN if fair_coin(key, "membership", user) else Role.HELD_OUT for user in canaries}
