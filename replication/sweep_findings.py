"""Published findings about sweeps. heldin tests each finding by the difference between two variants
(``findings.yaml``)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, model_validator
from scipy import stats

from heldin.audit.blocks import LEAST_BLOCKS, Summary, over_blocks
from heldin.audit.coarse import brief
from heldin.audit.limits import AurocDifference, independent_difference
from heldin.audit.utility import mean_difference
from heldin.base.errors import InputError
from heldin.base.section import Positive, Section
from heldin.base.yaml_files import read_yaml
from heldin.sweeps.finished import Finished
from heldin.sweeps.sweep_config import Sweep
from heldin.sweeps.variants import auroc_change, loss_change, measured_on
from replication.findings import MARGIN, SPREAD_OF_TRAININGS, Change, Expected, Seen, of_one_training, seen

FILE = Path(__file__).parent / "findings.yaml"
DIGITS = 4
_LOSSES = ("loss", "gain")


class Published(Section):
    """Values that a paper prints. heldin prints its own values next to them only if the units agree."""

    unit: Literal["auroc", "loss", "perplexity"]
    """Unit of the values: auroc, loss (nats per token) or perplexity."""
    values: tuple[float, float]
    """The values in the paper: first for ``against``, then for ``variant``."""


class Finding(Section):
    """A published finding, and a test of the difference between two variants that is fixed before any measurement."""

    finding: str
    """The finding, as a sentence."""
    source: str
    """Paper, and the place in the paper."""
    of: Literal["auroc", "loss", "canaries", "gain"]
    """Quantity to compare. auroc: AUROC of the primary attack. loss: loss on non-members' test texts. canaries: mean
    AUROC of the groups of canary users. gain: loss of the base model minus the loss on non-members' test texts.
    """
    variant: str
    """Variant that the finding compares with ``against``."""
    against: str | float
    """Variant or number to compare with ``variant``."""
    share: Positive = 1.0
    """For gains: share of the gain of ``against`` to compare with the gain of ``variant``."""
    beyond: tuple[str, str] | None = None
    """For losses: a second pair of variants. heldin compares the loss differences of the two pairs."""
    sizes: bool = False
    """With ``beyond``: whether to compare absolute differences."""
    expect: Expected
    """Expected value of ``variant``, compared with ``against``: less, more or alike."""
    margin: Positive = MARGIN
    """Differences smaller than this number count as zero."""
    published: Published | None = None
    """Values that the paper prints; null if the paper prints none."""

    @model_validator(mode="after")
    def _of_losses(self) -> "Finding":
        if self.beyond is not None and self.of != "loss":
            raise ValueError(
                "beyond: heldin compares two differences only of losses. Set of to loss, or leave beyond out"
            )
        if self.share != 1.0 and (self.of != "gain" or self.beyond is not None):
            raise ValueError("share: only gains have a share. Set of to gain, or leave share out")
        if self.beyond is not None and not isinstance(self.against, str):
            raise ValueError("with beyond, against must be the name of a variant: give a name")
        if self.sizes and (self.beyond is None or self.expect != "more"):
            raise ValueError("sizes: set beyond, and set expect to more")
        return self

    @property
    def variants(self) -> tuple[str, ...]:
        """Return the names of all variants that the finding compares."""
        return tuple(name for name in (self.variant, self.against, *(self.beyond or ())) if isinstance(name, str))

    @property
    def unit(self) -> str:
        """Return the unit in which levels are stated, which is the paper's. The test uses ``of``, which is fixed."""
        return self.published.unit if self.published else self.of


@dataclass(frozen=True)
class FindingResult:
    """A published finding, with the verdict for our results.

    Attributes:
        asked: the finding.
        seen: the verdict.
        difference: the variant minus the other; None if it cannot be computed.
        limits: the difference with the deciding 95 % interval; None without an interval. For a loss in one block, the
            interval includes the variation between trainings.
        values: means over the blocks of ``against`` and of ``variant``, in the finding's unit; None if a cell has no
            value.
            none.
    """

    asked: Finding
    seen: Seen
    difference: Summary | None
    limits: Change | None
    values: tuple[float | None, float | None]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        difference = self.difference.model_dump(mode="json") if self.difference else None
        return {
            **self.asked.model_dump(mode="json"),
            "seen": self.seen,
            "difference": difference,
            "limits": self.limits,
            "values": self.values,
        }


