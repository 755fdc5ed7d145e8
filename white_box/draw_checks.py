"""Check sampling: the rate of each unit, and independence between units, between steps and between two keys.

The checks use steps without noise under two keys. They cover units with texts and gradient canaries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from heldin.base.coins import keyed_digest
from heldin.white_box import laws
from heldin.white_box.canaries import Array
from heldin.white_box.check import LEVEL, Check, exact, silent, tested
from heldin.white_box.group_checks import group_check, in_rounds
from heldin.white_box.laws import LawResult
from heldin.white_box.oracle import furthest
from heldin.white_box.stage import Stage
from heldin.white_box.trainers import ObservedDraws, Run, Trainer, changed, draws, readings

DRAWN_CANARIES = 100  # most gradient canaries that are drawn
_PER_UNIT = 8  # times that a unit is expected to be drawn under each key, in a short audit
_FEWEST, _MOST = 40, 3_000  # steps under each key
AGAIN, _MOST_AGAIN = 24, 600  # times that a unit is expected to be drawn in a run that is done again; steps of it
_MISREAD = 1e-2  # of a contribution: so far from a whole number, somebody took part in part


@dataclass(frozen=True, eq=False)
class Drawn:
    """The sampled units of one kind, in columns.

    Attributes:
        kind: "texts" or "canaries".
        times: how many times each column was drawn, shape (keys, steps, columns).
        copies: number of units per column.
        rate: stated sampling rate of one unit.
    """

    kind: str
    times: Array
    copies: int
    rate: float

    @property
    def present(self) -> NDArray[np.bool_]:
        """Return whether any unit of the column was sampled, shape (keys, steps, columns)."""
        return self.times > 0

    @property
    def chance(self) -> float:
        """Return the stated probability that at least one unit of the column is sampled."""
        return 1.0 - (1.0 - self.rate) ** self.copies


def draw_checks(stage: Stage, trainer: Trainer, key: bytes, low: float, effort: int = 1) -> tuple[Check, ...]:
    """Check which units are sampled under two keys. At rate 1, check only that no unit is omitted."""
    runs = [drawing(stage, keyed_digest(key, "white-box draws", str(i)), low, effort) for i in range(2)]
    return tuple(checks_of_draws([draws(there, trainer, run) for there, run in runs], stage))


def odd_draw_checks(stage: Stage, trainer: Trainer, key: bytes, low: float, high: float) -> tuple[Check, ...]:
    """Check sampling from unusual sets of units: a crowd, a single unit, and the same names with other texts."""
    crowd, others = _of_a_crowd(stage, trainer, key, low), _whatever_the_texts(stage, trainer, key, low, high)
    if stage.mechanism.sampler.rate == 1.0:
        return (crowd, others)
    checks = (crowd, _of_one_alone(stage, trainer, key, low), others)
    return checks if stage.mechanism.sampler.groups == 1 else (*checks, _whoever_else(stage, trainer, key, low))


def drawing(stage: Stage, key: bytes, clip_norm: float, effort: int = 1, steps: int | None = None) -> tuple[Stage, Run]:
    """Return the stage and the run for these checks: no noise, units with texts, and a coordinate for each gradient
    canary.

    Args:
        steps: number of steps; None: the number follows from ``effort``.
    """
    rate = stage.mechanism.sampler.rate
    # At rate 1 nothing is drawn, and a few steps show that nobody is left out.
    enough = math.ceil(min(_MOST, max(_FEWEST, effort * _PER_UNIT / rate))) if rate < 1.0 else 4
    # A group is drawn from in one of so many steps.
    enough *= stage.mechanism.sampler.groups
    there = stage.with_places(DRAWN_CANARIES)
    planned = there.planned(key, stage.names_of_writers)
    training = replace(
        planned,
        units=(*planned.units, *there.gradient_units(range(there.canaries.count))),
        # With all records of a user, so that a unit adds the same in every step.
        mechanism=changed(stage.all_records, clip_norm=clip_norm, noise_multiplier=0.0, steps=steps or enough),
        canaries=there.canaries.of_norm(clip_norm),
    )
    return there, Run(training)


def steps_to_see_one_coin(rate: float, units: int) -> int:
    """Return the number of steps that detect, with probability 0.99, a coin that two of ``units`` units share."""
    steps = _FEWEST
    while steps < _MOST and rate < 1.0:
        # Of zeros, since only the threshold ``from_count`` is asked for.
        finding = laws.counts(np.zeros(units * (units - 1) // 2), steps, rate**2, LEVEL)
        if stats.binom.sf(finding.from_count - 1, steps, rate) >= laws.SEEN:
            break
        steps += _FEWEST
    return steps


def checks_of_draws(seen: Sequence[ObservedDraws], stage: Stage) -> list[Check]:
    """Check which units were sampled in runs under one or two keys."""
    rate, members = stage.mechanism.sampler.rate, stage.mechanism.members
    odd = max(each.odd for each in seen)
    detects = f"a unit that adds only part of its contribution, {_MISREAD:g} of it"
    checks = [exact("sampling: furthest from whole units", "rates", odd, 0.0, detects, tolerance=_MISREAD)]
    beyond = max(_beyond(each, members) for each in seen)
    twice = "a unit that is in a step twice, or with a negative weight"
    checks.append(exact("sampling: more than once in a step", "rates", beyond, 0.0, twice))
    groups = stage.mechanism.sampler.groups
    if groups > 1:
        checks.append(group_check(seen, groups))
        # Two units of equal texts may be in two groups, which nobody can tell apart.
        checks.append(silent("sampling: two of the same texts together", "unlike units", "units with the same texts"))
        seen = [in_rounds(each, groups) for each in seen]
    texts, twins, canaries = _kinds(seen, rate, members)
    if rate == 1.0:
        least = min(float(drawn.times.min() / drawn.copies) for drawn in (texts, twins, canaries) if drawn.times.size)
        return [
            *checks,
            exact("sampling: least drawn of all", "rates", least, 1.0, "a unit that is left out of a step"),
        ]
    checks.append(_whole_cohorts(seen, rate, members))
    for drawn in (texts, canaries):
        checks += [*_rates(drawn), *_spreads(drawn), *_over_steps(drawn), *_between_units(drawn), *_between_keys(drawn)]
    return [*checks, *_twins(twins)]


def _kinds(seen: Sequence[ObservedDraws], rate: float, members: int) -> tuple[Drawn, Drawn, Drawn]:
    """Return units with distinct texts, pairs of units with equal texts, and gradient canaries, each as ``Drawn``."""
    names = seen[0].names
    texts = np.stack([each.texts for each in seen])
    lone = [j for j, alike in enumerate(names) if len(alike) == 1]
    pairs = [j for j, alike in enumerate(names) if len(alike) == 2]
    canaries = np.stack([each.canaries for each in seen])
    return (
        # Clipped to what a binomial count can be: anything beyond is an alarm of its own (``_beyond``).
        Drawn("texts", texts[:, :, lone].clip(0, 1), 1, rate),
        Drawn("texts", texts[:, :, pairs].clip(0, 2), 2, rate),
        Drawn("canaries", canaries.clip(0, members), members, rate),
    )


def _whole_cohorts(seen: Sequence[ObservedDraws], rate: float, members: int) -> Check:
    """Check the sizes of cohorts over all kinds of units, to detect a fixed size, a cap, or a shared coin."""
    units = sum(len(alike) for alike in seen[0].names) + members * seen[0].canaries.shape[1]
    sizes = np.concatenate([draws.texts.sum(axis=1) + draws.canaries.sum(axis=1) for draws in seen])
    finding = laws.squares(sizes.clip(0, units), units, rate, LEVEL)
    detects = f"whole cohorts, of {units} units, of {finding.times} the variance"
    return tested("sampling: spread of whole cohorts", "rates", finding, 1.0, detects)


def _beyond(seen: ObservedDraws, members: int) -> float:
    """Return the largest amount by which a column's count exceeds its number of units, or falls below zero."""
    copies = np.array([len(alike) for alike in seen.names])
    excess = (seen.texts - copies, -seen.texts, seen.canaries - members, -seen.canaries)
    return max(float(each.max(initial=0.0)) for each in excess)


