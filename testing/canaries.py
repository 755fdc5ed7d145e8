"""Checks of a kind of canary users."""

import functools
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heldin.base.coins import seed_key
from heldin.base.files import strict_json
from heldin.base.progress import SilentReporter
from heldin.canaries.contract import CanaryConfig, CanaryInput, MarkInput, NumberedCanaries
from heldin.canaries.form import Forms
from heldin.canaries.users import CanaryUser, keyed_dice
from heldin.corpus.build import build_store
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns
from heldin.corpus.store import CorpusStore, texts_of
from heldin.models.loading import LanguageModel
from heldin.models.tokens import token_lists
from heldin.stages.sides.planting import checked_users
from heldin.testing.problems import require, tried, watched_files
from heldin.testing.worlds import CONTEXT, mails, tiny_model

_MARKS = 20


@dataclass(frozen=True)
class _World:
    """A corpus of made-up people, the same corpus with half of its people, and a tiny model with random weights."""

    store: CorpusStore
    fewer: CorpusStore
    base: LanguageModel


def check_canaries(section: CanaryConfig) -> None:
    """Check, on a made-up corpus and a tiny model, that a kind makes valid canary users.

    The kind makes as many users and records as its section requests, and names them after its section. The users are
    the same each time, and differ for another seed. The kind reads no file to make them. No text occurs twice. A mark
    is in every record of its user, and in no other record unless a real user wrote it. A user's texts do not depend on
    other users, real or planted, unless ``record_steps`` declares this. Users who replace real users have as many
    records, and names that do not reveal the real users. If marks are drawn again, the drawn marks have the requested
    number, follow from the key, and differ from the planted marks.

    A kind receives no coin, so coins cannot affect its users. If the users of a kind share tokens, as in
    ``unseen_token``, also test the kind in an audit.

    Args:
        section: section with the settings to test.

    Raises:
        AssertionError: lists all faults.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        world = _world(Path(folder))
        given = _given(section, world.store, world.base)
        first = tried(lambda: checked_users(section, given), "make", problems)
        if first is not None:
            problems += _texts_of_their_own(first)
            problems += _in_every_record(section, world.base, first)
            problems += _follows_from_the_seed(section, given, first)
            problems += _replaced(given, first)
            problems += _rows(given, first) if section.needs_rows else []
            problems += _whatever_others_do(section, world, first)
            problems += _marks(section, given, first)
    require(problems, f"canary users of kind '{section.kind}'")


def _texts_of_their_own(users: Sequence[CanaryUser]) -> list[str]:
    problems = []
    texts = [record.text for user in users for record in user.records]
    if any(not text.strip() or "\0" in text for text in texts):
        problems.append("texts: a record is blank, or has a null character")
    if len(set(texts)) < len(texts):
        problems.append(
            f"texts: {len(texts)} records have only {len(set(texts))} different texts. Make each text only once"
        )
    ids = {record.id for user in users for record in user.records}
    if len(ids) < len(texts):
        problems.append("ids: two records have the same id")
    return problems


def _in_every_record(section: CanaryConfig, base: LanguageModel, users: Sequence[CanaryUser]) -> list[str]:
    problems = []
    marks = [user.canary.mark for user in users if user.canary.mark]
    if len(set(marks)) < len(marks):
        problems.append("marks: two users have the same mark, so one's texts would show the other's coin")
    for user in users:
        mark = user.canary.mark
        if not mark:
            continue
        if section.whole_marks:
            # The mark, or the sentence that has it, begins at 'position'.
            without = sum(mark not in r.text[r.position or 0 :] for r in user.records)
            others = [u for u in users if u is not user and any(mark in r.text for r in u.records)]
            # The words of a real user may be somebody else's as well.
            others = [] if user.canary.source is not None else others
        else:
            of_mark, *of_records = token_lists(base.tokenizer, [mark, *(record.text for record in user.records)])
            without = sum(2 * len(set(ids) & set(of_mark)) <= len(set(ids)) for ids in of_records)
            others = []
        if without:
            problems.append("marks: a record does not have its user's mark, or has it before 'position'")
        if others:
            problems.append("marks: a user's mark appears in another user's record")
    return problems


def _follows_from_the_seed(section: CanaryConfig, given: CanaryInput, first: list[CanaryUser]) -> list[str]:
    problems: list[str] = []
    with watched_files() as opened:
        again = tried(lambda: section.make(given), "make, again", problems)
    if opened:
        problems.append(f"files: it reads '{opened[0]}', but may use only its arguments")
    if again != first:
        problems.append("determinism: it makes other users the second time")
    other = tried(lambda: section.make(replace(given, seed=given.seed + 1)), "make, of another seed", problems)
    if other == first:
        problems.append("seed: another seed gives the same users, so one training set reveals the users of all others")
    return problems


def _replaced(given: CanaryInput, users: Sequence[CanaryUser]) -> list[str]:
    problems = []
    sources = [user.canary.source for user in users if user.canary.source is not None]
    if len(set(sources)) < len(sources) or not set(sources) <= set(given.left):
        problems.append("source: it replaces a real user twice, or without permission")
    for user in users:
        source = user.canary.source
        if source is None or source not in given.left:
            continue
        if len(user.records) != given.store.count(source):
            problems.append("source: a user has more or fewer records than the replaced real user")
        if source in user.canary.user:
            problems.append("source: a canary user's name reveals the real user's name")
    return problems


def _rows(given: CanaryInput, users: Sequence[CanaryUser]) -> list[str]:
    taken = [record.lent for user in users for record in user.records]
    if None in taken or len(set(taken)) < len(taken):
        return ["needs_rows: a record is not a row of the corpus, or two records are the same row"]
    changed = any(
        given.store.document(record.lent) != record.document
        for user in users
        for record in user.records
        if record.lent is not None
    )
    return ["needs_rows: the text of a record differs from its row"] if changed else []


def _whatever_others_do(section: CanaryConfig, world: _World, first: list[CanaryUser]) -> list[str]:
    problems: list[str] = []
    declared = section.needs_rows or any(not step.user_local for step in section.record_steps())
    if not declared:
        given = _given(section, world.fewer, world.base)
        fewer = tried(lambda: section.make(given), "make, on fewer real users", problems) or []
        gone = set(world.store.users) - set(world.fewer.users)
        if [user for user in first if user.canary.source not in gone] != fewer:
            problems.append(
                "user_local: its users change when real users are removed, but record_steps declares only user-local"
                " steps"
            )
    if isinstance(section, NumberedCanaries) and not declared:
        more = section.model_copy(update={"users": section.users + 1})
        given = _given(more, world.store, world.base)
        users = tried(lambda: more.make(given), "make, of one user more", problems) or []
        if not {user.canary.user: user for user in first}.items() <= {u.canary.user: u for u in users}.items():
            problems.append("others: its users change when another user is added")
    return problems


def _marks(section: CanaryConfig, given: CanaryInput, users: Sequence[CanaryUser]) -> list[str]:
    problems: list[str] = []
    planted = {user.canary.mark for user in users}
    draw = functools.partial(_drawn, section, given, users)
    of_key = [tried(functools.partial(draw, key), "recipes", problems) for key in (1, 1, 2)]
    if problems:
        return problems
    first, again, other = of_key
    if first != again:
        problems.append("recipes: the drawn marks do not follow from the key")
    if first and first == other:
        problems.append("recipes: another key draws the same marks, so the trainer could know them")
    for name, (names, marks) in first.items():
        if not set(names) <= {user.canary.user for user in users}:
            problems.append(f"recipes: '{name}' names users that the section did not make")
        if len(marks) != _MARKS:
            problems.append(f"recipes: '{name}' draws {len(marks)} marks instead of {_MARKS}")
        if marks and set(marks) <= planted:
            problems.append(f"recipes: '{name}' draws the planted marks")
    return problems


def _drawn(
    section: CanaryConfig, given: CanaryInput, users: Sequence[CanaryUser], key: int
) -> dict[str, tuple[list[str], list[str]]]:
    secret = seed_key(key)

    def dice(recipe: str, identity: str) -> random.Random:
        return keyed_dice(secret, recipe, identity)

    def aside(user: str) -> list[str]:
        store = given.store
        return texts_of(store, store.rows(user))

    def waiting(recipe: str) -> list[str]:
        return random.Random(f"{recipe} {key}").sample(list(given.left), len(given.left))

    marks = MarkInput(given, [user.canary for user in users], _MARKS, dice, waiting, aside)
    return {name: (list(recipe.users), recipe.draw()) for name, recipe in section.recipes(marks).items()}


def _given(section: CanaryConfig, store: CorpusStore, base: LanguageModel) -> CanaryInput:
    texts = [mail.text for mail in mails(seed=2, users=4)]
    forms = None
    if section.needs_rows:
        # Nobody is audited: every user may lend rows, and rows lend a form and are trained on all the same.
        everybody = {user: store.rows(user) for user in store.users}
        forms = Forms(store, lambda replaced: everybody, 0, takeable=lambda: dict(everybody))
    return CanaryInput(
        number=0,
        sections=(section,),
        seed=0,
        base=lambda: base,
        public_texts=lambda: list(texts),
        corpus=store if section.reads_users else None,
        left=store.users,
        before=(),
        attacker_fraction=0.1,
        evaluation_fraction=0.1,
        visible_tokens=CONTEXT,
        visible_characters=2000,
        forms=forms,
        reporter=SilentReporter(),
    )


def _world(folder: Path) -> _World:
    users = sorted({mail.user for mail in mails()})

    def store(name: str, kept: Sequence[str]) -> CorpusStore:
        path = folder / f"{name}.jsonl"
        rows = ({"user": mail.user, "text": mail.text} for mail in mails() if mail.user in kept)
        path.write_text("".join(strict_json(row) + "\n" for row in rows), encoding="utf-8")
        return build_store(Json(path, Columns()), folder / "cache")

    return _World(store("all", users), store("half", users[::2]), tiny_model())
