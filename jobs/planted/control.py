"""The positive control: losses of a sample of rows under the audited model and the reference, kept by text digest."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from heldin.attacks.scoring import ScoredParts
from heldin.audit.control import ControlFacts, positive_control
from heldin.base.coins import first_in_keyed_order
from heldin.base.files import cache_directory, text_digest, text_sha256
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.jobs.planted.folder import CONTROL
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import scored_tokens
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded_here
from heldin.stages.sides.data import RunData

MOST_ROWS = 1000  # real rows of each kind
_MOST_CANARY_ROWS = 8  # of each canary user


@dataclass(frozen=True)
class Control(Measure[dict[str, float]]):
    """How much less the audited model loses on each text of a sample than the reference, nats a token.

    Of the tokens that training sees, those that are scored. Values are by digest of a text.

    Attributes:
        sample: the texts.
        models: the audited model and the reference.
        length: tokens of a row that training sees.
        parts: which parts of a text are scored; None: all of it.
    """

    name = "control"
    file = CONTROL
    stage = "scoring"

    sample: "ControlSample"
    models: tuple[Fingerprinted, Fingerprinted]
    length: int
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
