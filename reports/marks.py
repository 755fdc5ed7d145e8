"""What the record says of canary users' marks: one line for the terminal and the annex, a table for the PDF."""

from typing import Any

from heldin.audit.marks import Exposed, MarkGroup, MarkSide
from heldin.base.wording import counted
from heldin.record.document import Record

HEAD = ("", "canary users", "the likeliest of all", "in the first 1 %", "median, bits", "first 1 % under the reference")


def marks_line(record: Record) -> str:
    """How many marks are the likeliest of all, both sides, in one sentence; empty where none were ranked."""
    groups = _ranked(record)
    if not groups:
        return ""
    sides = []
    for name in ("held-in", "held-out"):
        group_sides: list[MarkSide] = [getattr(group, name.replace("-", "_")) for group in groups]
        first, users = sum(side.target.first_percent for side in group_sides), sum(side.users for side in group_sides)
        sides.append(f"{name} canary users {first:,} of {users:,}")
    return (
        "Canary users whose mark the model finds likelier than at least 99 % of"
        f" {_candidates(groups)} that were drawn alike and never planted: {'; '.join(sides)} (by chance 1 %)."
    )


def marks_table(record: Record) -> dict[str, Any]:
    """Head, rows and note of the table; empty where no marks were ranked."""
    groups = _ranked(record)
    if not groups:
        return {}
    chance = [
        "by chance",
        "",
        f"{100 / (1 + min(group.candidates for group in groups)):.2g}\u00a0%",
        "1\u00a0%",
        "1.0",
        "",
    ]
    return {
        "head": list(HEAD),
        "rows": [row for group in groups for row in _rows(group)] + [chance],
        "note": _note(record, groups),
    }


def _ranked(record: Record) -> list[MarkGroup]:
    """The groups of which candidates could be drawn."""
    marks = record.extraction.marks if record.extraction else None
    return [group for group in marks or [] if group.candidates]


def _rows(group: MarkGroup) -> list[list[str]]:
    name = group.kind.replace("_", " ")
    if group.length is not None:
        name += f" of {counted(group.length, 'token')}"
    return [_row(f"{name}, held in", group.held_in), _row("– held out", group.held_out)]


def _row(name: str, side: MarkSide) -> list[str]:
    highest = f"{side.target.highest:,}"
    if side.lower is not None and side.upper is not None:
        highest += f" ({100 * side.lower:.4g} to {100 * side.upper:.4g}\u00a0%)"
    first, beside = (f"{side.first_percent:,}" for side in (side.target, side.reference))
    return [name, f"{side.users:,}", highest, first, _median(side.target), beside]


def _median(exposed: Exposed) -> str:
    return "N/A" if exposed.median is None else f"{exposed.median:.1f}"


def _candidates(groups: list[MarkGroup]) -> str:
    fewest, most = (bound(group.candidates for group in groups) for bound in (min, max))
    return f"{most:,} marks" if fewest == most else f"{fewest:,} to {most:,} marks"


def _note(record: Record, groups: list[MarkGroup]) -> str:
    text = (
        "Exposure of canary users (Carlini et al. 2019): the probability of what all texts of a canary user share is"
        f" ranked among that of {_candidates(groups)} drawn by the same recipe, with a key, and planted nowhere; one"
        " that is as likely counts as likelier. Exposure is log2 of their number and one, less log2 of the rank: the"
        " likeliest of all has the highest, and one bit is the middle of what was never planted. In brackets: exact"
        " 95 % limits of the share (Clopper-Pearson). N/A: fewer than ten canary users. Held-out canary users and the"
        " reference are the control."
    )
    if any(group.kind == "substring" for group in groups):
        text += (
            " The words of substrings are some user's own, so that likely ones rank before a planted one whatever was"
            " trained; their candidates are words that other users' training did not see."
        )
    return text
