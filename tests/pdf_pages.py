"""A PDF's pages as a reader sees them: their words in order, and where on the page everything lies."""

from dataclasses import dataclass
from pathlib import Path

import pypdfium2 as pdfium

from heldin.record.document import read_record
from heldin.reports.record_report import report_record
from heldin.reports.typesetting import write_pdf
from tests.drafts import draft_text, is_draft

TEXT, FORM = 1, 5  # kinds of objects on a page; a figure is a form


@dataclass(frozen=True)
class Page:
    """One page, in points from its lower left corner. boxes: (kind, left, bottom, right, top) of every object."""

    text: str
    width: float
    height: float
    boxes: tuple[tuple[int, float, float, float, float], ...]

    def says(self, words):
        """Whether the words stand there, wherever lines end and words are broken."""
        return squashed(words) in squashed(self.text)


def pages(path: Path) -> list[Page]:
    """All pages of a PDF."""
    assert not is_draft(path), "a draft has no pages: ask for the fixture `typeset`"
    document = pdfium.PdfDocument(path)
    found = []
    for page in document:
        boxes = tuple((o.type, *o.get_bounds()) for o in page.get_objects(max_depth=1))
        found.append(Page(page.get_textpage().get_text_range(), *page.get_size(), boxes))
    return found


def squashed(text: str) -> str:
    """Without blanks and hyphens, which a line may end with."""
    return "".join(c for c in text if not c.isspace() and c not in "-\ufffe\u00ad")


def text_of(path: Path) -> str:
    """The words of all pages, or of a draft."""
    if is_draft(path):
        return draft_text(path)
    return "\n".join(page.text for page in pages(path))


def lines_lie_apart(page: Page) -> bool:
    """Whether no line of text lies on another."""
    lines = [box for kind, *box in page.boxes if kind == TEXT and box[2] - box[0] > 2 and box[3] - box[1] > 2]
    for i, (left, bottom, right, top) in enumerate(lines):
        for other in lines[i + 1 :]:
            wide = min(right, other[2]) - max(left, other[0])
            high = min(top, other[3]) - max(bottom, other[1])
            if wide > 1 and high > 2.5:
                return False
    return True


def write_report(folder: Path) -> Path:
    """Make ``folder``/report.pdf from ``folder``/record.json, and return its path."""
    return write_pdf(report_record(read_record(folder / "record.json")), folder / "report.pdf")
