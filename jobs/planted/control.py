"""The positive control: losses of a sample of rows under the audited model and the reference, kept by text digest.

Rows that no training uses, such as a test set, are ``unseen`` rows: they show what the model learned of the others.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heldin.attacks.scoring import ScoredParts
from heldin.base.coins import first_in_keyed_order, keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, file_sha256, text_digest, text_sha256, write_text
from heldin.base.progress import Reporter
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.split import Part, Role
from heldin.jobs.planted.plant_config import PlantConfig
from heldin.jobs.planted.plant_data import MOST_ROWS
from heldin.jobs.planted.plant_folder import CONTROL
from heldin.jobs.planted.positive_control import positive_control
from heldin.jobs.planted.training_set import TrainingSet
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import Spans, scored_tokens
from heldin.record.planted_facts import ControlFacts
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded_here
from heldin.stages.sides.data import RunData

_MOST_CANARY_ROWS = 8  # of each canary user
_FILE = "unseen.json"
_FIRST = 20 * MOST_ROWS  # rows from which the sample is drawn


@dataclass(frozen=True)
class Control(Measure[dict[str, float]]):
    """The loss of the audited model below that of the reference on each text of a sample, nats per token.

    Of the tokens that training sees, those that are scored. Values are by digest of a text.

    Attributes:
        length: tokens of a row that training sees.
        noticed_from: AUROC from which the plan says that filters are noticed; None: it says so of none.
        parts: which parts of a text are scored; None: all of it.
    """

    name = "control"
    file = CONTROL
    stage = "scoring"

    sample: "ControlSample"
    models: tuple[Fingerprinted, Fingerprinted]
    length: int
    noticed_from: float | None
    parts: ScoredParts | None

    def made_from(self) -> str:
        """Return a hash of the models and of the sample."""
        texts = (text_digest(text) for text in self.sample.texts())
        return text_sha256(*(model.fingerprint for model in self.models), str(self.length), *texts)

    def compute(self, reporter: Reporter) -> dict[str, float]:
        """Score the sample under both models."""
        texts, length, parts = self.sample.texts(), self.length, self.parts
        models = [loaded_here(model) for model in self.models]
        with (
            closing(ScoreCache(cache_directory() / "scores")) as cache,
            reporter.track("positive control", 2 * len(texts), "texts") as advance,
        ):
            target, reference = (cache.scores(model, texts, advance=advance) for model in models)
        spans = [((0, len(text)),) if parts is None else parts.of(text) for text in texts]
        masks = [
            (mask[:length] for mask in scored_tokens(model.tokenizer, texts, spans))
            if parts is not None
            else (np.ones(len(scores.logprobs[:length]), dtype=np.bool_) for scores in scored)
            for model, scored in zip(models, (target, reference), strict=True)
        ]
        return {
            text_digest(text): float(own.logprobs[:length][own_mask].mean() - other.logprobs[:length][mask].mean())
            for text, own, other, own_mask, mask in zip(texts, target, reference, *masks, strict=True)
        }

    def columns(self, values: dict[str, float]) -> Mapping[str, Any]:
        """Return one row for each text."""
        return {"text": list(values), "gain": list(values.values())}

    def values(self, table: pa.Table) -> dict[str, float]:
        """Return the gains of a table."""
        return dict(zip(table["text"].to_pylist(), table["gain"].to_pylist(), strict=True))

    def facts(self, values: dict[str, float], member: Mapping[str, bool]) -> ControlFacts:
        """Return whether canary rows were learned like other rows that training had."""
        sample = self.sample
        return positive_control(
            _gains_of(values, sample.trained),
            _gains_of(values, sample.untrained),
            sample.of_users(values, Role.HELD_IN),
            sample.of_users(values, Role.HELD_OUT),
            self.noticed_from,
        )


class ControlSample:
    """The texts of the control, which follow from the ledger.

    A real text counts as trained if it is in one row of the planted set, and as untrained if it is in none.

    Attributes:
        trained: texts of real rows that were trained on.
        untrained: texts of real rows that were not.
    """

    def __init__(self, data: RunData, late: frozenset[str], unseen: Sequence[str]) -> None:
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
        times = dict.fromkeys((*trained, *untrained), 0)
        for texts in data.training_texts():
            for text in texts:
                if text in times:
                    times[text] += 1
        self.trained = [text for text in trained if times[text] == 1]
        self.untrained = [text for text in untrained if times[text] == 0]
        self._canary_texts = {
            user: [store.text(row) for row in data.ledger.parts[user][Part.TRAIN][:_MOST_CANARY_ROWS]]
            for user in data.canaries
        }

    def _draw(self, rows: npt.NDArray[np.int64], key: bytes, purpose: str) -> list[str]:
        store = self._data.store
        # Twice as many as are wanted, since some are late.
        first = first_in_keyed_order(key, f"control rows {purpose}", store.ids_at(rows), 2 * MOST_ROWS)
        texts = store.texts_at(rows[first])
        return [text for text in texts if text_digest(text) not in self._late][:MOST_ROWS]

    def texts(self) -> list[str]:
        """Return every text of the sample once."""
        canaries = (text for texts in self._canary_texts.values() for text in texts)
        return list(dict.fromkeys((*self.trained, *self.untrained, *canaries)))

    def of_users(self, gains: Mapping[str, float], role: Role) -> npt.NDArray[np.float64]:
        """Return the mean gain of each canary user of a role."""
        users = [user for user in sorted(self._canary_texts) if self._data.ledger.roles[user] is role]
        return np.array([_gains_of(gains, self._canary_texts[user]).mean() for user in users], dtype=np.float64)


def _gains_of(gains: Mapping[str, float], texts: Sequence[str]) -> npt.NDArray[np.float64]:
    return np.array([gains[text_digest(text)] for text in texts], dtype=np.float64)


def unseen_rows(config: PlantConfig, source: TrainingSet) -> Iterator[tuple[str, Spans]]:
    """Yield text and scored parts of a sample of the plan's ``unseen`` rows; none if it names none.

    Raises InputError if the file cannot be read, or none of its rows can be used.
    """
    if config.unseen is None:
        return
    rows: dict[str, tuple[str, Spans]] = {}
    for record, content in replace(source, path=config.unseen, unparted=None, split=None).rows(BadRows(OnBadRows.SKIP)):
        text = str(record["text"])
        spans = source.text.scored(content) if source.in_parts else ((0, len(text)),)
        if not source.in_parts or source.is_visible(text, spans):
            rows[text_digest(text)] = text, spans
        if len(rows) == _FIRST:
            break
    if not rows:
        raise InputError(f"unseen: '{config.unseen}' has no row that can be used: name rows with the same columns")
    for digest in keyed_order(seed_key(config.seed), "unseen rows", list(rows))[:MOST_ROWS]:
        yield rows[digest]


def write_unseen(texts: list[str], ledger: Path) -> str:
    """Keep the texts in the folder of secrets, and return the file's hash."""
    write_text(ledger / _FILE, json.dumps(texts), private=True)
    return file_sha256(ledger / _FILE)


def read_unseen(ledger: Path, sha256: str | None) -> list[str]:
    """Return the texts that ``write_unseen`` kept. Raises InputError if they are gone or were changed."""
    if sha256 is None:
        return []
    path = ledger / _FILE
    if not path.is_file() or file_sha256(path) != sha256:
        raise InputError(f"'{path}' is gone or was changed after it was written: restore it, or plant again")
    texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return texts
