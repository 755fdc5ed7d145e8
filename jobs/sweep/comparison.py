"""What a sweep's cells say together: paired differences, several blocks at once, and verdicts that hold jointly."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heldin.audit.blocks import LEAST_BLOCKS, Summary, over_blocks
from heldin.audit.paired import Difference, auroc_difference
from heldin.audit.utility import DIGITS, UserLoss, mean_difference
from heldin.base.errors import ConstantScores, InputError, TooFewUsers
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.bounds.one_run import fdp_bound
from heldin.bounds.p_values import holm
from heldin.bounds.roc import Scores
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import NO_CLAIM, Standing
from heldin.jobs.run.utility import read_losses
from heldin.jobs.sweep.config import Sweep, Variant
from heldin.jobs.sweep.plan import PlacedCell
from heldin.jobs.sweep.shipping import shipping
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import INTERNAL_NOTICE, Record, read_record
from heldin.record.masking import masked
from heldin.record.sweep import JOINT_ALPHA, CellResult, JointVerdict, SweepResult, VariantResult

if TYPE_CHECKING:
    from heldin.jobs.sweep.driver import CellState


JOINT_RULE = "one-run f-DP"


@dataclass(frozen=True, eq=False)
class _Finished:
    """A cell with a record, and the owner-only files beside it."""

    cell: PlacedCell
    record: Record
    users: tuple[str, ...]
    scores: Scores
    member: np.ndarray
    losses: Mapping[str, UserLoss]

    @property
    def sides(self) -> tuple[Scores, Scores]:
        """Scores of held-in and of held-out users."""
        return self.scores[self.member], self.scores[~self.member]


def compare_cells(
    sweep: Sweep, cells: Sequence[PlacedCell], states: "Mapping[str, CellState]", plan: str, reporter: Reporter
) -> SweepResult:
    """Compare the finished cells of a sweep.

    Args:
        sweep: the sweep.
        cells: its cells, in order.
        states: how they stand, by name.
        plan: hash of the plan, which every record must name.
        reporter: receives the progress.

    Raises:
        InputError: a cell's record is of another plan, another config or other coins; two cells have one training key;
            or a cell was scored with another cell's model.
    """
    with reporter.track("comparison", len(cells), "cells") as advance:
        finished = {}
        for cell in cells:
            if (cell.folder / "record.json").is_file():
                finished[cell.name] = _read(cell)
            advance(1)
    _require_valid(finished, plan)
    verdicts = _joint_verdicts(finished)
    judged = sum(len(its) for its in verdicts.values())
    results = [_cell(cell, finished, states, verdicts, len(finished)) for cell in cells]
    variants = [_variant(variant, sweep, finished, results) for variant in sweep.variants]
    by_variant: dict[str, dict[int, Record]] = {}
    for its in finished.values():
        by_variant.setdefault(its.cell.variant.name, {})[its.cell.block] = its.record
    return SweepResult(
        notice=INTERNAL_NOTICE,
        name=sweep.config.name,
        sweep=plan,
        blocks=sweep.config.blocks,
        variants=variants,
        cells=results,
        notes=_notes(sweep, results, judged),
        shipping=shipping(sweep, by_variant),
    )


def _read(cell: PlacedCell) -> _Finished:
    record = read_record(cell.folder / "record.json")
    scores = leading_scores(cell.folder)
    return _Finished(
        cell,
        record,
        tuple(its.user for its in scores),
        np.array([its.score for its in scores]),
        np.array([its.member for its in scores], dtype=np.bool_),
        read_losses(cell.folder),
    )


def _require_valid(finished: Mapping[str, _Finished], plan: str) -> None:
    """The conditions under which cells may share coins (docs/theory.md#cells-that-share-coins)."""
    keys: dict[str | None, str] = {}
    coins: dict[tuple[int, str], tuple[str | None, str]] = {}
    models = {its.record.target.fingerprint: name for name, its in finished.items()}
    for name, its in finished.items():
        record, where = its.record, its.record.cell
        if where is None or (where.sweep, where.block, where.variant) != (plan, its.cell.block, its.cell.variant.name):
            raise InputError(
                f"cell {name}: its record is of another plan, which was not fixed before these coins: start the sweep"
                " in a new folder"
            )
        if record.config != masked(its.cell.config.model_dump(mode="json")):
            raise InputError(f"cell {name}: its record is of another config than the sweep's plan")
        other = keys.setdefault(record.split.key_commitment, name)
        if other != name:
            raise InputError(
                f"cells {other} and {name} were trained under one key, so that they differ by un-noised data: remove"
                " the folder of one and run the sweep again"
            )
        first, whose = coins.setdefault((where.block, where.group), (record.split.ledger_commitment, name))
        if first != record.split.ledger_commitment:
            raise InputError(f"cells {whose} and {name} of one block have different coins, and cannot be compared")
        source = models.get(record.reference.fingerprint, name)
        if source != name:
            raise InputError(
                f"cell {name} was scored with the model of cell {source}, whose coins it shares: such scores support no"
                " statement"
            )


def _joint_verdicts(finished: Mapping[str, _Finished]) -> dict[str, list[JointVerdict]]:
    """Every cell's verdicts, with p-values that pay for all cells and groups of people (Holm)."""
    own = {
        name: [its for its in cell.record.judgement.verdicts if its.claim != NO_CLAIM]
        for name, cell in finished.items()
    }
    tested = [(name, i) for name, its in own.items() for i, one in enumerate(its) if one.p_value is not None]
    p_values = [p for name, i in tested if (p := own[name][i].p_value) is not None]
    adjusted = dict(zip(tested, holm(p_values), strict=True))
    return {
        name: [
            JointVerdict(
                subjects=one.subjects,
                claim=one.claim,
                outcome=one.outcome.value,
                standing=one.standing.value,
                p_value=one.p_value,
                adjusted=adjusted.get((name, i)),
            )
            for i, one in enumerate(its)
        ]
        for name, its in own.items()
    }


def _cell(
    cell: PlacedCell,
    finished: Mapping[str, _Finished],
    states: "Mapping[str, CellState]",
    verdicts: Mapping[str, list[JointVerdict]],
    cells: int,
) -> CellResult:
    state = states.get(cell.name)
    seconds = round(state.seconds, 1) if state else 0.0
    its = finished.get(cell.name)
    if its is None:
        what = "to do" if state is None or state.code is None else "halted" if state.halted else "failed"
        said = state.said if state else ""
        return CellResult.model_validate(
            {"block": cell.block, "variant": cell.variant.name, "state": what, "said": said, "seconds": seconds}
        )
    record = its.record
    utility, training = record.utility, record.training
    return CellResult(
        block=cell.block,
        variant=cell.variant.name,
        state="done",
        said="",
        seconds=seconds,
        auroc=record.primary().auroc.value,
        loss=utility.loss if utility else None,
        gain=utility.gain.value if utility and utility.gain else None,
        gradients=training.gradients if training else None,
        peak_memory=record.environment.peak_memory,
        answer=record.decision.decision.answer.value,
        verdicts=verdicts[cell.name],
        epsilon_at_least=_joint_bound(its, cells),
    )


def _joint_bound(its: _Finished, cells: int) -> float | None:
    """A bound on the epsilon of those audited at alpha / number of cells, by one rule that is fixed beforehand."""
    # Those audited come first in a record, before canary users.
    own = next((bound for bound in its.record.judgement.bounds if bound.name == JOINT_RULE), None)
    if own is None or own.standing is not Standing.CERTIFIED:
        return None
    try:
        labelled = LabelledScores(its.scores, its.member, its.users)
        return round(fdp_bound(labelled, its.record.judgement.delta, alpha=JOINT_ALPHA, attacks=cells).epsilon, 3)
    except (TooFewUsers, ConstantScores):
        return None


def _variant(
    variant: Variant, sweep: Sweep, finished: Mapping[str, _Finished], results: Sequence[CellResult]
) -> VariantResult:
    own = {name.block: name for name in results if name.variant == variant.name and name.state == "done"}
    first = {name.block: name for name in results if name.variant == variant.group and name.state == "done"}
    mine = [finished[f"{block}/{variant.name}"] for block in own]
    pairs = [(finished[f"{b}/{variant.group}"], finished[f"{b}/{variant.name}"]) for b in own if b in first]
    is_first = variant.name == variant.group
    training = mine[0].record.training if mine else None
    estimate = mine[0].record.primary().auroc if mine else None
    gains = [its.record.utility.gain for its in mine if its.record.utility and its.record.utility.gain]
    losses = [its.record.utility.loss for its in mine if its.record.utility]
    done = list(own.values())
    kinds = [*(step.kind for step in variant.config.data_defenses), variant.config.defense.kind]
    return VariantResult(
        name=variant.name,
        group=variant.group,
        defense=" + ".join(kind for kind in kinds if kind != "none") or "none",
        promise=training.guarantee if training else None,
        unit=training.protected if training else None,
        epsilon=training.epsilon if training else None,
        delta=training.delta if training else None,
        cells=len(done),
        auroc=over_blocks([its.auroc for its in done if its.auroc is not None], (estimate.lower, estimate.upper))
        if estimate
        else None,
        auroc_difference=None if is_first else _difference(pairs, _auroc_difference),
        loss=over_blocks(losses, digits=DIGITS) if losses else None,
        loss_difference=None if is_first else _difference(pairs, _loss_difference, digits=DIGITS),
        gain=over_blocks([its.value for its in gains], (gains[0].lower, gains[0].upper), digits=DIGITS)
        if gains
        else None,
        seconds=round(float(np.mean([its.seconds for its in done])), 1) if done else None,
        gradients=_mean([its.gradients for its in done]),
        jointly_violated=any(verdict.jointly_violated for its in done for verdict in its.verdicts),
    )


Pair = tuple[_Finished, _Finished]


def _difference(
    pairs: Sequence[Pair], of: Callable[[_Finished, _Finished], Difference | None], *, digits: int = 3
) -> Summary | None:
    """Second minus first, in the blocks that have both; None if a block's difference cannot be stated."""
    found = [of(*pair) for pair in pairs]
    stated = [its for its in found if its is not None]
    if not stated or len(stated) < len(found):
        return None
    return over_blocks([its.value for its in stated], (stated[0].lower, stated[0].upper), digits=digits)


def _auroc_difference(first: _Finished, other: _Finished) -> Difference | None:
    if first.users != other.users or not np.array_equal(first.member, other.member):
        raise InputError(f"cells {first.cell.name} and {other.cell.name} scored different users")
    return auroc_difference(first.sides, other.sides)


def _loss_difference(first: _Finished, other: _Finished) -> Difference | None:
    users = sorted(first.losses.keys() & other.losses.keys())
    if len(users) < max(len(first.losses), len(other.losses)):
        raise InputError(f"cells {first.cell.name} and {other.cell.name} were measured on different held-out users")
    # A cell whose record has no utility has too few of them.
    if first.record.utility is None or other.record.utility is None:
        return None
    one, two = (np.array([its.losses[user].loss for user in users]) for its in (first, other))
    return mean_difference(one, two)


def _mean(values: Sequence[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 1) if known and len(known) == len(values) else None


def _notes(sweep: Sweep, results: Sequence[CellResult], judged: int) -> list[str]:
    blocks = sweep.config.blocks
    notes = []
    if blocks < LEAST_BLOCKS:
        notes.append(
            f"{counted(blocks, 'block')}: differences are between these models, not between defenses; from"
            f" {LEAST_BLOCKS} blocks on intervals hold over coins, seeds and trainings"
        )
    if judged:
        notes.append(
            f"{counted(judged, 'verdict')} were tested together (Holm), and bounds on epsilon hold for all cells at"
            " once; each cell's own record has its own"
        )
    if len({variant.group for variant in sweep.variants}) > 1:
        notes.append("variants of different groups have different users or set-asides, and are not compared")
    if sweep.config.decision is not None:
        notes.append(
            "the rule reads un-noised scores and losses of audited users: no epsilon covers this choice, and that of a"
            " variant is of its training alone"
        )
    unfinished = [its for its in results if its.state != "done"]
    if unfinished:
        notes.append(f"{counted(len(unfinished), 'cell')} without a result: what is said is about the others")
    return notes
