"""A bound that holds on a condition that nobody checks is in the table, and never the bound that a report names."""

from dataclasses import replace

from heldin.bounds.judgement import PLAN_FAMILY, Bound
from heldin.bounds.verdict import Standing
from heldin.record.document import read_record
from heldin.reports.findings import findings


def test_the_highest_bound_is_not_a_conditional_one(finished):
    record = read_record(finished / "record.json")
    its = Bound(name=PLAN_FAMILY, epsilon_lower=98.76, level=0.95, standing=Standing.CONDITIONAL, coverage=None)
    changed = _with(record, its)
    assert changed.judgement.exit_code == record.judgement.exit_code
    text = " ".join(paragraph for _, paragraph in findings(changed).paragraphs)
    assert "98.76" not in text
    certified = Bound(name="one-run", epsilon_lower=98.76, level=0.95, standing=Standing.CERTIFIED, coverage=None)
    assert "98.76" in " ".join(paragraph for _, paragraph in findings(_with(record, its, certified)).paragraphs)


def _with(record, *bounds):
    judgement = replace(record.judgement, bounds=(*record.judgement.bounds, *bounds))
    return record.model_copy(update={"judgement": judgement})
