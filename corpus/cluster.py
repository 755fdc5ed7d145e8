"""Build a store on a Ray cluster, for corpora too large for one machine. The content is the same, in several files.

First, tasks build a separate store for each source, in parallel. Then other tasks merge ranges of users, with about
equally many records, from all of these stores. Rows, ids and order are as in ``corpus.build``. The cache must be on a
file system that every machine sees. The module needs the extra ``cluster``.
"""

import bisect
import itertools
import shutil
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from heldin.base.artefacts import artefact_folder, is_whole
from heldin.base.errors import InputError
from heldin.base.files import keep_in_use
from heldin.corpus.build import NoRecordError, build_store, opened_store, store_folder, write_meta
from heldin.corpus.sorting import add_store, say_repeated, sorting_table, write_records, write_table
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows, Skipped
from heldin.corpus.sources.open import Several, require_named_once
from heldin.corpus.sources.rows import Source
from heldin.corpus.store import CorpusStore

# Each task reads all ids and keeps a sixteenth of them.
ID_SHARES = 16
_PATIENCE = 30.0  # seconds for a server to accept a connection


def connect_to_ray(address: str) -> Any:
    """Return the module ``ray``, connected to the cluster at HOST:PORT, ``auto`` or ``local`` (a new cluster here).

    Raises:
        InputError: Ray is not installed, or no cluster answers at the address.
    """
    if "://" in address:
        raise InputError(f"--ray-address {address}: write HOST:PORT, with a machine of the cluster as HOST")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InputError("Ray is not installed: pip install '.[cluster]' in a clone of heldin") from error
    _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except Exception as error:  # Ray has an error of its own for each of its layers
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"--ray-address {address}: no cluster answers ({reason}). Start Ray on this machine, or correct the address"
        ) from error
    return ray


