"""A whole run that leads with a statistic of pooled tokens: scores, record, report, and a second reading."""

import pyarrow.parquet as pq
import pytest
import yaml

from heldin.attacks.access import Access
from heldin.attacks.kinds import DEFAULT_ATTACKS, get_attack, names_at
from heldin.base.progress import LineReporter
from heldin.jobs.run import run
from heldin.record.document import read_record
from heldin.reports.findings import warn
from heldin.reports.record_report import report_record
from heldin.reports.typesetting import write_pdf
from heldin.stages.run_config import load_config
from tests.conftest import SMALL
from tests.pdf_pages import text_of

OURS = names_at(Access.LOG_PROBABILITIES)
pytestmark = pytest.mark.slow  # a statistical suite, or whole runs: minutes

QUIET = LineReporter(lambda line: None)


@pytest.fixture(scope="module")
def joint_run(make_once):
    """A finished small run under every statistic, led by ``pooled``. Read only."""
    attack = {
        "max_characters": 200,
        "names": list(OURS),
        "primary": "pooled",
        "documents": ["fresh", "training"],
        "training_documents": 5,
        "shadow_models": 4,
    }

    def build(folder):
        (folder / "c.yaml").write_text(yaml.safe_dump({**SMALL, "attack": attack}), encoding="utf-8")
        run(load_config(folder / "c.yaml"), folder / "run", QUIET, command="heldin run c.yaml")

    return make_once("joint", build) / "run"


def test_a_value_of_a_user_is_one_score_and_not_one_for_each_aggregation(joint_run):
    record = read_record(joint_run / "record.json")
    found = [(its.attack, its.aggregation) for its in record.attacks]
    assert found[0] == ("pooled", "together") == (record.primary_attack, record.primary().aggregation)
    for name in OURS:
        assert [how for its, how in found if its == name] == (
            ["together"] if get_attack(name).of_users else ["mean", "min", "max"]
        )
    assert record.knowledge == [], "a user's one value cannot be taken apart into texts"
    assert [its.dial for its in record.dials if not its.leads] == ["documents", "shadow models"]
    assert record.judgement.bounds


def test_scores_hold_one_row_of_a_user_or_one_of_a_text(joint_run):
    rows = pq.read_table(joint_run / "scores.parquet").to_pylist()
    plain = [row for row in rows if row["dial"] is None]
    users = {row["user"] for row in plain}
    counts = {name: sum(row["attack"] == name for row in plain) for name in OURS}
    texts = counts["likelihood-ratio"]
    assert texts > len(users)
    assert counts == {name: len(users) if get_attack(name).of_users else texts for name in OURS}


def test_the_report_names_what_was_led_with_and_warns_of_what_is_for_other_documents(joint_run, tmp_path):
    record = read_record(joint_run / "record.json")
    assert any("ez, windows" in line for line in warn(record))
    text = text_of(write_pdf(report_record(record), tmp_path / "report.pdf"))
    assert "pooled" in text


def test_by_default_no_score_is_added_to_those_of_a_run():
    assert DEFAULT_ATTACKS == ("likelihood-ratio", "likelihood-ratio-per-token", "loss", "zlib", "min-k++")
