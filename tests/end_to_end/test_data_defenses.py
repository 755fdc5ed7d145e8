"""Data-side defenses and early stopping in a run: what is trained on, what the plan declares, what the report says."""

import re

import pytest

from heldin.defenses.guarantee import Guarantee
from heldin.defenses.plan_file import read_plan
from heldin.finetune.batches import encode
from heldin.record.document import read_record
from heldin.stages.run_config import load_config
from heldin.stages.train.plan import mechanism_of
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import Assumption, NoGuaranteeReason
from tests.refusals import names
from tests.statements import states


@pytest.fixture
def config(small_with):
    return small_with


@pytest.mark.slow
def test_a_run_with_copies_out_and_a_cap_trains_on_what_is_left(call, config, tmp_path):
    canaries = [{"kind": "rare_phrase", "users": 10, "documents": [6]}]
    defenses = [
        {"kind": "deduplicate", "threshold": 0.6, "ngram": 2},
        {"kind": "cap", "records": 4, "selection": "longest"},
    ]
    code, _, err = call("run", config(data_defenses=defenses, canaries=canaries), "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    removals = record.training.removals
    assert names(str(removals[0].name), "2-gram", "0.6")
    assert names(str(removals[1].name), "4", "longest")
    assert record.training.records == removals[1].before - removals[1].removed <= 4 * record.training.users
    assert removals[1].before == removals[0].before - removals[0].removed
    steps = {s.name: s for s in read_plan(tmp_path / "run" / "plan.json").data_steps}
    assert all(s.user_local for s in steps.values()) or not steps
    # A canary user's texts are counted after the cap.
    facts = record.canaries
    assert facts.held_in > 0
    assert (facts.training_texts, facts.trained_on) == (6 * facts.held_in, 4 * facts.held_in)
    code, out, _ = call("verify", tmp_path / "run")
    assert code == 0, out


@pytest.mark.parametrize(("scope", "holds"), [("user", True), ("corpus", False)])
def test_copies_across_users_void_a_user_level_epsilon(config, scope, holds):
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
    promise = mechanism_of(load_config(path), plain_steps=1).guarantee()
    assert isinstance(promise, Guarantee) == holds
    if not holds:
        step = DataStepText.DEDUPLICATED_CORPUS(alike=DataStepText.EQUAL())
        assert promise.reasons == (NoGuaranteeReason.LOOKS_ACROSS_USERS(steps=[step]),)


@pytest.mark.slow
def test_training_stops_early_and_resumes_as_stopped(call, config, tmp_path):
    # A rate at which no weight moves: whoever is held in, the second loss is no better than the first.
    path = config(finetune={"learning_rate": 1e-30, "patience": 1, "evaluations": 6, "epochs": 4})
    code, _, err = call("run", path, "--out", tmp_path / "run")
    assert code == 0, err
    record = read_record(tmp_path / "run" / "record.json")
    losses = [p.held_in_loss for p in record.training.curve]
    assert len(losses) == 2
    assert losses[0] == losses[1]
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
        "heldin.finetune.batches.encode",
        lambda tokenizer, documents, length, done, truncation: (
            given.extend(document.text for document in documents) or encode(tokenizer, documents, length, done)
        ),
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


def test_a_check_asks_the_source_of_names_for_everything(call, config, tmp_path):
    people = tmp_path / "names.txt"
    people.write_text("\n", encoding="utf-8")
    for entities, named in [
        ({"kind": "words", "path": str(people)}, f"'{people}'"),
        ({"kind": "words", "path": str(tmp_path / "none.txt")}, f"'{tmp_path / 'none.txt'}'"),
        ({"kind": "spacy", "pipeline": "nowhere"}, "'nowhere'"),
        ({"kind": "gold", "path": str(people)}, "'iob'"),
    ]:
        path = config(data_defenses=[{"kind": "deidentify", "entities": entities}])
        call("run", path, "--out", tmp_path / "run", "--check")
        assert call.refused(naming=("data_defenses", named))


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
    assert states(promise.statement, Assumption.DEIDENTIFIER_UNSEEN) == assumes