def _rates(drawn: Drawn) -> list[Check]:
    keys, steps, columns = drawn.times.shape
    times, kind, rate = drawn.times, drawn.kind, drawn.rate
    # Over all and of each: a rate that is wrong a little everywhere shows in the first, one unit's own in the second.
    of_all = laws.counts(times.sum(), times.size * drawn.copies, rate, LEVEL)
    of_one = laws.counts(times.sum(axis=(0, 1)), keys * steps * drawn.copies, rate, LEVEL)
    where = f"in {keys * steps} steps (stated {rate:.3g})"
    return [
        tested(f"sampling: rate of {kind}", "rates", of_all, rate, f"all of {columns} {kind} {_at(of_all)} {where}"),
        tested(f"sampling: rate of each of {kind}", "rates", of_one, rate, f"one of {kind} {_at(of_one)} {where}"),
    ]


def _spreads(drawn: Drawn) -> list[Check]:
    keys, steps, columns = drawn.times.shape
    times, kind, rate, copies = drawn.times, drawn.kind, drawn.rate, drawn.copies
    # Totals of units and sizes of cohorts vary less than binomials when cohorts are shuffled or of one size, and more
    # when units have unlike rates or share coins.
    totals = laws.squares(times.sum(axis=(0, 1)), keys * steps * copies, rate, LEVEL)
    cohorts = laws.squares(times.sum(axis=2), columns * copies, rate, LEVEL)
    single = laws.counts(times.sum(axis=2), columns * copies, rate, LEVEL)
    of_totals, of_cohorts = (f"of {kind} of {finding.times} the variance" for finding in (totals, cohorts))
    of_one = f"one step, such as the first, that draws {kind} {_at(single)}"
    return [
        tested(f"sampling: spread of totals of {kind}", "rates", totals, 1.0, f"totals {of_totals}"),
        tested(f"sampling: spread of cohorts of {kind}", "state", cohorts, 1.0, f"cohorts {of_cohorts}"),
        tested(f"sampling: most deviant cohort of {kind}", "state", single, rate, of_one),
    ]


