"""The table of docs/planted-bugs.md, measured: `python -m tests.planted_bugs.table > docs/planted-bugs.md`."""

from pathlib import Path

import torch

from audit.white_box.checks import Check
from corpus.coins import seed_key
from tests.planted_bugs.bugs import BUGS, Bug
from tests.planted_bugs.checks import EXACT, GAMES, checks_of, the_check

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "planted-bugs.md"
KEY = seed_key(4)
HEADER = ("bug", "who makes it", "what it does to epsilon", "kind", "caught by", "figure")

BEFORE = """# Planted bugs

Deliberately wrong trainers, and what catches each. Made by `python -m tests.planted_bugs.table > docs/planted-bugs.md`;
`tests/planted_bugs` plants every bug again, asserts that its check catches it and that the correct trainer passes the
same check, and compares the figures here with what it measures.

- **black-box**: an audit end to end. 300 users of 16 records, each by fair coin; two steps of the trainer under a
  claimed epsilon of 1 at delta 1e-5; a user's score is how much likelier a fresh text of theirs became, less what the
  auditor's own model, trained on the whole pool, leads to expect. Violation certified by the one-run test, exit code 3.
  For the two released models the second one is a variant that was trained on nobody of the pool.
- **white-box**: `heldin audit-trainer` with two trainings of 100 canaries (claimed epsilon 4, rate 0.2, five steps),
  exit code 4 or 3; or, for what an optimizer does behind the noise, gradient canaries scored by how far the released
  weights moved.
- **unit**: a named test. "Distance from one backward per unit" compares a step with `tests/oracles/private_step.py`.

"4 to x" is what epsilon becomes by accounting section 3 (ULS, T = 1000, q = 1/64, delta = 1e-6); "1 to x" the
accountant's epsilon for the noise that the wrong trainer of the black-box audit adds.
"""

AFTER = """
## What no check sees

- **A user under two names** whose names share no text. `heldin corpus stats` counts texts that stand under two users, a
  record counts held-out texts that stand in training; both are zero then, and the guarantee is one of each name. What
  prevents it is the alias file (`corpus.aliases`), which merges the names before anything is drawn.
- **Batch-mean loss** passes the white-box audit: canaries hand over their gradients behind the loss, and what one
  writer adds stays below C on ordinary text. heldin's own step is held to the oracle by
  `tests/finetune/test_private.py`; of a foreign trainer the oracle must be run.
- heldin itself refuses a key that has served another job (`audit.training._bind_key`); that two runs of a foreign
  trainer share noise shows in the audit because it trains twice.

## Alarms on the correct trainer

All checks together at the 5 % level, 200 repetitions: ALARMS (`pytest -s -m slow tests/planted_bugs`; at
most 12 are allowed, and exact checks may never alarm). Over ten keys the logarithm of every random check's p-value lies
more than five deviations below its level, so that a planted bug is missed with probability below 1e-6.
"""
ALARMS = "not yet measured"


def row(bug: Bug, measured: str) -> str:
    caught = "; also ".join([bug.caught_by, *([", ".join(bug.also)] if bug.also else [])])
    return "| " + " | ".join([bug.name, bug.mistake, bug.effect, bug.kind, caught, measured]) + " |"


def figure(check: Check) -> str:
    if check.name in GAMES:
        return f"epsilon >= {check.measured:.2f} certified, {check.expected:.0f} claimed; p = {check.p_value:.0e}"
    sure = f"; p = {check.p_value:.0e}" if check.p_value else "; p < 1e-300"
    sure = "" if check.name.startswith(EXACT) else sure
    return f"measured {check.measured:.3g}, stated {check.expected:.3g}{sure}"


def main() -> None:
    torch.set_num_threads(1)
    print(BEFORE)
    print("| " + " | ".join(HEADER) + " |")
    print("|---" * len(HEADER) + "|")
    for bug in BUGS:
        print(row(bug, figure(the_check(bug.caught_by, checks_of(bug.caught_by, bug.plant(), KEY)))), flush=True)
    print(AFTER.replace("ALARMS", ALARMS), end="")


if __name__ == "__main__":
    main()
