"""The records of a training set. heldin copies the records to the ledger's folder, so the audit does not need the set
again.

heldin refuses columns that identify people, because canary rows would copy such columns from other users' rows.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heldin.base.errors import InputError
from heldin.base.files import text_digest, whole_file
from heldin.base.progress import Reporter
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows, Skipped
from heldin.corpus.sources.rows import BATCH_ROWS, PARTS, SCHEMA
from heldin.planting.plant_config import PlantConfig
from heldin.planting.training_set import TrainingSet
from heldin.record.planted_files import content_sha256

USERS = 200  # the first so many are looked at
ROWS = 50  # of each, at most
_PARTS = 8  # of a value, such as an id of several numbers
_LEAST = 20  # values below which nothing is said of a column
_MOST = 0.95  # share of rows whose value stands with one user alone
_SHARED = -1
_APART = re.compile(r"[^0-9A-Za-z]+")
CORPUS = "corpus.parquet"
_ABOUT = "heldin"


@dataclass
class Telling:
    """Counts that show which columns identify users. Canary rows copy these columns from real rows.

    Attributes:
        own: columns that canary rows do not copy.
    """

    own: frozenset[str | None]
    _rows: dict[str, list[int]] = field(default_factory=dict)  # by user: number of the user, and of rows
    # By column and part (-1: the whole value), by value: whose it is, and the number of its rows.
    _values: dict[tuple[str, int], dict[str, list[int]]] = field(default_factory=dict)

    def look(self, user: str, row: Mapping[str, Any]) -> None:
        """Count the values of a row, if it is among the first rows of the first users."""
        if user not in self._rows:
            if len(self._rows) == USERS:
                return
            self._rows[user] = [len(self._rows), 0]
        seen = self._rows[user]
        if seen[1] == ROWS:
            return
        seen[1] += 1
        for name, value in row.items():
            if name in self.own or value is None:
                continue
            text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
            for part, value_part in enumerate((text, *_APART.split(text)[:_PARTS]), start=-1):
                whose = self._values.setdefault((name, part), {}).setdefault(value_part, [seen[0], 0])
                whose[1] += 1
                if whose[0] != seen[0]:
                    whose[0] = _SHARED

    def columns(self) -> list[str]:
        """Return the columns whose values, or parts of values, usually repeat only within one user's rows."""
        telling: dict[str, None] = {}
        for (name, _), values in self._values.items():
            total = sum(count for _, count in values.values())
            alone = sum(count for whose, count in values.values() if whose != _SHARED)
            if len(self._rows) > 1 and total >= max(_LEAST, 2 * len(values)) and alone >= _MOST * total:
                telling[name] = None
        return list(telling)

    def problem(self) -> str | None:
        """Return the problem with these columns and a remedy; None if no column identifies users."""
        if not (names := self.columns()):
            return None
        # The name of a person who is in a canary row, and nowhere else, would say who is held out.
        return (
            f"column {', '.join(map(repr, names))} names or numbers people. Canary rows copy columns from rows of"
            " other users, and would reveal these people. Name an id column under 'columns'. Leave out another"
            f" column with columns: {{drop: [{', '.join(names)}]}}"
        )


def telling_of(config: PlantConfig, own: frozenset[str | None]) -> Telling | None:
    """Return empty counts; None if canary rows copy no column, or there is no column of users."""
    if config.columns.user is None or all(spec.replaces_users for spec in config.canaries):
        return None
    return Telling(own)


@dataclass(frozen=True)
class Copied:
    """Facts about the copied training set.

    Attributes:
        sha256: hash of the copy's content.
        skipped: rows that were left out.
        numbered: columns of users or ids that contain only whole numbers.
        unparted: numbers of the rows without a scored part.
        late: digests of texts whose first scored token is beyond the tokens that training reads.
        late_rows: number of rows whose text is in ``late``.
        rows: number of usable rows.
    """

    sha256: str
    skipped: Skipped
    numbered: frozenset[str]
    unparted: frozenset[int]
    late: frozenset[str]
    late_rows: int
    rows: int


