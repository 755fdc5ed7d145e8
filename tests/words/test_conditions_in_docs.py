"""The documentation names the conditions of a planted audit in the words of reports."""

from pathlib import Path

import numpy as np

from heldin.planting.given_rows import PlantedRow, count_given
from heldin.planting.training_log import READ, History, hash_of
from heldin.record.condition_words import training_line
from heldin.record.planted_facts import ConditionName
from heldin.words.split import ConditionStated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planted-audits.md"


def test_the_page_of_conditions_has_those_of_reports():
    page = PAGE.read_text(encoding="utf-8")
    stated = [str(ConditionStated[name.name]()) for name in ConditionName]
    assert [text for text in stated if f"| {text} |" not in page] == []


def test_a_log_without_labels_does_not_say_that_no_row_lacked_a_loss():
    reads = np.array([(hash_of([1, 2]), 2, -1, 1, True, (0, 0))] * 3, dtype=READ)
    history = History(reads, np.arange(3.0), frozenset(), frozenset(), 1, 1, 1, 1.0, 0)
    line = training_line(count_given(history, [PlantedRow([1, 2], "a user")], 9))
    assert "without loss not known" in line
    assert "labels not seen 3" in line


def test_nothing_says_that_a_model_was_trained_on_rows_that_the_log_only_saw_given():
    given = str(ConditionStated.GIVEN_EVERY_ROW())
    assert "given every planted row" in given
    assert "trained" not in given
