"""The findings of an audit as text: the tests, their detectable deviations, and what was not tested."""

import textwrap
from collections.abc import Sequence

from heldin.white_box.check import SUBJECTS, Check, Subject
from heldin.white_box.laws import SEEN
from heldin.white_box.outcome import AlarmKind, TrainerOutcome

_TITLES: dict[Subject, str] = {
    "canaries": "gradient and text canaries by coin, gradient canaries in single steps",
    "keys": "dependence on the key, with two keys",
    "rates": "every unit's own rate, with texts or canary",
    "texts": "contributions of units with texts",
    "coordinates": "noise in every coordinate",
    "state": "state that is carried from step to step",
    "weights": "weights that depend only on the releases",
    "unlike units": "unusual units",
    "processes": "two processes",
}
NOT_TESTED = (
    "whether the key can be guessed: only two keys are compared, so a short seed passes",
    "noise, coins or state that repeat after more steps than the audit watched",
    "noise that depends on the drawn units in cohorts, or at losses, that are not listed as tested",
    "mistakes only in steps with noise: sampled units and contributions are read from steps without noise",
    "constant sums or norms of noise over parts other than tensors, rows and columns; other constant functions",
    "noise without a component along an untested direction (tested: gradient sum, weights, last noise)",
    "texts longer than 24 tokens, other models, other devices, lower precision",
    "weights that depend on other data only in steps outside this audit; a saved model with other weights",
    "resuming an interrupted training",
    "the way from data to units: names, duplicates, tokenizer, choice of records",
    "attacks on floating point, and trainers that recognise this audit",
)
WIDTH = 118  # of the output, at most
_NAME = 52  # characters of a check's name in the table, which is then 80 wide
_NO_ALARM = "No check raised an alarm. The checks cover only the mistakes that are listed as tested."
_OUTCOMES: dict[TrainerOutcome, str] = {
    TrainerOutcome.CURVE_CONTRADICTED: "The trainer does not have the stated guarantee.",
    TrainerOutcome.MECHANISM_CONTRADICTED: "The trainer does not run the stated mechanism.",
    TrainerOutcome.UNSAFE: "A unit whose gradient is not finite changes more of a step than its own contribution."
    " No check contradicts the stated mechanism on finite input.",
    TrainerOutcome.INCONCLUSIVE: _NO_ALARM,
    TrainerOutcome.CONSISTENT: _NO_ALARM,
}
_ACCEPTED = "You accepted this finding, so the exit code is 0."
_NOT_ACCEPTED = (
    "Leave such a unit out of the sum. If no gradient can be infinite or NaN, accept this finding with"
    " --accept non-finite."
)


def tested_lines(checks: Sequence[Check]) -> dict[str, str]:
    """Return, for each class of mistakes, the number of checks and the smallest deviations that they detect."""
    lines = {}
    for subject in SUBJECTS:
        of_subject = [check for check in checks if check.subject == subject and not check.untested]
        if of_subject:
            seen = "; ".join(dict.fromkeys(check.detects for check in of_subject))
            lines[_TITLES[subject]] = f"{len(of_subject)} checks, which detect with probability {SEEN:g}: {seen}"
    return lines


def untested_lines(checks: Sequence[Check]) -> list[str]:
    """List the mistakes that were not tested: first in this audit, then in any audit."""
    return [*(check.untested for check in checks if check.untested), *NOT_TESTED]


def closing_lines(checks: Sequence[Check], width: int = WIDTH) -> list[str]:
    """Return the last lines of the output, which list what was tested and what was not."""
    lines = [f"tested: {title}: {deviations}" for title, deviations in tested_lines(checks).items()]
    lines += [f"not tested: {text}" for text in untested_lines(checks)]
    return wrapped(lines, width)


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return the table of completed checks, as lines."""
    lines = [f"{'check':<{_NAME}} {'measured':>9} {'stated':>8} {'p-value':>8}"]
    for check in checks:
        if not check.untested:
            # A name that is too long has a line of its own.
            name = check.name if len(check.name) <= _NAME else f"{check.name}\n{'':<{_NAME}}"
            lines += [f"{name:<{_NAME}} {check.measured:>9.4g} {check.expected:>8.4g} {check.p_value:>8.2g}"]
    return lines


def alarm_text(alarm: Check, accepted: Sequence[AlarmKind]) -> str:
    """Return a line about an alarm, with its kind, and whether the user accepted this kind in advance."""
    kind = f"{alarm.kind.value}, accepted" if alarm.kind in accepted else alarm.kind.value
    chance = f" (p = {alarm.p_value:.1g})" if alarm.level else ""
    return f"ALARM ({kind}): {alarm.name}: {alarm.measured:.4g}, stated {alarm.expected:.4g}{chance}"


def outcome_text(outcome: TrainerOutcome, checks: Sequence[Check], accepted: Sequence[AlarmKind], of_coins: str) -> str:
    """Return the outcome of an audit as a few sentences.

    Args:
        accepted: kinds of alarms that the user accepted in advance.
        of_coins: sentence about the accountant's curve, from the coins of gradient canaries.
    """
    made = [check for check in checks if not check.untested]
    raised = [check for check in made if check.alarm]
    text = f"{outcome.upper()}: {_OUTCOMES[outcome]}"
    if raised:
        text += f" {len(raised)} of {len(made)} checks raised an alarm."
    if outcome is TrainerOutcome.UNSAFE:
        text += f" {_ACCEPTED if AlarmKind.NON_FINITE in accepted else _NOT_ACCEPTED}"
    return f"{text} Coins of gradient canaries: {of_coins}."


def wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Return the lines, wrapped at ``width``. Continuation lines are indented."""
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="    ")]
