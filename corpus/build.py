"""Build a store out of core: rows stream into DuckDB on disk, which sorts them by user in bounded memory.

A store is built once per content. Its folder is named by a hash of the source's content and of every option, so a later
build of the same content opens the store. Within a user, records keep the source's order.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heldin.base.artefacts import artefact_folder, is_whole
from heldin.base.errors import InputError
from heldin.base.files import keep_in_use, text_sha256
from heldin.base.wording import counted
from heldin.corpus.sorting import (
    STAGED,
    add_store,
    refuse_repeated_ids,
    sorting_table,
    take_in,
    write_records,
    write_table,
)
from heldin.corpus.sources.bad_rows import BadRowError, BadRows, OnBadRows, Skipped
from heldin.corpus.sources.open import Several, parts_of, require_named_once, source_name
from heldin.corpus.sources.rows import PARTS, Source
from heldin.corpus.store import SKIPPED_USERS, BuildReport, CorpusStore
from heldin.words.rows import RowRemedy

FORMAT_VERSION = "1"  # of what is in a fingerprint
LAYOUT_VERSION = "3"  # of the files of a store


class NoRecordError(InputError):
    """The error for a source without any usable record.

    ``skipped`` counts the rows that were left out, and ``users`` names their users.
    """

    def __init__(self, line: str, skipped: Skipped, users: list[str]) -> None:
        super().__init__(line, skipped, users)  # all of them: an exception is pickled by its arguments
        self.line, self.skipped, self.users = line, skipped, users

    def __str__(self) -> str:
        return self.line


def build_store(
    source: Source,
    cache: Path,
    *,
    aliases: Mapping[str, str] | None = None,
    on_bad: OnBadRows = OnBadRows.SKIP_EMPTY,
    say: Callable[[str], object] = lambda _: None,
) -> CorpusStore:
    """Build the store of ``source`` under ``cache``/corpora, or open it if this content was built before.

    Memory stays bounded for a corpus of any size.

    Args:
        aliases: map from alias to person; None: every name is a separate user.
        on_bad: rule for the unusable rows that heldin skips and counts.
        say: receives a line if an existing store was changed and is built again.

    Raises:
        InputError: the source cannot be read, has no usable record, or repeats a record id.
    """
    folder, fingerprint = store_folder(source, cache, aliases, on_bad)
    keep_in_use(folder.parent)
    if is_whole(folder, say=say):
        return opened_store(folder, on_bad)
    require_named_once(source)
    bad = BadRows(on_bad)
    # Of several sources, the first may have a store already: appending then costs a pass over its records, not over the
    # files they came from.
    earlier, rest = _built_before(source, lambda some: store_folder(some, cache, aliases, on_bad)[0])
    if earlier is not None:
        bad.take_in(earlier.report.skipped, earlier.users_with_skipped())
    with artefact_folder(folder, made_from=fingerprint) as temporary:
        with sorting_table(temporary / "scratch") as database:
            take_in(database, _numbered(rest.batches(bad), aliases or {}))
            if earlier is not None:
                # Negative places sort the earlier records before the new ones, which are numbered from 0.
                add_store(database, earlier, -len(earlier))
            users, ids = write_records(database, temporary / "records.arrow")
            # After the made ids were numbered; an error here leaves no store, since the folder is still the temporary
            # one.
            refuse_repeated_ids(database)
        skipped, with_skipped = bad.counted(users.column("user").to_pylist(), aliases or {})
        if not users.num_rows:
            raise NoRecordError(_nothing_usable(source, skipped), skipped, with_skipped)
        write_table(users, temporary / "users.arrow")
        write_meta(temporary, fingerprint, ids, skipped, with_skipped)
    store = CorpusStore(folder)
    store.report = BuildReport(skipped, reused=False)
    return store


def opened_store(folder: Path, on_bad: OnBadRows) -> CorpusStore:
    """Return a store that was built before. Raises BadRowError if skipped rows violate the rule."""
    store = CorpusStore(folder)
    first = store.report.skipped.first
    if on_bad is OnBadRows.STRICT and first is not None:
        raise BadRowError(first, RowRemedy.NOT_STRICT())
    return store


def write_meta(folder: Path, fingerprint: str, ids: str, skipped: Skipped, with_skipped: Sequence[str]) -> None:
    """Write the parts of a store other than its records.

    Args:
        ids: origin of the record ids: "given", "made" or "mixed".
        with_skipped: names of users with a skipped row.
    """
    meta = {"fingerprint": fingerprint, "skipped": skipped.model_dump(mode="json"), "ids": ids}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    # A store that this one is a part of counts the users over all parts.
    if with_skipped:
        write_table(pa.table({"user": pa.array(with_skipped, pa.string())}), folder / SKIPPED_USERS)


def _nothing_usable(source: Source, skipped: Skipped) -> str:
    parts = parts_of(source)
    if skipped.rows:
        why = f"{counted(skipped.rows, 'row')} skipped, the first: {skipped.first}"
    else:
        # A source may know why, such as a preset whose steps leave nothing.
        reasons = (getattr(part, "reason_if_empty", None) for part in parts)
        why = next((reason for reason in reasons if reason), "the source has no row: give one with records")
    return f"no usable record in {', '.join(map(source_name, parts))}: {why}"


def store_folder(source: Source, cache: Path, aliases: Mapping[str, str] | None, on_bad: OnBadRows) -> tuple[Path, str]:
    """Return the folder for the store of this content with these options, which may not exist, and the fingerprint.

    Args:
        aliases: map from alias to person, or None.
        on_bad: rule for the unusable rows that heldin skips.
    """
    # Sorted, because the order of an alias file changes nothing. Both rules that refuse unusable rows give the same
    # records, if they give any.
    options = json.dumps(dict(aliases or {}), sort_keys=True), str(on_bad is OnBadRows.SKIP)
    fingerprint = text_sha256(FORMAT_VERSION, source.fingerprint(), *options)
    return cache / "corpora" / text_sha256(LAYOUT_VERSION, fingerprint)[:24], fingerprint


def _built_before(source: Source, folder_of: Callable[[Source], Path]) -> tuple[CorpusStore | None, Source]:
    """Return the store that was built before from as many first sources as possible, and the sources after them."""
    if isinstance(source, Several):
        # Longest first: the fewest records are left to read.
        for count in range(len(source.sources) - 1, 0, -1):
            first = source.sources[0] if count == 1 else Several(source.sources[:count])
            if is_whole(folder_of(first)):
                store = CorpusStore(folder_of(first))
                # A mixed store does not say which ids were made, so its records could not be numbered again.
                return (None, source) if store.ids == "mixed" else (store, Several(source.sources[count:]))
    return None, source


def _numbered(batches: Iterator[pa.RecordBatch], alias_of: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with made ids where ids are missing, merged aliases, and each record's place in the source."""
    place = 0
    for batch in batches:
        users, ids = batch.column("user"), batch.column("id")
        made = pc.is_null(ids)
        if ids.null_count:
            # From the name as the source gives it: an alias file that is added later leaves all ids as they are.
            names = (_digest(u, t) for u, t in zip(users.to_pylist(), batch.column("text").to_pylist(), strict=True))
            ids = pc.if_else(made, pa.array(names, pa.string()), ids)
        if alias_of:
            users = pa.array([alias_of.get(name, name) for name in users.to_pylist()], pa.string())
        places = pa.array(np.arange(place, place + len(batch)))
        place += len(batch)
        there = batch.schema.names
        parts = [batch.column(p.name) if p.name in there else pa.nulls(len(batch), p.type) for p in PARTS]
        columns = [users, batch.column("text"), ids, batch.column("date"), *parts, made, places]
        yield pa.RecordBatch.from_arrays(columns, schema=STAGED)


def _digest(user: str, text: str) -> str:
    """Return the made id of a record, without its number among the user's records with the same text."""
    # Never made from the place in the file: one user's records would change the ids of another's
    # (docs/theory.md#rules-of-the-data).
    return text_sha256(user, text)[:32]