def copy_records(
    source: TrainingSet, ledger: Path, reporter: Reporter, *, on_bad: OnBadRows, telling: Telling | None
) -> Copied:
    """Copy the records. If an earlier call copied them, return the facts about that copy.

    Args:
        ledger: folder of secrets; if it contains ``ledger.json``, coins have been drawn.
        on_bad: rule for the unusable rows that heldin leaves out and counts.
        telling: object that counts values of rows; None: do not search for columns that identify people.

    Raises:
        InputError: a row is unusable, all rows are unusable, a column identifies people, or the training set was
            changed after coins were drawn.
    """
    sha256 = content_sha256(source.path)
    if (kept := _copied_before(source.path, sha256, ledger)) is not None:
        return kept
    bad, users = BadRows(on_bad), set[str]()
    reporter.say("training set: reading")
    named = {name for name in (source.columns.user, source.columns.id) if name is not None}
    schema = pa.schema([*SCHEMA, *PARTS]) if source.in_parts else SCHEMA
    with whole_file(ledger / CORPUS, private=True) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        unparted: list[int] = []
        late: set[str] = set()
        rows, total, late_rows = source.rows(bad, unparted, late), 0, 0
        while some := list(itertools.islice(rows, BATCH_ROWS)):
            total += len(some)
            late_rows += sum(text_digest(record["text"] or "") in late for record, _ in some) if late else 0
            named = {column for column in named if all(isinstance(row[column], int) for _, row in some)}
            _look(telling, some)
            users.update(record["user"] or "" for record, _ in some)
            writer.write_batch(pa.RecordBatch.from_pylist([record for record, _ in some], schema=schema))
        skipped, _ = bad.counted(users, {})
        _require_usable(source.path, total, skipped, telling)
        about: dict[str, object] = {
            "sha256": sha256,
            "skipped": skipped.model_dump(mode="json"),
            "numbered": sorted(named),
        }
        about |= {"unparted": unparted, "late": sorted(late), "late_rows": late_rows, "rows": total}
        writer.add_key_value_metadata({_ABOUT: json.dumps(about)})
    for line in skipped.lines("training set", total):
        reporter.say(line)
    return copied(ledger)


def _copied_before(path: Path, sha256: str, ledger: Path) -> Copied | None:
    """Return the earlier copy of this training set, if any. Raises InputError if coins were drawn for another set."""
    kept = copied(ledger) if (ledger / CORPUS).is_file() else None
    if kept is None or kept.sha256 == sha256:
        return kept
    if (ledger / "ledger.json").is_file():
        raise InputError(f"'{path}' changed after heldin drew its coins: restore this file, or plant again")
    return None


def _look(telling: Telling | None, rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for record, row in rows if telling is not None else ():
        assert telling is not None
        telling.look(record["user"] or "", row)


def _require_usable(path: Path, rows: int, skipped: Skipped, telling: Telling | None) -> None:
    """Raise InputError if no row is usable, or a column identifies people."""
    if not rows:
        why = f"; the first: {skipped.first}" if skipped.first else ""
        raise InputError(f"'{path}' has no usable row{why}. Correct the rows, or name another file")
    if telling is not None and (problem := telling.problem()):
        raise InputError(f"'{path}': {problem}")


def copied(ledger: Path) -> Copied:
    """Return the facts about the copy in this folder of secrets. Raises InputError if their file is missing or
    damaged."""
    path = ledger / CORPUS
    if not path.is_file():
        raise InputError(f"'{path}' is missing: plant in a new folder")
    try:
        about: dict[str, Any] = json.loads((pq.read_metadata(path).metadata or {})[_ABOUT.encode()])
        sets = {name: frozenset(about[name]) for name in ("numbered", "unparted", "late")}
        skipped = Skipped.model_validate(about["skipped"])
        return Copied(about["sha256"], skipped, late_rows=about["late_rows"], rows=about["rows"], **sets)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError(f"'{path}' is damaged: plant in a new folder") from error
