"""Who is audited in a planted training set, its canary users and coins, and the rows that are trained on."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heldin.base.coins import keyed_digest
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.canaries.form import Forms
from heldin.corpus.sources.rows import BadRows
from heldin.corpus.split import Part, Role
from heldin.jobs.config import RunConfig
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.row_text import Row, RowText
from heldin.jobs.planted.training_set import TrainingSet
from heldin.jobs.run.corpus import CorpusData, read_corpus
from heldin.jobs.run.data import RunData, prepare_data
from heldin.models.loading import LanguageModel

_LEAST = 0.01  # share of a user's rows that are trained on: of few rows one always is
CORPUS = "corpus.parquet"  # in the ledger: the records of the training set, as they were


def run_of(config: PlantConfig, out: Path) -> RunConfig:
    """The config of a run on the records that a planted folder keeps. Raises InputError if they are gone."""
    records = out / "ledger" / CORPUS
    if not records.is_file():
        raise InputError(f"'{records}' is missing: plant in a new folder")
    return config.run_config(records)


def planted_data(
    config: PlantConfig, out: Path, reporter: Reporter, base: LanguageModel, text: RowText | None = None
) -> RunData:
    """Users, set-asides, canary users and coins, drawn or read; trained on are all rows but those that coins decide.

    Args:
        config: what was fixed.
        out: the planted folder.
        reporter: receives the progress.
        base: the reference model, with which canary users are made.
        text: how rows hold their text; None where canary users are there already.

    Raises:
        InputError: see ``jobs.run.data.prepare_data``.
    """
    run = run_of(config, out)
    corpus = read_corpus(run, reporter)
    forms = Forms(corpus.store, _weights(config, corpus), config.seed, text.made if text else str)
    data = prepare_data(run, out, reporter, corpus, base, forms)
    return replace(data, training_rows=tuple(_training_rows(data)))


def _weights(config: PlantConfig, corpus: CorpusData) -> "_Weight":
    split, candidates = config.split, len(corpus.audited.users)
    audited = split.audit_fraction or (split.audit_pool or candidates) / candidates
    trained = 1 - split.attacker_fraction - split.evaluation_fraction
    return _Weight(frozenset(corpus.audited.users), (1 - audited) + audited * max(trained, _LEAST) / 2)


class _Weight:
    """By user, about the share of their rows that will be trained on, before any coin."""

    def __init__(self, candidates: frozenset[str], weight: float) -> None:
        self._candidates, self._weight = candidates, weight

    def __call__(self, user: str) -> float:
        return self._weight if user in self._candidates else 1.0


def _training_rows(data: RunData) -> list[int]:
    """Rows to train on: the training part of whoever was held in, and all rows of those who are not audited."""
    ledger = data.ledger
    always = [user for user in data.store.users if ledger.roles.get(user, Role.ALWAYS_IN) is Role.ALWAYS_IN]
    held_in = {row for user in ledger.users(Role.HELD_IN) for row in ledger.parts[user][Part.TRAIN]}
    return sorted(held_in.union(row for user in always for row in data.store.rows(user)))


def planted_rows(source: TrainingSet, data: RunData) -> Iterator[tuple[bytes, Row]]:
    """Key and columns of every row to be trained on: real ones as they were but for names, and canary users'.

    Names of users and ids are replaced for all, and rows sorted by a keyed hash, so that neither tells a canary user.
    """
    corpus = data.corpus.store
    written = _Written(data, source)
    real = int(corpus.counts.sum())
    rows = np.array(data.training_rows, dtype=np.int64)
    of_canaries = rows[rows >= real].tolist()
    trained = np.zeros(real, dtype=np.bool_)
    trained[rows[rows < real]] = True
    like = _forms_of(data, rows[rows < real], of_canaries)
    # A few thousand at most: rows of which canary rows take the other columns.
    wanted, found = set(like.values()), dict[int, Row]()
    seen: dict[str, int] = {}
    for its, content in source.rows(BadRows(skip=True)):
        user = str(its["user"])
        number = seen.get(user, 0)
        seen[user] = number + 1
        row = corpus.rows(user)[number]
        if row in wanted:
            found[row] = content
        if trained[row]:
            id_ = corpus.id(row)
            yield written.key(id_), written.row(content, row, user, id_)
    date = source.columns.date
    made_up = [row for row in of_canaries if data.canaries[data.store.record(row).user].source is None]
    # The date of another form, so that no row shares date and columns with one.
    other = dict(zip(made_up, made_up[1:] + made_up[:1], strict=True))
    for row in of_canaries:
        record, content = data.store.record(row), found[like[row]]
        if date is not None and row in other:
            content = {**content, date: found[like[other[row]]][date]}
        content = source.text.put(content, record.text)
        yield written.key(record.id), written.row(content, row, record.user, record.id)


def _forms_of(data: RunData, trained: npt.NDArray[np.int64], of_canaries: list[int]) -> dict[int, int]:
    """The real row of which each canary row takes what is no text: its source's, or of a random row trained on."""
    found, own = {}, dict[str, dict[str, int]]()
    for row in of_canaries:
        record = data.store.record(row)
        source = data.canaries[record.user].source
        if source is None:
            # Of rows that are trained on: those of held-out users stay out with all their columns.
            place = int.from_bytes(keyed_digest(data.ledger.coins_key, "form", record.id)[:8], "big")
            found[row] = int(trained[place % trained.size])
            continue
        if source not in own:
            own[source] = {data.corpus.store.id(its): its for its in data.corpus.store.rows(source)}
        found[row] = own[source][record.id.removeprefix(f"{record.user}/")]
    return found


class _Written:
    """Names and ids that stand in what is written: keyed hashes, or numbers where the column has numbers."""

    def __init__(self, data: RunData, source: TrainingSet) -> None:
        self._key, self._columns = data.ledger.coins_key, source.columns
        # By name, its hash; in the order of hashes numbers are given.
        self._hashed = {user: self._digest("written user", user).hex()[:16] for user in data.store.users}
        self._number = {
            user: number for number, user in enumerate(sorted(self._hashed, key=lambda its: self._hashed[its]), start=1)
        }
        self._data = data

    @functools.cached_property
    def _places(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows that are trained on, sorted, and the place of each in what is written."""
        rows = np.array(self._data.training_rows, dtype=np.int64)
        keys = [int.from_bytes(self.key(self._data.store.id(row))[:8], "big") for row in rows.tolist()]
        return rows, np.argsort(np.argsort(np.array(keys, dtype=np.uint64)))

    def key(self, record: str) -> bytes:
        """The place of a row, by its id."""
        return self._digest("order of rows", record)

    def row(self, content: Row, row: int, user: str, record: str) -> Row:
        """The content of a row under another user and id."""
        columns = self._columns
        numbered = isinstance(content[columns.user], int)
        new: Row = {**content, columns.user: self._number[user] if numbered else self._hashed[user]}
        if columns.id is not None:
            if isinstance(content[columns.id], int):
                rows, places = self._places
                new[columns.id] = int(places[np.searchsorted(rows, row)]) + 1
            else:
                new[columns.id] = self._digest("written id", record).hex()[:24]
        return new

    def _digest(self, purpose: str, identity: str) -> bytes:
        return keyed_digest(self._key, purpose, identity)
