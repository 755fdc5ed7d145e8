"""A plan held against its data: the numbers by hand, who is warned, and what a wrong population does to a guarantee."""

import json

import datasets
import numpy as np
import pytest
import yaml

from heldin.base.coins import seed_key
from heldin.base.progress import LineReporter
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.split import Part, Role
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.plan_file import read_plan
from heldin.defenses.samplers import Draws, PoissonSampler
from heldin.jobs.check.check_run import check_run
from heldin.jobs.retraining.engine import audit_trainings
from heldin.jobs.retraining.job import TrainingsAudit
from heldin.jobs.retraining.runs import Training
from heldin.jobs.run import run
from heldin.record.document import read_record
from heldin.record.plan_fit import PlanFit, differences_of, figures_of, warnings_of
from heldin.reports.findings import warn
from heldin.reports.record_report import list_facts
from heldin.stages.run_config import parse_config
from heldin.stages.sides.data import prepare_data
from heldin.stages.train.plan import mechanism_of, plan_fit
from heldin.words.guarantee import DeltaText, PlanFitText, PromiseCaution
from tests.conftest import SMALL, TRIAL
from tests.refusals import lacks, names, refused
from tests.statements import values_of

FINETUNE = {"learning_rate": 1e-3, "sequence_length": 48, "evaluations": 1, "select": "last"}
QUIET = LineReporter(lambda line: None)
COUNTS = np.repeat([1, 2, 3, 10, 20, 40], 10)
ULS = {
    "kind": "uls",
    "population": 60,
    "cohort": 6,
    "steps": 5,
    "delta": 1e-3,
    "noise_multiplier": 1.0,
    "group_size": 4,
}
WITHOUT_GROUPS = {key: value for key, value in ULS.items() if key != "group_size"}


def config_of(defense, **changes):
    content = json.loads(json.dumps({**SMALL, **changes}))
    content["corpus"]["users"] = {"min_records": 8, "fraction": 0.5}
    content["finetune"] = FINETUNE
    return parse_config({**content, "defense": defense}, "test")


def fit_of(defense, counts=COUNTS, **options):
    config = config_of(defense)
    return plan_fit(config, mechanism_of(config, plain_steps=1, clip_norm=1.0), counts, **options)


@pytest.mark.parametrize(
    ("defense", "units", "planned", "gradients", "short"),
    [
        # A tenth of 60 users, half of whom have fewer than four records: six times (1 + 2 + 3 + 4 + 4 + 4) / 6.
        (ULS, 60, 24.0, 18.0, 30),
        ({**ULS, "record_selection": "all"}, 60, None, None, None),
        ({**ULS, "record_selection": "random_chunk"}, 60, 24.0, 24.0, None),
        ({**ULS, "local": {"learning_rate": 0.1, "epochs": 3}}, 60, 72.0, 54.0, 30),
        ({**ULS, "kind": "els"}, 180, 6.0, 18.0, 30),
        ({**ULS, "kind": "group"}, 240, 6.0, 24.0, 30),
        ({**WITHOUT_GROUPS, "kind": "example"}, 760, 6.0, 76.0, None),
    ],
    ids=["uls", "all records", "chunks", "local", "els", "group", "example"],
)
def test_the_numbers_of_a_plan_and_of_its_data_by_hand(defense, units, planned, gradients, short):
    fit = fit_of(defense)
    assert (fit.population, fit.units, fit.users) == (60, units, 60)
    assert (fit.planned, fit.gradients, fit.short) == (planned, gradients, short)
    # Half of everybody, by coin.
    half = fit_of(defense, present=np.full(COUNTS.size, 0.5))
    assert (half.units, half.users) == (units / 2, 30)
    assert fit_of({"kind": "none"}) is None
    # No number about fewer than ten people.
    assert fit_of(defense, COUNTS[::4]).short is None


@pytest.mark.parametrize(("units", "warned"), [(81, False), (80, True), (119, False), (120, True), (100, False)])
def test_from_a_fifth_on_a_plan_does_not_fit(units, warned):
    fit = PlanFit(
        unit="users",
        population=100,
        units=units,
        planned=40.0,
        gradients=40.0,
        group_size=4,
        users=units,
        short=units,
        protected=units,
    )
    assert [w.states(PlanFitText.MISFIT) for w in warnings_of(fit, None)] == [True] * warned
    # Short users are always stated, and warned of only where numbers differ: a group size is a limit.
    assert any(figure.states(PlanFitText.SHORT) for figure in figures_of(fit))
    assert len(differences_of(fit)) == 2 * warned


