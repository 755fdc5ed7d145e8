"""Data-side defenses and early stopping in a run: what is trained on, what the plan declares, what the report says."""

import json
import re

import pytest
import yaml

from heldin.defenses.guarantee import Guarantee
from heldin.defenses.plan_file import read_plan
from heldin.finetune.batches import encode
from heldin.jobs.config import load_config
from heldin.jobs.run.plan import mechanism_of
from heldin.record.document import read_record
from tests.conftest import SMALL
from tests.pdf_pages import text_of


@pytest.fixture
def config(tmp_path):
    def write(**sections):
        content = json.loads(json.dumps(SMALL))
        content["corpus"]["users"] = {"min_records": 8, "fraction": 0.5}
        for name, its in sections.items():
            content[name] = {**content.get(name, {}), **its} if isinstance(its, dict) else its
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write


def test_a_run_with_copies_out_and_a_cap_trains_on_what_is_left(call, config, tmp_path):
    defenses = [
        {"kind": "deduplicate", "threshold": 0.6, "ngram": 2},
        {"kind": "cap", "records": 4, "selection": "longest"},
    ]
    code, _, err = call("run", config(data_defenses=defenses), "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    removals = record.training.removals
    assert [r.name for r in removals] == [
        "deduplication within users (2-gram similarity from 0.6 on)",
        "cap of 4 records a user (longest)",
    ]
    assert record.training.records == removals[1].before - removals[1].removed <= 4 * record.training.users
    assert removals[1].before == removals[0].before - removals[0].removed
    steps = {s.name: s for s in read_plan(tmp_path / "run" / "plan.json").data_steps}
    assert all(s.user_local for s in steps.values()) or not steps
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out


def test_canary_users_texts_are_counted_after_the_cap(call, config, tmp_path):
    canaries = [{"kind": "rare_phrase", "users": 10, "documents": [6]}]
    cap = [{"kind": "cap", "records": 2}]
    code, _, err = call("run", config(data_defenses=cap, canaries=canaries), "--out", tmp_path / "run")
    assert code == 0, err
    facts = read_record(tmp_path / "run" / "record.json").canaries
    assert facts.held_in > 0
    assert (facts.training_texts, facts.trained_on) == (6 * facts.held_in, 2 * facts.held_in)


@pytest.mark.parametrize(("scope", "holds"), [("user", True), ("corpus", False)])
def test_copies_across_users_void_a_user_level_epsilon(call, config, tmp_path, scope, holds):
    defense = {
        "kind": "uls",
        "population": 20,
        "cohort": 5,
        "steps": 4,
        "delta": 1e-3,
        "target_epsilon": 6,
        "group_size": 2,
    }
    path = config(data_defenses=[{"kind": "deduplicate", "scope": scope}], defense=defense, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    label = read_record(tmp_path / "run" / "record.json").training.guarantee
    assert label.startswith("epsilon") == holds
    if not holds:
        assert "preprocessing is not user-local (deduplication across users (equal texts))" in label


def test_training_stops_early_and_resumes_as_stopped(call, config, tmp_path):
    path = config(finetune={"learning_rate": 3.0, "patience": 1, "evaluations": 6, "epochs": 4})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    losses = [p.held_in_loss for p in record.training.curve]
    assert len(losses) < 6
    assert losses[-1] >= min(losses[:-1])
    assert record.training.chosen_step == record.training.curve[losses.index(min(losses))].step
    (tmp_path / "run" / "record.json").unlink()
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    assert read_record(tmp_path / "run" / "record.json").training.curve == record.training.curve


def test_a_de_identified_run_trains_on_no_listed_name(call, config, tmp_path, monkeypatch):
    """Every common word is listed, so that what the trainer was given shows whether anything of it was left."""
    names = tmp_path / "names.txt"
    names.write_text("the\nto\tmisc\nand\n", encoding="utf-8")
    given = []
    monkeypatch.setattr(
        "heldin.jobs.run.training.encode",
        lambda tokenizer, texts, length: given.extend(texts) or encode(tokenizer, texts, length),
    )
    step = {"kind": "deidentify", "entities": {"kind": "words", "path": str(names)}}
    path = config(data_defenses=[step])
    code, out, err = call("run", path, "--out", tmp_path / "run", "--check")
    assert code == 0, err
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    (removal,) = record.training.removals
    assert removal.removed == 0
    assert removal.changed > 0.3 * removal.before == 0.3 * record.training.records
    assert given
    assert not any(re.search(r"\b(the|to|and)\b", text, re.IGNORECASE) for text in given)
    assert any("[PERSON]" in text for text in given)
    assert any("[MISC]" in text for text in given)
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out
    names.write_text("nobody at all\n", encoding="utf-8")
    code, out, _ = call("verify", tmp_path / "run")
    assert code != 0
    assert "training.removals[0].changed" in out


TEXT_SAMPLING = {
    "kind": "user_entity",
    "population": 300,
    "cohort": 60,
    "steps": 6,
    "delta": 1e-3,
    "target_epsilon": 6,
}


def test_a_text_sampled_run_states_the_curve_and_who_is_exposed(call, config, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("report\nmeeting\nmarket\nthe\n", encoding="utf-8")
    caps = {"group_size": 4, "entity_cap": 6, "entities": {"kind": "words", "path": str(names)}}
    path = config(defense={**TEXT_SAMPLING, **caps}, finetune={"select": "last"})
    code, out, err = call("run", path, "--out", tmp_path / "run", "--check")
    assert code == 0, err
    assert "epsilon 6, delta 0.001 for a user and a recognised entity together" in out
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    assert training.removals[0].name == "caps of 4 records a user and 6 an entity"
    assert training.removals[0].removed > 0
    assert "was not made from protected users' texts" in training.guarantee
    assert (training.by_exposure.group_size, training.by_exposure.entity_cap) == (4, 6)
    reached = {its.exposed: its for its in training.exposed}
    assert reached[4].users <= reached[10].users == reached[10].entities == reached[6].entities == 1.0
    assert training.epsilon == reached[10].epsilon
    # The claim about users is at epsilon(G), and the ceiling with it.
    (verdict,) = read_record(tmp_path / "run" / "record.json").judgement.verdicts
    assert f"epsilon {reached[4].epsilon:.4g}" in verdict.claim
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out
    text = text_of(tmp_path / "run" / "report.pdf")
    assert "What is promised to whom, at delta 0.001" in text
    assert "users with at most that many" in text
    code, _, err = call("export", tmp_path / "run", "--to", tmp_path / "public")
    assert code == 0, err
    card = (tmp_path / "public" / "README.md").read_text(encoding="utf-8")
    assert f"| 10 | {training.epsilon:.4g} |" in card
    assert "share" not in card
    assert "shares" not in (tmp_path / "public" / "plan.json").read_text(encoding="utf-8")
    code, out, _ = call("compare", tmp_path / "run", tmp_path / "run")
    assert "6 per user and entity" in out
    code, out, _ = call("account", "plan", tmp_path / "run" / "plan.json")
    assert code == 0
    assert "0.001 for a user and a recognised entity together" in out
    # Who is named decides what is trained on: another list gives another run.
    names.write_text("nobody at all\n", encoding="utf-8")
    code, out, err = call("verify", tmp_path / "run")
    assert code != 0
    assert "training.re" in out + err


def test_an_entity_in_every_record_is_told_its_epsilon(call, config, tmp_path):
    """Without caps; the curve of the record goes on until everybody is below it."""
    names = tmp_path / "names.txt"
    names.write_text("the\nmarket\n", encoding="utf-8")
    its = {"entities": {"kind": "words", "path": str(names)}}
    path = config(defense={**TEXT_SAMPLING, **its, "exposed": 3}, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    training = read_record(tmp_path / "run" / "record.json").training
    assert training.removals == []
    last = training.exposed[-1]
    assert last.exposed >= 0.5 * training.records > 64
    assert last.entities == last.users == 1.0
    assert training.exposed[-2].entities < 1.0
    assert last.epsilon > training.by_exposure.curve[-1].epsilon
    assert training.guarantee.startswith("epsilon ")
    assert "adjacency after preprocessing (minimum number of records, set-asides)" in training.guarantee
    assert training.ceiling is None
    code, out, _ = call("compare", tmp_path / "run", tmp_path / "run")
    assert "6 per person of 3 records" in out


@pytest.mark.parametrize(
    ("defense", "steps", "said"),
    [
        ({"record_selection": "random_chunk"}, [], "unknown key"),
        ({"group_size": 4}, [], "group_size and entity_cap go together"),
        ({"group_size": 4, "entity_cap": 2}, [], "entity_cap needs 'entities'"),
        (
            {"group_size": 4, "entity_cap": 2, "exposed": 3, "entities": {"kind": "patterns"}},
            [],
            "exposed goes without caps",
        ),
        ({"noise_multiplier": 1.0}, [], "give exactly one of 'target_epsilon' and 'noise_multiplier'"),
        ({}, [{"kind": "deduplicate"}], "deduplication within users (equal texts) compares texts"),
        (
            {},
            [{"kind": "cap", "records": 2, "selection": "longest"}],
            "cap of 2 records a user (longest) compares texts",
        ),
        (
            {"entities": {"kind": "gold", "path": "x"}},
            [],
            "defense.entities: gold columns are for a corpus of kind 'iob'",
        ),
    ],
)
def test_by_exposure_refuses_what_has_no_epsilon(call, config, tmp_path, defense, steps, said):
    path = config(defense={**TEXT_SAMPLING, **defense}, data_defenses=steps, finetune={"select": "last"})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert (code, said in err) == (2, True), err
    assert not (tmp_path / "run").exists()


def test_a_check_asks_the_source_of_names_for_everything(call, config, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n", encoding="utf-8")
    for entities, said in [
        ({"kind": "words", "path": str(names)}, "holds no name"),
        ({"kind": "words", "path": str(tmp_path / "none.txt")}, "no such file"),
        ({"kind": "spacy", "pipeline": "nowhere"}, "no spaCy pipeline 'nowhere'"),
        ({"kind": "gold", "path": str(names)}, "gold columns are for a corpus of kind 'iob'"),
    ]:
        path = config(data_defenses=[{"kind": "deidentify", "entities": entities}])
        code, _, err = call("run", path, "--out", tmp_path / "run", "--check")
        assert (code, said in err) == (2, True), (said, err)


@pytest.mark.parametrize(
    ("entities", "assumes"), [({"kind": "words", "path": "names.txt"}, True), ({"kind": "patterns"}, False)]
)
def test_a_guarantee_says_that_it_takes_the_list_of_names_for_public(config, entities, assumes):
    """A list made of the users' own names lets one user change the texts of others; a pattern knows nobody."""
    defense = {"kind": "uls", "population": 20, "cohort": 5, "steps": 4, "delta": 1e-3, "noise_multiplier": 2.0}
    step = {"kind": "deidentify", "entities": entities}
    path = config(data_defenses=[step], defense=defense, finetune={"select": "last"})
    promise = mechanism_of(load_config(path), plain_steps=1).guarantee()
    assert isinstance(promise, Guarantee)
    assert ("not made from protected users' names" in promise.label) == assumes
