"""Unusable rows: their faults, and whether heldin stops the command or skips and counts such rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from heldin.base.errors import InputError
from heldin.base.section import Facts
from heldin.words.rows import RowFault, RowRemedy, SkippedText
from heldin.words.statement import Statement


class OnBadRows(StrEnum):
    """The unusable rows that heldin skips and counts. Any other unusable row is an error."""

    SKIP_EMPTY = "skip-empty"  # rows without text
    SKIP = "skip"  # all rows that cannot be used
    STRICT = "strict"  # none


class BadRowError(InputError):
    """The first unusable row.

    Attributes:
        fault: place and fault of the row.
        remedy: advice for the person who runs the command.
    """

    def __init__(self, fault: Statement, remedy: Statement) -> None:
        super().__init__(fault, remedy)  # both: an exception is pickled by its arguments
        self.fault, self.remedy = fault, remedy

    def __str__(self) -> str:
        return f"{self.fault}; {self.remedy}"


class Skipped(Facts):
    """Counts of the skipped rows of a source.

    Attributes:
        without_text: rows without text.
        unusable: other rows that could not be used.
        users: number of users with a skipped row; rows of unknown users do not count.
        users_lost: number of users without any usable row.
        first: place and fault of the first unusable row, else of the first row without text; None if no row was
            skipped.
    """

    without_text: int = 0
    unusable: int = 0
    users: int = 0
    users_lost: int = 0
    first: Statement | None = None

    @property
    def rows(self) -> int:
        """Number of skipped rows."""
        return self.without_text + self.unusable

    def lines(self, where: str, kept: int) -> list[str]:
        """Return lines to print about the skipped rows; none if no row was skipped.

        Args:
            where: name for the rows, such as "corpus".
            kept: number of rows that were not skipped.
        """
        if not self.rows:
            return []
        parts = skipped_by_fault(self.without_text, self.unusable)
        rows = SkippedText.ROWS(where=where, parts=parts, rows=self.rows + kept, first=self.first)
        lost = [SkippedText.LOST(where=where, users=self.users_lost)] if self.users_lost else []
        return [str(rows), *map(str, lost)]


def skipped_by_fault(without_text: int, unusable: int) -> list[Statement]:
    """Return statements with the numbers of skipped rows, without zeros."""
    counts = (SkippedText.NO_TEXT, without_text), (SkippedText.UNUSABLE, unusable)
    return [text(rows=rows) for text, rows in counts if rows]


@dataclass
class BadRows:
    """The rule for unusable rows: raise an error at the first unusable row, or count unusable rows and continue.

    Attributes:
        rule: the rows that heldin skips.
        without_text: number of skipped rows without text so far.
        unusable: number of other skipped rows so far.
        first: place and fault of the first other skipped row, or of the first row without text if there is no other
            row.
        users: names of users with a skipped row.
    """

    rule: OnBadRows = OnBadRows.SKIP_EMPTY
    without_text: int = 0
    unusable: int = 0
    first: Statement | None = None
    users: set[str] = field(default_factory=set)

    @property
    def skipped(self) -> int:
        """Number of skipped rows so far."""
        return self.without_text + self.unusable

    def report(self, place: str, fault: Statement, *, user: str | None = None, remedy: Statement | None = None) -> None:
        """Record one bad row.

        Args:
            place: file and line of the row.
            user: the user who wrote the row; None if unknown.
            remedy: advice for the person who runs the command; None: the advice to correct or skip the row.

        Raises:
            BadRowError: the rule does not skip such rows.
        """
        empty = fault.states(RowFault.NO_TEXT) or fault.states(RowFault.NOTHING_COUNTS)
        at = RowFault.AT(place=place, fault=fault)
        if self.rule is OnBadRows.STRICT or (self.rule is OnBadRows.SKIP_EMPTY and not empty):
            raise BadRowError(at, RowRemedy.NOT_STRICT() if empty else remedy or RowRemedy.SKIP())
        # The first one of the graver kind.
        if self.first is None or (not empty and not self.unusable):
            self.first = at
        self.without_text += empty
        self.unusable += not empty
        if user is not None:
            self.users.add(user)

    def take_in(self, other: Skipped, users: Iterable[str]) -> None:
        """Add the rows that an earlier part skipped, and their users."""
        if self.first is None or (other.unusable and not self.unusable):
            self.first = other.first
        self.without_text += other.without_text
        self.unusable += other.unusable
        self.users.update(users)

    def counted(self, kept: Iterable[str], aliases: Mapping[str, str]) -> tuple[Skipped, list[str]]:
        """Return the counts, and the names of users with a skipped row.

        Args:
            kept: users who have a record.
            aliases: map from alias to person.
        """
        users = {aliases.get(name, name) for name in self.users}
        lost = users.difference(kept) if users else users
        counts = Skipped(
            without_text=self.without_text,
            unusable=self.unusable,
            users=len(users),
            users_lost=len(lost),
            first=self.first,
        )
        return counts, sorted(users)