@pytest.mark.parametrize("units", [20, 180], ids=["fewer than stated", "more than stated"])
def test_under_poisson_coins_epsilon_is_right_whatever_population_is_stated(units):
    """Epsilon is that of the rate; and everybody is drawn at that rate, however many there are."""
    mechanism = mechanism_of(config_of({**ULS, "steps": 400}), plain_steps=1)
    assert isinstance(mechanism.sampler, PoissonSampler)
    assert mechanism.assumed_event.rate == mechanism.sampler.rate == 0.1
    everybody = [f"user {i}" for i in range(units)]
    draws = Draws(mechanism.sampler, seed_key(5), everybody, 400)
    drawn = sum(len(draws.at(step)) for step in range(400))
    expected, spread = 40 * units, (400 * units * 0.09) ** 0.5
    assert abs(drawn - expected) < 5 * spread
    # At the rate that the users who are there would give, it would not be.
    assert abs(drawn - 400 * 6) > 50 * spread / units**0.5


@pytest.mark.parametrize(
    ("defense", "code", "number"),
    [
        ({"kind": "uls", "population": 60}, DeltaText.OVER_UNITS, 60),
        ({"kind": "example", "population": 900, "group_size": None}, DeltaText.OVER_UNITS, 900),
        ({"kind": "els", "population": 240, "protected_users": 60}, DeltaText.OVER_UNITS, 60),
        ({"population": 60, "delta": "examples^-1.1", "examples": 7000}, DeltaText.OVER_EXAMPLES, 7000),
    ],
    ids=["uls", "example", "els", "examples"],
)
def test_delta_follows_from_public_numbers_of_the_config_alone(defense, code, number):
    stated = {key: value for key, value in {**ULS, "delta": None, **defense}.items() if value is not None}
    mechanism = mechanism_of(config_of(stated), plain_steps=1)
    assert mechanism.delta == pytest.approx(number**-1.1)
    # In plan and record as a code and a number, printed with the guarantee.
    assert values_of(mechanism.guarantee().statement, code) == {"number": number}
    assert mechanism == type(mechanism).model_validate(mechanism.model_dump())
    # Another number of steps of a plain run, which follows from the data, changes nothing.
    assert mechanism_of(config_of(stated), plain_steps=500) == mechanism


@pytest.mark.parametrize(
    ("defense", "naming"),
    [
        ({"kind": "els"}, "protected_users"),
        ({"delta": "examples^-1.1"}, "examples"),
        ({"delta": 1e-3, "examples": 7000}, "examples"),
        ({"delta": "users^-1.1"}, "delta"),
    ],
)
def test_a_delta_without_its_public_number_is_refused(defense, naming):
    plain = {key: value for key, value in ULS.items() if key != "delta"}
    with refused(naming=naming):
        config_of({**plain, **defense})


def test_a_population_that_is_stated_too_small_does_not_hide_a_delta_that_is_too_large():
    """delta 1e-3 is below 1 / 60, and allows everything about each of 5,000 users to be published with that chance."""
    config = config_of(ULS)
    promise = mechanism_of(config, plain_steps=1).guarantee()
    assert isinstance(promise, Guarantee)
    assert promise.cautions == ()
    many = fit_of(ULS, np.full(5000, 9))
    (_, large) = warnings_of(many, promise.delta)
    assert large.states(PromiseCaution.LARGE_DELTA)
    assert large.values["units"] == 5000
    assert not any(w.states(PromiseCaution.LARGE_DELTA) for w in warnings_of(fit_of(ULS), promise.delta))
    # At the example level it is records that are protected.
    assert fit_of({**WITHOUT_GROUPS, "kind": "example"}).protected == 760


@pytest.fixture(scope="module")
def misfit(make_once):
    """A run whose plan is that of another corpus: ten times the users."""

    def build(folder):
        config = config_of({**ULS, "population": 300, "cohort": 60})
        lines = []
        run(config, folder / "run", LineReporter(lines.append), command="heldin run")
        (folder / "log").write_text("\n".join(lines), encoding="utf-8")

    return make_once("misfit", build)


def test_a_population_of_another_corpus_is_in_log_record_and_report(misfit, call):
    record = read_record(misfit / "run" / "record.json")
    fit, training = record.training.fit, record.training
    assert (fit.population, fit.units, fit.users) == (300, training.users, training.users)
    assert (fit.planned, fit.gradients) == (240.0, round(training.gradients / training.steps, 1))
    assert fit.gradients < 0.2 * fit.planned
    (said,) = [line for line in warn(record) if names(line, "300", f"{fit.units}", f"{fit.gradients:,.0f}", "240")]
    assert said
    assert names(dict(list_facts(record).pairs)["plan and data"], "300", f"{fit.units}")
    # Before the first step, and not after hours of training.
    log = (misfit / "log").read_text(encoding="utf-8").splitlines()
    (warned,) = [i for i, line in enumerate(log) if line.startswith("warning: ")]
    assert names(log[warned], "300", f"{fit.units}")
    assert warned < next(i for i, line in enumerate(log) if line.startswith("fine-tuning"))
    # Epsilon is that of the plan all the same.
    assert training.epsilon == pytest.approx(read_plan(misfit / "run" / "plan.json").epsilon())
    code, out, err = call("verify", misfit / "run")
    assert code == 0, out + err


