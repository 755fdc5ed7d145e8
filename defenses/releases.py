"""Several releases about the same people: one epsilon for all of them.

heldin composes the privacy-loss distributions of the plans on one grid (``guarantees.composed_epsilon``). Epsilon holds
for plans that are fixed beforehand. Results of earlier releases may decide data and learning rates of later releases.
They must not decide the noise, sampling, steps or number of later releases (docs/theory.md#several-releases).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heldin.base.errors import InputError
from heldin.base.tabular import Tabular
from heldin.base.wording import counted
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import Event, FilteredGaussian, check_count
from heldin.defenses.choices import Adjacency, Unit
from heldin.defenses.guarantee import Guarantee, relation
from heldin.defenses.mechanism import Mechanism
from heldin.words.guarantee import GuaranteeText, ReleasesText
from heldin.words.statement import Statement


@dataclass(frozen=True)
class PlannedRelease:
    """A plan, and the number of models that were released under the plan.

    Attributes:
        name: name of the plan, for messages and tables.
        times: number of releases by this plan, each under a separate key.
    """

    name: str
    mechanism: Mechanism
    times: int = 1


@dataclass(frozen=True)
class OwnGuarantee:
    """The guarantee of one release by a plan, at the plan's own delta."""

    plan: str
    times: int
    epsilon: float
    delta: float


@dataclass(frozen=True)
class Together(Tabular):
    """The guarantee of several releases together.

    Attributes:
        releases: number of releases.
        epsilon: epsilon of all releases together, at ``delta``.
        unit: the protected unit.
        adjacency: the data sets that count as neighbours.
        records: under text sampling without caps, the maximum number of a person's records per release; None otherwise.
        sum_epsilon: sum of the separate epsilons of the releases (basic composition), which holds at ``sum_delta``.
        sum_delta: sum of the separate deltas of the releases.
        own: guarantee of one release by each plan.
        pure: epsilons of further releases by pure mechanisms; ``releases`` counts these releases too.
        statement: the guarantee of all releases with its conditions.
    """

    releases: int
    epsilon: float
    delta: float
    unit: Unit
    adjacency: Adjacency
    records: int | None
    sum_epsilon: float
    sum_delta: float
    own: tuple[OwnGuarantee, ...]
    pure: tuple[float, ...]
    statement: Statement

    def heading(self) -> str:
        """Return the guarantee in one line."""
        return str(self.statement)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row with all numbers."""
        return [{name: value for name, value in self.as_dict().items() if name not in ("own", "pure", "statement")}]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return {**dataclasses.asdict(self), "own": [*map(dataclasses.asdict, self.own)], "statement": self.heading()}


def compose_releases(
    releases: Sequence[PlannedRelease], delta: float | None = None, pure: Sequence[float] = ()
) -> Together:
    """Return epsilon(delta) of all releases together, as exact as the epsilon of one plan.

    Args:
        releases: the plans. The same people may be in all releases.
        delta: delta of the answer; None: the plans' own delta, if all plans have the same delta.
        pure: epsilons of further releases by pure mechanisms, such as a private median, for users under add/remove.

    Raises:
        InputError: a plan has no guarantee, no accountant covers several releases of a plan, or the plans differ in
            unit or neighbouring relation. Also raised if the plans have different deltas and no delta is given.
    """
    if not releases:
        raise InputError("there is nothing to compose: give at least one plan")
    promises = [_promise(release) for release in releases]
    first, alike = releases[0], promises[0]
    for release, promise in zip(releases, promises, strict=True):
        _require_alike(first, alike, release, promise)
    deltas = sorted({promise.delta for promise in promises})
    if delta is None and len(deltas) > 1:
        stated = ", ".join(f"{mine:g}" for mine in deltas)
        raise InputError(
            f"the plans have different deltas ({stated}): give one delta for all releases together (--delta)"
        )
    delta = deltas[0] if delta is None else delta
    if pure and (alike.unit, alike.adjacency) != ("user", "add_remove"):
        raise InputError(
            f"pure releases (--pure) protect users under add/remove, but the plans protect {alike.unit}"
            f" ({relation(alike.adjacency)}): compose each kind separately, and state both epsilons"
        )
    runs = [(_event(release), release.times * release.mechanism.rounds) for release in releases]
    spent = accounting.composed_epsilon(runs, delta, pure)
    count = sum(release.times for release in releases) + len(pure)
    check_count("number of releases", count)
    own = tuple(
        OwnGuarantee(release.name, release.times, promise.epsilon, promise.delta)
        for release, promise in zip(releases, promises, strict=True)
    )
    return Together(
        releases=count,
        epsilon=spent,
        delta=delta,
        unit=alike.unit,
        adjacency=alike.adjacency,
        records=first.mechanism.exposed,
        sum_epsilon=sum(mine.times * mine.epsilon for mine in own) + sum(pure),
        sum_delta=sum(mine.times * mine.delta for mine in own),
        own=own,
        pure=tuple(pure),
        statement=_statement(first.mechanism, alike, promises, count, spent, delta, pure),
    )


def users_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float | None:
    """Return epsilon of every user after all of these trainings; None if a training has no loss distribution for users.

    Unlike ``compose_releases``, this function accepts plans for a user and an entity, and uses the guarantee of the
    user alone.

    Args:
        mechanisms: mechanisms with a guarantee for users. All must have one neighbouring relation.
    """
    runs = [(mechanism.user_event, mechanism.rounds) for mechanism in mechanisms]
    bounded = [(event, steps) for event, steps in runs if event is not None and not isinstance(event, FilteredGaussian)]
    private = not any(mechanism.reasons() for mechanism in mechanisms)
    return accounting.composed_epsilon(bounded, delta) if private and len(bounded) == len(runs) else None


def together_table(together: Together) -> str:
    """Return one line with name and value for each number, then the guarantee and its conditions."""
    relation_name = str(relation(together.adjacency))
    lines = [
        ("releases", f"{together.releases:,}"),
        ("privacy unit", f"{together.unit} ({relation_name})"),
        ("delta", f"{together.delta:g}"),
        ("epsilon of all releases together", f"{together.epsilon:.5g}"),
        ("sum of the separate epsilons", f"{together.sum_epsilon:.5g} at delta {together.sum_delta:.3g}"),
    ]
    for own in together.own:
        times = f", {own.times:,} times" if own.times > 1 else ""
        lines.append((f"epsilon of {own.plan}", f"{own.epsilon:.5g} at delta {own.delta:g}{times}"))
    if together.pure:
        lines.append(("pure epsilon of further releases", ", ".join(f"{spent:g}" for spent in together.pure)))
    return "\n".join([*(f"{name + ' ':<38}{value}" for name, value in lines), together.heading()])


def _promise(release: PlannedRelease) -> Guarantee:
    """Return the plan's guarantee. Raises InputError if there is no guarantee, or heldin cannot compose it."""
    check_count(f"{release.name}: number of releases", release.times)
    mechanism, promise = release.mechanism, release.mechanism.guarantee()
    if not isinstance(promise, Guarantee):
        raise InputError(
            f"{release.name}: {promise.label}. So heldin has no epsilon for all releases together: compose the"
            " other releases separately"
        )
    if isinstance(mechanism.assumed_event, FilteredGaussian):
        raise InputError(
            f"{release.name}: the theorem of the concentration filter gives an epsilon but no loss distribution. So"
            " heldin has no epsilon for all releases together: compose the other releases separately"
        )
    # Missed in one release and recognised in another, a name is in neither of the two cases that have an accountant.
    if mechanism.two_level is not None:
        raise InputError(
            f"{release.name}: two-level sampling has no accountant for several releases, because the recogniser may"
            " miss a name in one release and find the name in another. So heldin has no epsilon for all releases"
            " together: compose the other releases separately"
        )
    return promise


