"""The web page of one run or audit: the words of its PDF, figures with words, and nothing that a reader cannot hear."""

from html.parser import HTMLParser

import pytest

from heldin.record.document import read_record
from heldin.reports.annex import state_release
from heldin.reports.blocks import texts
from heldin.reports.html import render
from heldin.reports.record_report import report_record
from tests.made_facts import changed_record
from tests.reports.test_annex import KINDS

VOID = {"meta", "img", "wbr"}


class Page(HTMLParser):
    """What stands in a page; every tag must be closed in its place."""

    def __init__(self, written):
        super().__init__()
        self.open, self.headings, self.tags, self.said = [], [], [], ""
        self.feed(written)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += data


@pytest.fixture(scope="module")
def record(finished):
    return read_record(finished / "record.json")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_has_a_page_with_every_text_of_its_report(record, kind):
    made = KINDS[kind](record)
    page = Page(render(report_record(made)))
    for section in report_record(made).sections:
        # Alternative texts of figures are checked below.
        drawn = {figure.alt for figure in report_record(made).figures.values()}
        for text in texts(section):
            assert text in page.said or text in drawn, (section.key, text)


def test_the_page_can_be_read_aloud_and_needs_no_network(record):
    its = Page(render(report_record(record)))
    assert its.headings[0] == 1
    assert its.headings.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in zip(its.headings, its.headings[1:], strict=False))
    attributes = [attrs for tag, attrs in its.tags if tag == "html"]
    assert attributes == [{"lang": "en"}]
    pictures = [attrs for tag, attrs in its.tags if tag == "svg"]
    assert len(pictures) >= 3
    assert all(attrs["role"] == "img" for attrs in pictures)
    assert all(figure.alt in its.said for figure in report_record(record).figures.values())
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in its.tags if tag == "th")
    # Nothing is loaded: the one script is in the page, and links lead to its own sections.
    assert not any(tag == "link" or "src" in attrs for tag, attrs in its.tags)
    assert all(attrs["href"].startswith(("#", "data:text/csv;")) for tag, attrs in its.tags if tag == "a")


def test_another_record_another_page_and_names_are_never_markup(record):
    release = {"access": "weights", "who": "<b>everybody</b>"}
    made = changed_record(record, name="<i>run</i>", config={**record.config, "release": release})
    written = render(report_record(made))
    assert "<b>everybody" not in written
    assert "<i>run" not in written
    meaning = dict(state_release(made).pairs).popitem()[1]
    assert meaning in Page(written).said
    assert meaning not in Page(render(report_record(record))).said


def test_the_command_writes_both_files_and_the_same_page_again(finished, call, tmp_path):
    import shutil

    folder = shutil.copytree(finished, tmp_path / "run")
    code, out, err = call("report", folder, "--html")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"report: {folder / 'report.pdf'}", f"report: {folder / 'report.html'}"]
    first = (folder / "report.html").read_text(encoding="utf-8")
    code, out, _ = call("report", folder, "--html", "--json")
    assert '"page"' in out
    assert (folder / "report.html").read_text(encoding="utf-8") == first
