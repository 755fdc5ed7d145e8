"""What all cells of a sweep together let anybody learn about a user whom they share."""

from collections.abc import Sequence

from heldin.defenses.accounting.joint import composed_epsilon
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.jobs.run.plan import mechanism_of
from heldin.jobs.sweep.config import Sweep
from heldin.jobs.sweep.plan import PlacedCell
from heldin.record.sweep import Composed


def composed(sweep: Sweep, cells: Sequence[PlacedCell], tuning: Sequence[PlacedCell]) -> list[Composed]:
    """For each group of variants with the same users: epsilon of all its private cells together, planned ones too.

    Args:
        sweep: the sweep.
        cells: its cells; groups without a private cell are left out.
        tuning: cells that tuned it; counted for every group, whose users they may have trained on.
    """
    found = []
    for group in dict.fromkeys(its.group for its in sweep.variants):
        own = [_mechanism(cell) for cell in (*(its for its in cells if its.variant.group == group), *tuning)]
        private = [its for its in own if its.user_event is not None and not its.reasons() and its.delta is not None]
        if not private:
            continue
        # At the largest of their deltas, of which every cell's own epsilon is at least as large.
        delta = max(its.delta for its in private if its.delta is not None)
        found.append(
            Composed(
                group=group,
                private=len(private),
                others=len(own) - len(private),
                epsilon=composed_epsilon(private, delta),
                delta=delta,
            )
        )
    return found


def choice_is_covered(sweep: Sweep, cells: Sequence[PlacedCell], tuning: Sequence[PlacedCell]) -> bool:
    """Whether the composed epsilon covers the rule's choice for users who are always in.

    It does if whatever the rule reads comes from private cells and from audited users' own texts (docs/theory.md
    #shipping-by-a-rule): the candidates are private, and users who are not audited are set apart by their own coins.
    """
    rule = sweep.config.decision
    if rule is None:
        return False
    read = [*(cell for cell in cells if cell.variant.name in rule.candidates), *tuning]
    apart = all(cell.config.split.audit_fraction is not None for cell in read)
    mechanisms = [_mechanism(cell) for cell in read]
    return apart and all(its.user_event is not None and not its.reasons() for its in mechanisms)


def _mechanism(cell: PlacedCell) -> Mechanism:
    """What the cell runs: its plan, or what the plan will be."""
    path = cell.folder / "plan.json"
    return read_plan(path) if path.is_file() else mechanism_of(cell.config, plain_steps=1, clip_norm=1.0)
