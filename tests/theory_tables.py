"""The tables of docs/theory.md, which the tests compare the code with: the page is their only source."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "theory.md"


def anchors(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def rows(anchor: str) -> list[dict[str, str]]:
    """The first table under a heading: a dictionary of cells for each row, by column."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("#")]
    at = heads[anchors(PAGE).index(anchor)]
    first = next(i for i in range(at + 1, len(lines)) if lines[i].startswith(("|", "#")))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    if len(table) < 3:
        raise ValueError(f"no table under {anchor}")
    names, _, *cells = table
    return [dict(zip(names, row, strict=True)) for row in cells]


def numbers(anchor: str) -> list[tuple[float, ...]]:
    """The same as tuples of numbers, column by column; nan for a dash."""
    return [tuple(float("nan") if cell == "-" else float(cell) for cell in row.values()) for row in rows(anchor)]
