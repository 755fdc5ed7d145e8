"""The words of reports are the approved ones; ``make golden`` approves others."""

import re

import pytest

from tests.reports.conftest import FOLDER as CASES
from tests.reports.golden_pages import DRAWN, FOLDER, front_pages, image_texts, page, reports


@pytest.mark.parametrize("name", reports())
def test_the_words_of_a_report_are_the_approved_ones(name):
    approved = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert page(reports()[name]).splitlines() == approved.splitlines(), "run `make golden` and read the difference"


def test_page_one_of_every_case_is_the_approved_one():
    approved = (FOLDER / "page_one.txt").read_text(encoding="utf-8")
    assert front_pages().splitlines() == approved.splitlines(), "run `make golden` and read the difference"


@pytest.mark.parametrize("name", DRAWN)
def test_an_image_in_the_documentation_is_of_todays_page_one(name):
    then, now = image_texts(name)
    assert then == now, "run `make golden`"


def test_every_approved_case_is_of_a_test():
    for path in CASES.glob("*.txt"):
        tests = (CASES.parents[1] / f"test_{path.stem}.py").read_text(encoding="utf-8")
        named = set(re.findall(r"^# (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert all(f"def {name}(" in tests for name in named), path


def test_every_approved_page_is_compared():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*reports(), "page_one"}
