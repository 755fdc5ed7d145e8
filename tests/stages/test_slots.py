"""Slots of a run: caps over everybody's records, whoever is held in; how exposed people are, by a slow twin."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import yaml

from heldin.base.coins import seed_key
from heldin.base.progress import LineReporter
from heldin.corpus.entities.spans import canonical
from heldin.corpus.row_parts import RowParts
from heldin.corpus.split import Part, Role
from heldin.defenses.choices import NoiseGenerator
from heldin.finetune.loop import train
from heldin.finetune.recipe import Recipe, Select
from heldin.finetune.units import PrivateRecords, plan_private_training
from heldin.stages.run_config import load_config
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import defended, prepare_data
from heldin.stages.sides.slots import find_slots
from heldin.stages.train.plan import mechanism_of
from heldin.stages.train.training_facts import exposed_shares
from tests.conftest import SMALL
from tests.documents import encode
from tests.refusals import lacks, refused

NAMES = ("Ann Bell", "Cy Dorn", "Eve Falk", "Gus Holt")
SILENT = LineReporter(lambda line: None)


@pytest.fixture
def corpus_file(tmp_path):
    """Twelve writers of 4 to 15 mails that name some of four people, two of whom write too."""
    lines = []
    for user in range(12):
        writer = {0: "Ann Bell", 1: "Cy Dorn"}.get(user, f"writer {user:02}")
        for mail in range(4 + user):
            about = [name for i, name in enumerate(NAMES) if (user * 7 + mail * (i + 1)) % (3 + i) == 0]
            text = f"Mail {mail} of {user}: we met {' and '.join(about) or 'nobody'} on day {mail * 13 + user}."
            lines.append(f'{{"id": "{user}-{mail}", "user": "{writer}", "text": "{text}"}}\n')
    (tmp_path / "mails.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    (tmp_path / "people.yaml").write_text("Gus Holt: [G. Holt]\n", encoding="utf-8")
    return tmp_path / "mails.jsonl"


def config_of(corpus_file, **defense):
    folder = corpus_file.parent
    fields = {
        "kind": "user-entity",
        "population": 120,
        "cohort": 12,
        "steps": 4,
        "delta": 1e-3,
        "noise_multiplier": 1.0,
        "group_size": 4,
        "entity_cap": 6,
        "entities": {"kind": "words", "path": str(folder / "names.txt")},
    }
    content = {
        **SMALL,
        "corpus": {"source": {"kind": "jsonl", "path": str(corpus_file)}, "users": {"min_records": 4}},
        "model": {"base": "unused"},
        "defense": {name: value for name, value in {**fields, **defense}.items() if value is not None},
    }
    content["finetune"] = {"sequence_length": 32, "select": "last"}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_config(path)


def named_in(text):
    return {name for name in NAMES if canonical(name) in canonical(text)}


@pytest.fixture
def data(corpus_file, tmp_path):
    return prepare_data(config_of(corpus_file), tmp_path / "run", SILENT)


def test_no_user_is_above_the_group_size_and_no_entity_above_the_cap(data):
    store, kept = data.store, np.flatnonzero(data.slots.kept)
    by_user, by_name = {}, {}
    for row in kept.tolist():
        record = store.record(row)
        by_user[record.user] = by_user.get(record.user, 0) + 1
        for name in named_in(record.text):
            by_name[name] = by_name.get(name, 0) + 1
    assert max(by_user.values()) == 4
    assert max(by_name.values()) == 6
    training = {row for its in data.ledger.parts.values() for row in its[Part.TRAIN]}
    assert set(kept.tolist()) < training


def test_caps_are_laid_out_before_the_coins(data):
    """Whoever is held in, the same records are kept: a record of a held-out user holds its place."""
    for coins in itertools.islice(itertools.product((Role.HELD_IN, Role.HELD_OUT), repeat=12), 1, 4000, 397):
        roles = dict(zip(sorted(data.ledger.roles), coins, strict=True))
        ledger = replace(data.ledger, roles=roles)
        rows, removals, _ = defended(data_config(data), data.store, ledger, None, SILENT, data.slots)
        held_in = {user for user, role in roles.items() if role is Role.HELD_IN}
        assert set(rows) == {
            row for row in np.flatnonzero(data.slots.kept).tolist() if data.store.record(row).user in held_in
        }
        assert str(removals[0].name) == "caps of 4 records a user and 6 an entity (words)"
        assert removals[0].before - removals[0].removed == len(rows)


def data_config(data):
    """The config does not matter but for its data defenses, of which there are none."""
    return type("Config", (), {"data_defenses": ()})()


def test_caps_do_not_depend_on_the_order_of_the_input(corpus_file, data, tmp_path):
    lines = corpus_file.read_text(encoding="utf-8").splitlines(keepends=True)
    corpus_file.write_text("".join(lines[::-1]), encoding="utf-8")
    again = prepare_data(config_of(corpus_file), tmp_path / "again", SILENT)
    ids = [{its.store.id(row) for row in np.flatnonzero(its.slots.kept).tolist()} for its in (data, again)]
    assert ids[0] == ids[1]


def test_known_training_texts_are_of_records_that_caps_kept(data):
    users = sorted(data.ledger.roles)
    known = data.known_training_texts(users, 100, 0)
    kept = np.flatnonzero(data.slots.kept).tolist()
    assert sorted(document.text for its in known.values() for document in its) == sorted(map(data.store.text, kept))


def test_exposure_is_that_of_the_slow_twin(data):
    store = data.store
    rows = [row for row in range(len(store)) if row % 3]
    training = {row for its in data.ledger.parts.values() for row in its[Part.TRAIN]}
    rows = [row for row in rows if row in training]
    users, entities = data.slots.exposed(rows)
    records = [store.record(row) for row in rows]
    by_hand = [
        sum(user == record.user or user in named_in(record.text) for record in records) for user in data.slots.users
    ]
    assert sorted(users.tolist()) == sorted(n for n in by_hand if n)
    named = [sum(name in named_in(record.text) for record in records) for name in NAMES]
    assert sorted(entities.tolist()) == sorted(n for n in named if n)


def test_planted_records_are_searched_too(corpus_file):
    config = config_of(corpus_file)
    corpus = read_corpus(config, SILENT)
    base = corpus.store

    class Planted:
        """Rows of the corpus, and five more of a canary user who names one person in each."""

        def id(self, row):
            return base.id(row) if row < len(base) else f"canary {row}"

        def text(self, row):
            return base.text(row) if row < len(base) else "Again Eve Falk was there."

    training = RowParts.training({"canary": range(len(base), len(base) + 5)})
    slots = find_slots(config_of(corpus_file, group_size=5, entity_cap=3), base, Planted(), training, SILENT)
    assert slots.kept.sum() == 3
    _, entities = slots.exposed(np.arange(len(base), len(base) + 5))
    assert entities.tolist() == [5]


def test_without_caps_all_is_kept_and_without_a_source_users_are_counted(corpus_file):
    config = config_of(corpus_file, group_size=None, entity_cap=None, entities=None)
    corpus = read_corpus(config, SILENT)
    training = RowParts.training({user: corpus.store.rows(user) for user in corpus.audited.users})
    slots = find_slots(config, corpus.store, corpus.store, training, SILENT)
    assert slots.kept.all()
    assert slots.removal(np.arange(len(corpus.store))) is None
    users, entities = slots.exposed(np.arange(len(corpus.store)))
    assert sorted(users.tolist()) == [4 + i for i in range(12)]
    assert entities is None


def test_another_seed_keeps_other_records(corpus_file, data, tmp_path):
    config = config_of(corpus_file).model_copy(update={"seed": 5})
    other = prepare_data(config, tmp_path / "other", SILENT)
    assert other.slots.kept.tolist() != data.slots.kept.tolist()
    assert seed_key(5) != seed_key(0)


def test_who_is_named_in_part_of_a_longer_name_is_capped_whatever_categories_count(corpus_file):
    """The longest of overlapping mentions is counted by category; a slot names everybody in it."""
    (corpus_file.parent / "names.txt").write_text("Ann Bell\nMail 3 of\torg\nwe met Ann Bell\torg\n", encoding="utf-8")
    for categories in (["person"], ["person", "org"]):
        config = config_of(corpus_file, group_size=15, entity_cap=2, categories=categories)
        corpus = read_corpus(config, SILENT)
        training = RowParts.training({user: corpus.store.rows(user) for user in corpus.audited.users})
        slots = find_slots(config, corpus.store, corpus.store, training, SILENT)
        kept = [corpus.store.text(row) for row in np.flatnonzero(slots.kept).tolist()]
        assert sum("Ann Bell" in text for text in kept) == 2


def test_caps_that_leave_nothing_are_refused_before_any_training(corpus_file, tmp_path):
    """Decided by everybody's slots: whether a run stops tells no coin."""
    lines = corpus_file.read_text(encoding="utf-8").replace("Mail ", "Everybody Knows ")
    corpus_file.write_text(lines, encoding="utf-8")
    names = corpus_file.parent / "names.txt"
    names.write_text("Everybody Knows\n", encoding="utf-8")
    config = config_of(corpus_file, entity_cap=1)
    said = []
    prepare_data(config, tmp_path / "one", LineReporter(said.append))
    assert any(not lacks(line, "11", "12 users") for line in said if "caps" in line)
    asked = config.model_copy(update={"attack": config.attack.model_copy(update={"documents": ("training",)})})
    with refused(by="_require_some", naming=("11", "12")) as caught:
        prepare_data(asked, tmp_path / "two", SILENT)
    assert "writer" not in str(caught.value)


