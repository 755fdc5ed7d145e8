"""The audited users, their records that are set aside, and the users who are held in.

In this order, on which an audit's validity rests (docs/theory.md#conditions-of-one-run). After Kandpal et al. (2024),
Appendix D.1, with independent coins instead of their exact half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from pydantic import Field

from heldin.base.coins import fair_coin, keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION, Count
from heldin.corpus.store import CorpusStore

MIN_RECORDS_TO_SPLIT = 4  # one to train on, one for the attacker, one to validate, one to test


class Part(StrEnum):
    """The purpose of a record of an audited user."""

    TRAIN = "train"
    ATTACKER = "attacker"
    VALIDATION = "validation"
    TEST = "test"


class Role(StrEnum):
    """A user's side. Held-in and held-out are decided by chance; users who are always in are not audited."""

    HELD_IN = "held_in"
    HELD_OUT = "held_out"
    ALWAYS_IN = "always_in"


class Audited(StrEnum):
    """Whose membership is decided by chance."""

    USERS = "users"
    ENTITIES = "entities"
    BOTH = "both"


class SplitRule(StrEnum):
    """How membership is decided. Only independent fair coins support a certified bound."""

    COIN = "coin"
    EXACT_HALF = "exact_half"


@dataclass(frozen=True)
class UserFilter:
    """Which users take part. Patterns are shell globs over user names ("*@enron.com").

    With ``fraction``, whether a user takes part does not depend on other users. With ``max_users`` one more user may
    displace another: that is not user-local and voids a user-level epsilon.
    """

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    include: tuple[str, ...] = ("*",)
    """Patterns of user names ("*@enron.com"); a user must match at least one."""
    exclude: tuple[str, ...] = ()
    """Patterns of user names; a user must match none."""
    min_records: Count = MIN_RECORDS_TO_SPLIT
    """Fewest records of a user."""
    max_records: Count | None = None
    """Most records of a user; users with more are left out; null: no limit."""
    max_users: Count | None = None
    """Most users, drawn by the run's seed; null: all. It voids a user-level epsilon, which ``fraction`` does not."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Keep each user with this probability, by a coin of its own."""

    def admits(self, user: str) -> bool:
        """Return whether the name passes the patterns."""
        # Not ``fnmatch``, which ignores case on some systems: the same config must choose the same users everywhere.
        return any(fnmatchcase(user, p) for p in self.include) and not any(fnmatchcase(user, p) for p in self.exclude)


@dataclass(frozen=True)
class Selection:
    """Users who take part, and how many were left out and why.

    Attributes:
        users: who take part, sorted.
        dropped_by_pattern: users whose name no pattern admits.
        dropped_by_minimum: users with too few records.
        dropped_by_maximum: users with too many records.
        dropped_by_sampling: users left out by ``fraction`` or ``max_users``.
    """

    users: tuple[str, ...]
    dropped_by_pattern: int
    dropped_by_minimum: int
    dropped_by_maximum: int
    dropped_by_sampling: int


def select_users(
    store: CorpusStore, rule: UserFilter, *, taken: frozenset[str] = frozenset(), seed: int, purpose: str = "user"
) -> Selection:
    """Users admitted by ``rule``, sorted; at most ``max_users`` of them.

    Args:
        rule: which users take part.
        taken: users who take part elsewhere and are not considered.
        seed: public seed of the coins and of the choice of ``max_users``.
        purpose: name of these coins, which makes them independent of another rule's.

    Raises:
        InputError: a number in ``rule`` is out of its range.
    """
    # Pydantic checks configs only; a rule made in Python gets here unchecked.
    if rule.max_users is not None and rule.max_users < 1:
        raise InputError(f"max_users is {rule.max_users}: it must be at least 1, or null for no limit")
    if not 0 < rule.fraction <= 1:
        raise InputError(f"fraction is {rule.fraction}: it must be in (0, 1]")
    if rule.min_records < 1:
        raise InputError(f"min_records is {rule.min_records}: it must be at least 1")
    candidates = [user for user in store.users if user not in taken]
    named = [user for user in candidates if rule.admits(user)]
    # Each of these filters looks at the user alone, and is user-local (docs/theory.md#rules-of-the-data); ``max_users``
    # below is not.
    enough = [user for user in named if store.count(user) >= rule.min_records]
    fitting = [user for user in enough if rule.max_records is None or store.count(user) <= rule.max_records]
    key = seed_key(seed)
    # Under one purpose for all rules, the users whom one rule's coins left out would fail the next rule's coins too.
    chosen = [user for user in fitting if keyed_uniform(key, f"{purpose} fraction", user) < rule.fraction]
    if rule.max_users is not None and len(chosen) > rule.max_users:
        chosen = keyed_order(key, f"{purpose} sample", chosen)[: rule.max_users]
    return Selection(
        users=tuple(sorted(chosen)),
        dropped_by_pattern=len(candidates) - len(named),
        dropped_by_minimum=len(named) - len(enough),
        dropped_by_maximum=len(enough) - len(fitting),
        dropped_by_sampling=len(fitting) - len(chosen),
    )


def set_aside_sizes(records: int, *, attacker_fraction: float, evaluation_fraction: float) -> tuple[int, int]:
    """Return the number of a user's records for the attacker, and the number for validation and test together."""
    spare = records - 1  # one record always stays for training
    # Capped so that one record is left for the attacker, who has no score of a user without a text.
    evaluation = min(max(2, round(evaluation_fraction * records)), spare - 1)
    return min(max(1, round(attacker_fraction * records)), spare - evaluation), evaluation


def records_to_train_on(documents: int, *, attacker_fraction: float, evaluation_fraction: float) -> int:
    """The fewest records of which at least ``documents`` are left for training after the set-asides."""
    records = MIN_RECORDS_TO_SPLIT
    while True:
        attacker, evaluation = set_aside_sizes(
            records, attacker_fraction=attacker_fraction, evaluation_fraction=evaluation_fraction
        )
        if records - attacker - evaluation >= documents:
            return records
        records += 1


def check_pool(users: int, size: int | None) -> None:
    """Raises InputError for a pool of fewer than two users, or of more users than there are."""
    if size is not None and size > users:
        raise InputError(f"audit_pool is {size}, but only {users} users have enough records: lower it")
    if (pool := users if size is None else size) < 2:
        raise InputError(f"the audit has {pool} user(s) to hold in or out: at least 2 are needed, 100 to say much")


def assign(pool: Sequence[str], *, assignment: SplitRule, key: bytes) -> dict[str, Role]:
    """Decide who of the pool is held in.

    Args:
        pool: the fixed pool of those who are audited.
        assignment: independent fair coins, or an exact half, which supports no certified bound because its coins depend
            on each other (docs/theory.md#conditions-of-one-run).
        key: secret key of the coins.

    Raises:
        InputError: all coins fell on one side.
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
    """Raises InputError if all coins fell on one side."""
    # With one side empty there is nothing to compare. That both sides have somebody raises the probability of an error
    # by a factor, close to 1 from 10 users on (docs/theory.md#conditions-of-one-run).
    if len(set(roles.values())) < 2:
        raise InputError(f"all {len(roles)} coins fell on one side: audit more users, or start again for new coins")


def assign_canaries(canaries: Sequence[str], *, key: bytes) -> dict[str, Role]:
    """A fair coin for every canary user, however the other users are assigned."""
    # Under the purpose of real users' coins, since no canary user may have the name of a real one.
    return {user: Role.HELD_IN if fair_coin(key, "membership", user) else Role.HELD_OUT for user in canaries}
