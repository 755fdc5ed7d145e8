"""The numbers of the page on many releases, by the accountant of one plan: equal releases are one longer plan."""

import re

import pytest

from heldin.defenses.accounting.guarantees import epsilon
from tests.docs.test_theory import ROOT
from tests.made_mechanisms import uls

PAGE = (ROOT / "docs" / "continual.md").read_text(encoding="utf-8")
STATED = ("population=1024, cohort=16", "steps=1000", "delta=1e-6", ".calibrated(2.0)")
A_ROW = re.compile(r"^(\d+) releases: epsilon ([\d.]+)$", re.MULTILINE)
YEAR = re.compile(r"^epsilon of all releases together +([\d.]+)$", re.MULTILINE)
SUM = re.compile(r"^sum of the separate epsilons +(\d+) at delta ([\d.e-]+)$", re.MULTILINE)
LEAVER = re.compile(r"\(above: ([\d.]+)\)")


@pytest.fixture(scope="module")
def week():
    """The page's plan."""
    assert [text for text in STATED if text not in PAGE] == []
    made = uls(steps=1000).calibrated(2.0)
    assert (made.sampler.population, made.sampler.rate, made.delta) == (1024, 16 / 1024, 1e-6)
    return made


def test_every_epsilon_of_the_page_is_that_of_so_many_steps(week):
    printed = {int(count): float(stated) for count, stated in A_ROW.findall(PAGE)}
    assert [*printed] == [1, 4, 12, 26, 52]
    exact = {count: epsilon(week.user_event, count * 1000, 1e-6) for count in printed}
    assert printed == {count: round(number, 1) for count, number in exact.items()}
    assert [float(year) for year in YEAR.findall(PAGE)] == [pytest.approx(exact[52], rel=5e-5)]
    assert [(int(total), float(delta)) for total, delta in SUM.findall(PAGE)] == [(52 * 2, pytest.approx(52e-6))]
    assert [float(number) for number in LEAVER.findall(PAGE)] == [printed[12]]