def test_a_run_whose_kept_records_are_all_held_out_is_told_so_in_one_line(make_lm, corpus_file, tmp_path):
    """Caps may leave a record or two, whose writers the coins may leave out."""
    mechanism = mechanism_of(config_of(corpus_file), plain_steps=1)
    sequences = encode(make_lm().tokenizer, [], 32)
    nothing = plan_private_training(mechanism, seed_key(1), PrivateRecords([], [], []), NoiseGenerator.PHILOX)
    with refused(by="_require_possible", naming=("record", "set-asides", "caps")):
        train(make_lm(), sequences, Recipe(select=Select.LAST), tmp_path / "checkpoints", private=nothing)


def test_numbers_beyond_use_are_refused_and_not_computed(corpus_file, data):
    with refused(by="checked", naming="entity_cap"):
        config_of(corpus_file, entity_cap=1_000_000)
    mechanism = mechanism_of(config_of(corpus_file, group_size=None, entity_cap=None), plain_steps=1)
    slots = replace(data.slots, kept=np.ones_like(data.slots.kept))
    rows = [row for its in data.ledger.parts.values() for row in its[Part.TRAIN]]
    many = type("Many", (), {"exposed": lambda self, rows: (np.array([5000, 3]), None)})()
    shares = exposed_shares(mechanism, many, rows)
    assert shares[-1].exposed == 8192
    assert shares[-1].epsilon is None
    assert [its.epsilon for its in shares if its.exposed <= 4] == [
        pytest.approx(mechanism.epsilon_at(m)) for m in (1, 2, 4)
    ]
    assert exposed_shares(mechanism, slots, rows)[-1].users == 1.0
