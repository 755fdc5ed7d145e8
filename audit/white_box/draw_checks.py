"""Who takes part: every unit's own rate, independence between units and between steps, and between two keys.

Read off steps without noise, of units with texts and of gradient canaries alike, under two keys.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from audit.white_box import laws
from audit.white_box.canaries import Array
from audit.white_box.check import LEVEL, Check, Subject, exact
from audit.white_box.laws import Found
from audit.white_box.runs import Draws, Run, changed, draws
from audit.white_box.stage import Stage
from audit.white_box.trainers import Trainer
from corpus.coins import keyed_digest

_CANARIES = 100  # most gradient canaries that are drawn
_PER_UNIT = 8  # times that a unit is expected to be drawn under each key, in a short audit
_FEWEST, _MOST = 40, 3_000  # steps under each key
_MISREAD = 1e-2


@dataclass(frozen=True, eq=False)
class Drawn:
    """Who took part, of one kind of unit.

    Attributes:
        kind: "texts" or "canaries".
        times: how often, (keys, steps, columns).
        copies: units that a column holds.
        rate: stated, of one unit.
    """

    kind: str
    times: Array
    copies: int
    rate: float

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether any unit of the column took part, (keys, steps, columns)."""
        return self.times > 0

    @property
    def chance(self) -> float:
        """Stated, that any does."""
        return 1.0 - (1.0 - self.rate) ** self.copies


def draw_checks(stage: Stage, trainer: Trainer, key: bytes, low: float, effort: int = 1) -> tuple[Check, ...]:
    """All checks of who takes part; under full participation only that nobody is left out.

    Args:
        stage: of the audit.
        trainer: that is audited.
        key: of these runs.
        low: a clip norm below which every writer's gradient is clipped.
        effort: how many times the steps of a short audit.
    """
    rate, members = stage.mechanism.sampler.rate, stage.mechanism.members
    steps = 4 if rate == 1.0 else math.ceil(min(_MOST, max(_FEWEST, effort * _PER_UNIT / rate)))
    seen = [observed(stage, trainer, keyed_digest(key, "white-box draws", str(i)), low, steps) for i in range(2)]
    odd = max(each.odd for each in seen)
    told = f"a unit that takes part by a part of its contribution, {_MISREAD:g} of it"
    found = [exact("sampling: furthest from whole units", "rates", odd, 0.0, told, tolerance=_MISREAD)]
    texts, twins, canaries = drawn_of(seen, rate, members)
    if rate == 1.0:
        least = min(float(each.times.min() / each.copies) for each in (texts, twins, canaries) if each.times.size)
        return (*found, exact("sampling: least drawn of all", "rates", least, 1.0, "a unit that is left out"))
    for each in (texts, canaries):
        found += [*_rates(each), *_spreads(each), *_over_steps(each), *_between_units(each), *_between_keys(each)]
    return (*found, *_twins(twins))


def observed(stage: Stage, trainer: Trainer, key: bytes, clip_norm: float, steps: int) -> Draws:
    """Who took part in `steps` steps without noise of writers and gradient canaries with a coordinate each."""
    places = stage.canaries.quiet[:_CANARIES]
    own = replace(stage.canaries.of_norm(clip_norm), coordinates=places, count=places.size)
    there = replace(stage, canaries=own)
    mechanism = changed(
        stage.mechanism,
        clip_norm=clip_norm,
        noise_multiplier=0.0,
        steps=steps,
        group_size=max(stage.mechanism.group_size, stage.most_records),
    )
    planned = there.planned(key, stage.names_of_writers)
    units = (*planned.units, *there.gradient_units(range(own.count)))
    return draws(there, trainer, Run(replace(planned, units=units, mechanism=mechanism)))


def drawn_of(seen: Sequence[Draws], rate: float, members: int) -> tuple[Drawn, Drawn, Drawn]:
    """Units with texts of their own, units whose texts another has as well (in pairs), and gradient canaries."""
    names = seen[0].names
    texts = np.stack([each.texts for each in seen])
    lone = [j for j, its in enumerate(names) if len(its) == 1]
    pairs = [j for j, its in enumerate(names) if len(its) == 2]
    canaries = np.stack([each.canaries for each in seen])
    return (
        Drawn("texts", texts[:, :, lone], 1, rate),
        Drawn("texts", texts[:, :, pairs], 2, rate),
        Drawn("canaries", canaries, members, rate),
    )


def _rates(drawn: Drawn) -> list[Check]:
    keys, steps, columns = drawn.times.shape
    each = drawn.times.clip(0, drawn.copies)
    of_all = laws.counts(each.sum(), each.size * drawn.copies, drawn.rate, LEVEL)
    of_one = laws.counts(each.sum(axis=(0, 1)), keys * steps * drawn.copies, drawn.rate, LEVEL)
    n = f"in {keys * steps} steps"
    return [
        _check(f"sampling: rate of {drawn.kind}", of_all, drawn.rate, f"all of {columns} {drawn.kind} {_at(of_all)} {n}"),
        _check(f"sampling: rate of each of {drawn.kind}", of_one, drawn.rate, f"one of {drawn.kind} {_at(of_one)} {n}"),
    ]


