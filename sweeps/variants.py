"""The variants of a sweep over its blocks: means, and differences from the first on the same people."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heldin.audit.blocks import Summary, over_blocks
from heldin.audit.coarse import grouped
from heldin.audit.frontier import Position, dominated
from heldin.audit.limits import AurocDifference, auroc_difference
from heldin.audit.utility import DIGITS, mean_difference
from heldin.base.errors import InputError
from heldin.record.masking import masked
from heldin.record.requirements import epsilon_per_user
from heldin.record.sweep import CellResult, VariantResult
from heldin.stages.config import RunConfig
from heldin.stages.config_files import differences
from heldin.sweeps.config import Sweep, Variant
from heldin.sweeps.exposed import bands, canary_points
from heldin.sweeps.finished import Finished


def variant_results(
    sweep: Sweep, finished: Mapping[str, Finished], results: Sequence[CellResult]
) -> list[VariantResult]:
    """Every variant over its finished cells.

    Args:
        finished: the finished cells, by name.
        results: all cells.

    Raises:
        InputError: cells of one block scored different users, or were measured on different ones.
    """
    by_name = {its.name: its.config for its in sweep.variants}
    found = []
    for variant in sweep.variants:
        first = _differing(by_name[sweep.variants[0].name])
        differs = dict(differences(first, _differing(variant.config)))
        found.append(_variant(variant, finished, results).model_copy(update={"differs": differs}))
    worse: dict[str, list[str]] = {}
    for group in dict.fromkeys(its.group for its in found):
        worse |= dominated(_positions([its for its in found if its.group == group], finished))
    return [its.model_copy(update={"dominated_by": worse.get(its.name, [])}) for its in found]


def _differing(config: RunConfig) -> Any:
    return masked(config.model_dump(mode="json", exclude={"name"}))


def _positions(group: Sequence[VariantResult], finished: Mapping[str, Finished]) -> list[Position]:
    """Where the variants of a group stand, in the blocks that have all of them; none if a measure is missing."""
    cells = {its.name: {f.cell.block: f for f in finished.values() if f.cell.variant.name == its.name} for its in group}
    blocks = sorted(set.intersection(*(set(own) for own in cells.values()))) if cells else []
    positions = []
    for its in group:
        own = [cells[its.name][block] for block in blocks]
        losses = [cell.loss for cell in own if cell.loss is not None]
        if (
            len(losses) < len(blocks)
            or its.gradients is None
            or _like(own) != _like([cells[its.group][block] for block in blocks])
        ):
            return []
        positions.append(
            Position(
                name=its.name,
                epsilon=math.inf if its.epsilon_per_user is None else its.epsilon_per_user,
                delta=its.delta or 0.0,
                auroc=tuple(cell.auroc for cell in own),
                loss=tuple(losses),
                gradients=its.gradients,
                epsilon_per_record=math.inf if its.epsilon is None else its.epsilon,
                canaries=max((point.auroc.value for point in its.canaries), default=0.0),
            )
        )
    return positions


def _like(cells: Sequence[Finished]) -> list[object]:
    """What AUROCs and losses must have in common to be held against each other."""
    return [(its.cell.config.attack, *measured_on(its)) for its in cells]


def _variant(variant: Variant, finished: Mapping[str, Finished], results: Sequence[CellResult]) -> VariantResult:
    done = [its for its in results if its.variant == variant.name and its.state == "done"]
    first = {its.block for its in results if its.variant == variant.group and its.state == "done"}
    mine = [finished[f"{its.block}/{variant.name}"] for its in done]
    pairs = [(finished[f"{b}/{variant.group}"], its) for its in mine if (b := its.cell.block) in first]
    is_first = variant.name == variant.group
    training = mine[0].record.training if mine else None
    estimate = mine[0].record.primary().auroc if mine else None
    gains = [its.record.utility.gain for its in mine if its.record.utility and its.record.utility.gain]
    losses = [its.loss for its in mine if its.loss is not None]
    # Of all blocks or of none: a mean over some of them is another number.
    measured = bool(mine) and len(losses) == len(gains) == len(mine)
    kinds = [*(step.kind for step in variant.config.data_defenses), variant.config.defense.kind]
    bounds = [its.epsilon_at_least for its in done if its.epsilon_at_least is not None]
    return VariantResult(
        name=variant.name,
        group=variant.group,
        defense=" + ".join(kind for kind in kinds if kind != "none") or "none",
        promise=training.promise if training else None,
        unit=training.protected if training else None,
        privacy_unit=training.unit if training else None,
        trained_users=training.users if training else None,
        epsilon=training.epsilon if training else None,
        delta=training.delta if training else None,
        cells=len(done),
        auroc=over_blocks([its.auroc for its in mine], (estimate.lower, estimate.upper), least=0.0, most=1.0)
        if estimate
        else None,
        auroc_difference=None if is_first else _difference(pairs, auroc_change),
        loss=over_blocks(losses, digits=DIGITS) if measured else None,
        loss_difference=None if is_first else _difference(pairs, loss_change, digits=DIGITS),
        gain=over_blocks([_gain(its) for its in mine], (gains[0].lower, gains[0].upper), digits=DIGITS)
        if measured
        else None,
        seconds=round(float(np.mean([its.seconds for its in done])), 1) if done else None,
        gradients=_mean([its.gradients for its in done]),
        jointly_violated=any(verdict.jointly_violated for its in done for verdict in its.verdicts),
        epsilon_per_user=epsilon_per_user(training),
        named=over_blocks([_named_of_1000(its) for its in mine], digits=0, least=0.0, most=1000.0) if mine else None,
        epsilon_at_least=max(bounds, default=None),
        ceiling=mine[0].record.ceiling() if mine else None,
        canaries=canary_points([its.record for its in mine]),
        bands=bands(pairs),
    )


def _gain(its: Finished) -> float:
    """How far the loss is below the base model's, unrounded."""
    return float(np.mean([user.base_loss - user.loss for user in its.losses.values()]))