def test_a_plan_that_fits_is_not_warned_of(make_once):
    def build(folder):
        run(config_of({**ULS, "population": 15, "cohort": 5}), folder / "run", QUIET, command="heldin run")

    record = read_record(make_once("fitting plan", build) / "run" / "record.json")
    fit = record.training.fit
    expected = [abs(fit.units - 15) >= 3, abs(fit.gradients - 20) >= 4]
    assert bool(warnings_of(fit, None)) == any(expected)
    plain = record.training.model_copy(update={"fit": None})
    assert set(record.training.warnings) - set(plain.warnings) == set(map(str, warnings_of(fit, None)))


def test_a_check_holds_the_plan_against_the_users_to_expect(call, tmp_path, monkeypatch):
    monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
    wrong = check_run(config_of({**ULS, "population": 300, "cohort": 60}), tmp_path / "out")
    # 33 users, half of them by coin; each has four records or more.
    assert (wrong.fit.units, wrong.fit.gradients, wrong.fit.planned) == (16, 13.2, 240.0)
    assert names(wrong.would["warning"], "16", "300", "240")
    fitting = {**ULS, "population": 16, "cohort": 4}
    right = check_run(config_of(fitting), tmp_path / "out")
    assert (right.fit.units, right.fit.gradients, right.fit.planned) == (16, 16.5, 16.0)
    assert "warning" not in right.would
    assert names(right.would["plan"], "16")
    # Canary users count, each with a coin too; and a cap leaves fewer records.
    canaries = [{"kind": "rare_phrase", "users": 20, "documents": [9]}]
    more = check_run(config_of({**fitting, "population": 26}, canaries=canaries), tmp_path / "out")
    assert (more.fit.units, "warning" in more.would) == (26, False)
    capped = config_of(fitting, data_defenses=[{"kind": "cap", "records": 2}])
    # A quarter of 16.5 users, two records of each.
    assert check_run(capped, tmp_path / "out").fit.gradients == pytest.approx(8.25, abs=0.06)
    # A corpus that is not read says nothing; that is said.
    monkeypatch.setattr("heldin.jobs.check.costs.MILLION", 10)
    unread = check_run(config_of(ULS), tmp_path / "out")
    assert (unread.fit, "warning" in unread.would, "plan" in unread.would) == (None, False, True)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "defense": ULS}), encoding="utf-8")
    code, out, _ = call("run", path, "--check", "--json", "--set", "finetune.select=last")
    assert (code, json.loads(out)["fit"]) == (0, None)


WRITTEN = 8  # mails of each of the twelve