def _spreads(drawn: Drawn) -> list[Check]:
    keys, steps, columns = drawn.times.shape
    each = drawn.times.clip(0, drawn.copies)
    totals = laws.squares(each.sum(axis=(0, 1)), keys * steps * drawn.copies, drawn.rate, LEVEL)
    cohorts = laws.squares(each.sum(axis=2), columns * drawn.copies, drawn.rate, LEVEL)
    of_step = laws.counts(each.sum(axis=2), columns * drawn.copies, drawn.rate, LEVEL)
    return [
        _check(f"sampling: spread of totals of {drawn.kind}", totals, 1.0, f"totals of {drawn.kind} {_times(totals)}"),
        _check(
            f"sampling: spread of cohorts of {drawn.kind}", cohorts, 1.0, f"cohorts of {drawn.kind} {_times(cohorts)}", "state"
        ),
        _check(
            f"sampling: most deviant cohort of {drawn.kind}",
            of_step,
            drawn.rate,
            f"one step, the first included, that draws {drawn.kind} {_at(of_step)}",
            "state",
        ),
    ]


def _over_steps(drawn: Drawn) -> list[Check]:
    """Who took part in a step and again k steps later, for every k: pairs of steps that share none are independent."""
    present = drawn.present
    steps = present.shape[1]
    both, trials = [], []
    for lag in range(1, steps):
        starts = np.arange(steps - lag)
        for half in (0, 1):
            first = starts[(starts // lag) % 2 == half]
            if first.size:
                both.append(int((present[:, first] & present[:, first + lag]).sum()))
                trials.append(present[:, first].size)
    found = laws.counts(np.array(both), np.array(trials), drawn.chance**2, LEVEL)
    told = f"coins of {drawn.kind} with a correlation of {_correlation(found, drawn):.2g} from a step to the next"
    return [_check(f"sampling: the same {drawn.kind} some steps later", found, drawn.chance**2, told, "state")]


def _between_units(drawn: Drawn) -> list[Check]:
    """How often two units took part together, for every two."""
    flat = drawn.present.reshape(-1, drawn.present.shape[2]).astype(np.float64)
    columns = flat.shape[1]
    if columns < 2:
        return []
    together = (flat.T @ flat)[np.triu_indices(columns, 1)]
    found = laws.counts(together, flat.shape[0], drawn.chance**2, LEVEL)
    told = f"two of {drawn.kind} whose coins have a correlation of {_correlation(found, drawn):.2g}"
    return [_check(f"sampling: two of {drawn.kind} together", found, drawn.chance**2, told)]


def _between_keys(drawn: Drawn) -> list[Check]:
    """How often a unit took part in the same step under both keys."""
    both = (drawn.present[0] & drawn.present[1]).sum(axis=0)
    steps, columns = drawn.present.shape[1:]
    of_all = laws.counts(both.sum(), steps * columns, drawn.chance**2, LEVEL)
    of_one = laws.counts(both, steps, drawn.chance**2, LEVEL)
    told = "coins under two keys with a correlation of"
    return [
        _check(
            f"keys: {drawn.kind} drawn under both",
            of_all,
            drawn.chance**2,
            f"{told} {_correlation(of_all, drawn):.2g} in all of {drawn.kind}",
            "keys",
        ),
        _check(
            f"keys: each of {drawn.kind} drawn under both",
            of_one,
            drawn.chance**2,
            f"{told} {_correlation(of_one, drawn):.2g} in one of {drawn.kind}",
            "keys",
        ),
    ]


def _twins(drawn: Drawn) -> list[Check]:
    """Two units with the same texts: as often both as independent coins have it."""
    if not drawn.times.shape[2]:
        return []
    both = (drawn.times >= 2).sum(axis=(0, 1))
    trials = drawn.times.shape[0] * drawn.times.shape[1]
    found = laws.counts(both, trials, drawn.rate**2, LEVEL)
    totals = laws.counts(drawn.times.clip(0, 2).sum(axis=(0, 1)), 2 * trials, drawn.rate, LEVEL)
    again = replace(drawn, copies=1)
    return [
        _check(
            "sampling: two of the same texts together",
            found,
            drawn.rate**2,
            f"units of the same texts whose coins have a correlation of {_correlation(found, again):.2g}",
            "unlike units",
        ),
        _check("sampling: rate of the same texts", totals, drawn.rate, f"units of the same texts {_at(totals)}", "unlike units"),
    ]


def _correlation(found: Found, drawn: Drawn) -> float:
    """Of two coins of the stated rate that fall together as often as would have been seen."""
    rate = drawn.chance
    return (found.smallest - rate**2) / (rate * (1.0 - rate))


def _at(found: Found) -> str:
    below = "" if math.isnan(found.below) else f" or {found.below:.2g}"
    return f"at a rate of {found.smallest:.2g}{below}"


def _times(found: Found) -> str:
    below = "" if math.isnan(found.below) else f" or {found.below:.2g}"
    return f"with {found.smallest:.2g}{below} times the variance"


def _check(name: str, found: Found, expected: float, told: str, subject: Subject = "rates") -> Check:
    return Check(name, subject, found.p_value, found.measured, expected, found.smallest, told)
