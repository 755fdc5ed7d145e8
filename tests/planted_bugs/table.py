"""The tables of docs/planted-bugs.md, measured: `python -m tests.planted_bugs.table > docs/planted-bugs.md`."""

import warnings
from pathlib import Path

import torch

from heldin.white_box.check import LEVEL, TOTAL_LEVEL, Check
from heldin.white_box.findings import NOT_TESTED, closing_lines
from tests.planted_bugs import checks
from tests.planted_bugs.bugs import NAMED_IN_A1, Bug
from tests.planted_bugs.checks import GAMES, KEY, PROCESSES, checks_of, the_check
from tests.planted_bugs.every_bug import BUGS, FURTHER
from tests.planted_bugs.harmless import HARMLESS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "planted-bugs.md"
HEADER = ("bug", "class", "who makes it", "what it does to epsilon", "kind", "caught by", "figure", "first version")
ALARMS = """Measured on 22 November 2026, on heldin's own step under keys 40000 to 40199: 2 of 200 audits in one process
raised an alarm (one the distance from normal of a tensor, p = 6e-5; one the most deviant tensor amid people, p = 7e-6,
with the canaries drawn under two keys, p = 9e-5), and no check in which nothing is random did. Measured again when the
cohorts of one unit and of small contributions were added, under keys 41000 to 41039 (20 ULS, 10 ELS, 10 example): 0 of
40 audits raised an alarm. The part in two processes and the games are not yet measured"""

BEFORE = """# Planted bugs

Deliberately wrong trainers, and what catches each. Made by `python -m tests.planted_bugs.table > docs/planted-bugs.md`;
`tests/planted_bugs` plants every bug again, asserts that its check catches it and that the correct trainer passes the
same check, and compares the figures here with what it measures.

- **black-box**: an audit end to end. 300 users of 16 records, each by fair coin; two steps of the trainer under a
  claimed epsilon of 1 at delta 1e-5; a user's score is how much likelier a fresh text of theirs became, less what the
  auditor's own model, trained on the whole pool, leads to expect. Violation certified by the one-run test, exit code 3.
  For the two released models the second one is a variant that was trained on nobody of the pool.
- **white-box**: `heldin white-box` with two trainings of 100 canaries (claimed epsilon 4, rate 0.2, five steps) and
  as few steps as it takes, exit code 4 or 3; or, for what an optimizer does behind the noise, gradient canaries scored
  by how far the released weights moved.
- **two processes**: the part of `heldin white-box` that trains in two processes.
- **unit**: a named test.

"4 to x" is what epsilon becomes by [theory.md](theory.md#table-of-wrong-steps) (ULS, T = 1000, q = 1/64, delta =
1e-6); "1 to x" the accountant's epsilon for the noise that the wrong trainer of the black-box audit adds.

**First version**: what the first version of these checks made of a bug that was written before them. For each
"missed" a check of the whole class was then added: cohorts of unlike sizes, steps followed at several clip norms, draws
compared under other texts, and two processes, in which the first version did not run at all. Bugs "written later" were
written with the checks known; those without an entry are older than the checks. Of the ten whose noise depends on data
("noise by the number drawn" to "no noise without records"), the audit passed eight until it watched noise in cohorts of
one unit and of small contributions. The two that it caught are those by the median and by the step.
"""

HARMLESS_BEFORE = """
## Trainers that do it by other means

No check may alarm on these: one audit each, under a fixed key.

| trainer | checks | alarms |
|---|---|---|
"""

AFTER = """
## What no check sees

- **A user under two names** whose names share no text. `heldin corpus stats` counts texts that stand under two users, a
  record counts held-out texts that stand in training; both are zero then, and the guarantee is one of each name. What
  prevents it is the alias file (`corpus.aliases`), which merges the names before anything is drawn.
- **Sixteen bits of the key**: two keys are compared, and nothing is known of how many there are.
- heldin itself refuses a key that has served another job (`stages.train.training._bind_key`); that two runs of a
  foreign trainer share noise shows in the audit because it runs under several keys, from one state of the global
  generators.
- What `heldin white-box` says at its end, in these words:
NOT_TESTED

## What the checks would have seen

The end of the audit of the correct trainer of these tables, the shortest that there is; a longer one sees more. Each
random check has level LEVEL, and all together at most TOTAL. `tests/white_box/test_white_box_laws.py` plants
the smallest deviations and counts how often they are seen.

```
POWER
```

## Alarms on the correct trainer

ALARMS (`pytest -s -m long tests/planted_bugs -k few_alarms`; at most 4 are allowed, and where nothing is random none).
Over ten keys the logarithm of every random check's p-value lies more than five deviations below its level, so that a
planted bug is missed with probability below 1e-6.
"""


def row(bug: Bug, measured: str) -> str:
    caught = "; also ".join([bug.caught_by or "**nothing**", *([", ".join(bug.also)] if bug.also else [])])
    first = "" if bug.first == "before" else bug.first
    return "| " + " | ".join([bug.name, bug.subject, bug.mistake, bug.effect, bug.kind, caught, measured, first]) + " |"


def figure(check: Check) -> str:
    if check.name in GAMES:
        return f"epsilon >= {check.measured:.2f} certified, {check.expected:.0f} claimed; p = {check.p_value:.0e}"
    sure = f"; p = {check.p_value:.0e}" if check.p_value else "; p < 1e-300"
    sure = "" if check.level == 0.0 else sure
    return f"measured {check.measured:.3g}, stated {check.expected:.3g}{sure}"


def summary() -> str:
    own = [bug for bug in FURTHER if bug.first in ("caught", "missed")]
    seen, late = sum(bug.first == "caught" for bug in own), sum(bug.first == "written later" for bug in FURTHER)
    caught = sum(bool(bug.caught_by) for bug in own)
    return (
        f"\n{len(BUGS)} bugs. Of {len(own)} that were written before the checks, beside the {len(NAMED_IN_A1)} of which"
        f" it was known that the audit passed them, the first version caught {seen}; now {caught} of these are caught,"
        f" and all {late} that were written later.\n"
    )


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(BEFORE)
    print("| " + " | ".join(HEADER) + " |")
    print("|---" * len(HEADER) + "|")
    of_ranks = [bug for bug in BUGS if bug.caught_by.startswith(PROCESSES)]
    wanted = [(bug.plant(), checks.part_of(bug.caught_by), KEY) for bug in of_ranks]
    found = dict(zip([bug.name for bug in of_ranks], checks.process_checks(wanted), strict=True))
    for bug in BUGS:
        measured = "passes"
        if bug.caught_by:
            its = found[bug.name] if bug.name in found else checks_of(bug.caught_by, bug.plant(), KEY)
            measured = figure(the_check(bug.caught_by, its))
        print(row(bug, measured), flush=True)
    print(summary(), end="")
    print(HARMLESS_BEFORE, end="")
    for name, make in HARMLESS.items():
        its = checks.audit(make(), KEY)
        print(f"| {name} | {sum(not c.untested for c in its.checks)} | {len(its.alarms)} |", flush=True)
    power = "\n".join(closing_lines(checks.audit(checks.private_gradient, KEY).checks))
    text = AFTER.replace("ALARMS", ALARMS).replace("LEVEL", f"{LEVEL:g}").replace("TOTAL", f"{TOTAL_LEVEL:g}")
    text = text.replace("NOT_TESTED", "\n".join(f"  - {what};" for what in NOT_TESTED)).replace("POWER", power)
    print(text, end="")


if __name__ == "__main__":
    main()