def findings_of(name: str, sweep: Sweep) -> tuple[Finding, ...]:
    """Return the findings in ``findings.yaml`` for the sweep file ``name`` whose variants are in this sweep.

    Raises InputError if the file lists findings, but this sweep lacks the variants of every finding.
    """
    listed = TypeAdapter(dict[str, tuple[Finding, ...]]).validate_python(read_yaml(FILE)).get(name, ())
    variants = {variant.name for variant in sweep.variants}
    findings = tuple(finding for finding in listed if variants.issuperset(finding.variants))
    if listed and not findings:
        missing = sorted({variant for finding in listed for variant in finding.variants} - variants)
        raise InputError(
            f"every finding needs variants that are not in the sweep ({', '.join(map(repr, missing))}): choose from"
            f" {', '.join(map(repr, sorted(variants)))}"
        )
    return findings


def judge_findings(findings: Sequence[Finding], sweep: Sweep, finished: Mapping[str, Finished]) -> list[FindingResult]:
    """Judge every finding over the finished cells. A finding needs all blocks of both variants.

    Variants of one group are compared block by block, on the same people. Variants of different groups have different
    people, so they are compared over independent blocks (Welch).
    """
    groups = {variant.name: variant.group for variant in sweep.variants}
    results = []
    for finding in findings:
        cells = [_cells_of(name, finished) for name in finding.variants]
        variant, against = cells[0], cells[min(1, len(cells) - 1)]
        whole = all(len(of_one) == sweep.config.blocks for of_one in cells)
        paired = len({groups[name] for name in finding.variants}) == 1
        if finding.beyond is not None:
            difference = _doubled(cells, finding.sizes) if whole and paired else None
        elif not isinstance(finding.against, str):
            difference = _from_number(finding, finding.against, variant) if whole else None
        else:
            difference = (_paired if paired else _unpaired)(finding, against, variant) if whole else None
        limits: Change | None = None
        if difference is not None and difference.lower is not None and difference.upper is not None:
            limits = (difference.value, difference.lower, difference.upper)
            if difference.over == "users" and finding.of in _LOSSES:
                limits = of_one_training(limits, 1 if finding.beyond is None else 2)
        number = None if isinstance(finding.against, str) else finding.against
        values = (_mean(finding.unit, against) if number is None else number, _mean(finding.unit, variant))
        results.append(FindingResult(finding, seen(finding.expect, limits, finding.margin), difference, limits, values))
    return results


def finding_table(results: Sequence[FindingResult], blocks: int) -> str:
    """Return a line for each finding, and notes about the validity of the verdicts."""
    lines = []
    for result in results:
        asked, change = result.asked, result.difference
        figures = "-" if change is None else f"{change.value:+.4f}"
        if result.limits is not None:
            figures += " ({1:+.4f} to {2:+.4f})".format(*result.limits)
        ours = " to ".join("-" if value is None else f"{value:.3f}" for value in result.values)
        theirs = "{} to {}".format(*asked.published.values) if asked.published else "none"
        lines.append(
            f"finding: {asked.finding} ({asked.source}): {result.seen}; difference of {asked.of} {figures};"
            f" {asked.unit} {ours}, published {theirs}"
        )
    if any(result.asked.unit in ("loss", "perplexity") for result in results):
        lines.append("note: loss and perplexity are per token: another tokenizer or corpus has other levels")
    if blocks >= LEAST_BLOCKS:
        lines.append("note: each finding is tested separately at 95 %: one in twenty may be wrong by chance")
    elif blocks == 1:
        lines.append(
            "note: with one block, a verdict is about these models only: other training runs give other models"
        )
        if any(result.asked.of in _LOSSES for result in results):
            lines.append(
                "note: with one block, the interval of a loss includes the difference between two training runs of one"
                f" plan: {2 * SPREAD_OF_TRAININGS:g} nats, added in quadrature"
            )
    else:
        lines.append("note: two blocks give no interval, so no finding can be judged")
    return "\n".join(lines)


def _cells_of(variant: str, finished: Mapping[str, Finished]) -> dict[int, Finished]:
    return {its.cell.block: its for its in finished.values() if its.cell.variant.name == variant}


def _paired(finding: Finding, against: Mapping[int, Finished], variant: Mapping[int, Finished]) -> Summary | None:
    """Return variant minus the other, block by block; None if the difference of a block cannot be computed."""
    if finding.of == "gain":
        return _joined([_gain_change(against[block], variant[block], finding.share) for block in sorted(variant)])
    return _joined([_CHANGES[finding.of](against[block], variant[block]) for block in sorted(variant)])


def _gain_change(against: Finished, variant: Finished, share: float) -> AurocDifference | None:
    """Return the variant's gain minus a share of the other's, over the same non-members."""
    if loss_change(against, variant) is None:
        return None
    users = sorted(variant.losses)
    ours, others = (
        np.array([cell.losses[user].base_loss - cell.losses[user].loss for user in users])
        for cell in (variant, against)
    )
    return mean_difference(share * others, ours)


