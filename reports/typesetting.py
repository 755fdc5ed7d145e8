"""The PDF of a report. Typst lays out the sections with ``report.typ``."""

import json
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import whole_file
from heldin.reports.blocks import Beside, Block, Report, ReportSection

TEMPLATE = Path(__file__).with_name("report.typ")
# PDF/UA-1: it can be read aloud. Typst refuses a figure without alternative text, or a heading out of order.
STANDARD = "ua-1"


def write_pdf(report: Report, path: Path) -> Path:
    """Write the PDF to ``path``, completely or not at all, and return the path.

    Raises:
        InputError: a part cannot be typeset, for example a name in a script without an installed font.
    """
    import typst  # 34 MB that a run without a PDF does without

    with tempfile.TemporaryDirectory() as scratch:
        workplace = Path(scratch)
        for name, figure in report.figures.items():
            (workplace / f"{name}.svg").write_text(figure.draw(), encoding="utf-8")
        (workplace / "report.json").write_text(json.dumps(as_data(report), default=list), encoding="utf-8")
        # A copy: Typst reads nothing outside its root, which holds the figures.
        (workplace / TEMPLATE.name).write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
        try:
            document = typst.compile(str(workplace / TEMPLATE.name), root=scratch, pdf_standards=STANDARD)
        except typst.TypstError as error:
            raise InputError(
                f"'{path}' cannot be written: Typst reports {str(error).strip().splitlines()[0]}"
            ) from error
    # Compiled before the old report is touched: a failure leaves it whole.
    with whole_file(path) as temporary:
        temporary.write_bytes(document)
    return path


def as_data(report: Report) -> dict[str, Any]:
    """Return the report as JSON values; each block has the name of its kind."""
    return {
        "title": report.title,
        "version": report.version,
        "notice": report.notice,
        "sections": [
            _fields(section, blocks=[_block(block) for block in section.blocks]) for section in report.sections
        ],
    }


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Beside):
        return {"kind": "Beside", "figures": [_block(figure) for figure in block.figures]}
    return _fields(block, kind=type(block).__name__)


def _fields(content: Block | ReportSection, **changes: Any) -> dict[str, Any]:
    values = {field.name: getattr(content, field.name) for field in fields(content)}
    return {name: value for name, value in {**values, **changes}.items() if not callable(value)}
