"""The data side of a run: store, public users, ledger, and what each stage may see of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heldin.attacks.scoring import ScoredParts
from heldin.audit.headline import AUDITED
from heldin.base.coins import keyed_order, seed_key
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.canaries.form import Forms
from heldin.canaries.kinds import Canary
from heldin.corpus.split import Part, Role, SplitRule
from heldin.corpus.store import Corpus, texts_of
from heldin.defenses.texts.data_side import Cap, Removal, TrainingRecord, apply_defenses
from heldin.finetune.batches import encode
from heldin.jobs.config import RunConfig
from heldin.jobs.run.cell import read_cell
from heldin.jobs.run.corpus import CorpusData, read_corpus
from heldin.jobs.run.layout import laid_out
from heldin.jobs.run.ledger import Ledger, draw_ledger, ledger_of_run
from heldin.jobs.run.planting import plant
from heldin.jobs.run.slots import Slots
from heldin.jobs.run.validation import CurveTexts
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts
from heldin.record.facts import CellFacts, Overlaps, SplitFacts
from heldin.record.overlaps import measured, seen_in_training, texts_in


@dataclass(frozen=True)
class RunData:
    """Everything of the corpus that a run uses.

    Attributes:
        corpus: the corpus before anything was planted.
        store: the corpus with the canary users in it, if there are any.
        canaries: how each canary user was made.
        ledger: roles and parts of the users.
        training_rows: rows that are trained on, after data-side defenses.
        removals: what each data-side defense removed or changed.
        changed_texts: by row the text that is trained on, where a data-side defense changed it.
        slots: who wrote and who is named, for text sampling; None for other mechanisms.
        cell: the run's place in a sweep; None for a run of its own.
        parts: which parts of a text are scored; None: all of it.
    """

    corpus: CorpusData
    store: Corpus
    canaries: Mapping[str, Canary]
    ledger: Ledger
    training_rows: tuple[int, ...]
    removals: tuple[Removal, ...] = ()
    changed_texts: Mapping[int, str] = field(default_factory=dict)
    slots: Slots | None = None
    cell: CellFacts | None = None
    parts: ScoredParts | None = None

    def public_texts(self) -> list[str]:
        """Texts that pre-training may see."""
        return self.corpus.public_texts()

    def training_texts(self) -> list[str]:
        """Texts that fine-tuning may see, and no others."""
        return [self.training_text(row) for row in self.training_rows]

    def training_text(self, row: int) -> str:
        """The text that is trained on for a training row."""
        changed = self.changed_texts.get(row)
        return self.store.text(row) if changed is None else changed

    def attacker_texts(self, users: Sequence[str], limit: int | None = None) -> dict[str, list[str]]:
        """Fresh texts by user, at most ``limit`` of each."""
        # Of both sides alike: what is set aside was decided before the coins.
        return {user: texts_of(self.store, self.ledger.parts[user][Part.ATTACKER][:limit]) for user in users}

    def known_training_texts(self, users: Sequence[str], limit: int | None, seed: int) -> dict[str, list[str]]:
        """At most ``limit`` texts per user (None: all) that training saw or would have seen, whoever is held in."""
        key = seed_key(seed)
        # Ordered by id under a public seed, and taken from the training part of held-out users too: which texts are
        # scored must not depend on the coin (docs/theory.md#randomisation-test, c).
        # Caps left records out before any coin fell, of both sides alike.
        by_id = {user: {self.store.id(row): row for row in self.for_training(user)} for user in users}
        return {
            user: texts_of(self.store, [its[id_] for id_ in keyed_order(key, "known documents", list(its))[:limit]])
            for user, its in by_id.items()
        }

    def for_training(self, user: str) -> list[int]:
        """The rows of a user or an audited entity that training sees, or would have seen."""
        rows = self.ledger.parts[user][Part.TRAIN]
        return [row for row in rows if self.slots is None or self.slots.kept[row]]

    def real(self, users: Iterable[str]) -> list[str]:
        """Those of the users who are not canary users."""
        return [user for user in users if user not in self.canaries]

    def canary_membership(self) -> dict[str, bool]:
        """Whether each canary user is held in. Scores meet it in ``jobs.run.statistics`` only."""
        return {user: self.ledger.roles[user] is Role.HELD_IN for user in sorted(self.canaries)}


def prepare_data(
    config: RunConfig,
    out: Path,
    reporter: Reporter,
    corpus: CorpusData | None = None,
    base: LanguageModel | None = None,
    forms: Forms | None = None,
) -> RunData:
    """Plant canary users, fix the pool, set records aside and draw coins, or read what the run already has.

    Args:
        config: config of the run.
        out: the run folder.
        reporter: receives the progress.
        corpus: the result of ``read_corpus``; None: it is read here.
        base: the model before fine-tuning; needed if ``needs_base`` says so.
        forms: rows whose forms the records of made-up canary users take; None: they have their own.

    Raises:
        InputError: see ``read_corpus``, ``plant`` and ``assign``.
    """
    corpus = corpus or read_corpus(config, reporter)
    # Canary users before the coins: the pool has to be fixed when they are drawn
    # (docs/theory.md#conditions-of-one-run, 1).
    store: Corpus = corpus.store
    canaries: Mapping[str, Canary] = {}
    if config.canaries:
        if base is None:
            raise ValueError("canary users are made with the base model: give it")
        store = planted = plant(config, corpus, base, out, reporter, forms)
        canaries = planted.canaries
    layout, slots = laid_out(config, corpus, store, canaries, reporter)
    # Drawn again under the kept key when a run resumes, and compared: a corpus or split that changed is found.
    cell = read_cell(out / "ledger")
    if cell is not None:
        cell.require(config, out)
    ledger = ledger_of_run(
        out / "ledger",
        lambda keys: draw_ledger(layout, config.split, seed=config.seed, keys=keys),
        coins=cell.coins_key if cell else None,
    )
    # After the coins, on the records of those held in: a defense works on what would be trained on.
    left = defended(config, store, ledger, base, reporter, slots)
    data = RunData(corpus, store, canaries, ledger, *left, slots, cell.facts if cell else None)
    counts, audited = data.ledger.count(data.canaries), AUDITED[config.split.audited.value]
    if layout.users:
        reporter.say(
            f"split: {counts[Role.HELD_IN]} {audited.unit} held in, {counts[Role.HELD_OUT]} held out,"
            f" {counted(counts[Role.ALWAYS_IN], 'user')} always in; {counted(corpus.public_users, 'public user')}"
        )
    if canaries:
        included = sum(data.canary_membership().values())
        reporter.say(f"canaries: {counted(included, 'canary user')} held in, {len(canaries) - included} held out")
    for removal in data.removals:
        reporter.say(removal.line())
    return data


def needs_base(config: RunConfig) -> bool:
    """Whether the data side needs the base model: to make canary users, or to rank records for a cap."""
    ranked = any(isinstance(d, Cap) and d.selection != "random" for d in config.data_defenses)
    return bool(config.canaries) or ranked


def defended(
    config: RunConfig,
    store: Corpus,
    ledger: Ledger,
    base: LanguageModel | None,
    reporter: Reporter,
    slots: Slots | None = None,
) -> tuple[tuple[int, ...], tuple[Removal, ...], dict[int, str]]:
    """What data-side defenses leave: the rows that are trained on, what each step did, and changed texts by row.

    Args:
        config: config of the run.
        store: the corpus, canary users included.
        ledger: roles and parts of the users.
        base: the model before fine-tuning; None unless records are ranked by it.
        reporter: where the progress of searching texts is shown.
        slots: those of text sampling, whose caps come first.
    """
    rows = ledger.training_rows()
    capped = slots.removal(rows) if slots else None
    if slots:
        rows = [row for row in rows if slots.kept[row]]
    first = (capped,) if capped else ()
    # The common case reads no record: with a large corpus that saves a pass over all texts.
    if not config.data_defenses:
        return tuple(rows), first, {}

    def of_base() -> LanguageModel:
        if base is None:
            raise ValueError("records are ranked by the base model: give it")
        return base

    records = [TrainingRecord(row, (its := store.record(row)).user, its.id, its.text) for row in rows]
    left, removals = apply_defenses(
        config.data_defenses,
        records,
        # Called only by a cap that ranks by them: the base model is not loaded for random caps and deduplication.
        lengths=lambda texts: [len(ids) for ids in encode(of_base().tokenizer, texts, None)],
        losses=lambda texts: [-s.total / len(s.logprobs) for s in score_texts(of_base(), list(texts))],
        seed=config.seed,
        reporter=reporter,
    )
    # Only those that differ: the others are read from the store when they are asked for.
    given = {record.row: record.text for record in records} if any(r.changed for r in removals) else {}
    changed = {record.row: record.text for record in left if given.get(record.row, record.text) != record.text}
    return tuple(record.row for record in left), (*first, *removals), changed


def curve_texts(data: RunData, *, validation_texts: int, per_user: int, seed: int) -> CurveTexts:
    """Samples of real users' texts for the curves.

    Args:
        data: corpus and ledger of the run.
        validation_texts: maximum number of validation texts per side.
        per_user: maximum number of attacker texts per user.
        seed: seed of the samples.
    """
    held_in, held_out = (data.real(data.ledger.users(role)) for role in (Role.HELD_IN, Role.HELD_OUT))
    return CurveTexts(
        held_in_validation=_sample(data, held_in, Part.VALIDATION, validation_texts, seed),
        held_out_validation=_sample(data, held_out, Part.VALIDATION, validation_texts, seed),
        held_in_attack=data.attacker_texts(held_in, per_user),
        held_out_attack=data.attacker_texts(held_out, per_user),
        public_validation=texts_of(data.corpus.store, data.corpus.validation_rows[:validation_texts]),
    )


def split_facts(config: RunConfig, data: RunData) -> SplitFacts:
    """The record's facts about the split of the real users and entities."""
    ledger, counts = data.ledger, data.ledger.count(data.canaries)
    coins, what = ledger.assignment is SplitRule.COIN, AUDITED[config.split.audited.value]
    # Of users alone: an entity's records are theirs.
    users = data.real(ledger.parts.keys() - ledger.entities)
    parts = {part.value: sum(len(ledger.parts[user][part]) for user in users) for part in Part}
    return SplitFacts(
        assignment=ledger.assignment.value,
        known_by="measured",
        certifiable=coins,
        standing_reason=(
            f"each audited {what.one} was held in by an independent fair coin under a fresh secret key"
            + ("" if data.cell is None else f", which is that of block {data.cell.block} of a sweep")
            if coins
            else f"an exact half of the {what.unit} was held in: coins that depend on each other certify nothing"
        ),
        held_in=counts[Role.HELD_IN],
        held_out=counts[Role.HELD_OUT],
        always_in=counts[Role.ALWAYS_IN],
        records_by_part={**parts, "trained on": len(data.training_rows)},
        key_commitment=ledger.key_commitment(),
        ledger_commitment=ledger.commitment(),
        overlaps=_overlaps(data),
        audited=config.split.audited.value,
    )


