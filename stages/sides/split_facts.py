"""The record's facts about the members and non-members of a run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from heldin.base.files import cache_directory
from heldin.corpus.sorting import sorting_database
from heldin.corpus.split import Part, Role, SplitRule
from heldin.corpus.store import Corpus
from heldin.record.facts import Overlaps, SplitFacts
from heldin.record.overlaps import measured
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.words.split import SplitReason
from heldin.words.statement import Statement

_TRAINED, _SCORED, _HELD_OUT, _LEFT_OUT, _AUDITED = 1, 2, 4, 8, 16
_HASHED = pa.schema({"text": pa.large_string(), "row": pa.int64(), "owner": pa.int32(), "use": pa.uint8()})


def split_facts(config: RunConfig, data: RunData) -> SplitFacts:
    """Return the record's facts about the split of the real users and entities."""
    ledger, counts = data.ledger, data.ledger.count(data.canaries)
    # Of users alone: an entity's records are theirs.
    users = [user for user in data.real(ledger.parts) if user not in ledger.entities]
    numbers = ledger.parts.numbers(users)
    parts = {part.value: int(ledger.parts.sizes(part)[numbers].sum()) for part in Part}
    return SplitFacts(
        assignment=ledger.assignment.value,
        known_by="measured",
        certifiable=ledger.assignment is SplitRule.COIN,
        reason=_reason(data, config.split.audited.value),
        held_in=counts[Role.HELD_IN],
        held_out=counts[Role.HELD_OUT],
        always_in=counts[Role.ALWAYS_IN],
        records_by_part={**parts, "trained on": len(data.training_rows)},
        key_commitment=ledger.key_commitment(),
        ledger_commitment=ledger.commitment(),
        overlaps=overlaps_of(data),
        audited=config.split.audited.value,
    )


def _reason(data: RunData, audited: str) -> Statement:
    if data.ledger.assignment is not SplitRule.COIN:
        return SplitReason.EXACT_HALF(audited=audited)
    if data.cell is None:
        return SplitReason.FAIR_COINS(audited=audited)
    return SplitReason.FAIR_COINS_OF_BLOCK(audited=audited, block=data.cell.block)


def overlaps_of(data: RunData) -> Overlaps:
    """Return how many texts of real users occur exactly in the other group. Training texts include canary users' texts.

    Texts are compared as written, even if de-identification changed them. De-identification changes equal texts in the
    same way, so the original shows whether a text is among another user's training texts.
    """
    owners, uses, held_out = _marks(data)
    with (
        tempfile.TemporaryDirectory(dir=cache_directory(), prefix="overlaps-") as folder,
        sorting_database(Path(folder) / "scratch") as database,
    ):
        for name, batches in (("texts", _marked(data.store, owners, uses)), ("public", _public(data))):
            database.register("incoming", pa.RecordBatchReader.from_batches(_HASHED, batches))
            # MD5 of 128 bits: texts that meet by chance are out of reach.
            database.execute(f"CREATE TABLE {name} AS SELECT md5_number(text) AS hash, row, owner, use FROM incoming")
            database.unregister("incoming")
        there = "EXISTS (SELECT 1 FROM texts t WHERE t.use & {} > 0 AND t.hash = s.hash AND {})"
        own, other = there.format(_TRAINED, "t.owner = s.owner"), there.format(_TRAINED, "t.owner <> s.owner")
        scored = f"s.use & {_SCORED} > 0"
        in_held_in = there.format(_SCORED, f"t.use & {_HELD_OUT} = 0")
        in_public = "EXISTS (SELECT 1 FROM public p WHERE p.hash = s.hash)"
        return Overlaps(
            scored_texts_in_same_users_training=measured(_count(database, f"{scored} AND {own}")),
            scored_texts_in_other_users_training=measured(_count(database, f"{scored} AND {other}")),
            # What training would have seen of held-out users: found there, it was trained on under another's name.
            held_out_texts_in_training=measured(_count(database, f"s.use & {_LEFT_OUT} > 0 AND ({own} OR {other})")),
            held_out_users_in_training=measured(int(np.isin(held_out, owners[uses & _TRAINED > 0]).sum())),
            held_out_texts_in_held_in=measured(
                _count(database, f"{scored} AND s.use & {_HELD_OUT} > 0 AND {in_held_in}")
            ),
            audited_texts_in_public=measured(_count(database, f"s.use & {_AUDITED} > 0 AND {in_public}")),
        )


