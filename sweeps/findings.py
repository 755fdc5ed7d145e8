"""The findings that a sweep's file names, each tested by the difference of two variants."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

from heldin.audit.blocks import LEAST_BLOCKS, Summary, over_blocks
from heldin.audit.coarse import brief
from heldin.audit.findings import Change, seen
from heldin.audit.paired import Difference, independent_difference
from heldin.audit.utility import mean_difference
from heldin.record.sweep import FindingResult
from heldin.sweeps.config import Finding, Sweep
from heldin.sweeps.finished import Finished
from heldin.sweeps.variants import auroc_change, loss_change, measured_on

DIGITS = 4


def finding_results(sweep: Sweep, finished: Mapping[str, Finished]) -> list[FindingResult]:
    """Every finding of the file, over the finished cells; none is judged before all blocks of both variants are done.

    Variants of one group are held against each other block by block, on the same people; of different groups, whose
    people differ, over independent blocks (Welch).
    """
    groups = {its.name: its.group for its in sweep.variants}
    found = []
    for its in sweep.config.findings:
        variant, against = (_cells_of(name, finished) for name in (its.variant, its.against))
        whole = len(variant) == len(against) == sweep.config.blocks
        paired = groups[its.variant] == groups[its.against]
        difference = (_paired if paired else _unpaired)(its, against, variant) if whole else None
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
    """Variant less the other, block by block; None if any block's difference cannot be stated."""
    stated = [_CHANGES[finding.of](against[block], variant[block]) for block in sorted(variant)]
    known = [its for its in stated if its is not None]
    if len(known) < len(stated):
        return None
    return over_blocks([its.value for its in known], (known[0].lower, known[0].upper), digits=DIGITS)


def _unpaired(finding: Finding, against: Mapping[int, Finished], variant: Mapping[int, Finished]) -> Summary | None:
    """The same of variants with other people: blocks of the one are independent of blocks of the other."""
    if len({_like(finding.of, its) for its in (*against.values(), *variant.values())}) > 1:
        return None
    first, second = ([_value(finding.of, cell) for cell in cells.values()] for cells in (against, variant))
    known = [[its for its in side if its is not None] for side in (first, second)]
    if [len(side) for side in known] != [len(first), len(second)]:
        return None
    if len(first) == 1:
        value, low, high = (brief(its, DIGITS) for its in independent_difference(known[0][0], known[1][0]))
        return Summary(value=value, lower=low, upper=high, over="users")
    ones, others = (np.array([value for value, _, _ in side]) for side in known)
    value = brief(float(others.mean() - ones.mean()), DIGITS)
    if len(first) < LEAST_BLOCKS:
        return Summary(value=value, lower=None, upper=None, over="users")
    limits = stats.ttest_ind(others, ones, equal_var=False).confidence_interval(0.95)
    low, high = (brief(float(its), DIGITS) for its in (limits.low, limits.high))
    return Summary(value=value, lower=low, upper=high, over="blocks")


def _like(of: str, cell: Finished) -> str:
    """What two cells must have in common for this of them to compare."""
    return repr(measured_on(cell) if of == "loss" else cell.cell.config.attack)


def _value(of: str, cell: Finished) -> Change | None:
    """A cell's own number with its limits; None where it has none."""
    if of == "auroc":
        area = cell.record.primary().auroc
        return cell.auroc, area.lower, area.upper
    if of == "canaries":
        return _canaries(cell)
    if cell.loss is None:
        return None
    # Of the users' own losses: how far each is below the base model's says nothing about other users.
    losses = np.array([its.loss for its in cell.losses.values()])
    spread = mean_difference(np.zeros(losses.size), losses)
    return None if spread is None else (spread.value, spread.lower, spread.upper)


def _canaries(cell: Finished) -> Change | None:
    """Mean AUROC over the groups of canary users; their limits are independent, since no user is in two of them.

    None if the coins left a group too small for an AUROC: the mean would be of other groups than another cell's.
    """
    canaries = cell.record.canaries
    areas = [group.auroc for group in canaries.groups] if canaries else []
    known = [its for its in areas if its is not None]
    if not areas or len(known) < len(areas):
        return None
    mean = float(np.mean([its.value for its in known]))
    low = float(np.linalg.norm([its.value - its.lower for its in known])) / len(known)
    high = float(np.linalg.norm([its.upper - its.value for its in known])) / len(known)
    return mean, mean - low, mean + high


def _canary_change(first: Finished, other: Finished) -> Difference | None:
    """Joined as if the two were independent: the interval is too wide where users stand alike under both models."""
    if _like("canaries", first) != _like("canaries", other):
        return None
    one, two = _canaries(first), _canaries(other)
    if one is None or two is None:
        return None
    value, low, high = independent_difference(one, two)
    return Difference(value=value, lower=low, upper=high)


def _mean(of: str, cells: Mapping[int, Finished]) -> float | None:
    values = [_value(of, cell) for cell in cells.values()]
    known = [value[0] for value in values if value is not None]
    return brief(float(np.mean(known)), DIGITS) if known and len(known) == len(values) else None


_CHANGES: dict[str, Callable[[Finished, Finished], Difference | None]] = {
    "auroc": auroc_change,
    "loss": loss_change,
    "canaries": _canary_change,
}