def _over_steps(drawn: Drawn) -> list[Check]:
    """Check, for every k, how often a unit was sampled in a step and again k steps later."""
    present = drawn.present
    steps = present.shape[1]
    both, trials = [], []
    for lag in range(1, steps):
        for offset in (0, lag):  # two sets, in each of which pairs share no step and so are independent
            starts = range(offset, steps - lag, 2 * lag)
            spans = [(start, min(start + lag, steps - lag)) for start in starts]
            if spans:
                both.append(sum(int((present[:, a:b] & present[:, a + lag : b + lag]).sum()) for a, b in spans))
                trials.append(sum(b - a for a, b in spans) * present.shape[0] * present.shape[2])
    finding = laws.counts(np.array(both), np.array(trials), drawn.chance**2, LEVEL)
    name = f"sampling: the same {drawn.kind} some steps later"
    detects = f"{_alike(finding, drawn, max(trials))} of {drawn.kind} from a step to the next"
    return [tested(name, "state", finding, drawn.chance**2, detects)]


def _between_units(drawn: Drawn) -> list[Check]:
    """Check, for every two units, how often they were drawn together."""
    flat = drawn.present.reshape(-1, drawn.present.shape[2]).astype(np.float64)
    if flat.shape[1] < 2:
        return []
    together = (flat.T @ flat)[np.triu_indices(flat.shape[1], 1)]  # (units, units) -> every pair once
    finding = laws.counts(together, flat.shape[0], drawn.chance**2, LEVEL)
    detects = f"{_alike(finding, drawn, flat.shape[0])} of two of {drawn.kind}"
    return [tested(f"sampling: two of {drawn.kind} together", "rates", finding, drawn.chance**2, detects)]


