"""The table of limits on page one: each limit, the measured value, and whether the limit is met."""

import math
from collections.abc import Iterator
from typing import Any

from heldin.audit.requirement import Requirement
from heldin.record.document import Record
from heldin.record.requirements import Held, LimitStatus, held_against, held_for_no_leak
from heldin.reports.blocks import Table
from heldin.reports.wording import name_limit, name_measure, sentence
from heldin.words.page_one import Limit, LimitOutcome, Measured
from heldin.words.statement import Statement

# What a limit would be compared with, in the order in which people who decide ask for it.
_ASKED = (("auroc", True), ("epsilon_per_user", True), ("loss_gain_over_base", False))


def list_limits(record: Record) -> list[tuple[Statement, Held]]:
    """Return each limit with its status: first the limits of "no leak found", then the organisation's limits."""
    by = record.decision.by
    auroc, rate = held_for_no_leak(record)
    yours = held_against(record, [limit.requirement() for limit in by.require])
    return [
        (Limit.NO_LEAK_AUROC(value=by.auroc), auroc),
        (Limit.NO_LEAK_RATE(value=100 * by.tpr, fpr=100 * by.fpr), rate),
        *((Limit.YOURS(limit=name_limit(held.requirement)), held) for held in yours),
    ]


def limit_rows(record: Record) -> list[list[str]]:
    """Return (limit, measured, 95 % limit, whether it is met) for each limit as text; "" for a missing number."""
    rows = [_of_baselines(record), *_of_learning(record)]
    rows += [
        [str(limit), _shown(held, held.value), "" if held.exact else _shown(held, held.reach), _outcome(held.status)]
        for limit, held in list_limits(record)
    ]
    if not record.decision.by.require:
        rows.append([str(Limit.NOT_SET()), "", "", str(LimitOutcome.NOT_SET())])
    return rows


def _of_baselines(record: Record) -> list[str]:
    separating = [baseline.name for baseline in record.blind if baseline.separates]
    status = LimitStatus.BROKEN if separating else LimitStatus.MET if record.blind else LimitStatus.NOT_MEASURED
    measured = Measured.NONE_SEPARATES(of=len(record.blind)) if record.blind else None
    if separating:
        measured = Measured.SEPARATING(count=len(separating), of=len(record.blind), names=", ".join(separating))
    return [str(Limit.BASELINES()), "" if measured is None else str(measured), "", _outcome(status)]


def _of_learning(record: Record) -> Iterator[list[str]]:
    """Yield evidence that the model learned: its gain, or else the result on rows that were planted to show this."""
    gain = record.gain or (record.utility.gain if record.utility else None)
    control = record.planted.control if record.planted else None
    if gain is not None:
        # The reference of an audit may be any model, such as a better one.
        code = Limit.LEARNED if record.training else Limit.LEARNED_MORE
        limit, value, lower, shown = code(per=record.gain.per if record.gain else "token"), gain.value, gain.lower, 0.0
    elif control is not None and control.rows_auroc is not None and control.rows_lower is not None:
        limit, value, lower, shown = Limit.LEARNED_ROWS(), control.rows_auroc, control.rows_lower, 0.5
    else:
        return
    status = LimitStatus.MET if lower > shown else LimitStatus.NOT_SHOWN
    yield [str(limit), f"{value:.3g}", f"{lower:.3g}", _outcome(status)]


def _outcome(status: LimitStatus) -> str:
    return str(LimitOutcome[status.name]())


def _shown(held: Held, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.3g}" if held.requirement.measure == "tpr" else f"{value:.3g}"


def tabulate_limits(record: Record) -> Table:
    """Return the table of limits on page one."""
    head = ("limit", "measured", "95 % confidence limit", "met?")
    return Table(head, limit_rows(record), numeric=(1, 2), widths=(4.2, 0.7, 1.0, 1.3))


def limit_facts(record: Record) -> list[dict[str, Any]]:
    """Return the limits as JSON values."""
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
    """Return possible limits with this record's value for each; "" if the organisation has set limits."""
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
