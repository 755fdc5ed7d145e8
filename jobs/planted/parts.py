"""The scored parts of audited users' texts, where not the whole text is scored, kept in the folder of secrets."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_digest, whole_file
from heldin.canaries.kinds import Kind
from heldin.corpus.sources.rows import BATCH_ROWS, BadRows
from heldin.jobs.planted.training_set import TrainingSet
from heldin.models.tokens import Spans
from heldin.stages.sides.data import RunData

PARTS = "parts.parquet"
_SIZE = 16  # bytes of a hash: enough that no two texts meet by chance
_SCHEMA = pa.schema([("text", pa.binary(_SIZE)), ("begins", pa.list_(pa.int32())), ("ends", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class KeptParts:
    """Parts by text. Of two rows that read alike and are parted otherwise, those of the first count for both.

    Attributes:
        hashes: of the texts, sorted, shape (n,).
        first: where each text's parts begin among all, shape (n + 1,).
        begins: first characters of all parts, shape (parts,).
        ends: the characters after their last, shape (parts,).
    """

    hashes: npt.NDArray[np.character]
    first: npt.NDArray[np.int64]
    begins: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int32]

    def of(self, text: str) -> Spans:
        """Parts of a text. Raises InputError for one that stood in no row."""
        digest = np.array([_hash(text)], dtype=self.hashes.dtype)
        place = int(np.searchsorted(self.hashes, digest)[0])
        if place == len(self.hashes) or self.hashes[place] != digest[0]:
            raise InputError("a text has no scored parts: the copy of the records was changed; restore it")
        part = slice(self.first[place], self.first[place + 1])
        return list(zip(self.begins[part].tolist(), self.ends[part].tolist(), strict=True))


def write_parts(
    source: TrainingSet, data: RunData, ledger: Path, texts: Iterable[str], further: Iterable[tuple[str, Spans]]
) -> str:
    """Keep the parts of the texts of audited users, canary users and further rows, and return the file's hash.

    Args:
        data: users and coins; nothing that is kept depends on a coin.
        ledger: folder of secrets.
        texts: of further real rows: those that became canary users', and those of the positive control.
        further: other texts with their parts.

    Raises:
        InputError: a canary user's row has no part that is read.
    """
    parts = itertools.chain(_of_users(source, data, frozenset(texts)), _of_canaries(source, data), further)
    with whole_file(ledger / PARTS, private=True) as temporary, pq.ParquetWriter(temporary, _SCHEMA) as writer:
        while some := list(itertools.islice(parts, BATCH_ROWS)):
            kept = [
                {"text": _hash(text), "begins": [b for b, _ in spans], "ends": [e for _, e in spans]}
                for text, spans in some
            ]
            writer.write_batch(pa.RecordBatch.from_pylist(kept, schema=_SCHEMA))
    return file_sha256(ledger / PARTS)


def read_parts(ledger: Path, sha256: str) -> KeptParts:
    """Return what ``write_parts`` stored. Raises InputError if the file is gone or was changed."""
    path = ledger / PARTS
    if not path.is_file() or file_sha256(path) != sha256:
        raise InputError(f"'{path}' is gone or was changed after it was written: restore it, or plant anew")
    table = pq.read_table(path).combine_chunks()
    hashes = np.array(table["text"].to_pylist(), dtype=f"S{_SIZE}")
    # Sorted by hash, in the order of rows where texts are alike: the search below finds the first.
    order = np.argsort(hashes, kind="stable")
    kept = table.take(pa.array(order))
    lengths = pc.list_value_length(kept["begins"]).to_numpy()
    return KeptParts(
        hashes[order],
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        pc.list_flatten(kept["begins"]).to_numpy().astype(np.int32),
        pc.list_flatten(kept["ends"]).to_numpy().astype(np.int32),
    )


def _of_users(source: TrainingSet, data: RunData, texts: frozenset[str]) -> Iterator[tuple[str, Spans]]:
    users = {*data.real(data.ledger.scored_users()), *(canary.source for canary in data.canaries.values())}
    for row, content in source.rows(BadRows(skip=True)):
        if row["user"] in users or row["text"] in texts:
            yield str(row["text"]), source.text.scored(content)


def _of_canaries(source: TrainingSet, data: RunData) -> Iterator[tuple[str, Spans]]:
    for user, canary in data.canaries.items():
        made_up = canary.source is None and canary.kind is not Kind.REAL_ROWS
        for row in data.store.rows(user) if made_up else ():
            text = data.store.text(row)
            try:
                spans = source.text.scored(source.text.put({}, text))
            except ValueError as error:
                raise InputError(f"canary user '{user}': {error}: raise attack.max_characters") from error
            if not source.is_visible(text, spans):
                raise InputError(
                    f"canary user '{user}': no scored token of a row is among the first {source.visible}: raise"
                    " sequence_length"
                )
            yield text, spans


def _hash(text: str) -> bytes:
    return bytes.fromhex(text_digest(text))