def _sample(data: RunData, users: list[str], part: Part, count: int, seed: int) -> list[str]:
    by_id = {data.store.id(row): row for user in users for row in data.ledger.parts[user][part]}
    return texts_of(
        data.store, [by_id[i] for i in keyed_order(seed_key(seed), "validation sample", list(by_id))[:count]]
    )


def _overlaps(data: RunData) -> Overlaps:
    """Exact matches of real users' texts between sides; the training texts include those of canary users."""
    store, ledger, owners = data.store, data.ledger, data.ledger.owners()

    # A generator, and one for each look: all training texts at once may not fit into memory.
    def training() -> Iterator[tuple[str, str]]:
        for row in data.training_rows:
            record = store.record(row)
            # As written, also where de-identification changed it: equal texts are changed alike, so that what stands in
            # another's training is found by the original.
            yield owners.get(row, record.user), record.text

    held_in, held_out = (data.real(ledger.users(role)) for role in (Role.HELD_IN, Role.HELD_OUT))
    scored = data.attacker_texts(data.real(ledger.scored_users()))
    # What training would have seen of held-out users: found there, it was trained on under another user's name.
    left_out = {user: texts_of(store, ledger.parts[user][Part.TRAIN]) for user in held_out}
    of_scored, of_left_out = (seen_in_training(texts, training()) for texts in (scored, left_out))
    # Held-out texts first: it is they that are looked for among held-in ones.
    sides = ([text for user in its for text in scored[user]] for its in (held_out, held_in))
    users = data.real(ledger.roles.keys() - ledger.entities)
    audited = (text for user in users for part in Part for text in _texts(data, user, part))
    return Overlaps(
        scored_texts_in_same_users_training=measured(of_scored.own),
        scored_texts_in_other_users_training=measured(of_scored.others),
        held_out_texts_in_training=measured(of_left_out.anywhere),
        held_out_users_in_training=measured(len(of_left_out.users)),
        held_out_texts_in_held_in=measured(texts_in(*sides)),
        audited_texts_in_public=measured(texts_in(audited, data.public_texts())),
    )


def _texts(data: RunData, user: str, part: Part) -> list[str]:
    return texts_of(data.store, data.ledger.parts[user][part])
