"""The participating users. heldin chooses them by name, number of records and public draws, not by any coin."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from heldin.base.coins import keyed_order, keyed_uniform, seed_key
from heldin.base.errors import InputError
from heldin.base.section import DATACLASS_SECTION, Count

if TYPE_CHECKING:
    from heldin.corpus.store import CorpusStore

MIN_RECORDS_TO_SPLIT = 4  # one to train on, one for the attacker, one to validate, one to test


@dataclass(frozen=True)
class UserFilter:
    """The users who participate. Patterns are shell globs over user names ("*@enron.com"). With ``fraction``, the
    choice of a user does not depend on other users. With ``max_users``, an additional user may displace another, so the
    choice is not user-local and voids a user-level epsilon.
    """

    __pydantic_config__: ClassVar = DATACLASS_SECTION

    include: tuple[str, ...] = ("*",)
    """Patterns of user names to keep, such as "*@enron.com"; a user must match at least one."""
    exclude: tuple[str, ...] = ()
    """Patterns of user names to leave out."""
    min_records: Count = MIN_RECORDS_TO_SPLIT
    """Minimum number of records per user."""
    max_records: Count | None = None
    """Maximum number of records per user. heldin leaves out users with more records. null: no limit."""
    max_users: Count | None = None
    """Maximum number of users. heldin draws the users at random from a public seed. null: all users. If you set a
    maximum, a user-level epsilon is no longer valid. To keep a user-level epsilon, use ``fraction`` instead.
    """
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability of keeping a user. heldin makes a separate random draw for each user."""

    def admits(self, user: str) -> bool:
        """Return whether the name matches the patterns."""
        # Not ``fnmatch``, which ignores case on some systems: the same config must choose the same users everywhere.
        return any(fnmatchcase(user, p) for p in self.include) and not any(fnmatchcase(user, p) for p in self.exclude)


@dataclass(frozen=True)
class Selection:
    """The participating users, and how many users were left out and why.

    Attributes:
        users: names of the participating users, sorted.
        dropped_by_pattern: number of users whose name the patterns do not admit.
        dropped_by_minimum: number of users with too few records.
        dropped_by_maximum: number of users with too many records.
        dropped_by_sampling: number of users left out by ``fraction`` or ``max_users``.
    """

    users: tuple[str, ...]
    dropped_by_pattern: int
    dropped_by_minimum: int
    dropped_by_maximum: int
    dropped_by_sampling: int


def select_users(
    store: "CorpusStore", rule: UserFilter, *, taken: frozenset[str] = frozenset(), seed: int, purpose: str = "user"
) -> Selection:
    """Return the users that ``rule`` admits, sorted, at most ``max_users`` of them.

    Args:
        rule: which users participate.
        taken: users who participate elsewhere and are not considered.
        seed: public seed of the draws for ``fraction`` and ``max_users``.
        purpose: name of the draws, which makes them independent of the draws of another rule.

    Raises:
        InputError: a number in ``rule`` is out of range.
    """
    # Pydantic checks configs only; a rule made in Python gets here unchecked.
    if rule.max_users is not None and rule.max_users < 1:
        raise InputError(f"max_users is {rule.max_users}: give at least 1, or null for no limit")
    if not 0 < rule.fraction <= 1:
        raise InputError(f"fraction is {rule.fraction}: give a number above 0 and at most 1")
    if rule.min_records < 1:
        raise InputError(f"min_records is {rule.min_records}: give at least 1")
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
