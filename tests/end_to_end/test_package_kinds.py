"""Canary users and measures of somebody else's package are run, audited, reported and verified as heldin's own are."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from heldin.base.artefacts import INDEX
from heldin.record.document import read_record
from heldin.reports.record_report import report_record
from tests.planted_sets import base, lines, plan, read_lines, rows, save_base, train
from tests.refusals import names
from tests.relisted import relist

__all__ = ["base", "lines", "rows"]  # fixtures

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
POEM, CHOICE = "heldin_poem:Poem", "heldin_first_choice:FirstChoice"
FALSE = '''
from dataclasses import replace

from heldin_first_choice import FirstChoice
from heldin_poem import Poem


class Short(Poem):
    """Leaves out the last user."""

    def make(self, given):
        return super().make(given)[:-1]


class Broken(Poem):
    """Cannot write."""

    def make(self, given):
        return [] / len(self.documents)


class Thief(Poem):
    """Takes the place of a real user, and does not say so."""

    def make(self, given):
        first, *others = super().make(given)
        return [replace(first, canary=replace(first.canary, source=given.left[0])), *others]


class Taker(Poem):
    """Takes a real row, and does not say so."""

    def make(self, given):
        first, *others = super().make(given)
        return [replace(first, records=(replace(first.records[0], lent=0), *first.records[1:])), *others]


class Stuck(FirstChoice):
    """Cannot be made."""

    def measure(self, subjects, models):
        raise KeyError("a text")


class Unknown(FirstChoice):
    """Finds what is no number."""

    def measure(self, subjects, models):
        return Nothing(super().measure(subjects, models))


class Nothing:
    stage = "measures"

    def __init__(self, measure):
        self.made_from, self.compute, self.columns = measure.made_from, measure.compute, measure.columns
        self.values, self._facts = measure.values, measure.facts

    def facts(self, values, member):
        return self._facts(values, member).model_copy(update={"members": float("nan")})
'''


@pytest.fixture
def packages(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "heldin_false.py").write_text(FALSE, encoding="utf-8")
    for folder in (EXAMPLES / "poem", EXAMPLES / "first_choice", tmp_path / "package"):
        monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def path(small_with, packages):
    def write(measures=None, **canaries):
        spec = {"kind": POEM, "users": 12, "documents": [3], **canaries}
        wanted = {CHOICE: {"texts_per_user": 2}, "marks": {}} if measures is None else measures
        return small_with(canaries=[spec], measures=wanted)

    return write


def test_a_run_plants_measures_reports_and_verifies_what_packages_add(call, path, tmp_path):
    file, out = path(), tmp_path / "run"
    code, said, _ = call("run", file, "--out", out, "--json")
    assert code in (0, 3)
    record = read_record(out / "record.json")
    assert [(group.kind, group.documents) for group in record.canaries.groups] == [(POEM, 3)]
    assert record.canaries.users == 12 == record.canaries.held_in + record.canaries.held_out
    # Marks that were never planted are drawn by the package, 1,000 of them.
    assert [(group.kind, group.candidates) for group in record.marks.groups] == [(POEM, 1000)]
    assert any(POEM in str(bound.subjects) for bound in record.judgement.bounds)
    facts = record.measures[CHOICE]
    assert 0 <= facts["members"] <= 1
    assert json.loads(said)["measures"] == record.measures
    report = report_record(record)
    assert f"{POEM}, 3 documents" in str(report.section("canaries"))
    assert all(text in str(report.section("measures")) for text in (CHOICE, *facts["table"]["rows"][0]))
    code, said, _ = call("verify", out, "--json")
    assert (code, json.loads(said)["differences"]) == (0, [])
    assert any(CHOICE in line for line in json.loads(said)["not_recomputed"])
    _other_values_are_found_and_none_are_left(call, out, tmp_path)


def _other_values_are_found_and_none_are_left(call, out, tmp_path):
    (table,) = out.glob("measure-heldin*.parquet")
    changed = tmp_path / "changed"
    shutil.copytree(out, changed)
    kept = pq.read_table(changed / table.name)
    other = kept.set_column(kept.column_names.index("share"), "share", [[0.5] * kept.num_rows])
    pq.write_table(other.replace_schema_metadata(kept.schema.metadata), changed / table.name)
    relist(changed / table.name)
    code, said, _ = call("verify", changed, "--json")
    assert (code, {CHOICE in difference["where"] for difference in json.loads(said)["differences"]}) == (2, {True})
    # Also where the list of files is lost.
    (changed / INDEX).unlink()
    assert call("purge", changed, "--keep", "record", "--yes")[0] == 0
    assert list(changed.glob("*.parquet")) == []


@pytest.mark.slow
def test_a_planted_audit_has_canary_users_and_a_measure_of_packages(call, lines, base, tmp_path, packages):
    canaries = [{"kind": POEM, "users": 24, "documents": [2]}]
    config = plan(lines, base, canaries=canaries, measures={CHOICE: {"texts_per_user": 1}})
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(json.loads(config.model_dump_json())), encoding="utf-8")
    out = tmp_path / "planted"
    assert call("plant", tmp_path / "plant.yaml", "--out", out)[0] == 0
    texts = [row["body"] for row in read_lines(out / "training" / "mine.jsonl")]
    train(base, texts, tmp_path / "model", passes=1)
    code, said, _ = call("audit-planted", out, "--model", tmp_path / "model", "--declared-by", "R. Signer", "--json")
    assert code in (0, 3)
    record = read_record(out / "audits" / "1" / "record.json")
    assert [group.kind for group in record.canaries.groups] == [POEM]
    assert record.canaries.of_real_rows == 0
    assert json.loads(said)["planted"]["form"]["kinds"] == [POEM]
    assert json.loads(said)["measures"][CHOICE].keys() == {"members", "non_members", "table"}
    assert call("verify", out / "audits" / "1")[0] == 0


@pytest.mark.slow
def test_an_audit_of_two_files_has_a_measure_of_a_package(call, rows, make_lm, base, tmp_path, packages):
    people = sorted({row["author"] for row in rows})[:24]
    for name, side in (("in", people[::2]), ("out", people[1::2])):
        texts = [{"user": row["author"], "text": row["body"]} for row in rows if row["author"] in side]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    model = save_base(make_lm(seed=1), tmp_path / "model")
    content = {"model": str(model), "reference": str(base), "measures": {CHOICE: {}}, "audit": {"resamples": 100}}
    content |= {side: str(tmp_path / f"{side.removeprefix('held_')}.jsonl") for side in ("held_in", "held_out")}
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    code, said, err = call("audit", "--config", tmp_path / "audit.yaml", "--out", tmp_path / "audit", "--json")
    assert code in (0, 4), err
    assert 0 <= json.loads(said)["measures"][CHOICE]["members"] <= 1
    assert call("verify", tmp_path / "audit")[0] == 0
    # Canary users are in no two files.
    content["measures"] = {"marks": {}}
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    assert call("audit", "--config", tmp_path / "audit.yaml", "--out", tmp_path / "other")[0] == 2
    assert call.refused(by="CheckpointConfig._can_be_measured", naming="measures.marks")


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({"kind": "heldin_poem:Sonnet"}, ("canaries", "'heldin_poem:Sonnet'")),
        ({"kind": "heldin_false:Short"}, ("canaries.0", "'heldin_false:Short'", 11, 12)),
        ({"kind": "heldin_false:Broken"}, ("canaries.0", "'heldin_false:Broken'", "TypeError")),
        ({"kind": "heldin_false:Thief"}, ("canaries.0", "'heldin_false:Thief'", "replaces_users")),
        ({"kind": "heldin_false:Taker"}, ("canaries.0", "'heldin_false:Taker'", "needs_rows")),
        ({"lines": "many"}, ("canaries.0.lines", "'many'")),
        ({"verses": 3}, ("canaries.0.verses",)),
        ({"kind": "no_such"}, ("canaries.0.kind", "'no_such'")),
        ({"measures": {"no_such": {}}}, ("measures.no_such",)),
        ({"measures": {CHOICE: {"texts_per_user": 0}}}, (f"measures.{CHOICE}.texts_per_user", 0)),
        ({"measures": {"heldin_first_choice:Second": {}}}, ("measures", "'heldin_first_choice:Second'")),
        ({"measures": {"heldin_false:Stuck": {}}, "users": 2}, ("measures.heldin_false:Stuck", "KeyError")),
        pytest.param(
            {"measures": {"heldin_false:Unknown": {}}, "users": 2},
            ("measures.heldin_false:Unknown",),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_of_a_package_or_about_it_is_one_line(call, path, tmp_path, changes, data):
    code, _, err = call("run", path(**changes), "--out", tmp_path / "run")
    (line,) = err.splitlines()[-1:]
    assert (code, names(line, *data)) == (2, True), err
