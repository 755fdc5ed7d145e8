"""A bound that holds on a condition that nobody checks is in the table, and never the bound that a report names."""

from heldin.audit.results import Bound
from heldin.bounds.catalogue import PLAN_FAMILY
from heldin.record.document import Record, read_record
from heldin.reports.findings import findings


def test_the_highest_bound_is_not_a_conditional_one(finished):
    record = read_record(finished / "record.json")
    its = Bound(name=PLAN_FAMILY, epsilon_lower=98.76, level=0.95, standing="conditional", coverage=None)
    fields = record.model_dump()
    fields["judgement"]["bounds"].append(its.model_dump())
    changed = Record.model_validate(fields)
    assert changed.judgement.exit_code == record.judgement.exit_code
    text = " ".join(paragraph for _, paragraph in findings(changed).paragraphs)
    assert "98.76" not in text
    certified = Bound(name="one-run", epsilon_lower=98.76, level=0.95, standing="certified", coverage=None)
    fields["judgement"]["bounds"].append(certified.model_dump())
    assert "98.76" in " ".join(paragraph for _, paragraph in findings(Record.model_validate(fields)).paragraphs)
