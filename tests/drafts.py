"""Drafts of reports: most tests look at the content of a report, and few at its pages.

Drawing and typesetting take a second of processor time a report. In the tests a figure is empty and ``report.pdf``
contains the content as JSON, unless a test asks for the ``typeset`` fixture or a fixture works within ``typesetting``.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

_BEGINNING = b"%PDF draft\n"
_EMPTY = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>'
_asked = [False]


@contextlib.contextmanager
def typesetting() -> Iterator[None]:
    """Draw and typeset in this context."""
    before, _asked[0] = _asked[0], True
    try:
        yield
    finally:
        _asked[0] = before


@contextlib.contextmanager
def drafting() -> Iterator[None]:
    """Make drafts, outside of ``typesetting``."""
    try:
        import typst
    except ModuleNotFoundError:  # as on a GPU machine, where no test makes a report
        yield
        return

    from heldin.reports.blocks import Figure, Report

    compiled, figures = typst.compile, Report.figures.fget

    def compile_or_draft(template: str, root: str, pdf_standards: str) -> bytes:
        if _asked[0]:
            return compiled(template, root=root, pdf_standards=pdf_standards)
        return _BEGINNING + (Path(root) / "report.json").read_bytes()

    def figures_or_drafts(report: Report) -> dict[str, Figure]:
        drawn = figures(report)
        return drawn if _asked[0] else {name: replace(figure, draw=lambda: _EMPTY) for name, figure in drawn.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typst, "compile", compile_or_draft)
        patch.setattr(Report, "figures", property(figures_or_drafts))
        yield


def is_draft(path: Path) -> bool:
    """Whether the file is a draft."""
    with path.open("rb") as file:
        return file.read(len(_BEGINNING)) == _BEGINNING


def draft_text(path: Path) -> str:
    """All strings of a draft, one a line, in the order of the content."""
    return "\n".join(_strings(json.loads(path.read_bytes().removeprefix(_BEGINNING))))


def _strings(content: Any) -> Iterator[str]:
    match content:
        case dict():
            for value in content.values():
                yield from _strings(value)
        case list():
            for value in content:
                yield from _strings(value)
        case str():
            yield content