def _require_alike(first: PlannedRelease, alike: Guarantee, release: PlannedRelease, promise: Guarantee) -> None:
    for aspect, theirs, mine in (
        ("the privacy unit", alike.unit, promise.unit),
        ("the neighbouring relation", str(relation(alike.adjacency)), str(relation(promise.adjacency))),
        ("the number of records of a person", first.mechanism.exposed, release.mechanism.exposed),
    ):
        if mine != theirs:
            raise InputError(
                f"{release.name}: {aspect} is {mine}, but {theirs} in {first.name}, so no epsilon covers both:"
                " compose each kind separately, and state both epsilons"
            )


def _event(release: PlannedRelease) -> Event:
    return release.mechanism.assumed_event


def _statement(
    mechanism: Mechanism,
    alike: Guarantee,
    promises: Sequence[Guarantee],
    count: int,
    spent: float,
    delta: float,
    pure: Sequence[float],
) -> Statement:
    numbers = {"epsilon": spent, "delta": delta, "relation": relation(alike.adjacency)}
    if mechanism.exposed is not None:
        promise = ReleasesText.RECORDS(records=mechanism.exposed, **numbers)
    elif mechanism.entity_cap is not None:
        promise = ReleasesText.PAIR(**numbers)
    else:
        promise = GuaranteeText.EPSILON(unit=alike.unit, **numbers)
    own = [condition for mine in promises for condition in mine.conditions]
    conditions = [
        ReleasesText.FIXED_BEFOREHAND(),
        ReleasesText.AS_PLANNED(),
        *([ReleasesText.PURE(releases=counted(len(pure), "further release"), total=sum(pure))] if pure else []),
        *dict.fromkeys(own),
    ]
    return ReleasesText.TOGETHER(
        count=ReleasesText.MANY(releases=count) if count > 1 else ReleasesText.ONE(),
        promise=promise,
        conditions=conditions,
    )
