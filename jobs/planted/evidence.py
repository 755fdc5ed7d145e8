"""What an audit sees of a training that it did not run: the log of what the model was given, and a positive control."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from heldin.audit.control import ControlFacts, positive_control
from heldin.base.coins import keyed_order
from heldin.base.files import cache_directory, text_digest, whole_file
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.folder import Manifest
from heldin.jobs.planted.given_rows import Row, count_given
from heldin.jobs.planted.training_log import DamagedLogError, history_of, read_log
from heldin.jobs.run.data import RunData
from heldin.models.loading import LanguageModel
from heldin.models.score_cache import ScoreCache
from heldin.record.planted import Reason, TrainingCounts

CONTROL = "control.parquet"
_ROWS_AT_ONCE = 1000
_MOST_ROWS = 1000  # real rows of each kind in the control
_MOST_CANARY_ROWS = 8  # of each canary user


def counts_of_log(
    log: Path,
    tensors: Sequence[str],
    manifest: Manifest,
    data: RunData,
    tokenizer: PreTrainedTokenizerBase,
    late: frozenset[str],
    reporter: Reporter,
) -> tuple[TrainingCounts | None, Reason | None]:
    """Compare what the log says that the model was given with the rows of the planted set.

    Args:
        log: folder of the log.
        tensors: hashes of the audited weights; empty where they are not here.
        manifest: of the planted folder.
        data: users and coins.
        tokenizer: of the reference model.
        late: digests of texts of which training need not see a scored token.
        reporter: receives the progress.

    Returns:
        The counts, or None and why no log tells.
    """
    try:
        starts = read_log(log)
        if starts is None:
            return None, Reason.LOG_ABSENT
        history = history_of(starts, tensors, log)
    except DamagedLogError as error:
        reporter.say(f"training log: {error}")
        return None, Reason.LOG_DAMAGED
    if history is None:
        return None, Reason.LOG_OF_OTHER_MODEL
    if history.training_sets != {manifest.sha256}:
        return None, Reason.LOG_OF_OTHER_SET
    with reporter.track("comparing the training log", data.training_rows.size, "rows") as advance:

        def rows() -> Iterator[Row]:
            for block in _rows(data, tokenizer, late):
                yield from block
                advance(len(block))

        return count_given(history, rows()), None


def _rows(data: RunData, tokenizer: PreTrainedTokenizerBase, late: frozenset[str]) -> Iterator[list[Row]]:
    canary_of = {row: user for user in data.canaries for row in data.store.rows(user)}
    for first in range(0, data.training_rows.size, _ROWS_AT_ONCE):
        numbers = data.training_rows[first : first + _ROWS_AT_ONCE]
        texts = data.store.texts_at(numbers)
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        yield [
            Row(tokens, text_digest(text) not in late, canary_of.get(number))
            for number, text, tokens in zip(numbers.tolist(), texts, encoded, strict=True)
        ]


def control_of(
    config: PlantConfig,
    data: RunData,
    models: tuple[LanguageModel, LanguageModel] | None,
    out: Path,
    reporter: Reporter,
    *,
    of: str,
) -> ControlFacts | None:
    """Measure the positive control, or read its losses where they were measured.

    Args:
        config: what was fixed before the coins.
        data: users and coins.
        models: the audited model and the reference; None: only what was measured is read.
        out: folder of the audit, where losses are kept by a digest of each text, readable by their owner only.
        reporter: receives the progress.
        of: fingerprints of both models.

    Returns:
        None without canary users, or where nothing was measured.
    """
    if not data.canaries:
        return None
    sample = _Sample(config, data)
    gains = _kept(out / CONTROL, of)
    texts = sample.texts()
    if gains is None or not gains.keys() >= {text_digest(text) for text in texts}:
        if models is None:
            return None
        gains = _measured(texts, models, config.sequence_length, reporter)
        _keep(gains, out / CONTROL, of)
    return positive_control(
        sample.of_rows(gains, sample.trained),
        sample.of_rows(gains, sample.untrained),
        sample.of_users(gains, Role.HELD_IN),
        sample.of_users(gains, Role.HELD_OUT),
    )


class _Sample:
    """The rows of the control: real ones that were trained on and that were not, and canary users'.

    A real row counts as trained if its text is in one row of the planted set, and as untrained if it is in none.
    """

    def __init__(self, config: PlantConfig, data: RunData) -> None:
        self._data = data
        key = data.ledger.coins_key
        real = int(data.corpus.store.counts.sum())
        planted = data.training_rows[data.training_rows < real]
        audited = data.real(data.ledger.scored_users())
        mine = [row for user in audited for row in data.store.rows(user)] if audited else range(real)
        candidates = np.array(list(mine), dtype=np.int64)
        is_trained = np.isin(candidates, planted)
        trained = self._draw(candidates[is_trained], key, "trained")
        untrained = self._draw(candidates[~is_trained], key, "untrained")
        times = dict.fromkeys((data.store.text(row) for row in (*trained, *untrained)), 0)
        for texts in data.training_texts():
            for text in texts:
                if text in times:
                    times[text] += 1
        self.trained = [row for row in trained if times[data.store.text(row)] == 1]
        self.untrained = [row for row in untrained if times[data.store.text(row)] == 0]
        self._canary_rows = {user: data.ledger.parts[user][Part.TRAIN][:_MOST_CANARY_ROWS] for user in data.canaries}

    def _draw(self, rows: npt.NDArray[np.int64], key: bytes, purpose: str) -> list[int]:
        by_id = {self._data.store.id(row): row for row in rows.tolist()}
        ordered = keyed_order(key, f"control rows {purpose}", list(by_id))
        return [by_id[record] for record in ordered[:_MOST_ROWS]]

    def texts(self) -> list[str]:
        """Return every text of the sample once."""
        rows = [*self.trained, *self.untrained, *(row for rows in self._canary_rows.values() for row in rows)]
        return list(dict.fromkeys(self._data.store.text(row) for row in rows))

    def of_rows(self, gains: Mapping[str, float], rows: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the gains of rows."""
        return np.array([gains[text_digest(self._data.store.text(row))] for row in rows], dtype=np.float64)

    def of_users(self, gains: Mapping[str, float], role: Role) -> npt.NDArray[np.float64]:
        """Return the mean gain of each canary user of a role."""
        users = [user for user in sorted(self._canary_rows) if self._data.ledger.roles[user] is role]
        return np.array([self.of_rows(gains, self._canary_rows[user]).mean() for user in users], dtype=np.float64)


def _measured(
    texts: Sequence[str], models: tuple[LanguageModel, LanguageModel], length: int, reporter: Reporter
) -> dict[str, float]:
    """Return by digest of a text how much less the audited model loses on it than the reference, nats a token."""
    with (
        closing(ScoreCache(cache_directory() / "scores")) as cache,
        reporter.track("positive control", 2 * len(texts), "texts") as advance,
    ):
        target, reference = (cache.scores(model, texts, advance=advance) for model in models)
    return {
        text_digest(text): float(mine.logprobs[:length].mean() - other.logprobs[:length].mean())
        for text, mine, other in zip(texts, target, reference, strict=True)
    }


def _keep(gains: Mapping[str, float], path: Path, of: str) -> None:
    table = pa.table({"text": list(gains), "gain": list(gains.values())})
    with whole_file(path, private=True) as temporary:
        pq.write_table(table.replace_schema_metadata({"of": of}), temporary)


def _kept(path: Path, of: str) -> dict[str, float] | None:
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException):
        return None
    if (table.schema.metadata or {}).get(b"of") != of.encode():
        return None
    return dict(zip(table["text"].to_pylist(), table["gain"].to_pylist(), strict=True))
