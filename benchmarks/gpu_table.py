"""The table of GPUs in RESULTS.md, made of what the GPU benchmark measured."""

import json
import math
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- GPUs: begin -->", "<!-- GPUs: end -->"


def renew(results: Path, lines: Path) -> None:
    """Write the newest figures of each part and kind of device between the marks of ``results``."""
    text = results.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{results} has no marks {BEGIN} and {END}")
    results.write_text(before + "\n".join([BEGIN, "", *table(lines), "", END]) + after, encoding="utf-8")


def table(lines: Path) -> list[str]:
    """The rows, a table for each kind of device."""
    newest: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines.read_text(encoding="utf-8").splitlines():
        its = json.loads(line)
        newest.setdefault(its["device"], {})[its["part"]] = its
    rows = []
    for device, parts in newest.items():
        rows += [f"**{device}**:", "", "| part | what | figure | at most | |", "|---|---|---|---|---|"]
        for number, its in sorted(parts.items()):
            rows += [_row(number, figure) for figure in its["figures"]]
            commit = (its["commit"] or "unknown")[:9]
            ran = f"torch {its['torch']}, driver {its['driver']}, commit {commit}, {its['time'][:10]}"
            rows.append(f"| {number} | *{ran}* | {its['seconds']:,.0f} s | - | |")
        rows.append("")
    return rows[:-1]


def _row(number: int, figure: dict[str, Any]) -> str:
    value, limit = figure["value"], figure["limit"]
    said = f"{value:.4g}" if math.isfinite(value) else "none"
    judged = "" if limit is None else "pass" if value <= limit else "**FAIL**"
    what = figure["what"].replace("|", "/")
    return f"| {number} | {what} | {said} | {'-' if limit is None else f'{limit:g}'} | {judged} |"
