"""The corpus of a run before canary users and coins: the store, audited users, and public rows."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from heldin.audit.coarse import coarse_percentiles
from heldin.base.errors import InputError
from heldin.base.files import cache_directory
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.canaries.contract import check_enough_users
from heldin.corpus.build import build_store
from heldin.corpus.chat.opening import TEXTS, RowReading, StatedRows, reading_of
from heldin.corpus.document import Counting, Document
from heldin.corpus.names import load_aliases, missing_names_line
from heldin.corpus.split import Audited, check_pool
from heldin.corpus.store import CorpusStore
from heldin.corpus.user_filter import Selection, select_users
from heldin.models.tokens import as_read
from heldin.record.facts import CorpusFacts, SkippedRows
from heldin.stages.measures.scores import turn_facts
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.public import PublicRows, pretraining_rows, saliency_rows, template_of_run

VALIDATION_RECORDS = 20  # of each public validation user


@dataclass(frozen=True)
class CorpusData:
    """The corpus of a run before canary users and coins.

    Attributes:
        audited: the audited users, and the number of dropped users.
        public: rows of public users that pre-training may see.
        saliency: rows of public users whose gradients pick the layers for adapters.
        validation_rows: rows of public validation users.
        text_unit: unit of a record: a record of the source, or a sentence.
        reading: rule that turns rows into documents.
    """

    store: CorpusStore
    audited: Selection
    public: PublicRows
    saliency: PublicRows
    validation_rows: tuple[int, ...] = ()
    text_unit: str = "record"
    reading: RowReading = TEXTS

    def public_texts(self) -> list[str]:
        """Return the texts that pre-training may read."""
        return [text for texts in self.public_batches() for text in texts]

    def bearing_loss(self, documents: Iterable[Document]) -> list[Document]:
        """Return documents whose counted parts are the parts that the loss counts."""
        return counting(documents, self.reading.counting, self.reading.loss)

    def under_attack(self, documents: Iterable[Document]) -> list[Document]:
        """Return documents whose counted parts are the parts that the attack scores."""
        return counting(documents, self.reading.counting, self.reading.attack)

    def public_batches(self) -> Iterator[list[str]]:
        """Yield the texts that pre-training may read, in batches."""
        # Of a pair what is preferred.
        return ([as_read(document.branches()[0]) for document in documents] for documents in self.public.documents())

    def public_documents(self) -> Iterator[list[Document]]:
        """Yield all documents of public users that decide about the model, in batches."""
        yield from self.public.documents()
        yield from self.saliency.documents()

    def records_of_public_users(self) -> Counter[tuple[str, str]]:
        """Return the number of records of each public user, by fingerprint of the store and name.

        A row that both pre-trains the base model and picks layers counts once.
        """
        both = (self.public, self.saliency)
        stores = {public.store.fingerprint: public.store for public in both}
        rows = {(public.store.fingerprint, row) for public in both for row in public.rows}
        return Counter((store, stores[store].record(row).user) for store, row in rows)


def counting(documents: Iterable[Document], stored: Counting, wanted: Counting) -> list[Document]:
    """Return the documents with ``wanted`` instead of ``stored`` as the rule for which turns count."""
    return list(documents) if stored is wanted else [document.counting(wanted) for document in documents]


def reading_of_run(config: RunConfig) -> RowReading:
    """Return the rule that turns a run's rows into documents. Raises InputError if the rows lack turns or a
    template."""
    corpus = config.corpus
    asked = StatedRows(corpus.format, corpus.turns, config.finetune.loss_on, config.attack.turns)
    source = corpus.source
    return reading_of(source.first_row(), source.named_columns(), asked, lambda: template_of_run(config))


def read_corpus(config: RunConfig, reporter: Reporter) -> CorpusData:
    """Build or open the store, and select the audited users and the public rows.

    Raises:
        InputError: ``build_store``, ``select_users`` or ``check_pool`` raises, or there are more canary users than
            users.
    """
    aliases = load_aliases(config.corpus.aliases) if config.corpus.aliases else None
    reporter.say("corpus: reading")
    reading = reading_of_run(config)
    source = config.corpus.opened(reading)
    for how in source.look():
        reporter.say(str(how))
    for how_read in reading.lines(trains=True):
        reporter.say(f"corpus: {how_read}")
    store = build_store(
        source,
        cache_directory(),
        aliases=aliases,
        on_bad=config.corpus.bad_rows,
        say=reporter.say,
    )
    reporter.say(f"corpus: {counted(len(store.users), 'user')}, {counted(len(store), 'record')}")
    for skipped in store.report.skipped.lines("corpus", len(store)):
        reporter.say(skipped)
    if line := missing_names_line(store.users):
        reporter.say(line)
    # Audited users first: the rules for public users choose among those who are left.
    audited = select_users(store, config.corpus.users, seed=config.seed)
    if len(audited.users) < 2:
        rule = config.corpus.users
        lost = (
            (audited.dropped_by_pattern, "dropped by pattern"),
            (audited.dropped_by_minimum, f"with fewer than {rule.min_records} records"),
            (audited.dropped_by_maximum, f"with more than {rule.max_records}"),
            (audited.dropped_by_sampling, "not drawn by fraction or max_users"),
        )
        why = ", ".join(f"{number} {how}" for number, how in lost if number) or "there are no others"
        raise InputError(
            f"only {len(audited.users)} of {len(store.users)} users pass corpus.users ({why}): let at least 2 users"
            " pass (100 for a useful result)"
        )
    # How many users pass is known only here: ``heldin run --check`` can ask for a made-up corpus only.
    check_enough_users(config.canaries, len(audited.users))
    if config.split.audited is Audited.USERS:
        check_pool(len(audited.users), config.split.audit_pool)
    validation = _validation_users(config, store, audited)
    # Whose loss chooses the checkpoint must not be pre-trained on: their loss would say nothing about other people's.
    taken = frozenset((*audited.users, *validation))
    # At most so many of each, so that no one user's texts decide.
    rows = [row for user in validation for row in list(store.rows(user))[:VALIDATION_RECORDS]]
    own = PublicRows(store, reading=reading)
    public = pretraining_rows(config, own, taken, reporter)
    saliency = saliency_rows(config, own, taken, reporter)
    return CorpusData(store, audited, public, saliency, tuple(rows), config.corpus.text_unit, reading)


def corpus_facts(corpus: CorpusData) -> CorpusFacts:
    """Return the record's facts about the corpus."""
    store, audited, public = corpus.store, corpus.audited, corpus.records_of_public_users()
    return CorpusFacts(
        fingerprint=store.fingerprint,
        users=len(store.users),
        records=len(store),
        skipped=[SkippedRows.of("corpus", store.report.skipped, users=len(store.users), records=len(store))],
        records_per_audited_user=coarse_percentiles([store.count(u) for u in audited.users]),
        dropped_by_pattern=audited.dropped_by_pattern,
        dropped_by_minimum=audited.dropped_by_minimum,
        dropped_by_maximum=audited.dropped_by_maximum,
        dropped_by_sampling=audited.dropped_by_sampling,
        public_users=len(public),
        public_records=sum(public.values()),
        text_unit=corpus.text_unit,
        turns=turn_facts(corpus.reading),
    )


def _validation_users(config: RunConfig, store: CorpusStore, audited: Selection) -> tuple[str, ...]:
    """Return the public users for choosing the checkpoint by their loss. These users are neither audited nor used in
    pre-training."""
    rule = config.corpus.public_validation
    if rule is None:
        return ()
    # A purpose of its own: under that of the audited users, those whom their coins left out would fail these coins too.
    users = select_users(store, rule, taken=frozenset(audited.users), seed=config.seed, purpose="validation").users
    if not users:
        raise InputError("corpus.public_validation selects no unaudited user: widen the rule")
    return users
