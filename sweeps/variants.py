"""Results of a sweep's variants over its blocks: means, exposure, and differences from the first variant."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heldin.audit.blocks import Summary, over_blocks
from heldin.audit.coarse import LEAST_IN_GROUP, brief, significant
from heldin.audit.exposed_users import Exposed
from heldin.audit.flagged import Flagged
from heldin.audit.frontier import Position, dominated
from heldin.audit.limits import AurocDifference, auroc_difference
from heldin.audit.utility import DIGITS, mean_difference
from heldin.base.errors import InputError
from heldin.record.document import Record, masked
from heldin.record.facts import PLAIN
from heldin.record.requirements import epsilon_per_user
from heldin.record.sweep import Band, CanaryPoint, CellResult, VariantResult
from heldin.stages.config_files import differences
from heldin.stages.run_config import RunConfig
from heldin.sweeps.finished import Finished
from heldin.sweeps.sweep_config import Sweep, Variant

Pair = tuple[Finished, Finished]
THIRDS = 3


def variant_results(
    sweep: Sweep, finished: Mapping[str, Finished], results: Sequence[CellResult]
) -> list[VariantResult]:
    """Summarise every variant over the finished cells.

    Raises:
        InputError: cells of one block scored different users, or measured the losses of different users.
    """
    by_name = {variant.name: variant.config for variant in sweep.variants}
    compared = []
    for variant in sweep.variants:
        first = _differing(by_name[sweep.variants[0].name])
        differs = dict(differences(first, _differing(variant.config)))
        compared.append(_variant(variant, finished, results).model_copy(update={"differs": differs}))
    worse: dict[str, list[str]] = {}
    for group in dict.fromkeys(variant.group for variant in compared):
        worse |= dominated(_positions([variant for variant in compared if variant.group == group], finished))
    return [variant.model_copy(update={"dominated_by": worse.get(variant.name, [])}) for variant in compared]


def _differing(config: RunConfig) -> Any:
    return masked(config.model_dump(mode="json", exclude={"name"}))


def _positions(group: Sequence[VariantResult], finished: Mapping[str, Finished]) -> list[Position]:
    """Return the positions of a group's variants, over blocks that have all variants; empty if a measure is missing."""
    cells = {
        variant.name: {f.cell.block: f for f in finished.values() if f.cell.variant.name == variant.name}
        for variant in group
    }
    blocks = sorted(set.intersection(*(set(own) for own in cells.values()))) if cells else []
    positions = []
    for variant in group:
        own = [cells[variant.name][block] for block in blocks]
        losses = [cell.loss for cell in own if cell.loss is not None]
        if (
            len(losses) < len(blocks)
            or variant.gradients is None
            or _like(own) != _like([cells[variant.group][block] for block in blocks])
        ):
            return []
        positions.append(
            Position(
                name=variant.name,
                epsilon=math.inf if variant.epsilon_per_user is None else variant.epsilon_per_user,
                delta=variant.delta or 0.0,
                auroc=tuple(cell.auroc for cell in own),
                loss=tuple(losses),
                gradients=variant.gradients,
                epsilon_per_record=math.inf if variant.epsilon is None else variant.epsilon,
                canaries=max((point.auroc.value for point in variant.canaries), default=0.0),
            )
        )
    return positions


def _like(cells: Sequence[Finished]) -> list[object]:
    """Return the settings that must be equal for AUROCs and losses to be comparable."""
    return [(cell.cell.config.attack, *measured_on(cell)) for cell in cells]


def _variant(variant: Variant, finished: Mapping[str, Finished], results: Sequence[CellResult]) -> VariantResult:
    done = [cell for cell in results if cell.variant == variant.name and cell.state == "done"]
    first = {cell.block for cell in results if cell.variant == variant.group and cell.state == "done"}
    mine = [finished[f"{cell.block}/{variant.name}"] for cell in done]
    pairs = [(finished[f"{b}/{variant.group}"], cell) for cell in mine if (b := cell.cell.block) in first]
    # The first of a group differs from nothing.
    others = [] if variant.name == variant.group else pairs
    defense = variant.config.defense
    kinds = [*(step.kind for step in variant.config.data_defenses), *([] if defense.is_plain else [defense.kind])]
    bounds = [cell.epsilon_at_least for cell in done if cell.epsilon_at_least is not None]
    return VariantResult(
        name=variant.name,
        group=variant.group,
        defense=" + ".join(kinds) or PLAIN,
        cells=len(done),
        **_promised(mine),
        **_attacked(mine),
        auroc_difference=_difference(others, auroc_change),
        **_useful(mine, done),
        loss_difference=_difference(others, loss_change, digits=DIGITS),
        **_spent(done),
        jointly_contradicted=any(verdict.jointly_contradicted for cell in done for verdict in cell.verdicts),
        epsilon_at_least=max(bounds, default=None),
        canaries=canary_points([cell.record for cell in mine]),
        bands=bands(pairs),
    )


