"""The table of limits on page one: what each limit is, what was measured, and whether the limit is met."""

import math
from typing import Any

from heldin.audit.requirement import Requirement
from heldin.record.document import Record
from heldin.record.requirements import Held, LimitStatus, held_against, held_for_no_leak
from heldin.reports.blocks import Table
from heldin.reports.recommendation import name_limit
from heldin.reports.wording import name_measure, sentence
from heldin.words.page_one import Limit, LimitOutcome
from heldin.words.statement import Statement

# What a limit would be compared with, in the order in which people who decide ask for it.
_ASKED = (("auroc", True), ("epsilon_per_user", True), ("loss_gain_over_base", False))
_NOTHING = "-"


def list_limits(record: Record) -> list[tuple[Statement, Held]]:
    """Return each limit with its status: those of "no leak found", then the organisation's."""
    by = record.decision.by
    auroc, rate = held_for_no_leak(record)
    yours = held_against(record, [limit.requirement() for limit in by.require])
    return [
        (Limit.NO_LEAK_AUROC(value=by.auroc), auroc),
        (Limit.NO_LEAK_RATE(value=100 * by.tpr, fpr=100 * by.fpr), rate),
        *((Limit.YOURS(limit=name_limit(held.requirement)), held) for held in yours),
    ]


def limit_rows(record: Record) -> list[list[str]]:
    """Return (limit, measured, 95 % limit, whether it is met) of each limit."""
    rows = [
        [str(limit), show_measured(held), show_reach(held), outcome_of(held)] for limit, held in list_limits(record)
    ]
    if not record.decision.by.require:
        rows.append([str(Limit.NOT_SET()), _NOTHING, _NOTHING, str(LimitOutcome.NOT_SET())])
    return rows


def outcome_of(held: Held) -> str:
    """Return whether a limit is met, in words."""
    return str(LimitOutcome[held.status.name]())


def show_measured(held: Held) -> str:
    """Return what was measured."""
    return _shown(held, held.value)


def show_reach(held: Held) -> str:
    """Return the confidence limit that decides; a number of the plan has none."""
    return _NOTHING if held.exact else _shown(held, held.reach)


def _shown(held: Held, value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{100 * value:.3g}" if held.requirement.measure == "tpr" else f"{value:.3g}"


def tabulate_limits(record: Record) -> Table:
    """Return the limits of page one."""
    head = ("limit", "measured", "95 % limit", "met?")
    return Table(head, limit_rows(record), numeric=(1, 2), widths=(3.4, 0.7, 0.8, 1.1), dense=True)


def limit_facts(record: Record) -> list[dict[str, Any]]:
    """Return the limits as JSON has them."""
    return [
        {
            "limit": limit.model_dump(mode="json"),
            "measured": held.value,
            "confidence_limit": held.reach,
            "status": held.status.value,
        }
        for limit, held in list_limits(record)
    ]


def propose_limits(record: Record) -> str:
    """Return which limits could be set, with what this record has for each; "" if limits are set."""
    if record.decision.by.require:
        return ""
    shown = []
    for measure, upper in _ASKED:
        # A limit that anything meets: what counts is the confidence limit with which it would be compared.
        asked = Requirement(measure, at_most=math.inf) if upper else Requirement(measure, at_least=-math.inf)
        (limit,) = held_against(record, [asked])
        if limit.reach is not None and limit.status is not LimitStatus.NOT_MEASURED:
            words = name_measure(f"{measure} at {'most' if upper else 'least'}")
            here = "this plan:" if limit.exact else f"here, with 95 %, {'up' if upper else 'down'} to"
            shown.append(f"{words} ... ({here} {limit.reach:.3g})")
    would = f" Possible limits: {sentence('; '.join(shown))}" if shown else ""
    return (
        "No acceptance limit was set before this audit (decision.require). Set limits before the next audit: a limit"
        f" chosen after seeing the result proves nothing.{would}"
    )
