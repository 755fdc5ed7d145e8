"""Exposure in a run: marks of held-in canary users come first; held-out ones and the reference are the control."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from heldin.base.progress import LineReporter
from heldin.corpus.split import Role
from heldin.jobs.purge import purge
from heldin.jobs.run import run
from heldin.jobs.verify import verify
from heldin.planting.audit import audit_planted
from heldin.planting.plant import plant
from heldin.planting.target import PlantedAudit
from heldin.record.document import read_record
from heldin.reports.annex import list_scenarios
from heldin.reports.attacks import marks_line, tabulate_marks
from heldin.reports.record_report import SECTIONS
from heldin.stages.run_config import load_config
from heldin.stages.sides.ledger import load_ledger
from tests.conftest import SMALL
from tests.drafts import typesetting
from tests.pdf_pages import pages, squashed, write_report
from tests.planted_sets import made_rows, plan, read_lines, save_base, train, write_lines
from tests.relisted import relist
from tests.statements import line_in

QUIET = LineReporter(lambda line: None)
KINDS = [
    {"kind": "unseen_token", "users": 30, "documents": [20]},
    {"kind": "rare_phrase", "users": 8, "documents": [4]},
    {"kind": "high_temperature", "users": 4, "documents": [3], "tokens": 10},
    {"kind": "named_person", "users": 4, "documents": [3]},
    {"kind": "substring", "users": 4, "lengths": [2, 5]},
]
ASKED = {"prefix": 4, "suffix": 4, "queries": [1]}


def config_file(folder, canaries=KINDS, **changes):
    content = json.loads(json.dumps(SMALL))
    content["finetune"] |= {"epochs": 7, "select": "last", **changes.pop("finetune", {})}
    content |= {"canaries": canaries, "measures": {"extraction": ASKED, "marks": {}}, **changes}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def exposed(make_once):
    """Folder of a finished run. Read only."""

    def build(folder):
        run(load_config(config_file(folder)), folder / "run", QUIET, command="heldin run small.yaml")
        with typesetting():
            write_report(folder / "run")

    return make_once("exposed marks", build) / "run"


@pytest.fixture
def fresh(exposed, tmp_path):
    return shutil.copytree(exposed, tmp_path / "copy")


def group(record, kind, length=None):
    return next(its for its in record.marks.groups if (its.kind, its.length) == (kind, length))


@pytest.mark.slow
def test_what_was_memorised_comes_first_and_nothing_else_does(exposed):
    record = read_record(exposed / "record.json")
    its = group(record, "unseen_token")
    assert its.candidates == 1000
    inside, outside = its.held_in, its.held_out
    assert min(inside.users, outside.users) >= 10
    assert inside.target.first_percent >= 0.8 * inside.users
    assert inside.target.median > 8
    # Each of the control is in the first hundredth with a probability of 1 %: three of fifteen would be a rare chance.
    assert max(outside.target.first_percent, inside.reference.first_percent, outside.reference.first_percent) <= 2
    assert 0 <= outside.target.median < 4
    assert inside.lower > outside.upper


@pytest.mark.slow
def test_every_canary_user_is_ranked_and_candidates_are_planted_nowhere(exposed):
    record, ledger = read_record(exposed / "record.json"), load_ledger(exposed / "ledger")
    canaries = pq.read_table(exposed / "ledger" / "canaries" / "users.parquet").to_pylist()
    for role, side in ((Role.HELD_IN, "held_in"), (Role.HELD_OUT, "held_out")):
        users = sum(getattr(its, side).users for its in record.marks.groups)
        assert users == sum(ledger.roles[its["user"]] is role for its in canaries)
    kinds = [("high_temperature", None), ("named_person", None), ("rare_phrase", None)]
    kinds += [("substring", 2), ("substring", 5), ("unseen_token", None)]
    assert [(its.kind, its.length) for its in record.marks.groups] == kinds
    table = pq.read_table(exposed / "measure-marks.parquet").to_pylist()
    recipes = {row["recipe"] for row in table}
    assert recipes == {
        "unseen_token 0",
        "rare_phrase 1",
        "high_temperature 2",
        "named_person 3",
        "substring of 2",
        "substring of 5",
    }
    for recipe in recipes:
        drawn = [row for row in table if row["recipe"] == recipe and row["user"] is None]
        assert len(drawn) == 1000
    assert {row["user"] for row in table} - {None} == {its["user"] for its in canaries}
    assert all(row["planted"] for row in table if row["user"] is not None)
    assert (exposed / "measure-marks.parquet").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_where_training_touches_nobody_ranks_are_those_of_the_reference(tmp_path, monkeypatch):
    monkeypatch.setenv("HELDIN_CACHE_DIR", str(tmp_path / "cache"))
    path = config_file(
        tmp_path,
        [{"kind": "unseen_token", "users": 60, "documents": [4]}],
        finetune={"epochs": 1, "learning_rate": 1e-9},
    )
    run(load_config(path), tmp_path / "run", QUIET, command="heldin run small.yaml")
    (its,) = read_record(tmp_path / "run" / "record.json").marks.groups
    for side in (its.held_in, its.held_out):
        assert side.target == side.reference
        assert side.target.first_percent <= 6  # of some thirty at 1 % each: more is rarer than one in a million
        assert 0.4 < side.target.median < 2.0


@pytest.mark.slow
def test_the_report_says_it_of_groups_and_names_nobody(exposed, call):
    record = read_record(exposed / "record.json")
    line = marks_line(record)
    sides = [its.held_in for its in record.marks.groups]
    first, users = sum(its.target.first_percent for its in sides), sum(its.users for its in sides)
    assert f": {first} of {users}" in line
    said = squashed("".join(page.text for page in pages(exposed / "report.pdf")))
    (title,) = [entry.title for entry in SECTIONS if entry.key == "marks"]
    assert squashed(title) in said
    assert squashed("unseen token, trained on") in said
    (row,) = [its for its in list_scenarios(record) if its.name.startswith("Extraction")]
    assert line in row.result
    names = [row[0] for row in tabulate_marks(record).rows]
    assert names[-1] == "by chance"
    assert "substring of 5 tokens, trained on" in names
    content = (exposed / "record.json").read_text(encoding="utf-8") + said
    for canary in pq.read_table(exposed / "ledger" / "canaries" / "users.parquet").to_pylist():
        assert canary["user"] not in content
        assert len(canary["mark"]) <= 12 or squashed(canary["mark"]) not in content
    code, out, err = call("run", exposed / "config.yaml", "--out", exposed, "-v")
    assert code in (0, 3, 4), err
    assert line_in(out, "exposure") == " ".join(line.split())


@pytest.mark.slow
def test_verify_ranks_again_from_what_the_folder_keeps(fresh, call):
    assert verify(fresh, QUIET).differences == ()
    table = pq.read_table(fresh / "measure-marks.parquet")
    values = np.where(table["user"].is_null(), 0.0, -1e6)  # as if no mark were ever likely
    changed = table.set_column(table.column_names.index("target"), "target", [values])
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), fresh / "measure-marks.parquet")
    relist(fresh / "measure-marks.parquet")
    assert any("measures.marks" in its.where for its in verify(fresh, QUIET).differences)
    (fresh / "measure-marks.parquet").unlink()
    call("verify", fresh)
    assert call.refused(by="MeasureFolder.values_of", naming="measure-marks.parquet'")


@pytest.mark.slow
def test_with_another_leading_reference_the_same_models_are_verified(exposed, tmp_path, monkeypatch):
    other = save_base_of(exposed, tmp_path / "other")
    path = config_file(
        tmp_path, [KINDS[1]], finetune={"epochs": 1}, attack={**SMALL["attack"], "reference": str(other)}
    )
    run(load_config(path), tmp_path / "run", QUIET, command="heldin run small.yaml")
    assert verify(tmp_path / "run", QUIET).differences == ()


def save_base_of(folder, to):
    """The fine-tuned model of a run, as if it were some other model."""
    return shutil.copytree(folder / "checkpoints" / "final", to)


@pytest.mark.slow
def test_purge_takes_the_ranks_along(fresh):
    purge(fresh, ["record"])
    assert not (fresh / "measure-marks.parquet").exists()


@pytest.mark.slow
def test_a_planted_audit_ranks_marks_too(make_lm, tmp_path):
    base = save_base(make_lm(context=64), tmp_path / "base")
    canaries = [{"kind": "unseen_token", "users": 24, "documents": [12]}]
    rows = made_rows(users=24, records=10)
    asked = {"prefix": 3, "suffix": 5, "queries": [1]}
    plant(
        plan(
            write_lines(rows, tmp_path / "mine.jsonl"),
            base,
            measures={"extraction": asked, "marks": {}},
            canaries=canaries,
        ),
        tmp_path / "out",
        QUIET,
    )
    texts = [row["body"] for row in read_lines(tmp_path / "out" / "training" / "mine.jsonl")]
    model = train(base, texts, tmp_path / "model", passes=3)
    record, folder = audit_planted(
        PlantedAudit(tmp_path / "out", str(model), (), "R. Signer"), None, QUIET, command="t"
    )
    (its,) = record.marks.groups
    assert its.held_in.users + its.held_out.users == 24
    assert its.held_in.target.first_percent > its.held_out.target.first_percent
    assert verify(folder, QUIET).differences == ()
