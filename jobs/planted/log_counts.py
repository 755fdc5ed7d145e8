"""What the log of a training shows, next to the rows of its planted training set."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from heldin.base.files import text_digest
from heldin.base.progress import Reporter
from heldin.jobs.planted.folder import Manifest
from heldin.record.planted import Reason, TrainingCounts
from heldin.stages.sides.data import RunData
from heldin.watch.given_rows import PlantedRow, count_given
from heldin.watch.training_log import DamagedLogError, history_of, read_log

_ROWS_AT_ONCE = 1000


def counts_of_log(
    log: Path,
    tensors: Sequence[str],
    manifest: Manifest,
    data: RunData,
    tokenizer: PreTrainedTokenizerBase,
    late: frozenset[str],
    length: int,
    reporter: Reporter,
) -> tuple[TrainingCounts | None, Reason | None]:
    """Compare what the log says that the model was given with the rows of the planted set.

    Args:
        log: folder of the log.
        tensors: hashes of the audited weights; empty where they are not here.
        tokenizer: of the reference model.
        late: digests of texts of which training need not see a scored token.
        length: tokens of a row that training has to see.

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

        def rows() -> Iterator[PlantedRow]:
            for block in _rows(data, tokenizer, late):
                yield from block
                advance(len(block))

        return count_given(history, rows(), length), None


def _rows(data: RunData, tokenizer: PreTrainedTokenizerBase, late: frozenset[str]) -> Iterator[list[PlantedRow]]:
    canary_of = {row: user for user in data.canaries for row in data.store.rows(user)}
    for first in range(0, data.training_rows.size, _ROWS_AT_ONCE):
        numbers = data.training_rows[first : first + _ROWS_AT_ONCE]
        texts = data.store.texts_at(numbers)
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        yield [
            PlantedRow(tokens, text_digest(text) not in late, canary_of.get(number))
            for number, text, tokens in zip(numbers.tolist(), texts, encoded, strict=True)
        ]
