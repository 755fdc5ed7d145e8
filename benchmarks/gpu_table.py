"""Write the table of GPUs in RESULTS.md from the measurements of the GPU benchmark."""

import json
import math
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- GPUs: begin -->", "<!-- GPUs: end -->"


def renew(results: Path, lines: Path) -> None:
    """Write the newest figures of each part and each kind of device between the marks in ``results``."""
    text = results.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"{results} has no marks {BEGIN} and {END}")
    results.write_text(before + "\n".join([BEGIN, "", *table(lines), "", END]) + after, encoding="utf-8")


def table(lines: Path) -> list[str]:
    """Return the lines of a table for each kind of device."""
    newest: dict[str, dict[tuple[int, int], dict[str, Any]]] = {}
    for line in lines.read_text(encoding="utf-8").splitlines():
        measured = json.loads(line)
        # The oldest lines of parts with one case have no number of it.
        newest.setdefault(measured["device"], {})[measured["part"], measured.get("case", 0)] = measured
    rows = []
    for device, cases in newest.items():
        rows += [f"**{device}**:", "", "| part | what | figure | at most | |", "|---|---|---|---|---|"]
        for (number, case), measured in sorted(cases.items()):
            rows += [_row(number, figure) for figure in measured["figures"]]
            commit = (measured["commit"] or "unknown")[:9]
            ran = f"torch {measured['torch']}, driver {measured['driver']}, commit {commit}, {measured['time'][:10]}"
            rows.append(f"| {number} | *case {case}, {ran}* | {measured['seconds']:,.0f} s | - | |")
        rows.append("")
        for _, measured in sorted(cases.items()):
            for about, profile in measured.get("profile", {}).items():
                rows += _profile(device, about, profile)
    return rows[:-1]


def _profile(device: str, about: str, profile: dict[str, Any]) -> list[str]:
    """Return the lines about a profiled step: seconds by class, and the most expensive kernels."""
    whole = sum(row["seconds"] for row in profile["classes"].values())
    rows = [
        f"**{device}, a step profiled: {about}**, {profile['step'] * 1e3:.1f} ms of which"
        f" {profile['gaps'] * 1e3:.1f} ms without a kernel, {profile['kernels']:,} kernels:",
        "",
        "| class | kernels | ms | share | GB | TB/s |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in profile["classes"].items():
        moved, seconds = row.get("bytes"), row["seconds"]
        told = "- | -" if not moved or not seconds else f"{moved / 1e9:.2f} | {moved / seconds / 1e12:.2f}"
        rows.append(f"| {name} | {row['calls']:,} | {seconds * 1e3:.2f} | {seconds / whole:.1%} | {told} |")
    rows += ["", "| kernel | class | operation | calls | ms | share |", "|---|---|---|---|---|---|"]
    for row in profile["most costly"]:
        kernel, operation = (row[key].replace("|", "/") for key in ("kernel", "operation"))
        rows.append(
            f"| `{kernel[:100]}` | {row['class']} | {operation} | {row['calls']:,} | {row['seconds'] * 1e3:.2f} |"
            f" {row['share']:.1%} |"
        )
    return [*rows, ""]


def _row(number: int, figure: dict[str, Any]) -> str:
    value, limit = figure["value"], figure["limit"]
    said = f"{value:.4g}" if math.isfinite(value) else "none"
    judged = "" if limit is None else "pass" if value <= limit else "**FAIL**"
    what = figure["what"].replace("|", "/")
    return f"| {number} | {what} | {said} | {'-' if limit is None else f'{limit:g}'} | {judged} |"
