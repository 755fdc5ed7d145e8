"""The words of reports are the approved ones; ``make golden`` approves others."""

import pytest

from tests.reports.golden_pages import FOLDER, page, reports


@pytest.mark.parametrize("name", reports())
def test_the_words_of_a_report_are_the_approved_ones(name):
    approved = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert page(reports()[name]).splitlines() == approved.splitlines(), "run `make golden` and read the difference"


def test_every_approved_page_is_compared():
    assert {path.stem for path in FOLDER.iterdir()} == set(reports())
