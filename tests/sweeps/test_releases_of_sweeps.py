"""``heldin account compose`` and ``heldin.compose``: plans, folders and sweeps, as a person gives them."""

import json

import pytest
from typer.testing import CliRunner

import heldin
from heldin.base.errors import InputError
from heldin.commands.cli import app
from heldin.defenses.plan_file import write_plan
from heldin.sweeps.cell_plan import placed_cells, take_sweep, tuning_cells
from heldin.sweeps.comparison import composed
from heldin.sweeps.load import load_sweep
from heldin.words.guarantee import ReleasesText
from tests.made_mechanisms import example, shuffled, uls
from tests.refusals import names
from tests.tiny_sweeps import ULS, USERS, written

LOUD = {**ULS, "noise_multiplier": 2.0}


@pytest.fixture
def plans(tmp_path):
    made = {
        "week": uls(steps=40),
        "month": uls(steps=60, noise_multiplier=1.5),
        "records": example(),
        "cut": shuffled(),
    }
    for name, mechanism in made.items():
        (tmp_path / name).mkdir()
        write_plan(mechanism, tmp_path / name / "plan.json")
    return tmp_path


def call(*words):
    return CliRunner().invoke(app, ["account", "compose", *map(str, words)])


def stated(*words):
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_files_folders_and_mechanisms_give_the_same_number(plans):
    told = stated(plans / "week", plans / "month" / "plan.json", "--times", "52,12")
    found = heldin.compose([uls(steps=40), plans / "month"], times=[52, 12])
    assert (told["releases"], told["epsilon"]) == (64, found.epsilon)
    assert [(its["times"], its["delta"]) for its in told["own"]] == [(52, 1e-6), (12, 1e-6)]
    many = stated(*[plans / "week"] * 3)
    assert many["epsilon"] == stated(plans / "week", "--times", "3")["epsilon"]
    assert many["releases"] == 3


def test_the_table_names_every_plan_and_its_condition(plans):
    done = call(plans / "week", "--times", "52")
    assert done.exit_code == 0
    assert names(done.stdout, 52, plans / "week", str(ReleasesText.FIXED_BEFOREHAND()))
    assert heldin.compose([plans / "week"], times=[52]).heading() in done.stdout
    rows = call(plans / "week", "--times", "52", "--csv").stdout.splitlines()
    assert len(rows) == 2


def test_refusals_are_one_line_and_name_the_plan(plans):
    damaged = plans / "damaged.json"
    text = (plans / "week" / "plan.json").read_text()
    damaged.write_text(text.replace('"steps": 40', '"steps": 39'))
    (plans / "other.json").write_text("{}")
    (plans / "empty").mkdir()
    for words, said in (
        ((plans / "week", plans / "records"), "records"),
        ((plans / "week", plans / "cut"), "cut"),
        ((plans / "week", damaged), "damaged.json"),
        ((plans / "week", plans / "other.json"), "other.json"),
        ((plans / "empty",), "empty"),
        ((plans / "absent",), "absent"),
        ((), ""),
        ((plans / "week", "--times", "0"), "0"),
        ((plans / "week", "--times", "1.5"), "--times"),
        ((plans / "week", "--times", "2,3"), "2"),
        ((plans / "week", "--steps", "5"), "--steps"),
        ((plans / "week", "--delta", "units^-1.1"), "--delta"),
        ((plans / "week", "--delta", "2"), "delta"),
    ):
        done = call(*words)
        assert isinstance(done.exception, InputError), (words, done.output)
        message = str(done.exception)
        assert said in message, (said, message)
        assert "\n" not in message
    alone = CliRunner().invoke(app, ["account", "uls", str(plans / "week")])
    assert isinstance(alone.exception, InputError)
    assert names(str(alone.exception), plans / "week", "uls")


def test_a_sweep_counts_every_cell_as_its_own_report_does(tmp_path):
    shadow = {**USERS, "defense": LOUD, "attack": {"shadow_models": 2}}
    sweep = load_sweep(written(tmp_path, variants={"uls": {**USERS, "defense": ULS}, "loud": shadow}, blocks=5))
    take_sweep(sweep, tmp_path / "out")
    told = stated(tmp_path / "out")
    joint = composed([*placed_cells(sweep, tmp_path / "out"), *tuning_cells(sweep, tmp_path / "out")])
    assert (told["releases"], told["epsilon"], told["delta"]) == (joint.private, joint.epsilon, joint.delta)
    assert told["releases"] == 5 * (1 + 3)
    assert stated(tmp_path / "out", "--times", "2")["releases"] == 40


def test_the_cells_that_tuned_a_sweep_count(tmp_path):
    public = {"corpus": {**USERS["corpus"], "public_validation": {"min_records": 4}}, "finetune": {"select": "last"}}
    content = {"tune": {"over": {"uls": {"defense.group_size": [1, 2]}}}}
    sweep = load_sweep(written(tmp_path, variants={"uls": {**public, "defense": ULS}}, blocks=5, **content))
    out = tmp_path / "out"
    take_sweep(sweep.tuning, out / "tuning")
    take_sweep(sweep, out)
    told = stated(out)
    joint = composed([*placed_cells(sweep, out), *tuning_cells(sweep, out)])
    assert (told["releases"], told["epsilon"]) == (joint.private, joint.epsilon)
    assert told["releases"] > 5
