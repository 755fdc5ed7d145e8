"""Approved texts of one report of each kind: ``make golden`` writes them anew after a change of words.

The wording of reports is here and in no other test. Other tests of reports look at sections, rows and numbers.
"""

from collections.abc import Iterator
from pathlib import Path

from heldin.record.document import read_record
from heldin.reports.blocks import Figure, Paragraph, Report, Section, texts
from heldin.reports.record_report import report_record
from heldin.reports.sweep_report import report_sweep
from tests.made_sweeps import made_sweep, with_extraction
from tests.reports.conftest import GOLDEN_RECORD
from tests.reports.test_annex import KINDS

FOLDER = Path(__file__).parent / "golden"
RECORDS = {"run": "limits and release", "trainings": "trainings", "planted": "planted"}


def reports() -> dict[str, Report]:
    """A report of each kind, by the name of its page."""
    record = read_record(GOLDEN_RECORD)
    made = {name: report_record(KINDS[kind](record)) for name, kind in RECORDS.items()}
    return {**made, "sweep": report_sweep(with_extraction(made_sweep(shipped="uls", dominated=("cap10",))))}


def page(report: Report) -> str:
    """All texts of a report, one a line, below the key and heading of their section."""
    lines = [report.title, report.notice]
    for section in report.sections:
        if section.key != "configuration":
            lines += ["", f"{'#' * section.level} {section.key}: {section.title}", *_lines(section)]
    return "\n".join(lines).replace("\u200b", "") + "\n"


def _lines(section: Section) -> Iterator[str]:
    for block in section.blocks:
        if isinstance(block, Figure):
            yield from (f"[{block.name}] {block.alt}", block.caption)
        elif isinstance(block, Paragraph):
            yield f"{block.lead} {block.text}".strip()
        elif hasattr(block, "rows"):
            yield from (" | ".join(row) for row in (block.head, *block.rows, *([(block.note,)] if block.note else [])))
        elif hasattr(block, "pairs"):
            yield from (": ".join(pair) for pair in block.pairs)
        else:
            yield from texts(block)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, report in reports().items():
        (FOLDER / f"{name}.txt").write_text(page(report), encoding="utf-8")
