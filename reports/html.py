"""The web page of a report, in one file that needs no network. ``page.html`` lays it out and escapes every text.

Figures are inline SVG with text. The only script sorts tables.
"""

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from heldin.base.files import write_text
from heldin.reports.blocks import Figure, Report
from heldin.reports.exports import data_of, draw
from heldin.reports.typesetting import as_data

TEMPLATE = Path(__file__).with_name("page.html")
ICONS = {"leaks": "!", "no leak found": "✓", "inconclusive": "?", "not valid": "×"}
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_PLACES = re.compile(r"(?<=[/\-_.,=:])(?=.)")
_SPACES, _LETTER, _LONG = re.compile(r"(\s+)"), re.compile(r"[A-Za-z]"), 12
_REFERENCE = re.compile(r"^#|(?<=url\()#")  # to another element, and no colour


def write_page(report: Report, path: Path) -> Path:
    """Write the page to ``path``, completely or not at all, and return the path."""
    write_text(path, render(report))
    return path


def render(report: Report) -> str:
    """Return the HTML of the page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["breaks"] = with_breaks
    drawings = {name: _inline(figure) for name, figure in report.figures.items()}
    return environment.get_template(TEMPLATE.name).render(report=as_data(report), drawings=drawings, icons=ICONS)


def with_breaks(text: str) -> Markup:
    """Return escaped text in which long names and paths may break after punctuation. A copied text has no such
    breaks."""
    return Markup("").join(
        Markup("<wbr>").join(_PLACES.split(part)) if len(part) >= _LONG and _LETTER.search(part) else part
        for part in _SPACES.split(text)
    )


class DrawnFigure(NamedTuple):
    """A figure in a web page, with its data as CSV."""

    svg: Markup
    data: str


def _inline(figure: Figure) -> DrawnFigure:
    """Return the SVG of a figure for a page, with unique ids and an alternative text for screen readers."""
    # Letters stay letters, which a reader can select and a screen reader can read.
    with mpl.rc_context({"svg.fonttype": "none"}):
        drawings, svg = draw(figure)
    drawing = ET.fromstring(svg)
    for unused in drawing.findall(f"{{{_SVG}}}metadata"):
        drawing.remove(unused)
    prefix = f"{figure.name}-"
    for element in drawing.iter():
        for name in ("id", f"{{{_LINK}}}href", "clip-path", "style"):
            value = element.get(name)
            if value is not None:
                element.set(name, prefix + value if name == "id" else _REFERENCE.sub(f"#{prefix}", value))
    drawing.set("role", "img")
    title = ET.Element(f"{{{_SVG}}}title")
    title.text = figure.alt
    drawing.insert(0, title)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _LINK)
    # ElementTree escapes every text and attribute of what it writes.
    return DrawnFigure(Markup(ET.tostring(drawing, encoding="unicode")), data_of(drawings))