def _named_of_1000(its: Finished) -> float:
    """Of 1,000 held-in users how many score above what the audit's rate of the held-out ones reach."""
    return 1000.0 * grouped(*its.sides).tpr(its.record.decision.by.fpr)


Pair = tuple[Finished, Finished]


def _difference(
    pairs: Sequence[Pair], of: Callable[[Finished, Finished], AurocDifference | None], *, digits: int = 3
) -> Summary | None:
    """Second minus first, in the blocks that have both; None if a block's difference cannot be stated."""
    found = [of(*pair) for pair in pairs]
    stated = [its for its in found if its is not None]
    if not stated or len(stated) < len(found):
        return None
    return over_blocks([its.value for its in stated], (stated[0].lower, stated[0].upper), digits=digits)


def auroc_change(first: Finished, other: Finished) -> AurocDifference | None:
    """The second's AUROC less the first's on the same users; None for other attacks, or where it has no error."""
    # Another attack, or other texts: their difference would not be the defense's.
    if first.cell.config.attack != other.cell.config.attack:
        return None
    if first.users != other.users or not np.array_equal(first.member, other.member):
        raise InputError(f"cells {first.cell.name} and {other.cell.name} scored different users")
    return auroc_difference(first.sides, other.sides)


def loss_change(first: Finished, other: Finished) -> AurocDifference | None:
    """The second's loss less the first's on the same held-out users; None for other texts or too few users."""
    if measured_on(first) != measured_on(other):
        return None
    users = sorted(first.losses.keys() & other.losses.keys())
    if len(users) < max(len(first.losses), len(other.losses)):
        raise InputError(f"cells {first.cell.name} and {other.cell.name} were measured on different held-out users")
    # A cell whose record has no utility has too few of them.
    if first.record.utility is None or other.record.utility is None:
        return None
    one, two = (np.array([its.losses[user].loss for user in users]) for its in (first, other))
    return mean_difference(one, two)


def measured_on(its: Finished) -> tuple[object, ...]:
    """What decides test texts and their tokens: losses per token of other ones do not compare."""
    config = its.cell.config
    return config.audit.test_texts_per_user, config.attack.max_characters, config.model


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 1) if known and len(known) == len(values) else None