def _from_number(finding: Finding, number: float, cells: Mapping[int, Finished]) -> Summary | None:
    """Return the variant's number minus a fixed number; None if a block has no number."""
    known = [value for cell in cells.values() if (value := _value(finding.of, cell)) is not None]
    if len(known) < len(cells):
        return None
    return over_blocks(
        [value - number for value, _, _ in known], (known[0][1] - number, known[0][2] - number), digits=DIGITS
    )


def _joined(stated: Sequence[AurocDifference | None]) -> Summary | None:
    known = [its for its in stated if its is not None]
    if len(known) < len(stated):
        return None
    return over_blocks([its.value for its in known], (known[0].lower, known[0].upper), digits=DIGITS)


def _doubled(cells: Sequence[Mapping[int, Finished]], sizes: bool) -> Summary | None:
    """Return, user by user, first minus second minus (third minus fourth): how much more one loss falls than another.

    For sizes, the first difference gets the sign that makes its mean positive. The other difference gets the sign that
    makes the result smaller.
    """
    changes = []
    for block in sorted(cells[0]):
        four = [of_one[block] for of_one in cells]
        # The checks are those of two cells.
        if None in (loss_change(four[1], four[0]), loss_change(four[3], four[2])):
            return None
        users = sorted(four[0].losses)
        first, second, third, fourth = (np.array([its.losses[user].loss for user in users]) for its in four)
        changes.append((first - second, third - fourth))
    if not sizes:
        return _joined([mean_difference(other, change) for change, other in changes])
    sign = 1.0 if sum(float(change.mean()) for change, _ in changes) >= 0.0 else -1.0
    signed = [
        _joined([mean_difference(its * other, sign * change) for change, other in changes]) for its in (1.0, -1.0)
    ]
    return min((its for its in signed if its is not None), key=lambda its: its.value, default=None)


def _unpaired(finding: Finding, against: Mapping[int, Finished], variant: Mapping[int, Finished]) -> Summary | None:
    """Return variant minus the other for variants with different people, whose blocks are independent."""
    likes = {_like(finding.of, its) for its in (*against.values(), *variant.values())}
    if len(likes) > 1 or finding.share != 1.0:
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
    """Return the settings that two cells must share for this measure to be comparable."""
    return repr(measured_on(cell) if of in ("loss", "gain") else cell.cell.config.attack)


def _value(of: str, cell: Finished) -> Change | None:
    """Return a cell's own number with its limits; None if the cell has no number."""
    if of == "auroc":
        area = cell.record.primary().auroc
        return cell.auroc, area.lower, area.upper
    if of == "canaries":
        return _canaries(cell)
    if of == "perplexity":
        level = cell.record.utility.perplexity if cell.record.utility else None
        return None if level is None else (level, level, level)
    if cell.loss is None:
        return None
    if of == "gain":
        gains = np.array([its.base_loss - its.loss for its in cell.losses.values()])
        spread = mean_difference(np.zeros(gains.size), gains)
        return None if spread is None else (spread.value, spread.lower, spread.upper)
    # Of the users' own losses: how far each is below the base model's says nothing about other users.
    losses = np.array([its.loss for its in cell.losses.values()])
    spread = mean_difference(np.zeros(losses.size), losses)
    return None if spread is None else (spread.value, spread.lower, spread.upper)


def _canaries(cell: Finished) -> Change | None:
    """Return the mean AUROC over groups of canary users. Groups share no user, so their limits are independent.

    None if the coins made a group too small for an AUROC, because the mean would cover other groups than in another
    cell.
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


def _canary_change(first: Finished, other: Finished) -> AurocDifference | None:
    """Return the difference as if the two numbers were independent. The interval is too wide if scores under the two
    models correlate."""
    if _like("canaries", first) != _like("canaries", other):
        return None
    one, two = _canaries(first), _canaries(other)
    if one is None or two is None:
        return None
    value, low, high = independent_difference(one, two)
    return AurocDifference(value=value, lower=low, upper=high)


def _mean(of: str, cells: Mapping[int, Finished]) -> float | None:
    values = [_value(of, cell) for cell in cells.values()]
    known = [value[0] for value in values if value is not None]
    return brief(float(np.mean(known)), DIGITS) if known and len(known) == len(values) else None


_CHANGES: dict[str, Callable[[Finished, Finished], AurocDifference | None]] = {
    "auroc": auroc_change,
    "loss": loss_change,
    "canaries": _canary_change,
}