def _between_keys(drawn: Drawn) -> list[Check]:
    """Check how often a unit was drawn in the same step under both keys."""
    if drawn.present.shape[0] < 2:
        return []
    both = (drawn.present[0] & drawn.present[1]).sum(axis=0)
    steps, columns = drawn.present.shape[1:]
    of_all = laws.counts(both.sum(), steps * columns, drawn.chance**2, LEVEL)
    of_one = laws.counts(both, steps, drawn.chance**2, LEVEL)
    all_told = f"{_alike(of_all, drawn, steps * columns)} of all {drawn.kind} under two keys"
    one_told = f"{_alike(of_one, drawn, steps)} of one of {drawn.kind} under two keys"
    return [
        tested(f"keys: {drawn.kind} drawn under both", "keys", of_all, drawn.chance**2, all_told),
        tested(f"keys: each of {drawn.kind} drawn under both", "keys", of_one, drawn.chance**2, one_told),
    ]


def _twins(drawn: Drawn) -> list[Check]:
    """Check that two units with equal texts are drawn together as often as independent coins would draw them."""
    if not drawn.times.shape[2]:
        return []
    trials, rate = drawn.times.shape[0] * drawn.times.shape[1], drawn.rate
    both = laws.counts((drawn.times >= 2).sum(axis=(0, 1)), trials, rate**2, LEVEL)
    totals = laws.counts(drawn.times.sum(axis=(0, 1)), 2 * trials, rate, LEVEL)
    detects = f"{_alike(both, replace(drawn, copies=1), trials)} of units with the same texts"
    at = f"units with the same texts {_at(totals)}"
    return [
        tested("sampling: two of the same texts together", "unlike units", both, rate**2, detects),
        tested("sampling: rate of the same texts", "unlike units", totals, rate, at),
    ]


def _of_a_crowd(stage: Stage, trainer: Trainer, key: bytes, low: float) -> Check:
    """Check one step at rate 1 with all units: writers, text canaries and gradient canaries."""
    there, run = drawing(stage, key, low, steps=stage.mechanism.sampler.groups)
    people = stage.planned(key, [person.name for person in (*stage.people.writers, *stage.people.canaries)])
    canaries = [unit for unit in run.training.units if unit.canary is not None]
    # More than any other step holds: a cap, or a last pass that is dropped, leaves somebody out.
    units = (*people.units, *canaries)
    mechanism = changed(run.training.mechanism, rate=1.0, steps=1)
    steps = readings(there, trainer, Run(replace(run.training, units=units, mechanism=mechanism)))
    detects = f"a cohort of {len(units)} that lacks a unit at rate 1"
    return exact("sampling: everybody of a crowd", "rates", furthest(steps), 0.0, detects)


def _of_one_alone(stage: Stage, trainer: Trainer, key: bytes, low: float) -> Check:
    """Check the rate of a single unit. A trainer that avoids empty cohorts would always sample this unit."""
    there, run = drawing(stage, keyed_digest(key, "white-box draws", "alone"), low)
    rate, steps = stage.mechanism.sampler.rate, run.training.mechanism.steps
    drawn = draws(there, trainer, Run(replace(run.training, units=run.training.units[:1])))
    groups = stage.mechanism.sampler.groups
    if groups > 1:
        drawn = in_rounds(drawn, groups)
        steps = len(drawn.texts)
    count = laws.counts(drawn.texts.clip(0, 1).sum(), steps, rate, LEVEL)
    detects = f"a unit that is alone {_at(count)} in {steps} steps (stated {rate:.3g})"
    return tested("sampling: rate of a unit that is alone", "unlike units", count, rate, detects)


