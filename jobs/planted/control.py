"""The positive control: losses of a sample of rows under the audited model and the reference, kept by text digest."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from heldin.audit.control import ControlFacts, positive_control
from heldin.base.artefacts import read_table, write_table
from heldin.base.coins import first_in_keyed_order
from heldin.base.files import cache_directory, text_digest
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.jobs.planted.folder import CONTROL
from heldin.jobs.run.data import RunData
from heldin.models.loading import LanguageModel
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import scored_tokens

MOST_ROWS = 1000  # real rows of each kind
_MOST_CANARY_ROWS = 8  # of each canary user


def control_of(
    data: RunData,
    late: frozenset[str],
    unseen: Sequence[str],
    models: tuple[LanguageModel, LanguageModel] | None,
    out: Path,
    reporter: Reporter,
    *,
    length: int,
    of: str,
) -> ControlFacts | None:
    """Measure the positive control, or read its losses where they were measured.

    Args:
        unseen: texts of the plan's ``unseen``, which no training has.
        models: the audited model and the reference; None: only what was measured is read.
        out: folder of the audit, where losses are kept by a digest of each text, readable by their owner only.
        length: tokens of a row that training sees.
        of: fingerprints of both models.

    Returns:
        None without canary users, or where nothing was measured.
    """
    if not data.canaries:
        return None
    sample = ControlSample(data, late, unseen)
    table = read_table(out / CONTROL, made_from=of, say=reporter.say)
    gains = None if table is None else dict(zip(table["text"].to_pylist(), table["gain"].to_pylist(), strict=True))
    texts = sample.texts()
    if gains is None or not gains.keys() >= {text_digest(text) for text in texts}:
        if models is None:
            return None
        gains = _measured(data, texts, models, length, reporter)
        write_table({"text": list(gains), "gain": list(gains.values())}, out / CONTROL, made_from=of)
    return positive_control(
        _gains_of(gains, sample.trained),
        _gains_of(gains, sample.untrained),
        sample.of_users(gains, Role.HELD_IN),
        sample.of_users(gains, Role.HELD_OUT),
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


def _measured(
    data: RunData,
    texts: Sequence[str],
    models: tuple[LanguageModel, LanguageModel],
    length: int,
    reporter: Reporter,
) -> dict[str, float]:
    """Return by digest of a text how much less the audited model loses on it than the reference, nats a token.

    Of the tokens that training sees, those that are scored.
    """
    with (
        closing(ScoreCache(cache_directory() / "scores")) as cache,
        reporter.track("positive control", 2 * len(texts), "texts") as advance,
    ):
        target, reference = (cache.scores(model, texts, advance=advance) for model in models)
    spans = [((0, len(text)),) if data.parts is None else data.parts.of(text) for text in texts]
    masks = [
        (mask[:length] for mask in scored_tokens(model.tokenizer, texts, spans))
        if data.parts is not None
        else (np.ones(len(scores.logprobs[:length]), dtype=np.bool_) for scores in scored)
        for model, scored in zip(models, (target, reference), strict=True)
    ]
    return {
        text_digest(text): float(mine.logprobs[:length][of_mine].mean() - other.logprobs[:length][of_other].mean())
        for text, mine, other, of_mine, of_other in zip(texts, target, reference, *masks, strict=True)
    }
