"""Earlier releases about the same people: what a run's config names, what its record keeps, and the base model."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import heldin
from heldin.defenses.plan_file import PLAN, write_plan
from heldin.jobs.check.check_run import check_run
from heldin.record.facts import EarlierReleases
from heldin.stages.run_config import parse_config
from heldin.stages.train.plan import mechanism_of
from heldin.stages.train.previous import KEPT, earlier_facts, keep_previous, require_previous
from tests.conftest import SMALL
from tests.made_mechanisms import example, uls
from tests.refusals import lacks, names, refused

DEFENSE = {"kind": "uls", "population": 20, "cohort": 5, "steps": 10, "delta": 1e-3, "noise_multiplier": 2.0}


def config_of(previous=None, base=None, **defense):
    content = json.loads(json.dumps(SMALL))
    content["corpus"]["users"] = {"min_records": 8, "fraction": 0.5}
    content["finetune"] = {"learning_rate": 1e-3, "sequence_length": 48, "evaluations": 1, "select": "last"}
    if base is not None:
        content["model"] = {"base": str(base)}
    named = {} if previous is None else {"previous": previous}
    return parse_config({**content, "defense": {**DEFENSE, **defense}, **named}, "test")


def mechanism_in(config):
    return mechanism_of(config, plain_steps=1, clip_norm=1.0)


def facts_of(config, out):
    keep_previous(config, out, lambda line: None)
    return earlier_facts(config, mechanism_in(config), out)


def write_release(folder, *, weights=0.0, mechanism=None):
    """Write what heldin export writes that counts here: a plan, and weights."""
    folder.mkdir(parents=True)
    write_plan(mechanism or uls(), folder / PLAN)
    save_file({"weight": np.full(3, weights, dtype=np.float32)}, folder / "model.safetensors")
    return folder


def test_whether_there_are_earlier_releases_is_not_stated_or_stated(tmp_path):
    assert facts_of(config_of(), tmp_path) is None
    assert facts_of(config_of([]), tmp_path) == EarlierReleases(plans=[], epsilon=None, together=None)
    assert not (tmp_path / KEPT).exists()


def test_all_releases_together_have_the_epsilon_that_compose_gives(tmp_path):
    week = write_release(tmp_path / "week")
    config = config_of([{"plan": str(week), "times": 12}, str(week / PLAN)])
    facts = facts_of(config, tmp_path)
    together = heldin.compose([week, mechanism_in(config)], delta=1e-3, times=[13, 1])
    assert facts.epsilon == pytest.approx(together.epsilon, rel=1e-9)
    assert [plan.times for plan in facts.plans] == [12, 1]
    assert facts.releases == 13
    assert facts.plans[0].epsilon == uls().guarantee().epsilon
    # More than this training alone, or the earlier ones would not count.
    assert facts.epsilon > mechanism_in(config).guarantee().epsilon


def test_releases_of_another_unit_have_no_epsilon_together(tmp_path):
    write_release(tmp_path / "week", mechanism=example())
    facts = facts_of(config_of([str(tmp_path / "week")]), tmp_path)
    assert (facts.epsilon, facts.together) == (None, None)
    assert facts.plans[0].unit == "example"


def test_a_release_without_a_guarantee_leaves_no_epsilon(tmp_path):
    write_release(tmp_path / "week", mechanism=uls(noise_multiplier=0.0))
    facts = facts_of(config_of([str(tmp_path / "week")]), tmp_path)
    assert (facts.plans[0].epsilon, facts.plans[0].delta, facts.epsilon) == (None, None, None)


def test_the_run_keeps_the_plans_when_their_folders_are_gone(tmp_path):
    week = write_release(tmp_path / "week")
    config = config_of([str(week)])
    first = facts_of(config, tmp_path)
    shutil.rmtree(week)
    assert facts_of(config, tmp_path) == first
    require_previous(config, tmp_path)


def test_a_changed_copy_is_refused(tmp_path):
    config = config_of([str(write_release(tmp_path / "week"))])
    facts_of(config, tmp_path)
    kept = tmp_path / KEPT
    kept.write_text(kept.read_text(encoding="utf-8").replace('"steps": 1000', '"steps": 10'), encoding="utf-8")
    with refused(by="read_document", naming=f"'{kept}'"):
        earlier_facts(config, mechanism_in(config), tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_plan_that_is_not_there_is_a_problem_of_the_check(tmp_path, name):
    (tmp_path / "empty").mkdir()
    checked = check_run(config_of([str(tmp_path / name)]), tmp_path / "run", costs=False)
    assert [problem for problem in checked.problems if str(tmp_path / name) in problem]


def test_a_check_says_what_all_releases_promise_together(tmp_path):
    def stated(config):
        return check_run(config, tmp_path / "run", costs=False).would["earlier"]

    week, alone = str(write_release(tmp_path / "week")), config_of()
    together = heldin.compose([week, mechanism_in(alone)], delta=1e-3)
    assert names(stated(config_of([week])), f"{together.epsilon:.4g}", 2)
    # Each of the others says something else, and no epsilon.
    others = [stated(alone), stated(config_of([])), stated(config_of([week], kind="example"))]
    assert len(set(others)) == 3
    assert all(lacks(line, f"{together.epsilon:.4g}") for line in others)
    assert names(others[2], week)


def test_a_base_model_with_a_plan_of_its_own_needs_previous(tmp_path):
    """A careless user goes on from last week's model and says nothing."""
    week = write_release(tmp_path / "week")
    with refused(by="require_previous", naming=f"'{week / PLAN}'"):
        require_previous(config_of(base=week), tmp_path / "run")
    require_previous(config_of([], base=week), tmp_path / "run")  # it was trained on other people
    require_previous(config_of(base=week, base_model_saw_protected=True), tmp_path / "run")


