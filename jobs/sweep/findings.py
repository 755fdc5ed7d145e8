"""The findings that a sweep's file names, each tested by the difference of two variants."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from heldin.audit.blocks import LEAST_BLOCKS, Summary, over_blocks
from heldin.audit.coarse import brief
from heldin.audit.findings import Change, seen
from heldin.audit.paired import Difference, independent_difference
from heldin.jobs.sweep.config import Finding, Sweep
from heldin.jobs.sweep.finished import Finished
from heldin.jobs.sweep.variants import auroc_change, loss_change
from heldin.record.sweep import FindingResult

DIGITS = 4


def finding_results(sweep: Sweep, finished: Mapping[str, Finished]) -> list[FindingResult]:
    """Every finding of the file, over the finished cells.

    Variants of one group are held against each other block by block, on the same people; of different groups, whose
    people differ, over independent blocks (Welch).
    """
    groups = {its.name: its.group for its in sweep.variants}
    found = []
    for its in sweep.config.findings:
        variant, against = (_cells_of(name, finished) for name in (its.variant, its.against))
        if groups[its.variant] == groups[its.against]:
            difference = _paired(its, against, variant)
        else:
            difference = _unpaired(its, against, variant)
        limits: Change | None = None
        if difference is not None and difference.lower is not None and difference.upper is not None:
            limits = (difference.value, difference.lower, difference.upper)
        found.append(
            FindingResult(
                finding=its.finding,
                source=its.source,
                published=its.published,
                expected=its.expect,
                of=its.of,
                variant=its.variant,
                against=its.against,
                seen=seen(its.expect, limits, its.margin),
                difference=difference,
                values=[_mean(its.of, cells) for cells in (against, variant)],
            )
        )
    return found


def _cells_of(variant: str, finished: Mapping[str, Finished]) -> dict[int, Finished]:
    return {its.cell.block: its for its in finished.values() if its.cell.variant.name == variant}


def _paired(finding: Finding, against: Mapping[int, Finished], variant: Mapping[int, Finished]) -> Summary | None:
    """Variant less the other, in the blocks that have both; None if any block's cannot be stated."""
    of = _CHANGES[finding.of]
    stated = [of(against[block], variant[block]) for block in sorted(variant.keys() & against.keys())]
    known = [its for its in stated if its is not None]
    if not known or len(known) < len(stated):
        return None
    return over_blocks([its.value for its in known], (known[0].lower, known[0].upper), digits=DIGITS)


def _unpaired(finding: Finding, against: Mapping[int, Finished], variant: Mapping[int, Finished]) -> Summary | None:
    values = [[_value(finding.of, cell) for cell in cells.values()] for cells in (against, variant)]
    known = [np.array([its[0] for its in side if its is not None]) for side in values]
    if min(its.size for its in known) == 0 or any(its is None for side in values for its in side):
        return None
    value = float(known[1].mean() - known[0].mean())
    if min(its.size for its in known) >= LEAST_BLOCKS:
        limits = stats.ttest_ind(known[1], known[0], equal_var=False).confidence_interval(0.95)
        low, high = float(limits.low), float(limits.high)
        return Summary(value=brief(value, DIGITS), lower=brief(low, DIGITS), upper=brief(high, DIGITS), over="blocks")
    if max(its.size for its in known) > 1:
        return Summary(value=brief(value, DIGITS), lower=None, upper=None, over="users")
    first, second = (side[0] for side in values)
    assert first is not None
    assert second is not None
    value, low, high = (brief(its, DIGITS) for its in independent_difference(first, second))
    return Summary(value=value, lower=low, upper=high, over="users")


def _value(of: str, cell: Finished) -> Change | None:
    """A cell's own number with its limits; None where it has none."""
    record = cell.record
    if of == "auroc":
        area = record.primary().auroc
        return area.value, area.lower, area.upper
    if of == "canaries":
        return _canaries(cell)
    if record.utility is None or record.utility.gain is None:
        return None
    # The gain's spread over users, from the same base loss.
    gain, base = record.utility.gain, record.utility.base_loss
    return record.utility.loss, base - gain.upper, base - gain.lower


def _canaries(cell: Finished) -> Change | None:
    """Mean AUROC over the groups of canary users; their limits are independent, since no user is in two of them."""
    canaries = cell.record.canaries
    areas = [group.auroc for group in canaries.groups if group.auroc] if canaries else []
    if not areas:
        return None
    mean = float(np.mean([its.value for its in areas]))
    low = float(np.linalg.norm([its.value - its.lower for its in areas])) / len(areas)
    high = float(np.linalg.norm([its.upper - its.value for its in areas])) / len(areas)
    return mean, mean - low, mean + high


def _canary_change(first: Finished, other: Finished) -> Difference | None:
    """Joined as if the two were independent: the interval is too wide where users stand alike under both models."""
    one, two = _canaries(first), _canaries(other)
    if one is None or two is None:
        return None
    value, low, high = independent_difference(one, two)
    return Difference(value=value, lower=low, upper=high)


def _mean(of: str, cells: Mapping[int, Finished]) -> float | None:
    values: Sequence[Any] = [_value(of, cell) for cell in cells.values()]
    known = [value[0] for value in values if value is not None]
    return brief(float(np.mean(known)), DIGITS) if known and len(known) == len(values) else None


_CHANGES: dict[str, Callable[[Finished, Finished], Difference | None]] = {
    "auroc": auroc_change,
    "loss": loss_change,
    "canaries": _canary_change,
}
