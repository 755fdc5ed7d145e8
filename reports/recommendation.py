"""What the organisation's own limits recommend: from the record, and never against a violated claim."""

import math

from heldin.audit.decision import Answer, Promise
from heldin.audit.requirement import Requirement
from heldin.bounds.verdict import NO_CLAIM, Outcome
from heldin.record.condition_words import statement
from heldin.record.document import Record
from heldin.record.requirements import Held, held_against
from heldin.reports.sweep_words import with_names
from heldin.reports.wording import sentence

# What a limit would be held against, in the order in which somebody who decides asks for it.
_ASKED = (("auroc", True), ("epsilon_per_user", True), ("loss_gain_over_base", False))


def recommendation(record: Record) -> str:
    """A sentence or two: release or not, by the limits of ``decision.require``, or what a limit would have to say."""
    violated = [
        verdict
        for verdict in record.judgement.verdicts
        if verdict.claim != NO_CLAIM and verdict.outcome is Outcome.VIOLATED
    ]
    if violated:
        return f"Do not release: {violated[0].claim} is violated ({violated[0].standing.value}), whatever limits say."
    if record.decision.decision.answer is Answer.NOT_VALID:
        return "None: the comparison is not valid, so that nothing can be held against a limit."
    if record.decision.decision.promise is Promise.ABOVE:
        return "Do not release yet: the leak looks larger than the promise allows, whatever limits say."
    if record.planted and (unmet := record.planted.unmet()):
        return (
            f"None: a condition of the audit is not met ({statement(unmet[0])}), so it may speak of another training."
        )
    held = held_against(record, [limit.requirement() for limit in record.decision.by.require])
    if not held:
        return _without_limits(record)
    broken = [limit for limit in held if limit.outcome == "broken"]
    if broken:
        return f"Do not release: {_listed(broken, 'is broken')}."
    left = [limit for limit in held if limit.outcome != "kept"]
    if left:
        others = len(held) - len(left)
        rest = "" if not others else " The other limit is kept." if others == 1 else f" The other {others} are kept."
        return f"Do not release yet: {_listed(left, 'is not shown to be kept')}. {_more(left)}{rest}"
    leak = {
        Answer.LEAKS: (
            " A leak was found, of a size that these limits allow; below stands whom the model must not reach."
        ),
        Answer.INCONCLUSIVE: " The answer stays inconclusive: its own thresholds are not shown to be kept.",
    }.get(record.decision.decision.answer, "")
    return (
        f"Release, by the organisation's own limits: {_listed(held, 'is kept')}.{leak}{_standing(record, held)} What no"
        " test looked at is in the annex."
    )


def _standing(record: Record, held: list[Held]) -> str:
    if all(limit.exact for limit in held):
        return ""
    text = " What was measured is an estimate from this one training, its interval included"
    return f"{text}." if record.split.certifiable else f"{text}, and indicative only: {record.split.standing_reason}."


def limit_rows(record: Record) -> list[list[str]]:
    """(limit, value, end of its 95 % interval, outcome) of each limit of ``decision.require``."""
    return [
        [
            with_names(held.requirement.words()),
            "-" if held.value is None else f"{held.value:.4g}",
            # A promise is stated, not measured: it has no interval.
            "-" if held.reach is None or held.exact else f"{held.reach:.4g}",
            held.outcome,
        ]
        for held in held_against(record, [limit.requirement() for limit in record.decision.by.require])
    ]


def _listed(held: list[Held], how: str) -> str:
    return "; ".join(f'the limit "{with_names(limit.requirement.words())}" {how}{_seen(limit)}' for limit in held)


def _seen(limit: Held) -> str:
    if limit.outcome == "not measured":
        return " (not measured)"
    if limit.exact:
        return " (there is no such promise)" if limit.value is None else f" (the plan's: {limit.value:.3g})"
    upper = limit.requirement.at_most is not None
    # A broken limit by the near end of the interval, any other by the far one.
    if limit.outcome == "broken":
        return f" (measured {limit.value:.3f}, and {'at least' if upper else 'at most'} {limit.reach:.3f} with 95 %)"
    return f" (measured {limit.value:.3f}, and {'up' if upper else 'down'} to {limit.reach:.3f} with 95 %)"


def _more(left: list[Held]) -> str:
    if any(limit.outcome == "not shown" for limit in left):
        return "More users would narrow the interval."
    return "This audit did not measure it."


def _without_limits(record: Record) -> str:
    """What limits would have to say, with what this record holds for each."""
    shown = []
    for measure, upper in _ASKED:
        # A limit that anything keeps: what counts is the end of the interval that it would be held against.
        asked = Requirement(measure, at_most=math.inf) if upper else Requirement(measure, at_least=-math.inf)
        (limit,) = held_against(record, [asked])
        if limit.reach is not None:
            words = with_names(f"{measure} at {'most' if upper else 'least'}")
            shown.append(f"{words} ... ({_here(limit, upper=upper)} {limit.reach:.3g})")
    would = f" {sentence('; '.join(shown))}" if shown else ""
    return (
        "None: no limit was set before the audit (decision.require). A limit would have to say what this organisation"
        f" accepts.{would} A limit that is chosen after looking fits whatever was found."
    )


def _here(limit: Held, *, upper: bool) -> str:
    if limit.exact:
        return "this plan:"
    return "here, with 95 %, up to" if upper else "here, with 95 %, down to"
