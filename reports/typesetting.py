"""Typeset a report as PDF with typst: a template, what it prints as JSON, and figures as SVG with words for each."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typst

from heldin.base.errors import InputError
from heldin.base.files import whole_file

FOLDER = Path(__file__).parent
# PDF/UA-1: it can be read aloud. Typst refuses a figure without alternative text, or a heading out of order.
STANDARD = "ua-1"


def write_pdf(template: str, content: Mapping[str, Any], figures: Mapping[str, str], path: Path) -> Path:
    """Write the PDF to ``path``, whole or not at all, and return the path.

    Args:
        template: name of a template beside this file, which reads report.json and figures.
        content: what it prints, as text: the template only lays out and computes nothing. Its ``alt`` has words for
            each figure, by name.
        figures: SVG by name.
        path: where the PDF goes.

    Raises:
        InputError: something in it cannot be printed, such as a name in a script that no font here has.
    """
    # A folder of its own as root: typst reads no file outside of its root.
    with tempfile.TemporaryDirectory() as scratch:
        workplace = Path(scratch)
        for name, svg in figures.items():
            (workplace / f"{name}.svg").write_text(svg, encoding="utf-8")
        (workplace / "report.json").write_text(json.dumps(content), encoding="utf-8")
        # All of them: a template imports what it shares with others.
        for file in FOLDER.glob("*.typ"):
            (workplace / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        try:
            document = typst.compile(str(workplace / template), root=scratch, pdf_standards=STANDARD)
        except typst.TypstError as error:
            raise InputError(f"'{path}' cannot be typeset ({str(error).strip().splitlines()[0]})") from error
    # Compiled before the old report is touched: a failure leaves it whole.
    with whole_file(path) as temporary:
        temporary.write_bytes(document)
    return path
