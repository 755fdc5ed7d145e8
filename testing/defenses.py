"""Checks of a defense on the data side."""

from collections.abc import Sequence

from heldin.base.progress import SilentReporter
from heldin.corpus.document import Document
from heldin.defenses.choices import DataStep
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import DataSideDefense, StepInput, TrainingRecord
from heldin.testing.problems import require, tried, watched_files

_TEXTS = ("Ann met Bob", "a b c d e f", "Ann met Bob", "one two", "a b c d e f g", "Bob", "one two")
_USERS = "aaabbcc"


def check_defense(defense: DataSideDefense) -> None:
    """Check that a data-side defense keeps its declarations, by removing users, records and texts.

    If the defense is user-local, removing another user does not change the result for a user. If it is record-local,
    removing another record does not change the result for a record. If it reads only slots, other texts change nothing.
    It either removes records or changes texts, keeps its own limit, and gives the same result each time.

    Args:
        defense: defense with the settings to test.

    Raises:
        AssertionError: lists all broken declarations.
    """
    require(broken_declarations(defense), f"data defense '{defense.kind}'")


def broken_declarations(defense: DataSideDefense) -> list[str]:
    """Return one line per broken declaration of a defense. The line begins with the declaration's name."""
    problems: list[str] = []
    step = tried(defense.declared, "declared: declaring it", problems)
    everything = tried(lambda: _left(defense, _records(_TEXTS)), "applied: applying it", problems)
    if not problems:
        problems += _same_again(defense, everything)
        problems += _local(defense, step, everything)
        problems += _limits(defense, everything)
    return list(dict.fromkeys(problems))


def _same_again(defense: DataSideDefense, everything: dict[int, Document]) -> list[str]:
    given = StepInput(_lengths, _lengths, 1, SilentReporter())
    with watched_files() as opened:
        again = {record.row: record.document for record in defense.apply(_records(_TEXTS), given)}
    problems = [f"files: it reads '{opened[0]}': it may use only its arguments"] if opened else []
    if again != everything:
        problems.append("determinism: it treats the same records differently the second time")
    return problems


def _local(defense: DataSideDefense, step: DataStep, everything: dict[int, Document]) -> list[str]:
    problems, whole = [], _records(_TEXTS)
    if step.user_local and _moved(defense, everything, [[r for r in whole if r.user != user] for user in _USERS]):
        problems.append("user_local: records of a user change when another user is removed")
    if step.record_local and _moved(defense, everything, [[r for r in whole if r is not gone] for gone in whole]):
        problems.append("record_local: records change when another record is removed")
    if step.slots_only and _left(defense, _records(_TEXTS[::-1])).keys() != everything.keys():
        problems.append("slots_only: other texts change which records remain")
    return problems


def _moved(
    defense: DataSideDefense, everything: dict[int, Document], fewer: Sequence[Sequence[TrainingRecord]]
) -> bool:
    """Return whether the defense treats a document differently when some records are missing."""
    return any(_left(defense, others) != _of(others, everything) for others in fewer)


def _limits(defense: DataSideDefense, everything: dict[int, Document]) -> list[str]:
    problems = []
    if defense.rewrites and len(everything) < len(_TEXTS):
        problems.append("rewrites: it removes records, but a step that changes texts must keep all records")
    most = max(sum(_USERS[row] == user for row in everything) for user in _USERS)
    if defense.most_records is not None and most > defense.most_records:
        problems.append(f"most_records: it keeps {most} records of one user")
    return problems


def _records(texts: Sequence[str]) -> list[TrainingRecord]:
    rows = enumerate(zip(texts, _USERS, strict=True))
    return [TrainingRecord(row, user, f"{user}{row}", Document.of(text)) for row, (text, user) in rows]


def _left(defense: DataSideDefense, records: Sequence[TrainingRecord]) -> dict[int, Document]:
    """Return the documents that remain, by row; empty if there are no records."""
    if not records:
        return {}
    kept, _ = apply_defenses([defense], records, lengths=_lengths, losses=_lengths, seed=1)
    return {record.row: record.document for record in kept}


def _lengths(documents: Sequence[Document]) -> list[int]:
    return [len(document.text) for document in documents]


def _of(records: Sequence[TrainingRecord], documents: dict[int, Document]) -> dict[int, Document]:
    rows = {record.row for record in records}
    return {row: document for row, document in documents.items() if row in rows}
