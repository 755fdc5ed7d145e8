"""The data of a run: store, public users, ledger, and the rows and texts for each stage."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from heldin.attacks.access import Access
from heldin.attacks.answering import cut_texts
from heldin.attacks.config import Documents
from heldin.attacks.scoring import AttackTexts
from heldin.base.coins import first_in_keyed_order, keyed_order, seed_key
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.canaries.form import Forms
from heldin.canaries.planted import PlantedStore
from heldin.canaries.users import Canary
from heldin.corpus.document import Document
from heldin.corpus.split import Part, Role
from heldin.corpus.store import Corpus, documents_of
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import Removal, TrainingRecord
from heldin.finetune.batches import encode
from heldin.finetune.sampled_units import MadeSequence, Writers
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_documents
from heldin.record.facts import CellFacts
from heldin.stages.measures.asked import check_asked
from heldin.stages.measures.measure import MeasuredUsers
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData, read_corpus
from heldin.stages.sides.layout import laid_out
from heldin.stages.sides.ledger import Ledger, ledger_of_run, load_ledger, read_cell
from heldin.stages.sides.planting import plant
from heldin.stages.train.validation import CurveTexts
from heldin.words.people import AUDITED

if TYPE_CHECKING:
    from heldin.stages.sides.slots import Slots

ROWS_A_BATCH = 2**14
ROWS_HASHED = 2**20


@dataclass(frozen=True, eq=False)
class RunData:
    """The parts of the corpus that a run uses.

    Attributes:
        corpus: the corpus before canary users were added.
        store: the corpus with canary users, if there are any.
        canaries: how each canary user was made.
        ledger: membership and parts of the users.
        training_rows: rows to train on, after data-side defenses.
        removals: the records that each data-side defense removed or changed.
        changed: training document of each row that a data-side defense changed.
        slots: the author of each row and the people named in it, for text sampling; None for other mechanisms.
        cell: the run's position in a sweep; None for a single run.
    """

    corpus: CorpusData
    store: Corpus
    canaries: Mapping[str, Canary]
    ledger: Ledger
    training_rows: npt.NDArray[np.integer]
    removals: tuple[Removal, ...] = ()
    changed: Mapping[int, Document] = field(default_factory=dict)
    slots: "Slots | None" = None
    cell: CellFacts | None = None

    def public_texts(self) -> list[str]:
        """Return the texts that pre-training may read."""
        return self.corpus.public_texts()

    def training_documents(self) -> Iterator[list[Document]]:
        """Yield the documents that fine-tuning may read, in batches, in the order of ``training_rows``."""
        for first in range(0, self.training_rows.size, ROWS_A_BATCH):
            rows = self.training_rows[first : first + ROWS_A_BATCH]
            documents = self.store.documents_at(rows)
            if self.changed:
                documents = [self.changed.get(row, kept) for row, kept in zip(rows.tolist(), documents, strict=True)]
            yield self.corpus.bearing_loss(documents)

    def records_of_users(self) -> npt.NDArray[np.int64]:
        """Return the number of training records of each user with at least one record."""
        counts = np.bincount(writers(self.store, self.training_rows).places)
        return counts[counts > 0]

    def training_document(self, row: int) -> Document:
        """Return the document that training uses for a row."""
        return self.changed.get(row) or self.store.document(row)

    def attacker_texts(self, users: Sequence[str], limit: int | None = None) -> dict[str, list[Document]]:
        """Return fresh texts of each user, at most ``limit`` per user."""
        # Of both sides alike: what is set aside was decided before the coins.
        fresh = {user: self.ledger.parts[user][Part.ATTACKER][:limit] for user in users}
        return {user: self.corpus.under_attack(documents_of(self.store, rows)) for user, rows in fresh.items()}

    def known_training_texts(self, users: Sequence[str], limit: int | None, seed: int) -> dict[str, list[Document]]:
        """Return at most ``limit`` texts per user (None: all) that are training texts, or would be if the user were a
        member."""
        key = seed_key(seed)
        # Ordered by id under a public seed, and taken from the training part of held-out users too: which texts are
        # scored must not depend on the coin (docs/theory.md#randomisation-test, c).
        # Caps left records out before any coin fell, of both sides alike.
        by_id = {user: {self.store.id(row): row for row in self.for_training(user)} for user in users}
        known = {
            user: [own[id_] for id_ in keyed_order(key, "known documents", list(own))[:limit]]
            for user, own in by_id.items()
        }
        return {user: self.corpus.under_attack(documents_of(self.store, rows)) for user, rows in known.items()}

    def for_training(self, user: str) -> list[int]:
        """Return the training rows of a user or audited entity, as if it were a member."""
        rows = self.ledger.parts[user][Part.TRAIN]
        return [row for row in rows if self.slots is None or self.slots.kept[row]]

    def real(self, users: Iterable[str]) -> list[str]:
        """Return the users in ``users`` who are not canary users."""
        return [user for user in users if user not in self.canaries]

    @property
    def of_real_rows(self) -> frozenset[str]:
        """Canary users whose records are real rows."""
        return self.store.of_real_rows if isinstance(self.store, PlantedStore) else frozenset()

    def canary_membership(self) -> dict[str, bool]:
        """Return whether each canary user is a member. Only ``audit.panels`` joins scores with membership."""
        return {user: self.ledger.roles[user] is Role.HELD_IN for user in sorted(self.canaries)}


def prepare_data(
    config: RunConfig,
    out: Path,
    reporter: Reporter,
    corpus: CorpusData | None = None,
    base: LanguageModel | None = None,
    forms: Forms | None = None,
) -> RunData:
    """Plant canary users, fix the pool, set records aside and draw coins. Reads each existing result from the folder.

    Args:
        corpus: the result of ``read_corpus``; None: call it here.
        base: the model before fine-tuning; required if ``needs_base`` returns true.
        forms: rows whose form the records of made-up canary users imitate; None: the records keep their own form.

    Raises:
        InputError: ``read_corpus``, ``plant`` or ``assign`` raises.
    """
    corpus = corpus or read_corpus(config, reporter)
    # Canary users before the coins: the pool has to be fixed when they are drawn
    # (docs/theory.md#conditions-of-one-run, 1).
    store: Corpus = corpus.store
    canaries: Mapping[str, Canary] = {}
    if config.canaries:
        if base is None:
            raise ValueError("canary users are made with the base model: give the base model")
        store = planted = plant(config, corpus, base, out, reporter, forms)
        canaries = planted.canaries
    kept = load_ledger(out / "ledger")
    earlier = None if kept is None else (kept.drawn_from, kept.parts)
    layout, slots = laid_out(config, corpus, store, canaries, reporter, earlier)
    # Drawn again under the kept key when a run resumes, and compared: a corpus or split that changed is found.
    cell = read_cell(out / "ledger")
    if cell is not None:
        cell.require(config, out)
    coins = cell.coins_key if cell else None
    ledger = ledger_of_run(out / "ledger", layout, config.split, seed=config.seed, kept=kept, coins=coins)
    # After the coins, on the records of those held in: a defense works on what would be trained on.
    left = defended(config, store, ledger, base, reporter, slots)
    data = RunData(corpus, store, canaries, ledger, *left, slots, cell.facts if cell else None)
    counts, audited = data.ledger.count(data.canaries), AUDITED[config.split.audited.value]
    if layout.users:
        reporter.say(
            f"split: {counts[Role.HELD_IN]} {audited.unit} are members, {counts[Role.HELD_OUT]} are non-members;"
            f" {counted(counts[Role.ALWAYS_IN], 'user')} always in training;"
            f" {counted(corpus.public.users, 'public user')}"
        )
    if canaries:
        included = sum(data.canary_membership().values())
        reporter.say(f"canaries: {included} members and {len(canaries) - included} non-members")
    for removal in data.removals:
        reporter.say(removal.line())
    return data


def needs_base(config: RunConfig) -> bool:
    """Return whether the data side needs the base model: to make canary users, or to rank records for a cap."""
    return bool(config.canaries) or any(defense.ranks_by_base for defense in config.data_defenses)


def defended(
    config: RunConfig,
    store: Corpus,
    ledger: Ledger,
    base: LanguageModel | None,
    reporter: Reporter,
    slots: "Slots | None" = None,
) -> tuple[npt.NDArray[np.integer], tuple[Removal, ...], dict[int, Document]]:
    """Return the rows that data-side defenses keep, the effect of each step, and changed documents by row.

    Args:
        store: the corpus, including canary users.
        ledger: membership and parts of the users.
        base: the model before fine-tuning; None if no step uses it.
        slots: slots of text sampling; their caps are applied first.
    """
    rows = ledger.training_rows()
    capped = slots.removal(rows) if slots else None
    if slots:
        rows = rows[slots.kept[rows]]
    first = (capped,) if capped else ()
    # The common case reads no record: with a large corpus that saves a pass over all texts.
    if not config.data_defenses:
        return rows, first, {}

    def of_base() -> LanguageModel:
        if base is None:
            raise ValueError("records are ranked by the base model: give the base model")
        return base

    stored = ((row, store.record(row)) for row in rows.tolist())
    records = [TrainingRecord(row, record.user, record.id, record.document) for row, record in stored]
    left, removals = apply_defenses(
        config.data_defenses,
        records,
        # Called only by a cap that ranks by them: the base model is not loaded for random caps and deduplication.
        lengths=lambda documents: [tokens.bearing for tokens in encode(of_base().tokenizer, documents, None)],
        losses=lambda documents: [scores.mean_loss for scores in score_documents(of_base(), documents)],
        seed=config.seed,
        reporter=reporter,
    )
    # Only those that differ: the others are read from the store when they are asked for.
    given = {record.row: record.document for record in records} if any(r.changed for r in removals) else {}
    changed = {r.row: r.document for r in left if given.get(r.row, r.document) != r.document}
    return np.array([record.row for record in left], dtype=np.int64), (*first, *removals), changed


def curve_texts(data: RunData, *, validation_texts: int, users: int, per_user: int, seed: int) -> CurveTexts:
    """Return samples of real users' texts to compute the curves.

    Args:
        validation_texts: maximum number of validation texts per group.
        users: maximum number of users whose texts are scored.
        per_user: maximum number of attacker texts per user.
    """
    held_in, held_out = (data.real(data.ledger.users(role)) for role in (Role.HELD_IN, Role.HELD_OUT))
    # Chosen before anybody asks who is held in.
    both = data.real(data.ledger.scored_users())
    followed = {both[i] for i in first_in_keyed_order(seed_key(seed), "curve users", both, users)}
    attacked = ([user for user in side if user in followed] for side in (held_in, held_out))
    of_held_in, of_held_out = (data.attacker_texts(side, per_user) for side in attacked)
    return CurveTexts(
        held_in_validation=_sample(data, held_in, Part.VALIDATION, validation_texts, seed),
        held_out_validation=_sample(data, held_out, Part.VALIDATION, validation_texts, seed),
        held_in_attack=of_held_in,
        held_out_attack=of_held_out,
        public_validation=data.corpus.bearing_loss(
            documents_of(data.corpus.store, data.corpus.validation_rows[:validation_texts])
        ),
    )


def _sample(data: RunData, users: list[str], part: Part, count: int, seed: int) -> list[Document]:
    rows = data.ledger.parts.rows_of(part, users)
    chosen = first_in_keyed_order(seed_key(seed), "validation sample", data.store.ids_at(rows), count)
    return data.corpus.bearing_loss(data.store.documents_at(rows[chosen]))


def known_texts(config: RunConfig, data: RunData, users: Sequence[str], which: Documents) -> dict[str, list[Document]]:
    """Return, for each user, the texts that the attacker has.

    Args:
        which: whether to return fresh texts or training texts.
    """
    if which == "fresh":
        return data.attacker_texts(users)
    return data.known_training_texts(users, config.attack.training_documents, config.seed)


def texts_under_attack(config: RunConfig, data: RunData, which: Documents | None = None) -> AttackTexts:
    """Return the scored texts of each scored user. If ``which`` is None, use the first kind in ``attack.documents``."""
    texts = known_texts(config, data, data.ledger.scored_users(), which or config.attack.documents[0])
    return AttackTexts(texts, config.attack.max_characters)


def test_texts(config: RunConfig, data: RunData) -> AttackTexts:
    """Return a sample of test texts of each real non-member, cut to the attacker's limit on length.

    The result omits audited entities, and users without test texts.
    """
    key, most = seed_key(config.seed), config.audit.test_texts_per_user
    sample = {}
    for user in data.real(data.ledger.users(Role.HELD_OUT)):
        # An audited entity writes nothing; who names it writes of others.
        if user in data.ledger.entities:
            continue
        # By id under a public seed, so that every variant of a block is measured on the same texts.
        by_id = {data.store.id(row): row for row in data.ledger.parts[user][Part.TEST]}
        rows = [by_id[id_] for id_ in keyed_order(key, "test texts", list(by_id))[:most]]
        if rows:
            sample[user] = data.corpus.bearing_loss(documents_of(data.store, rows))
    return AttackTexts(sample, config.attack.max_characters)


class RecordIds(MadeSequence[str]):
    """The ids of some rows. Reads an id only when it is needed."""

    def __init__(self, store: Corpus, rows: npt.NDArray[np.integer]) -> None:
        self._store, self._rows = store, rows

    def __len__(self) -> int:
        return len(self._rows)

    def one(self, number: int) -> str:
        """Return the id of the row with this number."""
        return self._store.id(int(self._rows[number]))

    def some(self, numbers: range) -> list[str]:
        """Return the ids of the rows with these numbers."""
        return self._store.ids_at(self._rows[np.array(numbers, dtype=np.int64)])


def writers(store: Corpus, rows: npt.NDArray[np.integer]) -> Writers:
    """Return the author of each row."""
    ranges = [store.rows(user) for user in store.users]
    starts = np.array([rows.start for rows in ranges], dtype=np.int64)
    # A user's rows are adjacent; users are sorted by name, and not always by row.
    there = np.flatnonzero([len(rows) > 0 for rows in ranges])
    by_row = there[np.argsort(starts[there], kind="stable")]
    return Writers(store.users, by_row[np.searchsorted(starts[by_row], rows, side="right") - 1].astype(np.int32))


def rows_digest(rows: npt.NDArray[np.integer]) -> str:
    """Return a hash of row numbers, which is equal for all integer types."""
    hashed = hashlib.sha256()
    for first in range(0, rows.size, ROWS_HASHED):
        hashed.update(rows[first : first + ROWS_HASHED].astype(np.int64).tobytes())
    return hashed.hexdigest()


def subjects_of_run(config: RunConfig, data: RunData) -> MeasuredUsers:
    """Return a run's users in the form for measures. Random draws use the key of the coins."""
    users = data.ledger.scored_users()
    return MeasuredUsers(
        texts_under_attack(config, data),
        # As their authors wrote them, of held-out users too: they are the control.
        lambda limit: data.known_training_texts(users, limit, config.seed),
        data.ledger.coins_key,
        config.finetune.sequence_length,
        lambda: _training_texts(data),
        data.public_texts,
        data.canaries,
    )


def check_measures(config: RunConfig, data: RunData, base: LanguageModel) -> None:
    """Check, before training, that each measure in the config is possible. Raises InputError for a measure that is
    impossible."""
    if data.store.has_spans:
        for texts in (
            *(texts_under_attack(config, data, which) for which in config.attack.documents),
            test_texts(config, data),
        ):
            texts.flat()  # of each something has to count
    for level in config.attack.access:
        if level is not Access.LOG_PROBABILITIES:
            for which in config.attack.documents:
                cut_texts(texts_under_attack(config, data, which), level, config.attack.sampling)
    subjects = subjects_of_run(config, data)
    check_asked(config.measures, subjects, base)


def _training_texts(data: RunData) -> Iterator[tuple[Collection[str], str]]:
    """Yield the owners and the text of every training row."""
    owners = data.ledger.owners()
    for row in data.training_rows.tolist():
        record = data.store.record(row)
        # As written, also where de-identification changed it: equal texts are changed alike.
        yield {record.user, owners.get(row, record.user)}, record.text