def _promised(mine: Sequence[Finished]) -> dict[str, Any]:
    """Return the guarantee in the variant's plan, taken from its first cell."""
    training = mine[0].record.training if mine else None
    if training is None:
        return dict.fromkeys(("promise", "unit", "epsilon", "delta"))
    return {
        "promise": training.promise,
        "unit": training.protected,
        "privacy_unit": training.unit,
        "trained_users": training.users,
        "epsilon": training.epsilon,
        "delta": training.delta,
        "epsilon_per_user": epsilon_per_user(training),
    }


def _attacked(mine: Sequence[Finished]) -> dict[str, Any]:
    """Return the success of the attacks over all blocks."""
    if not mine:
        return {"auroc": None}
    estimate = mine[0].record.primary().auroc
    people = [flagged for cell in mine if (flagged := cell.record.flagged()) is not None]
    counted = len(people) == len(mine)
    return {
        "auroc": over_blocks([cell.auroc for cell in mine], (estimate.lower, estimate.upper), least=0.0, most=1.0),
        "flagged": _members_flagged(people) if counted else None,
        "wrongly": brief(100.0 * float(np.mean([each.others_share for each in people])), 1) if counted else None,
        "ceiling": mine[0].record.ceiling(),
    }


def _useful(mine: Sequence[Finished], done: Sequence[CellResult]) -> dict[str, Any]:
    """Return the loss on others' texts over all blocks; None if a block has none, because a mean over fewer would
    differ."""
    gains = [cell.record.utility.gain for cell in mine if cell.record.utility and cell.record.utility.gain]
    losses = [cell.loss for cell in mine if cell.loss is not None]
    if not mine or not len(losses) == len(gains) == len(mine):
        return {"loss": None, "gain": None}
    perplexities = [cell.perplexity for cell in done if cell.perplexity is not None]
    return {
        "loss": over_blocks(losses, digits=DIGITS),
        "perplexity": over_blocks(perplexities, least=1.0) if len(perplexities) == len(mine) else None,
        "gain": over_blocks([_gain(cell) for cell in mine], (gains[0].lower, gains[0].upper), digits=DIGITS),
    }


def _spent(done: Sequence[CellResult]) -> dict[str, Any]:
    """Return the resources that the cells used, and their shares of the planned amounts."""
    fits = [cell.fit for cell in done if cell.fit is not None]
    return {
        "seconds": round(float(np.mean([cell.seconds for cell in done])), 1) if done else None,
        "gradients": _mean([cell.gradients for cell in done]),
        "units_of_plan": _share([(fit.units, fit.population) for fit in fits]),
        "gradients_of_plan": _share([(fit.gradients, fit.planned) for fit in fits]),
    }


def _gain(cell: Finished) -> float:
    """Return the base model's loss minus the cell's loss, unrounded."""
    return float(np.mean([user.base_loss - user.loss for user in cell.losses.values()]))


def _members_flagged(people: Sequence[Flagged]) -> Summary:
    """Return the number of flagged members per 100 members."""
    lower, upper = (100.0 * limit for limit in people[0].members_limits)
    shares = [100.0 * each.members_share for each in people]
    return over_blocks(shares, (lower, upper), digits=1, least=0.0, most=100.0)


def _difference(
    pairs: Sequence[Pair], change: Callable[[Finished, Finished], AurocDifference | None], *, digits: int = 3
) -> Summary | None:
    """Return second minus first over blocks that have both; None if the difference of a block cannot be computed."""
    changes = [change(*pair) for pair in pairs]
    stated = [difference for difference in changes if difference is not None]
    if not stated or len(stated) < len(changes):
        return None
    return over_blocks([difference.value for difference in stated], (stated[0].lower, stated[0].upper), digits=digits)


