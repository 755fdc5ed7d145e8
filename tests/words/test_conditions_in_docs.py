"""The documentation names the conditions of a planted audit in the words of reports."""

from pathlib import Path

from heldin.record.planted_facts import ConditionName
from heldin.words.split import ConditionStated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planted-audits.md"


def test_the_page_of_conditions_has_those_of_reports():
    page = PAGE.read_text(encoding="utf-8")
    stated = [str(ConditionStated[name.name]()) for name in ConditionName]
    assert [text for text in stated if f"| {text} |" not in page] == []


def test_nothing_says_that_a_model_was_trained_on_rows_that_the_log_only_saw_given():
    given = str(ConditionStated.GIVEN_EVERY_ROW())
    assert "given every row of the planted training set" in given
    assert "trained" not in given
