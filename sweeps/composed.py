"""What all cells of a sweep together let anybody learn about a user who is in all of them."""

from collections.abc import Sequence

from heldin.base.errors import InputError
from heldin.defenses.accounting.joint import composed_epsilon
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.record.sweep import Composed
from heldin.stages.train.plan import mechanism_of
from heldin.sweeps.config import Sweep
from heldin.sweeps.plan import PlacedCell


def composed(cells: Sequence[PlacedCell]) -> Composed | None:
    """Epsilon of all private cells together, planned ones too; None without a private cell.

    Groups of variants are not told apart: other coins and other set-asides may well fall on the same people. Shadow
    models, which a cell trains under its own mechanism on the same users, count as cells.

    Args:
        cells: all cells of a sweep, those that tuned it among them.
    """
    private: list[Mechanism] = []
    others = 0
    for cell in cells:
        mechanism, times = _mechanism(cell), 1 + cell.config.attack.shadow_models
        if mechanism is not None and _promises_users(mechanism):
            private += [mechanism] * times
        else:
            others += times
    if not private:
        return None
    # Each cell's own epsilon, at a delta of its own, holds at the largest of these too.
    delta = max(mechanism.delta for mechanism in private if mechanism.delta is not None)
    adjacencies = {mechanism.adjacency for mechanism in private}
    return Composed(
        private=len(private),
        others=others,
        epsilon=composed_epsilon(private, delta) if len(adjacencies) == 1 else None,
        delta=delta,
        adjacency=adjacencies.pop() if len(adjacencies) == 1 else None,
    )


def choice_is_covered(sweep: Sweep, cells: Sequence[PlacedCell], tuning: Sequence[PlacedCell]) -> bool:
    """Whether the composed epsilon covers the rule's choice for users who are always in.

    It does if whatever the rule reads comes from private cells and from audited users' own texts
    (docs/theory.md#several-trainings-of-one-user): the candidates and all of tuning are private, and users who are not
    audited are set apart by coins of their own.
    """
    rule = sweep.config.decision
    if rule is None:
        return False
    read = [*(cell for cell in cells if cell.variant.name in rule.candidates), *tuning]
    mechanisms = [_mechanism(cell) for cell in read]
    apart = all(cell.config.split.audit_fraction is not None for cell in read)
    return apart and all(mechanism is not None and _promises_users(mechanism) for mechanism in mechanisms)


def _promises_users(mechanism: Mechanism) -> bool:
    return mechanism.user_event is not None and mechanism.delta is not None and not mechanism.reasons()


def _mechanism(cell: PlacedCell) -> Mechanism | None:
    """What the cell runs: its plan, or what the plan will be; None for one that cannot be planned or read."""
    path = cell.folder / "plan.json"
    try:
        return read_plan(path) if path.is_file() else mechanism_of(cell.config, plain_steps=1, clip_norm=1.0)
    except InputError:
        return None
