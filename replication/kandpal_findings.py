"""The findings of Kandpal et al. (2024), tested on the runs of ``configs/two-cores``. Each test was fixed in advance.

``replication.findings`` has the tests. Different runs have independent coins. MOVER combines the intervals of their
AUROCs (Zou and Donner 2008), which keeps the exact limit of a group that is separated completely. Settings within one
run are paired (DeLong).
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import stats

from heldin.audit.attack_results import DialSetting
from heldin.audit.bootstrap import Estimate
from heldin.audit.limits import independent_difference
from heldin.base.errors import InputError
from heldin.record.document import Record, read_record
from heldin.record.facts import GradientNorms
from replication.findings import Change, alike, less, more

Measure = Callable[[Record], Change]
CHANCE = (0.5, 0.5, 0.5)
NEARLY = 0.95  # of the last AUROC (the paper's Figure 3)


def real(record: Record) -> Change:
    """Return the AUROC of the primary attack on real users, with its limits."""
    return _limits(record.primary().auroc)


def planted(record: Record, lengths: Callable[[int], bool] = lambda _: True) -> Change:
    """Return the mean AUROC over the groups of canary users whose lengths are selected."""
    assert record.canaries
    groups = [_limits(g.auroc) for g in record.canaries.groups if g.auroc and g.length and lengths(g.length)]
    mean = sum(value for value, _, _ in groups) / len(groups)
    low = math.hypot(*(value - lower for value, lower, _ in groups)) / len(groups)
    high = math.hypot(*(upper - value for value, _, upper in groups)) / len(groups)
    return mean, mean - low, mean + high


def norms_apart(norms: GradientNorms) -> Change:
    """Return the mean log gradient norm of canary users' records minus that of real users', with Welch's 95 % interval.

    Each record gets the middle of its bin. The interval treats records as independent.
    """
    middles = (np.log(norms.edges[:-1]) + np.log(norms.edges[1:])) / 2
    planted_norms, real_norms = (np.repeat(middles, counts) for counts in (norms.canaries, norms.real))
    limits = stats.ttest_ind(planted_norms, real_norms, equal_var=False).confidence_interval(0.95)
    return float(planted_norms.mean() - real_norms.mean()), float(limits.low), float(limits.high)


def nearly_there(points: Sequence[tuple[int, float]]) -> int:
    """Return the step from which every AUROC is at least 95 % of the last AUROC. ``points`` are (step, AUROC) in
    order."""
    below = [place for place, (_, area) in enumerate(points) if area < NEARLY * points[-1][1]]
    return points[below[-1] + 1 if below else 0][0]


def _read(runs: Path, corpus: str, variant: str) -> Record:
    return read_record(runs / (f"{corpus}-{variant}" if variant else corpus) / "record.json")


def _limits(area: Estimate) -> Change:
    return area.value, area.lower, area.upper


def _say(finding: str, verdict: str, of: Change | None, why: str = "") -> None:
    numbers = "" if of is None else f"{of[0]:+.3f} ({of[1]:+.3f} to {of[2]:+.3f})"
    print(f"| {finding} | {verdict} | {numbers}{'; ' if numbers and why else ''}{why} |")


def _paired(finding: str, judge: Callable[[Change], str], row: DialSetting) -> None:
    """Print the verdict on a setting compared with the primary setting, on the same users.

    heldin does not judge a setting that separates users completely, because there is no error estimate.
    """
    if row.difference is None:
        _say(finding, "cannot be judged", None, f"{row.auroc.value:.3f}, no interval of the difference")
        return
    change = (row.difference.value, row.difference.lower, row.difference.upper)
    _say(finding, judge(change), change, f"{row.auroc.value:.3f}")


def _lengths(record: Record) -> None:
    assert record.canaries
    lengths = sorted({g.length for g in record.canaries.groups if g.length})
    short, long = planted(record, lambda n: n == lengths[0]), planted(record, lambda n: n == lengths[-1])
    change = independent_difference(short, long)
    finding = f"a substring of {lengths[-1]} tokens leaks more than of {lengths[0]} ({record.canaries.users} users)"
    _say(finding, more(change), change, f"{short[0]:.3f} to {long[0]:.3f}")


def print_findings(runs: Path, corpus: str) -> None:
    """Print one table row for each finding."""

    def across(finding: str, judge: Callable[[Change], str], measure: Measure, first: str | None, second: str) -> None:
        """Compare a run with another run, or with chance (None). Print nothing if a run is missing."""
        try:
            one = CHANCE if first is None else measure(_read(runs, corpus, first))
            other = measure(_read(runs, corpus, second))
        except InputError:
            _say(finding, "not run", None)
            return
        change = independent_difference(one, other)
        _say(finding, judge(change), change, f"{one[0]:.3f} to {other[0]:.3f}")

    plain = _read(runs, corpus, "")
    assert plain.training
    people: tuple[tuple[str, Measure], ...] = (("real", real), ("canary", planted))
    print("| finding | verdict | difference of AUROCs (95 % interval), values |\n|---|---|---|")
    across("a cap of 5 documents brings canary users near chance", alike, planted, None, "cap5")
    across("a cap of 5 documents lowers the AUROC of canary users", less, planted, "", "cap5")
    for who, measure in people:
        across(f"taking out copies lowers the AUROC ({who} users)", less, measure, "copies", "copies-out")
    _lengths(plain)
    with contextlib.suppress(InputError):
        _lengths(_read(runs, corpus, "canaries"))
    known = plain.knowledge
    rise, falls = (
        known[-1].mean - known[0].mean,
        [a.deviation > b.deviation for a, b in pairwise(known)],
    )
    least, most = known[0], known[-1]
    _say(
        f"{most.texts} texts tell more than 1",
        "confirmed" if most.mean > least.high else "cannot be judged",
        None,
        f"{rise:+.3f}; {least.mean:.3f} (95 % of draws {least.low:.3f} to {least.high:.3f}) to {most.mean:.3f}",
    )
    _say(
        "more texts, less variance",
        "confirmed" if all(falls) else "not confirmed",
        None,
        ", ".join(f"{p.texts}: {p.deviation:.4f}" for p in known),
    )
    for row in plain.dials:
        if not row.leads and row.dial in ("aggregation", "reference", "documents"):
            finding = {
                "aggregation": f"mean beats {row.setting}",
                "reference": f"the base model beats a reference {row.setting}",
                "documents": "training documents tell more than fresh ones",
            }[row.dial]
            _paired(finding, more if row.dial == "documents" else less, row)
    for kind in ("batch", "example"):
        for who, measure in people:
            across(f"clipping by {kind} changes nothing ({who} users)", alike, measure, "", f"clip-{kind}")
    curve = [
        (point.step, point.auroc, point.held_in_loss, point.held_out_loss)
        for point in plain.training.curve
        if point.held_in_loss is not None and point.held_out_loss is not None
    ]
    areas = [area for _, area, _, _ in curve]
    rising = stats.spearmanr([step for step, *_ in curve], areas)
    (_, early, loss_then, _), (_, last, loss_last, _) = curve[len(curve) // 4 - 1], curve[-1]
    costs = rising.pvalue < 0.05 and rising.statistic > 0 and loss_last < loss_then
    rises = f"AUROC rises with steps (Spearman {rising.statistic:.2f}, p {rising.pvalue:.2g}), {early:.3f} to"
    rises += f" {last:.3f}, while held-in loss goes {loss_then:.3f} to {loss_last:.3f}"
    _say("early stopping trades utility", "confirmed" if costs else "cannot be judged", None, rises)
    gap = stats.spearmanr([held_out - held_in for _, _, held_in, held_out in curve], areas)
    together = "confirmed" if gap.pvalue < 0.05 and gap.statistic > 0 else "cannot be judged"
    figures = f"Spearman {gap.statistic:.2f} over {len(curve)} steps, p {gap.pvalue:.2g}"
    _say("gap of losses and AUROC go together", together, None, figures)
    if plain.gradient_norms:
        apart = norms_apart(plain.gradient_norms)
        _say("gradient norms of canary users' records are those of real ones (logarithm)", alike(apart), apart)
    for who, measure in people:
        across(f"larger models leak alike ({who} users)", alike, measure, "", "large")
    across("more users in all, less leakage of each", less, real, "quarter", "")
    for variant in ("dp", "dp-rate-1.0e-4", "dp-rate-3.0e-4", "dp-rate-3.0e-3"):
        rate = variant.removeprefix("dp-rate-") if variant != "dp" else "1.0e-3"
        across(f"example DP (epsilon 8 a record, rate {rate}) lowers the AUROC of real users", less, real, "", variant)
    try:
        shadows = _read(runs, corpus, "shadow").dials
    except InputError:
        shadows = []
        _say("shadow models beat the primary attack", "not run", None)
    for row in shadows:
        if row.dial == "shadow models" and not row.leads:
            _paired("shadow models beat the primary attack", more, row)
    step, steps = nearly_there([(at, area) for at, area, *_ in curve]), plain.training.steps
    share = f"step {step:,} of {steps:,} ({step / steps:.0%})"
    print(f"\nFrom {share} on, every AUROC is at least 95 % of the last one, {last:.3f}.")
