"""The positive control: losses of sampled rows under the audited model and the reference, by digest of the text.

``unseen`` rows are in no training, for example rows of a test set. A comparison with these rows shows whether the model
learned its training rows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heldin.base.coins import first_in_keyed_order, keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, file_sha256, text_digest, text_sha256, write_text
from heldin.base.progress import Reporter
from heldin.corpus.document import Document
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.split import Part, Role
from heldin.corpus.store import document_of
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import Tokens, as_read, scored_tokens_of
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_data import MOST_ROWS
from heldin.planting.positive_control import positive_control
from heldin.planting.training_set import TrainingSet
from heldin.record.planted_facts import ControlFacts
from heldin.record.planted_files import CONTROL
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded_here
from heldin.stages.sides.data import RunData

_MOST_CANARY_ROWS = 8  # of each canary user
_FILE = "unseen.json"
_FIRST = 20 * MOST_ROWS  # rows from which the sample is drawn


@dataclass(frozen=True)
class Control(Measure[dict[str, float]]):
    """The reference's loss minus the audited model's, for each text of a sample, in nats per token.

    Each loss is a mean over the counted tokens that training reads. The key of each value is the digest of the text.

    Attributes:
        length: number of tokens of a row that training reads.
        noticed_from: lowest AUROC of real rows for which the plan expects the control to notice filters; None: the
            control never notices filters.
    """

    name = "control"
    file = CONTROL
    stage = "scoring"

    sample: "ControlSample"
    models: tuple[Fingerprinted, Fingerprinted]
    length: int
    noticed_from: float | None

    def made_from(self) -> str:
        """Return a hash of the models and of the sample."""
        texts = (text_digest(document.text) for document in self.sample.documents())
        return text_sha256(*(model.fingerprint for model in self.models), str(self.length), *texts)

    def compute(self, reporter: Reporter) -> dict[str, float]:
        """Score the sample under both models."""
        documents, length = self.sample.documents(), self.length
        texts = [as_read(document) for document in documents]
        models = [loaded_here(model) for model in self.models]
        with (
            closing(ScoreCache(cache_directory() / "scores")) as cache,
            reporter.track("positive control", 2 * len(texts), "texts") as advance,
        ):
            target, reference = (cache.scores(model, texts, advance=advance) for model in models)
        means = [
            [_mean(scores.logprobs, tokens, length) for scores, tokens in zip(scored, of_model, strict=True)]
            for scored, of_model in zip(
                (target, reference), (scored_tokens_of(model.tokenizer, documents) for model in models), strict=True
            )
        ]
        return {text_digest(text): float(own - other) for text, own, other in zip(texts, *means, strict=True)}

    def columns(self, values: dict[str, float]) -> Mapping[str, Any]:
        """Return columns with one row per text."""
        return {"text": list(values), "gain": list(values.values())}

    def values(self, table: pa.Table) -> dict[str, float]:
        """Return the gains from a table."""
        return dict(zip(table["text"].to_pylist(), table["gain"].to_pylist(), strict=True))

    def facts(self, values: dict[str, float], member: Mapping[str, bool]) -> ControlFacts:
        """Return whether the model learned canary rows like other trained rows."""
        sample = self.sample
        return positive_control(
            _gains_of(values, sample.trained),
            _gains_of(values, sample.untrained),
            sample.of_users(values, Role.HELD_IN),
            sample.of_users(values, Role.HELD_OUT),
            self.noticed_from,
        )


def _mean(logprobs: npt.NDArray[np.float32], tokens: Tokens, length: int) -> np.float32:
    """Return the mean log-probability of the counted tokens among the first ``length`` tokens."""
    seen = logprobs[:length]
    mean: np.float32 = (seen if tokens.counted is None else seen[tokens.counted[:length]]).mean()
    return mean


class ControlSample:
    """The documents of the control, which the ledger determines.

    A real text counts as trained if exactly one row of the planted set contains it, and as untrained if no row does.

    Attributes:
        trained: documents of real rows that were trained on.
        untrained: documents of real rows that were not trained on.
    """

    def __init__(self, data: RunData, late: frozenset[str], unseen: Sequence[Document]) -> None:
        self._data, self._late = data, late
        store, key = data.store, data.ledger.coins_key
        real = int(data.corpus.store.counts.sum())
        planted = data.training_rows[data.training_rows < real]
        audited = data.real(data.ledger.scored_users())
        mine = [row for user in audited for row in store.rows(user)] if audited else range(real)
        candidates = np.array(list(mine), dtype=np.int64)
        is_trained = np.isin(candidates, planted)
        trained = self._draw(candidates[is_trained], key, "trained")
        # Rows that no training has tell also where the original file was trained on.
        untrained = list(unseen) or self._draw(candidates[~is_trained], key, "untrained")
        times = dict.fromkeys((document.text for document in (*trained, *untrained)), 0)
        for documents in data.training_documents():
            for document in documents:
                if document.text in times:
                    times[document.text] += 1
        self.trained = [document for document in trained if times[document.text] == 1]
        self.untrained = [document for document in untrained if times[document.text] == 0]
        self._of_canaries = {
            user: [store.document(row) for row in data.ledger.parts[user][Part.TRAIN][:_MOST_CANARY_ROWS]]
            for user in data.canaries
        }

    def _draw(self, rows: npt.NDArray[np.int64], key: bytes, purpose: str) -> list[Document]:
        store = self._data.store
        # Twice as many as are wanted, since some are late.
        first = first_in_keyed_order(key, f"control rows {purpose}", store.ids_at(rows), 2 * MOST_ROWS)
        documents = store.documents_at(rows[first])
        return [document for document in documents if text_digest(document.text) not in self._late][:MOST_ROWS]

    def documents(self) -> list[Document]:
        """Return one document for each distinct text of the sample."""
        canaries = (document for documents in self._of_canaries.values() for document in documents)
        by_text: dict[str, Document] = {}
        for document in (*self.trained, *self.untrained, *canaries):
            by_text.setdefault(document.text, document)
        return list(by_text.values())

    def of_users(self, gains: Mapping[str, float], role: Role) -> npt.NDArray[np.float64]:
        """Return the mean gain of each canary user with this role."""
        users = [user for user in sorted(self._of_canaries) if self._data.ledger.roles[user] is role]
        return np.array([_gains_of(gains, self._of_canaries[user]).mean() for user in users], dtype=np.float64)


def _gains_of(gains: Mapping[str, float], documents: Sequence[Document]) -> npt.NDArray[np.float64]:
    return np.array([gains[text_digest(document.text)] for document in documents], dtype=np.float64)


def unseen_rows(config: PlantConfig, source: TrainingSet) -> Iterator[Document]:
    """Yield a sample of the plan's ``unseen`` rows; nothing if the plan has no such rows.

    Raises InputError if the file cannot be read, or no row is usable.
    """
    if config.unseen is None:
        return
    rows: dict[str, Document] = {}
    for record, content in replace(source, path=config.unseen, unparted=None, split=None).rows(BadRows(OnBadRows.SKIP)):
        document = source.text.document(content) if source.in_parts else Document.of(record["text"])
        if not source.in_parts or source.is_visible(document):
            rows[text_digest(document.text)] = document
        if len(rows) == _FIRST:
            break
    if not rows:
        raise InputError(f"unseen: '{config.unseen}' has no usable row. Give rows with the columns of the training set")
    for digest in keyed_order(seed_key(config.seed), "unseen rows", list(rows))[:MOST_ROWS]:
        yield rows[digest]


def write_unseen(documents: Sequence[Document], ledger: Path) -> str:
    """Write the documents to the folder of secrets, and return the hash of the file."""
    write_text(ledger / _FILE, json.dumps([asdict(document) for document in documents]), private=True)
    return file_sha256(ledger / _FILE)


def read_unseen(ledger: Path, sha256: str | None) -> list[Document]:
    """Return the documents that ``write_unseen`` wrote. Raises InputError if the documents are missing or were
    changed."""
    if sha256 is None:
        return []
    path = ledger / _FILE
    if not path.is_file() or file_sha256(path) != sha256:
        raise InputError(f"'{path}' is missing or was changed: restore this file, or plant again")
    kept = json.loads(path.read_text(encoding="utf-8"))
    return [document_of(document["text"], document["spans"], document["layout"]) for document in kept]
