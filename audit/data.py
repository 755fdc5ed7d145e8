"""The data side of a run: store, public users, ledger, and what of them each stage may see."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.config import RunConfig
from audit.ledger import Ledger, draw_ledger, ledger_of_run
from audit.progress import Reporter
from audit.record import CorpusFacts, Overlaps, SplitFacts
from audit.validation import CurveTexts
from corpus.aliases import load_aliases
from corpus.coins import keyed_order, seed_key
from corpus.errors import InputError
from corpus.files import cache_directory
from corpus.split import Assignment, Part, Role, Selection, select_users
from corpus.statistics import records_percentiles, text_digests
from corpus.store import CorpusStore, build_store, texts_of


@dataclass(frozen=True)
class RunData:
    """Everything of the corpus that a run uses."""

    store: CorpusStore
    audited: Selection
    public_rows: tuple[int, ...]
    public_users: int
    ledger: Ledger

    def public_texts(self) -> list[str]:
        """Texts that pre-training may see."""
        return texts_of(self.store, self.public_rows)

    def training_texts(self) -> list[str]:
        """Texts that fine-tuning may see, and no others."""
        return texts_of(self.store, self.ledger.training_rows())

    def attacker_texts(self, users: Sequence[str], limit: int | None = None) -> dict[str, list[str]]:
        """Fresh texts by user, at most ``limit`` of each."""
        rows = self.ledger.rows(list(users), Part.ATTACKER)
        return {user: texts_of(self.store, its[:limit]) for user, its in rows.items()}

    def membership(self) -> dict[str, bool]:
        """Scored user to whether held in; for ``audit.evaluation`` only."""
        return {user: self.ledger.roles[user] is Role.HELD_IN for user in self.ledger.scored_users()}


def prepare_data(config: RunConfig, out: Path, reporter: Reporter) -> RunData:
    """Build or open the store, fix the pool, set records aside, draw coins (or read the run's own).

    Raises:
        InputError: see ``build_store``, ``select_users`` and ``assign``.
    """
    aliases = load_aliases(config.corpus.aliases) if config.corpus.aliases else None
    reporter.say("corpus: reading")
    store = build_store(
        config.corpus.source.source(),
        cache_directory(),
        aliases=aliases,
        skip_bad_rows=config.corpus.skip_bad_lines,
    )
    reporter.say(f"corpus: {len(store.users)} users, {len(store)} records, {store.report.skipped} rows skipped")
    audited = select_users(store, config.corpus.users, seed=config.seed)
    if len(audited.users) < 2:
        raise InputError(
            f"{len(audited.users)} of {len(store.users)} users pass corpus.users ({audited.dropped_by_pattern} dropped"
            f" by pattern, {audited.dropped_by_minimum} with fewer than {config.corpus.users.min_records} records): an"
            " audit needs at least 2 users, and 100 to say much"
        )
    public_rows, public_users = _public_rows(config, store, audited)
    draw = functools.partial(
        draw_ledger,
        store,
        audited.users,
        assignment=config.split.assignment,
        audit_pool=config.split.audit_pool,
        attacker_fraction=config.split.attacker_fraction,
        evaluation_fraction=config.split.evaluation_fraction,
        seed=config.seed,
    )
    ledger = ledger_of_run(out / "ledger", lambda key: draw(key=key))
    counts = ledger.count()
    reporter.say(
        f"split: {counts[Role.HELD_IN]} users held in, {counts[Role.HELD_OUT]} held out, {counts[Role.ALWAYS_IN]}"
        f" always in; {public_users} public users"
    )
    return RunData(store, audited, public_rows, public_users, ledger)


def curve_texts(data: RunData, *, validation_texts: int, per_user: int, seed: int) -> CurveTexts:
    """Samples for the curves: at most so many validation texts a side and attacker texts a user."""
    held_in, held_out = data.ledger.users(Role.HELD_IN), data.ledger.users(Role.HELD_OUT)
    return CurveTexts(
        held_in_validation=_sample(data, held_in, Part.VALIDATION, validation_texts, seed),
        held_out_validation=_sample(data, held_out, Part.VALIDATION, validation_texts, seed),
        held_in_attack=data.attacker_texts(held_in, per_user),
        held_out_attack=data.attacker_texts(held_out, per_user),
    )


def corpus_facts(data: RunData) -> CorpusFacts:
    """What the record says of the corpus."""
    return CorpusFacts(
        fingerprint=data.store.fingerprint,
        users=len(data.store.users),
        records=len(data.store),
        skipped_rows=data.store.report.skipped,
        records_per_audited_user=list(records_percentiles([data.store.count(u) for u in data.audited.users])),
        dropped_by_pattern=data.audited.dropped_by_pattern,
        dropped_by_minimum=data.audited.dropped_by_minimum,
        dropped_by_maximum=data.audited.dropped_by_maximum,
        dropped_by_sampling=data.audited.dropped_by_sampling,
        public_users=data.public_users,
        public_records=len(data.public_rows),
    )


def split_facts(data: RunData) -> SplitFacts:
    """What the record says of the split."""
    ledger, counts = data.ledger, data.ledger.count()
    coins = ledger.assignment is Assignment.COIN
    parts = {part.value: sum(len(of[part]) for of in ledger.parts.values()) for part in Part}
    return SplitFacts(
        assignment=ledger.assignment.value,
        certifiable=coins,
        standing_reason=(
            "each audited user was held in by an independent fair coin under a fresh secret key"
            if coins
            else "an exact half of the users was held in, so their coins depend on each other and certify nothing"
        ),
        held_in=counts[Role.HELD_IN],
        held_out=counts[Role.HELD_OUT],
        always_in=counts[Role.ALWAYS_IN],
        records_by_part={**parts, "trained on": len(ledger.training_rows())},
        key_commitment=ledger.key_commitment(),
        ledger_commitment=ledger.commitment(),
        overlaps=_overlaps(data),
    )


def _public_rows(config: RunConfig, store: CorpusStore, audited: Selection) -> tuple[tuple[int, ...], int]:
    """Rows of public users, who are never audited ones, at most so many of each."""
    if config.model.pretrain is None:
        return (), 0
    rule = config.model.pretrain.users
    public = select_users(store, rule, taken=frozenset(audited.users), seed=config.seed)
    limit = config.model.pretrain.max_records_per_user
    rows = [row for user in public.users for row in list(store.rows(user))[:limit]]
    return tuple(rows), len(public.users)


def _sample(data: RunData, users: list[str], part: Part, count: int, seed: int) -> list[str]:
    rows = [row for its in data.ledger.rows(users, part).values() for row in its]
    by_id = {data.store.id(row): row for row in rows}
    return texts_of(
        data.store, [by_id[i] for i in keyed_order(seed_key(seed), "validation sample", list(by_id))[:count]]
    )


def _overlaps(data: RunData) -> Overlaps:
    """Exact matches of texts between sides."""
    store, ledger = data.store, data.ledger
    trained = {user: text_digests(texts_of(store, its[Part.TRAIN])) for user, its in ledger.parts.items()}
    training_users = [user for user, role in ledger.roles.items() if role is not Role.HELD_OUT]
    in_training: dict[bytes, set[str]] = {}
    for user in training_users:
        for digest in trained[user]:
            in_training.setdefault(digest, set()).add(user)
    same = other = 0
    for user in ledger.scored_users():
        for digest in map(_digest, texts_of(store, ledger.parts[user][Part.ATTACKER])):
            owners = in_training.get(digest, set())
            same += user in owners
            other += bool(owners - {user})
    held_out = sum(d in in_training for user in ledger.users(Role.HELD_OUT) for d in trained[user])
    public = text_digests(texts_of(store, data.public_rows))
    audited = sum(
        _digest(text) in public
        for user in ledger.roles
        for part in Part
        for text in texts_of(store, ledger.parts[user][part])
    )
    return Overlaps(
        attacker_texts_in_same_users_training=same,
        attacker_texts_in_other_users_training=other,
        held_out_texts_in_training=held_out,
        audited_texts_in_public=audited,
    )


def _digest(text: str) -> bytes:
    return next(iter(text_digests([text])))