def _require_answer(address: str) -> None:
    """Raise InputError if no server listens at the address, because Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise InputError(
            f"--ray-address {address}: no machine answers ({error.strerror or error}). Correct the address"
        ) from error


def build_on_cluster(
    sources: Sequence[Source],
    cache: Path,
    *,
    address: str = "local",
    parts: int | None = None,
    aliases: Mapping[str, str] | None = None,
    on_bad: OnBadRows = OnBadRows.SKIP_EMPTY,
) -> CorpusStore:
    """Build the store of ``Several(sources)``, or of a single source, with one task per source.

    Args:
        sources: the sources, such as the files of a corpus; one task reads each source.
        cache: folder for stores, on a file system that all machines share.
        address: HOST:PORT of the cluster, ``auto`` for the cluster that Ray finds, or ``local`` for a new cluster here.
        parts: number of record files in the store; None: one per CPU of the cluster.
        aliases: map from alias to person; None: every name is a separate user.

    Raises:
        InputError: Ray is not installed, no cluster answers, or ``build_store`` raises an InputError.
    """
    source = sources[0] if len(sources) == 1 else Several(tuple(sources))
    folder, fingerprint = store_folder(source, cache, aliases, on_bad)
    keep_in_use(folder.parent)
    if is_whole(folder):
        return opened_store(folder, on_bad)
    require_named_once(source)
    ray = connect_to_ray(address)

    def on_all(task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        remote = ray.remote(task)
        try:
            return list(ray.get([remote.remote(*each) for each in arguments]))
        except ray.exceptions.RayTaskError as error:
            # Ray wraps what a task raises; the user should see the same error as on one machine.
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None

    # Each source's store is whole or not there: after a failure the next call builds only those that are missing.
    built = on_all(build_one, [(source, cache, dict(aliases or {}), on_bad) for source in sources])
    folders = [part.folder for part in built if part.folder is not None]
    if not folders:
        raise InputError("; ".join(part.nothing for part in built))
    stores = [CorpusStore(of_source) for of_source in folders]
    # True if some stores' ids are given and others' made: one source alone is never mixed.
    if len({store.ids for store in stores} | {"mixed"}) > 2:
        raise InputError(
            "some sources have an id column and some have none: name the id column of all sources, or of none"
        )
    if stores[0].ids == "given":
        # Each task counts the ids of one hash share, so that no task has to keep all ids in memory.
        refuse_repeated(on_all(repeated_ids, [(folders, share, ID_SHARES) for share in range(ID_SHARES)]))
    ranges = user_ranges(stores, parts or max(1, int(ray.cluster_resources().get("CPU", 1))))
    with artefact_folder(folder, made_from=fingerprint) as temporary:
        # Numbered with leading zeros, because a store reads its files in the order of their names.
        arguments = [(folders, *users, temporary / f"records-{i:05d}.arrow") for i, users in enumerate(ranges)]
        index = pa.concat_tables(on_all(merge_slices, arguments))
        counts = index.column("count").to_numpy()
        # Each part counts its rows from 0; here they are counted over all parts.
        starts = np.cumsum(counts) - counts
        write_table(index.set_column(1, "start", pa.array(starts)), temporary / "users.arrow")
        bad = BadRows(on_bad)
        for part in built:
            bad.take_in(part.skipped, part.with_skipped)
        # Aliases are people already.
        skipped, with_skipped = bad.counted(index.column("user").to_pylist(), {})
        write_meta(temporary, fingerprint, stores[0].ids, skipped, with_skipped)
    if len(sources) > 1:
        for of_source in folders:
            shutil.rmtree(of_source, ignore_errors=True)  # their records are in the merged store
    return CorpusStore(folder)


def user_ranges(stores: Sequence[CorpusStore], parts: int) -> list[tuple[str | None, str | None]]:
    """Return up to ``parts`` ranges [first, last) of users with about equally many records.

    None means no limit at that end.
    """
    counts: dict[str, int] = {}
    for store in stores:
        for user, count in zip(store.users, store.counts.tolist(), strict=True):
            counts[user] = counts.get(user, 0) + count
    users = sorted(counts, key=str.encode)  # by bytes, as DuckDB sorts
    total = np.cumsum([counts[user] for user in users])
    # A set, since one user with more than a part's share is the cut of several parts; without 0, before which there is
    # no user.
    cuts = sorted({int(np.searchsorted(total, total[-1] * i / parts)) for i in range(1, parts)} - {0})
    bounds: list[str | None] = [None, *(users[i] for i in cuts), None]
    return list(itertools.pairwise(bounds))


@dataclass(frozen=True)
class BuiltStore:
    """The store of one source, or the reason why it has none, with the skipped rows and the names of their users."""

    folder: Path | None
    skipped: Skipped
    with_skipped: list[str]
    nothing: str = ""


def build_one(source: Source, cache: Path, aliases: dict[str, str], on_bad: OnBadRows) -> BuiltStore:
    """Build the store of one source. For a source without records, the result has a reason and no store."""
    try:
        store = build_store(source, cache, aliases=aliases, on_bad=on_bad)
    except NoRecordError as error:
        return BuiltStore(None, error.skipped, error.users, str(error))
    return BuiltStore(store.folder, store.report.skipped, store.users_with_skipped())


def refuse_repeated(repeated: Sequence[tuple[int, str, int]]) -> None:
    """Raise InputError if any of these shares has an id more than once."""
    number = sum(count for count, _, _ in repeated)
    if number:
        raise say_repeated(number, min((name, times) for count, name, times in repeated if count)[1])


def rows_between(store: CorpusStore, first: str | None, last: str | None) -> tuple[int, int]:
    """Return the rows [begin, end) of users in [first, last).

    The rows are one slice, because a store is sorted by user.
    """
    # By bytes, in the order in which the store is sorted.
    keys = [user.encode() for user in store.users]
    low = 0 if first is None else bisect.bisect_left(keys, first.encode())
    high = len(keys) if last is None else bisect.bisect_left(keys, last.encode())
    begin = int(store.starts[low]) if low < len(keys) else len(store)
    end = int(store.starts[high]) if high < len(keys) else len(store)
    return begin, end


def merge_slices(folders: Sequence[Path], first: str | None, last: str | None, path: Path) -> pa.Table:
    """Write the records of users in [first, last) from all stores, and return the index of these users."""
    with sorting_table(path.with_suffix(".scratch")) as database:
        place = 0
        for store in map(CorpusStore, folders):
            rows = rows_between(store, first, last)
            add_store(database, store, place, rows)
            place += rows[1] - rows[0]
        return write_records(database, path)[0]


def repeated_ids(folders: Sequence[Path], share: int, shares: int) -> tuple[int, str, int]:
    """Return the number of repeated ids of this share over all stores, one repeated id, and its number of copies."""
    times: Counter[str] = Counter()
    for store in map(CorpusStore, folders):
        for chunk in store.table.column("id").chunks:
            # CRC and not ``hash``, which differs from process to process: copies of an id must fall into one share.
            times.update(id_ for id_ in chunk.to_pylist() if zlib.crc32(id_.encode()) % shares == share)
    repeated = {id_: count for id_, count in times.items() if count > 1}
    return len(repeated), *(min(repeated.items()) if repeated else ("", 0))
