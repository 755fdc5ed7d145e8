"""An audit's findings in words: what was tested, what would have been seen, and what was not tested."""

import textwrap
from collections.abc import Sequence

from heldin.white_box.check import SUBJECTS, Check, Subject
from heldin.white_box.laws import SEEN

_TITLES: dict[Subject, str] = {
    "canaries": "gradient and text canaries by coin, gradient canaries in single steps",
    "keys": "what is keyed by what: two keys",
    "rates": "every unit's own rate, with texts or canary",
    "texts": "what units with texts add",
    "coordinates": "noise in every coordinate",
    "state": "state that is carried from step to step",
    "unlike units": "units unlike the others",
    "processes": "two processes",
}
NOT_TESTED = (
    "how secret what is made of the key is: two keys are compared, a seed of few bits passes",
    "noise, coins or state that come back after more steps than were watched",
    "what happens only with the noise on, or only without: who takes part and what they add is read off without",
    "sums and norms of the noise that do not vary, of other parts than tensors, rows and columns; other such functions",
    "noise that lacks a direction other than those tested (the gradient sum's, the weights', the last noise's)",
    "texts longer than 24 tokens, other models, other devices, lower precision",
    "what the optimizer does with anything but the released gradient, but for how it moves canaries' coordinates",
    "resuming after a stop",
    "data before they are units: names, duplicates, tokenizer, choice of records",
    "attacks on floating point, and trainers that recognise this audit",
)
_WIDTH = 118


def tested_lines(checks: Sequence[Check]) -> dict[str, str]:
    """By class of mistakes, the number of checks and the smallest deviations they would have seen."""
    found = {}
    for subject in SUBJECTS:
        its = [check for check in checks if check.subject == subject and not check.untested]
        if its:
            seen = "; ".join(dict.fromkeys(check.detects for check in its))
            found[_TITLES[subject]] = f"{len(its)} checks, would have seen with probability {SEEN:g}: {seen}"
    return found


def untested_lines(checks: Sequence[Check]) -> list[str]:
    """What was not tested: first in this audit, then in any audit."""
    return [*(check.untested for check in checks if check.untested), *NOT_TESTED]


def closing_lines(checks: Sequence[Check]) -> list[str]:
    """The last lines of the output: exactly what was tested, and what was not."""
    lines = [f"tested: {title}: {what}" for title, what in tested_lines(checks).items()]
    lines += [f"not tested: {what}" for what in untested_lines(checks)]
    return [part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="    ")]