def _count(database: duckdb.DuckDBPyConnection, condition: str) -> int:
    # Each text once, whichever of its turns are found: a text may have several.
    counted = database.execute(f"SELECT count(DISTINCT s.row) FROM texts s WHERE {condition}").fetchone()
    assert counted is not None
    return int(counted[0])


def _marks(data: RunData) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return, for each row, the number of its user and its use; also the numbers of the users who are non-members."""
    store, ledger, parts = data.store, data.ledger, data.ledger.parts
    ranges = {user: store.rows(user) for user in store.users}
    size = max(span.stop for span in ranges.values())
    number = {name: i for i, name in enumerate((*store.users, *sorted(ledger.entities)))}
    owners, uses = np.full(size, -1, dtype=np.int32), np.zeros(size, dtype=np.uint8)
    for user, span in ranges.items():
        owners[span.start : span.stop] = number[user]
    # No two of the pool share a record for training or for the attacker: a record has one owner.
    for entity in ledger.entities:
        for part in (Part.TRAIN, Part.ATTACKER):
            owners[list(parts[entity][part])] = number[entity]
    held_in, held_out = (data.real(ledger.users(role)) for role in (Role.HELD_IN, Role.HELD_OUT))
    uses[data.training_rows] |= _TRAINED
    uses[parts.rows_of(Part.ATTACKER, held_in)] |= _SCORED
    uses[parts.rows_of(Part.ATTACKER, held_out)] |= _SCORED | _HELD_OUT
    uses[parts.rows_of(Part.TRAIN, held_out)] |= _LEFT_OUT
    audited = [user for user in data.real(parts) if user not in ledger.entities]
    for part in Part:
        uses[parts.rows_of(part, audited)] |= _AUDITED
    return owners, uses, np.array([number[name] for name in held_out], dtype=np.int32)


def _marked(store: Corpus, owners: npt.NDArray[np.int32], uses: npt.NDArray[np.uint8]) -> Iterator[pa.RecordBatch]:
    """Yield the counted text, the owner and the use of every row that has a use and a counted text.

    In a row of turns, each turn is compared separately. Uncounted turns are included only for training rows.
    """
    if store.has_turns:
        yield from _turns(store, owners, uses)
        return
    for first, texts in store.counted_chunks():
        part = slice(first, first + len(texts))
        used = pc.and_(pa.array(uses[part] > 0), pc.greater(pc.binary_length(texts), 0))
        rows = pa.array(np.arange(part.start, part.stop, dtype=np.int64))
        columns = [texts.cast(pa.large_string()), rows, pa.array(owners[part]), pa.array(uses[part])]
        yield pa.RecordBatch.from_arrays([column.filter(used) for column in columns], schema=_HASHED)


def _turns(store: Corpus, owners: npt.NDArray[np.int32], uses: npt.NDArray[np.uint8]) -> Iterator[pa.RecordBatch]:
    for first, documents in store.document_chunks():
        columns: dict[str, list[Any]] = {name: [] for name in _HASHED.names}
        for row, document in enumerate(documents, start=first):
            for words, counts in document.said() if uses[row] else ():
                columns["text"].append(words)
                columns["row"].append(row)
                columns["owner"].append(owners[row])
                columns["use"].append(uses[row] if counts else uses[row] & _TRAINED)
        yield pa.RecordBatch.from_pydict(columns, schema=_HASHED)


def _public(data: RunData) -> Iterator[pa.RecordBatch]:
    for documents in data.corpus.public_documents():
        # All of a text is read in pre-training; of a row of turns each turn is a text, as above.
        turns = ([words for words, _ in document.said()] or [document.text] for document in documents)
        texts = [text for of_document in turns for text in of_document]
        nobody = [pa.array([0] * len(texts), kind) for kind in _HASHED.types[1:]]
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.large_string()), *nobody], schema=_HASHED)
