"""One epsilon for several releases, given as plans, run folders, exported folders or sweeps (``heldin.compose``)."""

from collections.abc import Sequence
from pathlib import Path

from heldin.base.artefacts import read_document
from heldin.base.errors import InputError
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import PLAN as PLAN_FILE
from heldin.defenses.plan_file import plan_at, read_plan
from heldin.defenses.releases import PlannedRelease, Together, compose_releases
from heldin.record.sweep import TUNING
from heldin.stages.run_config import parse_config
from heldin.stages.train.plan import mechanism_of
from heldin.sweeps.cell_plan import PLAN


def compose(
    plans: Sequence[str | Path | Mechanism],
    delta: float | None = None,
    times: Sequence[int] | None = None,
    pure: Sequence[float] = (),
) -> Together:
    """Return one epsilon(delta) for several releases about the same people. This epsilon is as exact as the epsilon of
    one plan.

    The epsilon is valid if all plans are fixed before the first release (docs/continual.md).

    >>> import heldin
    >>> from heldin.defenses.choices import ConstantDivisor, FlatClip
    >>> from heldin.defenses.samplers import PoissonSampler
    >>> week = heldin.Mechanism(
    ...     unit="user", sampled="user", sampler=PoissonSampler.of(population=1024, cohort=16),
    ...     clip=FlatClip(norm=1.0), noise_multiplier=1.5, steps=200, delta=1e-6, divisor=ConstantDivisor(value=16),
    ... )
    >>> year = heldin.compose([week], times=[52])
    >>> year.releases, round(year.epsilon, 1), round(year.sum_epsilon)
    (52, 6.1, 40)

    Args:
        plans: a Mechanism, a plan.json, or the folder of a run, an export or a sweep for each plan. For a sweep, every
            cell counts, including tuning cells and shadow models.
        delta: delta of the result; None: the delta of the plans, if it is the same for all.
        times: number of releases under each plan, in the order of the plans; None: one release each.
        pure: epsilons of further releases by pure mechanisms, such as a private median, at the user level with
            add/remove adjacency.

    Raises:
        InputError: a plan is missing, damaged or without a guarantee; plans cannot be combined; or ``times`` and
            ``plans`` differ in length.
    """
    if times is not None and len(times) != len(plans):
        raise InputError(
            f"times (--times) has {len(times)} numbers, but there are {len(plans)} plans: give a number of releases"
            " for each plan"
        )
    listed: list[PlannedRelease] = []
    for plan, count in zip(plans, times or [1] * len(plans), strict=True):
        if not isinstance(plan, str | Path):
            listed.append(PlannedRelease(f"plan {len(listed) + 1}", plan, count))
        elif (Path(plan) / PLAN).is_file():
            listed += [
                PlannedRelease(trained.name, trained.mechanism, trained.times * count) for trained in _swept(Path(plan))
            ]
        else:
            listed.append(PlannedRelease(str(plan), read_plan(plan_at(Path(plan))), count))
    return compose_releases(listed, delta, pure)


def _swept(out: Path) -> list[PlannedRelease]:
    """Return every training of a sweep, with the plan of its cell, or else the plan that follows from its config."""
    listed: list[PlannedRelease] = []
    tuned = out / TUNING
    for folder in (out, *([tuned] if (tuned / PLAN).is_file() else [])):
        cells = read_document(folder / PLAN, "give a folder that heldin sweep wrote").get("cells")
        if not isinstance(cells, list) or not cells:
            raise InputError(f"'{folder / PLAN}' lists no cells: give the folder of a sweep")
        for cell in cells:
            name = folder / "cells" / str(cell["block"]) / cell["variant"]
            config, plan = parse_config(cell["config"], str(name)), name / PLAN_FILE
            # A cell that has not run yet counts as well: what is planned is part of what was fixed beforehand.
            mechanism = read_plan(plan) if plan.is_file() else mechanism_of(config, plain_steps=1, clip_norm=1.0)
            listed.append(PlannedRelease(str(name), mechanism, 1 + config.attack.shadow_models))
    return listed
