"""Canary users of somebody else's package are planted, audited and reported as heldin's own are."""

import json

import pytest
import yaml

from heldin.base.kinds import Origin
from heldin.canaries.kinds import CANARIES
from heldin.record.document import read_record
from heldin.reports.record_report import report_record
from tests.planted_sets import base, lines, plan, read_lines, rows, train
from tests.refusals import names

__all__ = ["base", "lines", "rows"]  # fixtures

CODE = '''
from heldin.canaries.contract import NumberedCanaries
from heldin.canaries.users import made_user, public_dice

WORDS = ("moon", "rain", "stone", "river", "leaf", "wind", "snow", "lamp", "door", "road", "bird", "sand")


class Poem(NumberedCanaries):
    """Users who write poems with a first line of their own."""

    lines: int = 2

    def make(self, given):
        made = []
        for documents, names in self.names(given.number):
            for name in names:
                dice = public_dice(given.seed, "poem", name)
                first, texts = line(dice), given.texts(documents)
                poems = ["\\n".join([first, *(line(dice) for _ in range(self.lines))]) for _ in range(texts)]
                made.append(made_user(name, self.kind, documents, first, poems))
        return made

    def recipes(self, given):
        return self.one_recipe(given, lambda dice: [line(dice) for _ in range(given.count)])


class Short(Poem):
    """Leaves out the last user."""

    def make(self, given):
        return super().make(given)[:-1]


def line(dice):
    return " ".join(dice.choice(WORDS) for _ in range(6))
'''


@pytest.fixture
def poems(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "poems.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "package"))


def _run(small_with, **canaries):
    spec = {"kind": "poems:Poem", "users": 12, "documents": [3], **canaries}
    return small_with(canaries=[spec], measures={"marks": {}})


def test_a_run_plants_reports_and_verifies_canary_users_of_a_package(call, small_with, tmp_path, poems):
    path, out = _run(small_with), tmp_path / "run"
    assert call("run", path, "--out", out)[0] in (0, 3)
    record = read_record(out / "record.json")
    assert [(group.kind, group.documents) for group in record.canaries.groups] == [("poems:Poem", 3)]
    assert record.canaries.users == 12 == record.canaries.held_in + record.canaries.held_out
    # Marks that were never planted are drawn by the package, 1,000 of them.
    assert [(group.kind, group.candidates) for group in record.marks.groups] == [("poems:Poem", 1000)]
    assert any(states(verdict) for verdict in record.judgement.bounds)
    page = str(report_record(record).section("canaries"))
    assert "poems:Poem, 3 documents" in page
    assert call("verify", out)[0] == 0
    assert CANARIES.origin("poems:Poem") == Origin(
        "canaries", "poems:Poem", "poems", None, CANARIES.origin("poems:Poem").sha256
    )


def states(bound):
    return "poems:Poem" in str(bound.subjects)


def test_a_planted_audit_has_canary_users_of_a_package(call, lines, base, tmp_path, poems):
    config = plan(lines, base, canaries=[{"kind": "poems:Poem", "users": 24, "documents": [2]}])
    content = json.loads(config.model_dump_json())
    (tmp_path / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    out = tmp_path / "planted"
    assert call("plant", tmp_path / "plant.yaml", "--out", out)[0] == 0
    texts = [row["body"] for row in read_lines(out / "training" / "mine.jsonl")]
    train(base, texts, tmp_path / "model", passes=1)
    code, said, _ = call("audit-planted", out, "--model", tmp_path / "model", "--declared-by", "R. Signer", "--json")
    assert code in (0, 3)
    record = read_record(out / "audits" / "1" / "record.json")
    assert [group.kind for group in record.canaries.groups] == ["poems:Poem"]
    assert record.canaries.of_real_rows == 0
    assert json.loads(said)["planted"]["form"]["kinds"] == ["poems:Poem"]
    assert call("verify", out / "audits" / "1")[0] == 0


@pytest.mark.parametrize(
    ("canaries", "data"),
    [
        ({"kind": "poems:Sonnet"}, ("canaries", "'poems:Sonnet'")),
        ({"kind": "poems:Short"}, ("canaries.0", "'poems:Short'", 11, 12)),
        ({"lines": "many"}, ("canaries.0.poems:Poem.lines", "'many'")),
        ({"verses": 3}, ("canaries.0.poems:Poem.verses",)),
        ({"kind": "no_such"}, ("canaries.0.kind", "'no_such'")),
    ],
)
def test_a_mistake_of_a_package_or_about_it_is_one_line(call, small_with, tmp_path, poems, canaries, data):
    code, _, err = call("run", _run(small_with, **canaries), "--out", tmp_path / "run")
    assert (code, names(err, *data)) == (2, True), err
