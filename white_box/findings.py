"""An audit's findings in words: what was tested, what would have been detected, and what was not tested."""

import textwrap
from collections.abc import Sequence

from heldin.white_box.check import SUBJECTS, Check, Subject
from heldin.white_box.laws import SEEN
from heldin.white_box.outcome import AlarmKind, TrainerOutcome

_TITLES: dict[Subject, str] = {
    "canaries": "gradient and text canaries by coin, gradient canaries in single steps",
    "keys": "what is keyed by what: two keys",
    "rates": "every unit's own rate, with texts or canary",
    "texts": "what units with texts add",
    "coordinates": "noise in every coordinate",
    "state": "state that is carried from step to step",
    "weights": "weights that follow from the releases alone",
    "unlike units": "units unlike the others",
    "processes": "two processes",
}
NOT_TESTED = (
    "how hard the key is to guess: two keys are compared, so a seed of few bits passes",
    "noise, coins or state that come back after more steps than were watched",
    "noise that depends on who is drawn, but not in the cohorts, nor at the losses, that are listed as tested",
    "what happens only with the noise on, or only without: who takes part and what they add is read off without",
    "sums and norms of the noise that do not vary, of other parts than tensors, rows and columns; other such functions",
    "noise that lacks a direction other than those tested (the gradient sum's, the weights', the last noise's)",
    "texts longer than 24 tokens, other models, other devices, lower precision",
    "weights that depend on more than the releases, but not in the steps here; a model saved with other weights",
    "resuming after a stop",
    "data before they are units: names, duplicates, tokenizer, choice of records",
    "attacks on floating point, and trainers that recognise this audit",
)
WIDTH = 118  # of the output, at most
_NAME = 52  # characters of a check's name in the table, which is then 80 wide
_NO_ALARM = "No check raised an alarm. The checks cover only what is listed as tested."
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
    """Return, for each class of mistakes, the number of checks and the smallest deviations that they would have
    detected."""
    lines = {}
    for subject in SUBJECTS:
        of_subject = [check for check in checks if check.subject == subject and not check.untested]
        if of_subject:
            seen = "; ".join(dict.fromkeys(check.detects for check in of_subject))
            lines[_TITLES[subject]] = f"{len(of_subject)} checks, would have seen with probability {SEEN:g}: {seen}"
    return lines


def untested_lines(checks: Sequence[Check]) -> list[str]:
    """List the mistakes that were not tested: first in this audit, then in any audit."""
    return [*(check.untested for check in checks if check.untested), *NOT_TESTED]


def closing_lines(checks: Sequence[Check], width: int = WIDTH) -> list[str]:
    """Return the last lines of the output: exactly what was tested, and what was not."""
    lines = [f"tested: {title}: {deviations}" for title, deviations in tested_lines(checks).items()]
    lines += [f"not tested: {text}" for text in untested_lines(checks)]
    return wrapped(lines, width)


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return the table of the checks that were made."""
    lines = [f"{'check':<{_NAME}} {'measured':>9} {'stated':>8} {'p-value':>8}"]
    for check in checks:
        if not check.untested:
            # A name that is too long has a line of its own.
            name = check.name if len(check.name) <= _NAME else f"{check.name}\n{'':<{_NAME}}"
            lines += [f"{name:<{_NAME}} {check.measured:>9.4g} {check.expected:>8.4g} {check.p_value:>8.2g}"]
    return lines


def alarm_text(alarm: Check, accepted: Sequence[AlarmKind]) -> str:
    """Return an alarm in words, with its kind, and whether it was accepted in advance."""
    kind = f"{alarm.kind.value}, accepted" if alarm.kind in accepted else alarm.kind.value
    chance = f" (p = {alarm.p_value:.1g})" if alarm.level else ""
    return f"ALARM ({kind}): {alarm.name}: {alarm.measured:.4g}, stated {alarm.expected:.4g}{chance}"


def outcome_text(outcome: TrainerOutcome, checks: Sequence[Check], accepted: Sequence[AlarmKind], of_coins: str) -> str:
    """Return the outcome of an audit in a few sentences.

    Args:
        accepted: kinds of alarms accepted in advance.
        of_coins: sentence on the accountant's curve, from the coins of gradient canaries.
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
    """Return the lines, each wrapped at ``width`` with an indented continuation."""
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="    ")]
