"""Who is audited when entities are: no shared records, the slow twin's pool, and what one coin decides about."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.base.progress import LineReporter
from heldin.corpus.entities.incidence import Incidence
from heldin.corpus.entities.spans import canonical
from heldin.corpus.row_parts import RowParts
from heldin.corpus.split import Audited, Part, Role
from heldin.defenses.choices import NoiseGenerator
from heldin.finetune.units import PrivateRecords, plan_private_training
from heldin.stages.run_config import SplitConfig, load_config
from heldin.stages.sides.data import defended, prepare_data
from heldin.stages.sides.layout import PREFIX, pool_of_entities
from heldin.stages.sides.ledger import load_ledger
from heldin.stages.sides.panels import claims_on
from heldin.stages.train.plan import mechanism_of
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import NoGuaranteeReason
from tests.conftest import SMALL
from tests.oracles import audit_pool as oracle
from tests.refusals import refused

SILENT = LineReporter(lambda line: None)
PEOPLE = [
    f"{first} {last}" for first in ("Ann", "Bea", "Cy", "Dan", "Eve") for last in ("Bell", "Dorn", "Falk", "Holt")
]


def made(dice, users, names, density):
    """Random parts, kept rows and names of 12 rows of each user; the last user is a canary user."""
    parts, names_of, row = {}, {}, 0
    for user in range(users):
        its = {part: [] for part in Part}
        for _ in range(12):
            its[dice.choice([Part.TRAIN] * 6 + [Part.ATTACKER] * 3 + [Part.VALIDATION, Part.TEST])].append(row)
            names_of[row] = {n for n in range(names) if dice.random() < density}
            row += 1
        parts[f"u{user}"] = {part: tuple(rows) for part, rows in its.items()}
    return parts, names_of, {r for r in range(row) if dice.random() < 0.8}


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    users=st.integers(3, 9),
    names=st.integers(2, 25),
    density=st.floats(0.01, 0.2),
    both=st.booleans(),
    least=st.integers(1, 4),
)
def test_the_pool_is_that_of_the_slow_twin_and_shares_no_record(seed, users, names, density, both, least):
    parts, names_of, kept = made(random.Random(seed), users, names, density)
    real = sorted(parts)[:-1]
    # Two of the names are users: nobody is audited twice.
    label = {n: real[n] if n < 2 else f"name {n}" for n in range(names)}
    starts = np.concatenate([[0], np.cumsum([len(names_of[row]) for row in sorted(names_of)])])
    entities = np.array([n for row in sorted(names_of) for n in sorted(names_of[row])], dtype=np.int64)
    named = Incidence(
        starts.astype(np.int64), entities, names, [label[n] for n in range(names)], {real[0]: 0, real[1]: 1}
    )
    wanted = oracle.pool(
        {row: {label[n] for n in its} for row, its in names_of.items()},
        parts,
        kept,
        real=real,
        both=both,
        least=least,
        seed=seed,
    )
    split = SplitConfig(audited=Audited.BOTH if both else Audited.ENTITIES, entities={"kind": "patterns"}).model_copy(
        update={"entity_records": least}
    )
    mask = np.array([row in kept for row in range(12 * users)])
    if len(wanted) < 2 or not any(name.startswith(PREFIX) for name in wanted):
        with refused(by=pool_of_entities, naming=("split.audited", "2")):
            pool_of_entities(split, named, RowParts.of(parts), mask, real=real, seed=seed)
        return
    found = pool_of_entities(split, named, RowParts.of(parts), mask, real=real, seed=seed)
    assert list(found.names) == wanted
    assert set(found.entities) == {name for name in wanted if name.startswith(PREFIX)}
    rows_of = {**parts, **found.entities}
    used = [row for name in wanted for part in (Part.TRAIN, Part.ATTACKER) for row in rows_of[name][part]]
    shown = [row for row in used if row in kept or row not in {r for its in parts.values() for r in its[Part.TRAIN]}]
    assert len(shown) == len(set(shown))
    for name, its in found.entities.items():
        assert len(its[Part.TRAIN]) >= least
        assert its[Part.ATTACKER]
        number = named.names.index(name.removeprefix(PREFIX))
        assert all(number in names_of[row] for rows in its.values() for row in rows)
        assert set(its[Part.TRAIN]) <= kept
    smaller = pool_of_entities(
        split.model_copy(update={"audit_pool": 2}), named, RowParts.of(parts), mask, real=real, seed=seed
    )
    assert list(smaller.names) == wanted[:2]


@pytest.fixture
def corpus_file(tmp_path):
    """Thirty writers of twelve mails, each of which names one of twenty people, or nobody."""
    dice, lines = random.Random(1), []
    for user in range(30):
        for mail in range(12):
            about = dice.choice([*PEOPLE, "nobody"])
            text = f"Mail {mail} of {user}: we met {about} on day {dice.randrange(1000)}."
            lines.append(json.dumps({"id": f"{user}-{mail}", "user": f"writer {user:02}", "text": text}) + "\n")
    (tmp_path / "mails.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "names.txt").write_text("\n".join(PEOPLE), encoding="utf-8")
    return tmp_path / "mails.jsonl"


WORDS = "names.txt"


def config_of(corpus_file, *, defense=None, split=None, **sections):
    source = {"kind": "words", "path": str(corpus_file.parent / WORDS)}
    content = {
        **SMALL,
        "corpus": {"source": {"kind": "jsonl", "path": str(corpus_file)}, "users": {"min_records": 4}},
        "model": {"base": "unused"},
        "split": {"audited": "entities", "attacker_fraction": 0.3, **(split or {})},
        **sections,
    }
    if defense is None:
        content["split"].setdefault("entities", source)
    else:
        content["defense"] = {
            "kind": "user-entity",
            "population": 400,
            "cohort": 40,
            "steps": 4,
            "delta": 1e-3,
            "noise_multiplier": 1.0,
            "entities": source,
            **defense,
        }
    content["finetune"] = {"sequence_length": 32, "select": "last"}
    path = corpus_file.parent / "run.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_config(path)


def named_in(text):
    return {name for name in PEOPLE if canonical(name) in canonical(text)}


def test_a_record_is_in_iff_all_its_audited_attributes_are(corpus_file, tmp_path):
    for audited in ("entities", "both"):
        config = config_of(corpus_file, split={"audited": audited})
        data = prepare_data(config, tmp_path / audited, SILENT)
        roles, store = data.ledger.roles, data.store
        out = {name.removeprefix(PREFIX) for name in data.ledger.entities if roles[name] is Role.HELD_OUT}
        assert out
        assert (audited == "both") == any(
            role is not Role.ALWAYS_IN for name, role in roles.items() if name not in data.ledger.entities
        )
        wanted = [
            row
            for user, its in data.ledger.parts.items()
            if user not in data.ledger.entities and roles[user] is not Role.HELD_OUT
            for row in its[Part.TRAIN]
            if not {canonical(name) for name in named_in(store.text(row))} & out
        ]
        assert data.ledger.training_rows().tolist() == sorted(wanted)
        # The attacker has fresh texts, each of which names the entity.
        for name in data.ledger.entities:
            fresh = data.attacker_texts([name])[name]
            assert fresh
            assert all(name.removeprefix(PREFIX) in canonical(document.text) for document in fresh)
        assert load_ledger(tmp_path / audited / "ledger") == data.ledger
        # The same again, and refused if the list finds others.
        assert prepare_data(config, tmp_path / audited, SILENT).ledger == data.ledger
        names = corpus_file.parent / WORDS
        kept = names.read_text(encoding="utf-8")
        names.write_text("\n".join(PEOPLE[4:]), encoding="utf-8")
        with refused(by="ledger_of_run", naming=("ledger", "split", "roles", "parts", "entities")):
            prepare_data(config, tmp_path / audited, SILENT)
        names.write_text(kept, encoding="utf-8")


def test_one_entitys_coin_decides_about_its_records_alone_in_every_step(corpus_file, tmp_path):
    """Under caps: the other records keep their places and their draws, whatever the coin."""
    config = config_of(corpus_file, defense={"group_size": 8, "entity_cap": 5})
    data = prepare_data(config, tmp_path / "run", SILENT)
    mechanism, ledger = mechanism_of(config, plain_steps=1), data.ledger

    def drawn(role, name):
        one = replace(ledger, roles={**ledger.roles, name: role})
        rows, _, _ = defended(config, data.store, one, None, SILENT, data.slots)
        records = PrivateRecords(
            ids=[data.store.id(row) for row in rows],
            users=[data.store.record(row).user for row in rows],
            lengths=[8] * len(rows),
        )
        training = plan_private_training(mechanism, ledger.key, records, NoiseGenerator.PHILOX)
        steps = range(mechanism.steps)
        return [{rows[row] for unit in training.drawn(step) for row in training.rows(unit, step)} for step in steps]

    changed = 0
    for name in sorted(ledger.entities)[:5]:
        its = set(data.for_training(name))
        assert 4 <= len(its) <= 5
        for with_it, without in zip(drawn(Role.HELD_IN, name), drawn(Role.HELD_OUT, name), strict=True):
            assert without == with_it - its
            changed += len(with_it) - len(without)
    assert changed


def test_the_claim_is_that_of_the_entity_cap_or_of_the_most_exposed(corpus_file, tmp_path):
    def claims(name, **sections):
        config = config_of(corpus_file, **sections)
        data = prepare_data(config, tmp_path / name, SILENT)
        mechanism = mechanism_of(config, plain_steps=1)
        return mechanism, data, [str(claim.label) for claim in claims_on(mechanism, data)]

    plan, _, found = claims("caps", defense={"group_size": 8, "entity_cap": 5})
    assert found == [f"the accountant's curve (epsilon {plan.epsilon_at(5):.4g} at delta 0.001)"]
    plan, _, found = claims("both", defense={"group_size": 8, "entity_cap": 5}, split={"audited": "both"})
    assert found == [f"the accountant's curve (epsilon {plan.epsilon_at(8):.4g} at delta 0.001)"]
    plan, data, found = claims("curve", defense={"exposed": 2})
    most = max(len(data.ledger.parts[name][Part.TRAIN]) for name in data.ledger.entities)
    assert most > 5
    assert found == [f"the accountant's curve (epsilon {plan.epsilon_at(most):.4g} at delta 0.001)"]
    # An epsilon of users or of examples says nothing about whoever is named in several users' records.
    for kind in ("uls", "example"):
        source = {"kind": "words", "path": str(corpus_file.parent / WORDS)}
        uls = {"kind": kind, "population": 400, "cohort": 8, "steps": 4, "delta": 1e-3, "noise_multiplier": 1.0}
        config = config_of(corpus_file, split={"entities": source})
        content = config.model_dump(mode="json") | {"defense": uls}
        path = corpus_file.parent / "other.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        config = load_config(path)
        data = prepare_data(config, tmp_path / kind, SILENT)
        mechanism = mechanism_of(config, plain_steps=1)
        assert claims_on(mechanism, data) == []
        # The pool moves with anybody's records, and decides which records of others are in.
        reasons = [NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=[DataStepText.ENTITY_POOL()])] if kind == "uls" else []
        assert list(mechanism.reasons()) == reasons


@pytest.mark.parametrize(
    ("split", "defense", "steps", "by", "naming"),
    [
        (
            {"audited": "entities", "entities": None},
            None,
            [],
            "RunConfig._entities_are_known",
            ("split.audited", "'entities'", "split.entities"),
        ),
        ({"audited": "users"}, None, [], "SplitConfig._entities_are_audited", ("'entities'", "'both'")),
        (
            {"entities": {"kind": "patterns"}},
            {},
            [],
            "RunConfig._entities_are_known",
            ("split.entities", "defense.entities"),
        ),
        (
            {"entity_records": 6},
            {"group_size": 8, "entity_cap": 5},
            [],
            "RunConfig._entities_are_known",
            ("split.entity_records", "6", "defense.entity_cap", "5"),
        ),
        (
            {},
            {},
            [{"kind": "cap", "records": 3}],
            "RunConfig._entities_are_known",
            "data_defenses",
        ),
        (
            {"entities": {"kind": "gold", "path": "x"}},
            None,
            [],
            "RunConfig._gold_is_of_the_corpus",
            "split.entities",
        ),
        ({"audited": "people"}, None, [], "checked", "split.audited"),
        ({"entity_records": 0}, None, [], "checked", "split.entity_records"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(corpus_file, split, defense, steps, by, naming):
    with refused(by=by, naming=naming):
        config_of(corpus_file, split=split, defense=defense, data_defenses=steps)


def test_too_few_entities_and_a_user_of_an_entitys_name_are_refused(corpus_file, tmp_path):
    config = config_of(corpus_file, split={"entity_records": 40})
    with refused(by=pool_of_entities, naming=("40", "0", "2")):
        prepare_data(config, tmp_path / "none", SILENT)
    config = config_of(corpus_file, split={"audit_pool": 25})
    with refused(by=pool_of_entities, naming=("19", "25", "split.audit_pool")):
        prepare_data(config, tmp_path / "few", SILENT)
    lines = corpus_file.read_text(encoding="utf-8").replace("writer 00", "entity/eve holt")
    corpus_file.write_text(lines, encoding="utf-8")
    with refused(by=pool_of_entities, naming="'entity/eve holt'"):
        prepare_data(config_of(corpus_file), tmp_path / "clash", SILENT)