def _whatever_the_texts(stage: Stage, trainer: Trainer, key: bytes, low: float, high: float) -> Check:
    """Check that one key gives the same sample for other texts and another clip norm, if names are equal.

    If the trainer does not repeat its sample under one key, the comparison is impossible.
    """
    name, rate = "sampling: changed by what units write", stage.mechanism.sampler.rate
    if rate == 1.0:
        return silent(name, "state", "coins that depend on texts, because every step draws all units")
    steps = min(_MOST_AGAIN, math.ceil(AGAIN / rate)) * stage.mechanism.sampler.groups
    there, whole = drawing(stage, keyed_digest(key, "white-box draws", "again"), low, steps=steps)
    texts = tuple(unit for unit in whole.training.units if unit.canary is None)
    training = replace(whole.training, units=texts)
    # The same names in the same order, each with the next one's texts.
    swapped = [replace(unit, rows=other.rows) for unit, other in zip(texts, [*texts[1:], texts[0]], strict=True)]
    changed_texts = replace(training, units=tuple(swapped), mechanism=changed(training.mechanism, clip_norm=high))
    first, other = (draws(there, trainer, Run(variant)) for variant in (training, changed_texts))
    alike = _same(first, other)
    # Coins of the operating system differ from run to run: then a difference says nothing about texts.
    if not alike and not _same(first, draws(there, trainer, Run(training))):
        return silent(name, "state", "coins that depend on texts, because one key gives another sample each time")
    detects = f"a unit whose draw in one of {steps} steps changes with texts or clip norm"
    return exact(name, "state", float(not alike), 0.0, detects)


def _whoever_else(stage: Stage, trainer: Trainer, key: bytes, low: float) -> Check:
    """Check that units are drawn in the same steps, under the same key, if every other unit is missing.

    If the trainer does not repeat its sample, the comparison is impossible, as in ``_whatever_the_texts``.
    """
    name = "sampling: changed by who else is there"
    there, whole = drawing(stage, keyed_digest(key, "white-box draws", "others"), low, steps=_FEWEST)
    fewer = Run(replace(whole.training, units=whole.training.units[1::2]))
    first, other = (draws(there, trainer, run) for run in (whole, fewer))
    alike = _same(first, other)
    if not alike and not _same(first, draws(there, trainer, whole)):
        return silent(
            name, "state", "groups that depend on other units, because one key gives another sample each time"
        )
    detects = f"a unit whose draw in one of {_FEWEST} steps changes if every other unit is missing"
    return exact(name, "state", float(not alike), 0.0, detects)


def _same(a: ObservedDraws, b: ObservedDraws) -> bool:
    """Return whether the same units were sampled in the same steps. Ignores units with equal texts."""
    of_a, of_b = ({names[0]: d.texts[:, j] for j, names in enumerate(d.names) if len(names) == 1} for d in (a, b))
    return all(np.array_equal(of_a[name], of_b[name]) for name in of_a.keys() & of_b.keys())


def _alike(finding: LawResult, drawn: Drawn, trials: int) -> str:
    """Return a text about the detectable correlation of two coins. If even equal coins may be missed, give their
    probability of detection."""
    rate = drawn.chance
    correlation = (finding.smallest - rate**2) / (rate * (1.0 - rate))
    # Both coins are 1 with probability p^2 + r p (1 - p). An r above 1: not even equal coins would surely be seen.
    if correlation <= 1.0:
        return f"a correlation of {correlation:.2g} between coins"
    return f"(with probability {float(stats.binom.sf(finding.from_count - 1, trials, rate)):.2g} only) equal coins"


def _at(finding: LawResult) -> str:
    below = "" if math.isnan(finding.below) else f" or {finding.below:.2g}"
    return f"at a rate of {finding.smallest:.2g}{below}"
