"""Each user's score by the primary attack, with membership, for ``heldin bound`` and for other tools."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from heldin.audit.exposed_users import PEOPLE, PROPERTIES, Exposed, read_people, shares_above
from heldin.audit.limits import AurocDifference, auroc_difference
from heldin.audit.scored_users import scored_users
from heldin.base.artefacts import require_not_purged, require_whole
from heldin.base.errors import InputError
from heldin.base.files import whole_file
from heldin.base.wording import counted
from heldin.record.compare import in_rows
from heldin.record.document import Record, read_record
from heldin.record.planted_files import home_of
from heldin.stages.measures.tables import read_scores
from heldin.stages.sides.ledger import load_ledger, remedy_of_ledger


@dataclass(frozen=True)
class UserScore:
    """One user's score and membership.

    Attributes:
        score: score of the primary attack; a higher score means that the user is more likely a member.
        member: whether the user is a member.
    """

    user: str
    score: float
    member: bool


def leading_scores(folder: Path) -> list[UserScore]:
    """Return the scores of the audited users by the record's primary attack, sorted by user name.

    The scores include canary users only if no real user is audited.

    This function does not check that the scores belong to the record's models and texts; ``heldin verify`` does.

    Raises:
        InputError: the folder has no finished run or audit, scores or ledger are missing or damaged, or the folder has
            an audit of trainings.
    """
    record = read_record(folder / "record.json")
    require_not_purged(folder)
    member = _membership(folder, record)
    table = scored_users(read_scores(folder), member)
    # The first aggregation leads (``Record.primary``).
    scores = table.scores(record.primary_attack, record.config["attack"]["aggregations"][0])
    return [UserScore(u, float(s), bool(m)) for u, s, m in zip(table.users, scores, table.member, strict=True)]


@dataclass(frozen=True)
class ScoredMember:
    """A member in an audit; heldin knows only the member's score. The fields are also fields of ``Exposed``."""

    user: str
    score: float
    above: float


def exposed_members(folder: Path) -> Sequence[Exposed | ScoredMember]:
    """Return the members of a run or an audit, most exposed first; empty if no real user was audited.

    For a run, a table that only its owner can read lists the members. An audit stores no membership, so this function
    reads the audit's two files again.

    Raises:
        InputError: ``leading_scores`` raises, or the table is missing or was changed.
    """
    record = read_record(folder / "record.json")
    require_not_purged(folder)
    if record.kind == "trainings":
        raise InputError(
            f"'{folder}' is an audit of many training runs, which has no people to list: name the folder of another run"
            " or audit"
        )
    if record.kind != "audit":
        return read_people(folder / PEOPLE)
    users = leading_scores(folder)
    above = shares_above(np.array([user.score for user in users]), np.array([user.member for user in users])).tolist()
    rows = zip(users, above, strict=True)
    members = [ScoredMember(user.user, user.score, share) for user, share in rows if user.member]
    return sorted(members, key=lambda member: (-member.score, member.user))


def people_table(users: Sequence[Exposed | ScoredMember], most: int) -> str:
    """Return the most exposed users as plain text."""
    known = PROPERTIES if isinstance(users[0], Exposed) else {}
    cells = []
    for user in users[:most]:
        row = asdict(user)
        values = ["-" if row[name] is None else f"{row[name]:.4g}" for name in known]
        cells.append([user.user, f"{user.score:.4g}", f"{100 * user.above:.0f} %", *values])
    lines = in_rows(["user", "score", "above non-members", *known.values()], cells)
    return "\n".join([*lines, f"{min(most, len(users))} of {counted(len(users), 'member')}, most exposed first"])


def paired_difference(first: Path, other: Path) -> AurocDifference | None:
    """Return the primary attack's AUROC in ``other`` minus its AUROC in ``first``, paired by user (DeLong).

    None if users or membership differ, if scores are missing, or if an attack separates the groups completely.
    """
    try:
        first_scores, two = leading_scores(first), leading_scores(other)
    except InputError:
        return None
    if [(score.user, score.member) for score in first_scores] != [(score.user, score.member) for score in two]:
        return None
    member = np.array([score.member for score in first_scores])
    scores = [np.array([score.score for score in side]) for side in (first_scores, two)]
    difference = auroc_difference(*((side[member], side[~member]) for side in scores))
    return difference.brief() if difference else None


def write_user_scores(scores: list[UserScore], path: Path) -> None:
    """Write the scores as CSV with the columns user, score, member (1 or 0). Only the owner can read the file."""
    with whole_file(path, private=True) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["user", "score", "member"])
        # repr keeps every bit: a rounded score could tie with another, and bounds depend on the order.
        writer.writerows([s.user, repr(s.score), int(s.member)] for s in scores)


def _membership(folder: Path, record: Record) -> dict[str, bool]:
    """Return whether each user is a member, sorted by name, without canary users."""
    if record.kind == "audit":
        # Here, since they load torch, which scores of runs do without.
        from heldin.jobs.checkpoint.job import audit_job, read_groups

        # Read from the two files again: an audit keeps no membership of its own.
        return dict(sorted(read_groups(audit_job(folder, record)).member.items()))
    if record.kind == "planted":
        folder = home_of(folder, record.config["planted"])
    elif record.kind != "run":
        raise InputError(
            f"'{folder}' is an audit of many training runs, which has no scores of users: name the folder of another"
            " run or audit"
        )
    ledger = load_ledger(folder / "ledger")
    if ledger is None:
        raise InputError(f"'{folder}' has no ledger, so members are unknown: {remedy_of_ledger(folder / 'ledger')}")
    # Another set may have been planted where this one was.
    if record.kind == "planted" and ledger.commitment() != record.split.ledger_commitment:
        raise InputError(f"the ledger in '{folder}' is not the ledger of this audit: restore the ledger")
    if record.split.audited == "canaries":
        return ledger.membership()
    # Canary users are made to be found: among real users they would raise the bounds about those.
    if record.canaries is None:
        return ledger.membership()
    path = folder / "ledger" / "canaries" / "users.parquet"
    require_whole(path, remedy_of_ledger(folder / "ledger"))
    return ledger.membership(without=set(pq.read_table(path, columns=["user"]).column("user").to_pylist()))