def auroc_change(first: Finished, other: Finished) -> AurocDifference | None:
    """Return the second AUROC minus the first for the same users; None if attacks differ or there is no standard
    error."""
    # Another attack, or other texts: their difference would not be the defense's.
    if first.cell.config.attack != other.cell.config.attack:
        return None
    if first.users != other.users or not np.array_equal(first.member, other.member):
        raise InputError(
            f"cells {first.cell.name} and {other.cell.name} scored different users, so heldin cannot compare these"
            " cells. Restore the folders, or run the sweep in a new folder"
        )
    return auroc_difference(first.sides, other.sides)


def loss_change(first: Finished, other: Finished) -> AurocDifference | None:
    """Return the second loss minus the first for the same non-members; None if texts differ or users are too few."""
    if measured_on(first) != measured_on(other):
        return None
    users = sorted(first.losses.keys() & other.losses.keys())
    if len(users) < max(len(first.losses), len(other.losses)):
        raise InputError(
            f"cells {first.cell.name} and {other.cell.name} have losses of different non-members, so heldin cannot"
            " compare these cells. Restore the folders, or run the sweep in a new folder"
        )
    # A cell whose record has no utility has too few of them.
    if first.record.utility is None or other.record.utility is None:
        return None
    before, after = (np.array([cell.losses[user].loss for user in users]) for cell in (first, other))
    return mean_difference(before, after)


def measured_on(cell: Finished) -> tuple[object, ...]:
    """Return the settings that determine test texts and tokens. Losses per token are comparable only if these are
    equal."""
    config = cell.cell.config
    return config.audit.test_texts_per_user, config.attack.max_characters, config.model


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 1) if known and len(known) == len(values) else None


def _share(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Return the mean ratio of first to second; None if there are no pairs, or if a pair is incomplete."""
    shares = [first / second for first, second in pairs if first is not None and second]
    return round(float(np.mean(shares)), 3) if shares and len(shares) == len(pairs) else None


def canary_points(records: Sequence[Record]) -> list[CanaryPoint]:
    """Return the AUROC over blocks for each kind, length and number of documents that every block has."""
    aurocs_of: dict[tuple[str, int | None, int | None], list[tuple[float, float, float]]] = {}
    for record in records:
        for group in record.canaries.groups if record.canaries else []:
            if group.auroc is not None:
                estimate = (group.auroc.value, group.auroc.lower, group.auroc.upper)
                aurocs_of.setdefault((group.kind, group.length, group.documents), []).append(estimate)
    return [
        CanaryPoint(
            kind=kind,
            length=length,
            documents=documents,
            auroc=over_blocks([value for value, *_ in aurocs], (aurocs[0][1], aurocs[0][2]), least=0.0, most=1.0),
        )
        for (kind, length, documents), aurocs in aurocs_of.items()
        if len(aurocs) == len(records)
    ]


def bands(pairs: Sequence[tuple[Finished, Finished]]) -> list[Band]:
    """Return the exposure of thirds of the members under the second cell of each pair.

    Args:
        pairs: for each block, the first variant's cell, which sorts the users, and another variant's cell. Users are
            sorted by their texts, never by scores: users whose scores are high by chance have lower scores under any
            other model.
    """
    thirds = []
    for measure in ("records", "word divergence"):
        # Of each third over all blocks: values, and shares of held-out users with a lower score.
        values: list[list[float]] = [[] for _ in range(THIRDS)]
        above: list[list[float]] = [[] for _ in range(THIRDS)]
        for first, other in pairs:
            exposed = {person.user: person.above for person in other.people}
            known = {user: value for user, value in _sorted_by(measure, first).items() if user in exposed}
            if len(known) < THIRDS * LEAST_IN_GROUP:
                return []
            users = sorted(known, key=lambda user: (known[user], user))
            for third, rows in enumerate(np.array_split(np.arange(len(users)), THIRDS)):
                values[third] += [known[users[row]] for row in rows]
                above[third] += [exposed[users[row]] for row in rows]
        thirds += [
            Band.model_validate(
                {
                    "of": measure,
                    "third": third + 1,
                    "typical": significant(float(np.mean(values[third]))),
                    "users": len(above[third]),
                    "above": brief(float(np.mean(above[third]))),
                }
            )
            for third in range(THIRDS)
            if above[third]
        ]
    return thirds


def _sorted_by(measure: str, cell: Finished) -> Mapping[str, float]:
    training = cell.record.training
    if training is None:
        return {}
    return {person.user: _value(measure, person, training.records) for person in cell.people}


def _value(measure: str, person: Exposed, records: int) -> float:
    return float(round(person.share * records)) if measure == "records" else person.word_divergence
