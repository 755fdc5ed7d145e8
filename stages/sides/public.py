"""Public users of a run. They pre-train the base model, or their gradients pick the layers for adapters."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heldin.base.errors import InputError
from heldin.base.files import cache_directory, existing
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.corpus.build import build_store
from heldin.corpus.chat.opening import TEXTS, RowReading, StatedRows, reading_of
from heldin.corpus.chat.template import CHATML, ChatTemplate
from heldin.corpus.document import Counting, Document
from heldin.corpus.sorting import ROWS_PER_BATCH
from heldin.corpus.sources.kinds import CorpusSource
from heldin.corpus.store import CorpusStore
from heldin.corpus.user_filter import select_users
from heldin.models.loading import load_tokenizer
from heldin.models.tiny import SPECIAL
from heldin.stages.run_config import PublicTexts, RunConfig

CHOSEN = "chosen_by_fine_tuning_texts"  # a key of the JSON next to a corpus of which private texts decided what stays


@dataclass(frozen=True)
class PublicRows:
    """Rows of public users.

    Attributes:
        store: the store with the rows.
        rows: row numbers in the store, user by user.
        users: number of users with rows.
        reading: rule that turned rows of the source into documents.
    """

    store: CorpusStore
    rows: tuple[int, ...] = ()
    users: int = 0
    reading: RowReading = TEXTS

    def documents(self) -> Iterator[list[Document]]:
        """Yield the documents, with their counted parts, in batches."""
        rows = np.array(self.rows, dtype=np.int64)
        for first in range(0, rows.size, ROWS_PER_BATCH):
            yield self.store.documents_at(rows[first : first + ROWS_PER_BATCH])


def template_of_run(config: RunConfig) -> ChatTemplate:
    """Return the template that writes a run's messages. Raises InputError if the base model's tokenizer has no
    template."""
    file, options = config.corpus.template, config.corpus.template_options or {}
    if config.model.pretrain is not None:
        # Its tokenizer is not trained yet.
        source = CHATML if file is None else existing(file).read_text(encoding="utf-8")
        return ChatTemplate(source, SPECIAL, options)
    name = str(config.model.base)
    tokenizer = load_tokenizer(name, revision=config.model.revision)
    return ChatTemplate.of(tokenizer, name, file=file, options=options)


def pretraining_rows(config: RunConfig, run: PublicRows, taken: frozenset[str], reporter: Reporter) -> PublicRows:
    """Return the rows that pre-train the base model; none if the base model exists.

    Args:
        run: the run's own corpus.
        taken: users of the run's corpus who are audited, or choose the checkpoint by their loss.
        reporter: receives the number of skipped rows.

    Raises:
        InputError: the public corpus cannot be read, or private texts decided what is in the corpus.
    """
    asked = config.model.pretrain
    if asked is None:
        return PublicRows(run.store)
    if asked.source is None:
        return _selected(config, asked, run, taken, "public")
    require_unchosen(config)
    there = _opened(asked.source, _reading(config, asked.source, None), "public corpus", reporter)
    # Another corpus has other people: none of its users is audited.
    return _selected(config, asked, there, frozenset(), "public")


def saliency_rows(config: RunConfig, run: PublicRows, taken: frozenset[str], reporter: Reporter) -> PublicRows:
    """Return the rows whose gradients pick the layers for adapters; none if the config names the layers.

    For the arguments see ``pretraining_rows``.

    Raises:
        InputError: the public corpus cannot be read, has another form than the run's, or has a user of the run's corpus
            with the same text; private texts decided what is in the corpus; or no user is public.
    """
    asked = config.model.saliency
    if asked is None:
        return PublicRows(run.store)
    if asked.source is None:
        chosen = _selected(config, asked, run, taken, "saliency")
    else:
        _require_unchosen_file(asked.source, "model.saliency.source.path", "choose another corpus")
        reading = _reading(config, asked.source, config.finetune.loss_on)
        if reading.format is not run.reading.format:
            raise InputError(
                f"model.saliency.source: the rows are {reading.format}, but rows of the run's corpus are"
                f" {run.reading.format}: give public users' rows of the same form"
            )
        there = _opened(asked.source, reading, "users of model.saliency", reporter)
        chosen = _selected(config, asked, there, frozenset(), "saliency")
        _require_others(chosen, run.store)
    if not chosen.rows:
        raise InputError("model.saliency selects no unaudited user: select more users, or give a source")
    return chosen


def _reading(config: RunConfig, source: CorpusSource, loss: Counting | None) -> RowReading:
    stated = StatedRows(loss=loss)
    return reading_of(source.first_row(), source.named_columns(), stated, lambda: template_of_run(config))


def _opened(source: CorpusSource, reading: RowReading, called: str, reporter: Reporter) -> PublicRows:
    """Return a public corpus without selected rows."""
    reporter.say(f"{called}: reading")
    source = source.reading(reading.columns) if reading.has_turns else source
    store = build_store(source.source(), cache_directory(), say=reporter.say)
    for skipped in store.report.skipped.lines(called, len(store)):
        reporter.say(skipped)
    return PublicRows(store, reading=reading)


def _selected(
    config: RunConfig, asked: PublicTexts, there: PublicRows, taken: frozenset[str], purpose: str
) -> PublicRows:
    """Return the rows of users who pass the rule and are not in ``taken``. The config limits the rows per user."""
    users = select_users(there.store, asked.users, taken=taken, seed=config.seed, purpose=purpose).users
    limit = asked.max_records_per_user
    rows = [row for user in users for row in list(there.store.rows(user))[:limit]]
    return PublicRows(there.store, tuple(rows), len(users), there.reading)


def _require_others(chosen: PublicRows, private: CorpusStore) -> None:
    """Raise InputError if public users have the name and a text of a user of the run's corpus."""
    names, public, same = set(private.users), map(chosen.store.record, chosen.rows), 0
    for user, records in itertools.groupby(public, lambda record: record.user):
        texts = {record.text for record in records}
        same += user in names and any(private.record(row).text in texts for row in private.rows(user))
    if same:
        raise InputError(
            f"model.saliency: {counted(same, 'user')} and a text of each are in the run's corpus too, so private texts"
            " would pick the layers: give a corpus of other people"
        )


def require_unchosen(config: RunConfig) -> None:
    """Raise InputError for a private run if the base model's texts were chosen by comparison with private texts.

    A file next to such a corpus states this (``python -m replication pretraining-without``).
    """
    source = config.model.pretrain.source if config.model.pretrain else None
    if source is not None and config.defense.relies_on_base:
        remedy = "set defense.base_model_saw_protected: true, or choose another corpus"
        _require_unchosen_file(source, "model.pretrain.source.path", remedy)


def _require_unchosen_file(source: CorpusSource, key: str, remedy: str) -> None:
    for path in source.paths():
        facts = (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).with_suffix(".json")
        if facts != path and facts.is_file() and CHOSEN in facts.read_text(encoding="utf-8", errors="replace"):
            raise InputError(
                f"{key}: '{facts}' states that fine-tuning texts decided what is in this corpus, so no epsilon holds"
                f" for their authors: {remedy}"
            )