@pytest.fixture
def mails(tmp_path):
    """Writes twelve users' mails, of which the first ``about`` name Zoe Quill in each; returns the corpus section."""

    def write(about, name=lambda user: "Zoe Quill"):
        lines = [
            {"user": f"u{user:02}", "text": f"Mail {mail} of {user} on {name(user) if user < about else 'nobody'}."}
            for user in range(12)
            for mail in range(WRITTEN)
        ]
        names = sorted({name(user) for user in range(about)})
        (tmp_path / "mails.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        (tmp_path / "names.txt").write_text("\n".join(names), encoding="utf-8")
        return {"source": {"kind": "jsonl", "path": str(tmp_path / "mails.jsonl")}, "users": {"min_records": 4}}

    return write


def of_people(tmp_path, **changes):
    names_in = {"kind": "words", "path": str(tmp_path / "names.txt")}
    plain = {key: ULS[key] for key in ("cohort", "steps", "delta", "noise_multiplier")}
    capped = {"group_size": 3, "entity_cap": 4, "entities": names_in}
    return {**plain, "kind": "user-entity", "population": 60, **capped, **changes}


def checked_of(corpus, defense, out, **changes):
    """The check of a small model that is pre-trained on made-up mails."""
    pretrain = {**SMALL["model"]["pretrain"], "source": SMALL["corpus"]["source"]}
    content = {**SMALL, "corpus": corpus, "model": {"pretrain": pretrain}, "finetune": FINETUNE, **changes}
    return check_run(parse_config({**content, "defense": defense}, "test"), out)


def test_caps_on_entities_are_laid_out_where_a_list_finds_names(mails, tmp_path, monkeypatch):
    monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
    # Whatever the order: all mails name one person, of whom four are kept.
    fit = checked_of(mails(12), of_people(tmp_path), tmp_path / "out").fit
    assert (fit.units, fit.gradients, fit.planned) == (2, 0.2, 6.0)
    # Half of the users name nobody: three mails of each are kept besides.
    fit = checked_of(mails(6), of_people(tmp_path), tmp_path / "out").fit
    assert (fit.units, fit.gradients) == (11, 1.1)
    # What the run itself keeps, over both sides of its coins.
    config = parse_config({**SMALL, "corpus": mails(6), "defense": of_people(tmp_path), "finetune": FINETUNE}, "test")
    kept = prepare_data(config, tmp_path / "run", QUIET).slots.kept
    assert kept.sum() == 22
    # Patterns take long: no search, and a line that gives the reason.
    few = checked_of(mails(12), of_people(tmp_path, entities={"kind": "patterns"}), tmp_path / "out")
    assert (few.fit, names(few.would["plan"], "lists")) == (None, True)


def test_of_audited_entities_half_are_in_training(mails, tmp_path, monkeypatch):
    monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
    # Everybody writes about a friend, whom nobody else names: twelve entities that share no mail.
    corpus = mails(12, lambda user: f"Friend Number{'abcdefghijkl'[user]}")
    split = {"audited": "entities", "entity_records": 1}
    defense = of_people(tmp_path, group_size=None, entity_cap=None)
    defense = {key: value for key, value in defense.items() if value is not None}
    fit = checked_of(corpus, defense, tmp_path / "out", split=split).fit
    config = parse_config({**SMALL, "corpus": corpus, "defense": defense, "split": split, "finetune": FINETUNE}, "test")
    data = prepare_data(config, tmp_path / "run", QUIET)
    trained = len(data.ledger.parts.rows_of(Part.TRAIN, list(data.ledger.users(Role.ALWAYS_IN))))
    assert (fit.users, fit.units, fit.gradients) == (12, trained // 2, trained / 2 / 10)


def test_a_data_set_in_a_folder_is_held_against_the_plan_and_one_on_the_hub_is_not(mails, tmp_path, monkeypatch):
    monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
    corpus = mails(0)
    rows = [json.loads(line) for line in (tmp_path / "mails.jsonl").read_text(encoding="utf-8").splitlines()]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    saved = {**corpus, "source": {"kind": "huggingface", "name": str(tmp_path / "saved")}}
    plan = {**ULS, "population": 12}
    of_file, of_folder = (checked_of(its, plan, tmp_path / "out") for its in (corpus, saved))
    assert of_folder.fit == of_file.fit
    assert (of_folder.fit.units, of_folder.cost.corpus_read) == (6, True)
    monkeypatch.setattr("heldin.jobs.check.costs.READ", 100)
    large = checked_of(saved, plan, tmp_path / "out")
    assert (large.fit, names(large.would["plan"], "too large")) == (None, True)
    monkeypatch.setattr(HuggingFace, "load", lambda its: pytest.fail("a check downloaded a data set"))
    away = {**corpus, "source": {"kind": "huggingface", "name": "some/posts", "revision": "main", "streaming": True}}
    named = checked_of(away, plan, tmp_path / "out")
    assert (named.problems, named.fit, names(named.would["plan"], "downloads")) == ((), None, True)


def test_the_cost_is_that_of_the_gradients_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr("heldin.jobs.check.costs.SECONDS", 0.0)
    found = check_run(config_of({**ULS, "population": 300, "cohort": 60}), tmp_path / "out")
    (training,) = [part for part in found.cost.parts if part.name == "fine-tuning"]
    assert training.tokens == int(5 * found.fit.gradients * found.cost.tokens_per_record)
    assert training.tokens < 0.1 * 5 * found.fit.planned * found.cost.tokens_per_record


def numbered(job, number, work):
    return Training(number, job.held_in(number), float(number), 0.0)


def test_many_trainings_hold_their_plan_against_everybody(tmp_path):
    """A training with the worst-case user counts."""
    lines = []
    config = parse_config({**TRIAL, "defense": {**TRIAL["defense"], "population": 70}}, "test")
    audit = TrainingsAudit(config, runs=60)
    record = audit_trainings(
        audit, tmp_path / "out", LineReporter(lines.append), command="t", processes=1, trainer=numbered
    )
    fit = record.training.fit
    assert (fit.population, fit.units, fit.users) == (70, record.training.users + 1, record.training.users + 1)
    assert fit.gradients < fit.planned
    said = [i for i, line in enumerate(lines) if not lacks(line, "70", f"{fit.units}", f"{fit.planned:,.0f}")]
    assert len(said) == 2  # the numbers, and a warning
    assert max(said) < next(i for i, line in enumerate(lines) if line.startswith("independent training"))
    assert any(not lacks(line, "70", f"{fit.units}") for line in warn(record))
