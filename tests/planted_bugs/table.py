"""The planted bugs with what is measured of each: `python -m tests.planted_bugs.table` writes docs/planted-bugs.csv.

With `--new` only bugs without a row are measured.
"""

import csv
import sys
import warnings
from pathlib import Path

import torch

from heldin.white_box.check import Check
from tests.planted_bugs import checks
from tests.planted_bugs.bugs import NAMED_IN_A1, Bug
from tests.planted_bugs.checks import GAMES, KEY, PROCESSES, checks_of, the_check
from tests.planted_bugs.every_bug import BUGS, FURTHER

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "planted-bugs.md"
TABLE = DOCUMENT.with_suffix(".csv")
HEADER = (
    *("bug", "class", "who makes it", "effect on epsilon", "kind", "caught by", "also caught by", "figure"),
    "first version",
)


def rows() -> list[dict[str, str]]:
    """The rows of docs/planted-bugs.csv."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(bug: Bug, measured: str) -> list[str]:
    first = "" if bug.first == "before" else bug.first
    caught = bug.caught_by or "nothing"
    return [bug.name, bug.subject, bug.mistake, bug.effect, bug.kind, caught, ", ".join(bug.also), measured, first]


def figure(check: Check) -> str:
    if check.name in GAMES:
        return f"epsilon >= {check.measured:.2f} certified, {check.expected:.0f} claimed; p = {check.p_value:.0e}"
    sure = f"; p = {check.p_value:.0e}" if check.p_value else "; p < 1e-300"
    sure = "" if check.level == 0.0 else sure
    return f"measured {check.measured:.3g}, stated {check.expected:.3g}{sure}"


def counts() -> tuple[int, ...]:
    """The numbers of the page's first paragraph: all bugs; of those written before the checks, all, caught by the first
    version and by the present one; written later; known to pass the first version."""
    own = [bug for bug in FURTHER if bug.first in ("caught", "missed")]
    seen, late = sum(bug.first == "caught" for bug in own), sum(bug.first == "written later" for bug in FURTHER)
    caught = sum(bool(bug.caught_by) for bug in own)
    return len(BUGS), len(own), seen, caught, late, len(NAMED_IN_A1)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = {its["bug"]: its["figure"] for its in rows()} if "--new" in sys.argv else {}
    of_ranks = [bug for bug in BUGS if bug.caught_by.startswith(PROCESSES) and bug.name not in known]
    wanted = [(bug.plant(), checks.part_of(bug.caught_by), KEY) for bug in of_ranks]
    found = dict(zip([bug.name for bug in of_ranks], checks.process_checks(wanted) if wanted else [], strict=True))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER)
        for bug in BUGS:
            measured = known.get(bug.name, "passes")
            if bug.caught_by and bug.name not in known:
                its = found[bug.name] if bug.name in found else checks_of(bug.caught_by, bug.plant(), KEY)
                measured = figure(the_check(bug.caught_by, its))
            table.writerow(row(bug, measured))


if __name__ == "__main__":
    main()
