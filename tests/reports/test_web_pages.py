"""Web pages in a real browser: everything that a report has is visible, on a phone too, and no script fails."""

import pytest

from heldin.reports.blocks import Banner, FactList, Paragraph, Table
from heldin.reports.html import render
from tests.drafts import typesetting
from tests.reports.browser import show
from tests.reports.golden_pages import reports

pytestmark = [pytest.mark.slow]
KINDS = ("run", "trainings", "planted", "sweep")


@pytest.fixture(scope="module")
def pages():
    """Each kind of report, and its web page with figures drawn."""
    with typesetting():
        return {name: (report, render(report)) for name, report in reports().items()}


def _plain(text):
    return " ".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_every_heading_text_cell_and_figure_is_visible(pages, kind, tmp_path):
    report, page = pages[kind]
    shown = show(page, tmp_path)
    assert shown.problems == []
    headings, paragraphs, cells = (
        {_plain(text) for text in part} for part in (shown.headings, shown.paragraphs, shown.cells)
    )
    assert _plain(report.title) in headings
    for section in report.sections:
        assert not section.title or _plain(section.title) in headings
        for block in section.blocks:
            match block:
                case Banner(answer, title, text):
                    assert [_plain(text) for text in shown.banner] == [_plain(f"{_icon(answer)}{title}. {text}")]
                case Paragraph(text, lead):
                    assert _plain(f"{lead} {text}") in paragraphs
                case Table(head, rows):
                    assert {_plain(cell) for row in (head, *rows) for cell in row if cell} <= cells
                case FactList(pairs):
                    assert {_plain(cell) for pair in pairs for cell in pair if cell} <= cells
    assert {drawing["title"] for drawing in shown.drawings} == {figure.alt for figure in report.figures.values()}
    # Letters are letters, and nothing lost its colours.
    assert all(drawing["texts"] >= 2 and drawing["colours"] >= 2 for drawing in shown.drawings)


def _icon(answer):
    from heldin.reports.html import ICONS

    return ICONS[answer]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_no_wider_than_a_phone(pages, kind, tmp_path):
    # Chromium's windows have at least 500 pixels; wide tables and figures scroll in their own frames.
    assert show(pages[kind][1], tmp_path, width=500).width <= 500


def test_on_a_phone_the_panels_of_page_one_are_whole_and_below_one_another(pages, tmp_path):
    people, scores = show(pages["run"][1], tmp_path, width=500).drawings[:2]
    assert people["bottom"] <= scores["top"]
    assert all(0 <= drawing["left"] < drawing["right"] <= 500 for drawing in (people, scores))
    wide = show(pages["run"][1], tmp_path, width=1000).drawings[:2]
    assert wide[0]["right"] <= wide[1]["left"]


def test_a_click_on_a_columns_name_sorts_by_numbers_and_again_the_other_way(pages, tmp_path):
    step = """
    const table = [...document.querySelectorAll("table.sortable")].filter((t) => t.rows.length > 3)[1];
    const button = table.querySelectorAll("th button")[INDEX];
    CLICKS
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[INDEX].textContent);
    document.querySelector("h1").textContent = cells.join("|");
    """
    _, page = pages["run"]

    def column(clicks, index=2):
        script = step.replace("CLICKS", "button.click();" * clicks).replace("INDEX", str(index))
        return show(page, tmp_path, step=script).headings[0].split("|")

    before, up, down = (column(clicks) for clicks in (0, 1, 2))
    assert before != up
    assert [float(text) for text in up] == sorted(float(text) for text in before)
    assert down == up[::-1] or [float(text) for text in down] == sorted((float(text) for text in before), reverse=True)


def test_a_page_that_loses_its_text_is_noticed(pages, tmp_path):
    """What the test looks for is what a reader sees: a hidden page, or one within a script, fails."""
    _, page = pages["run"]
    hidden = show(page.replace("<main>", '<main style="visibility: hidden">'), tmp_path)
    assert hidden.headings == []
    broken = show(page.replace("</main>", "</main><script>nothing.there()</script>"), tmp_path)
    assert any("nothing" in problem for problem in broken.problems)