def test_the_model_of_a_run_folder_has_the_plan_of_the_run(tmp_path):
    run = write_release(tmp_path / "week")
    final = run / "checkpoints" / "final"
    final.mkdir(parents=True)
    (run / "model.safetensors").rename(final / "model.safetensors")
    with refused(by="require_previous", naming=f"'{run / PLAN}'"):
        require_previous(config_of(base=final), tmp_path / "run")
    with refused(by="require_previous", naming=f"'{run}'"):
        require_previous(config_of([str(run)], base=final), tmp_path / "run")


def test_a_base_model_that_is_one_of_the_earlier_releases_saw_the_people(tmp_path):
    """By its weights: a copy in another folder is the same model."""
    week, other = write_release(tmp_path / "week"), write_release(tmp_path / "other", weights=1.0)
    copied = shutil.copytree(week, tmp_path / "elsewhere")
    (copied / PLAN).unlink()
    for base in (week, copied):
        with refused(by="require_previous", naming=f"'{base}'"):
            require_previous(config_of([str(week)], base=base), tmp_path / "run")
        require_previous(config_of([str(week)], base=base, base_model_saw_protected=True), tmp_path / "run")
    require_previous(config_of([str(week)], base=other), tmp_path / "run")


def test_a_training_that_begins_with_an_earlier_release_adds_to_its_epsilon(tmp_path):
    """Such as preference tuning after a private fine-tuning on the same people."""
    week, other = write_release(tmp_path / "week"), write_release(tmp_path / "other", weights=1.0)
    config = config_of([str(week)], base=week, base_model_saw_protected=True)
    facts = facts_of(config, tmp_path)
    # Alone it guarantees nothing; together both have what two releases have.
    assert not hasattr(mechanism_in(config).guarantee(), "epsilon")
    together = heldin.compose([week, mechanism_in(config_of([str(week)]))], delta=1e-3)
    assert facts.epsilon == pytest.approx(together.epsilon, rel=1e-9)
    assert facts.epsilon > mechanism_in(config_of([str(week)])).guarantee().epsilon
    # The folder may be gone when the record is checked.
    shutil.rmtree(week)
    assert earlier_facts(config, mechanism_in(config), tmp_path) == facts
    # A base that is none of the releases that are named saw whatever it saw.
    unknown = config_of(
        [str(other)], base=write_release(tmp_path / "third", weights=2.0), base_model_saw_protected=True
    )
    assert facts_of(unknown, tmp_path / "run").epsilon is None


@pytest.mark.parametrize("case", ["one shard", "no weights in the release", "another tokenizer", "an adapter"])
def test_a_base_that_shares_a_part_with_a_release_is_not_the_release(tmp_path, case):
    """A shard that nobody trained, or an adapter on any base, is in models of other people's texts too."""
    week = write_release(tmp_path / "week")
    base = shutil.copytree(week, tmp_path / "base")
    if case == "one shard":
        save_file({"other": np.ones(2, dtype=np.float32)}, base / "model-2.safetensors")
    elif case == "no weights in the release":
        (week / "model.safetensors").unlink()
    elif case == "another tokenizer":
        (base / "tokenizer.json").write_text("{}", encoding="utf-8")
    else:
        (base / "adapter_config.json").write_text("{}", encoding="utf-8")
    facts = facts_of(config_of([str(week)], base=base, base_model_saw_protected=True), tmp_path / "run")
    assert (facts.epsilon, facts.together) == (None, None)
