"""What a sweep's cells say together: paired differences, several blocks at once, and verdicts that hold jointly."""

from collections import Counter
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
from heldin.jobs.config import RunConfig
from heldin.jobs.run.utility import read_losses
from heldin.jobs.sweep.config import Sweep, Variant
from heldin.jobs.sweep.plan import PlacedCell
from heldin.jobs.sweep.shipping import shipping
from heldin.jobs.user_scores import leading_scores
from heldin.record.document import INTERNAL_NOTICE, Record, read_record
from heldin.record.masking import masked, with_keys_of
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

    A cell whose record is of another plan, config, corpus or reference, or of other coins, that shares a training key,
    or that was scored with another cell's model is left out, with its line. What is said of all cells together pays for
    every cell of the plan, whether it has a result or not.
    """
    with reporter.track("comparison", len(cells), "cells") as advance:
        found: dict[str, _Finished] = {}
        problems: dict[str, str] = {}
        for cell in cells:
            if (cell.folder / "record.json").is_file():
                try:
                    found[cell.name] = _read(cell)
                except InputError as error:
                    problems[cell.name] = str(error)
            advance(1)
    problems |= _problems(found, plan)
    finished = {name: its for name, its in found.items() if name not in problems}
    verdicts = _joint_verdicts(finished, cells)
    results = [_cell(cell, finished, states, verdicts, problems, len(cells)) for cell in cells]
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
        notes=_notes(sweep, results, sum(map(len, verdicts.values()))),
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


def _problems(found: Mapping[str, _Finished], plan: str) -> dict[str, str]:
    """By cell, which condition under which cells may share coins it breaks (docs/theory.md#cells-that-share-coins)."""
    problems: dict[str, str] = {}
    models = {its.record.target.fingerprint: name for name, its in found.items()}
    keys = Counter(its.record.split.key_commitment for its in found.values())
    # Of the first cell of each kind: the others must agree with it.
    seen: dict[tuple[str, str], tuple[str | None, str]] = {}
    for name, its in found.items():
        record, where, config = its.record, its.record.cell, its.cell.config
        if where is None or (where.sweep, where.block, where.variant) != (plan, its.cell.block, its.cell.variant.name):
            problems[name] = "its record is of another plan, which was not fixed before these coins: remove its folder"
            continue
        stated = masked(config.model_dump(mode="json"))
        if record.config != with_keys_of(stated, record.config):
            problems[name] = "its record is of another config than the sweep's plan: remove its folder"
            continue
        if keys[record.split.key_commitment] > 1:
            problems[name] = (
                "it was trained under the key of another cell, so that they differ by un-noised data: remove its folder"
            )
            continue
        source = models.get(record.reference.fingerprint, name)
        if source != name:
            problems[name] = f"it was scored with the model of cell {source}, whose coins it shares: remove its folder"
            continue
        # Named alike, made alike: a file or folder that changed meanwhile makes another comparison.
        same = (
            ("has other coins than", f"{where.block}/{where.group}", record.split.ledger_commitment),
            ("read another corpus than", config.corpus.model_dump_json(), record.corpus.fingerprint),
            ("has another reference model than", _reference_of(config), record.reference.fingerprint),
        )
        for what, key, value in same:
            first, other = seen.setdefault((what, key), (value, name))
            if first != value:
                problems[name] = f"it {what} cell {other}: remove its folder, or start the sweep in a new one"
    return problems


def _reference_of(config: RunConfig) -> str:
    """What decides the leading reference model."""
    named = config.attack.reference
    return named or f"{config.seed} {config.corpus.model_dump_json()} {config.model.model_dump_json()}"


def _joint_verdicts(finished: Mapping[str, _Finished], cells: Sequence[PlacedCell]) -> dict[str, list[JointVerdict]]:
    """Every cell's verdicts, with p-values that pay for all cells of the plan and groups of people (Holm)."""
    own = {
        name: [its for its in cell.record.judgement.verdicts if its.claim != NO_CLAIM]
        for name, cell in finished.items()
    }
    tested = [(name, i) for name, its in own.items() for i in range(len(its))]
    # A test that was not made, or not yet, counts: comparing some cells, and again more, would else be to look twice.
    p_values = [1.0 if (p := own[name][i].p_value) is None else p for name, i in tested]
    missing = sum(_planned_tests(cell.config) for cell in cells if cell.name not in finished)
    adjusted = dict(zip(tested, holm([*p_values, *[1.0] * missing]), strict=False))
    return {
        name: [
            JointVerdict(
                subjects=one.subjects,
                claim=one.claim,
                outcome=one.outcome.value,
                standing=one.standing.value,
                p_value=one.p_value,
                adjusted=None if one.p_value is None else adjusted[name, i],
            )
            for i, one in enumerate(its)
        ]
        for name, its in own.items()
    }


def _planned_tests(config: RunConfig) -> int:
    """The most tests that a cell of this config makes: one of those audited, and one of each kind of canary users."""
    return 0 if config.defense.kind in ("none", "clip") else 1 + len({spec.kind for spec in config.canaries})


def _cell(
    cell: PlacedCell,
    finished: Mapping[str, _Finished],
    states: "Mapping[str, CellState]",
    verdicts: Mapping[str, list[JointVerdict]],
    problems: Mapping[str, str],
    cells: int,
) -> CellResult:
    state = states.get(cell.name)
    seconds = round(state.seconds, 1) if state else 0.0
    its = finished.get(cell.name)
    if its is None:
        what = "to do" if state is None or state.code is None else "halted" if state.halted else "failed"
        said = problems.get(cell.name, state.said if state else "")
        what = "failed" if cell.name in problems else what
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
    """A bound on the epsilon of those audited at alpha / number of planned cells, by one rule fixed beforehand."""
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
    # Of all blocks or of none: a mean over some of them is another number.
    measured = bool(mine) and len(losses) == len(gains) == len(mine)
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
        loss=over_blocks(losses, digits=DIGITS) if measured else None,
        loss_difference=None if is_first else _difference(pairs, _loss_difference, digits=DIGITS),
        gain=over_blocks([its.value for its in gains], (gains[0].lower, gains[0].upper), digits=DIGITS)
        if measured
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
    # Another attack, or other texts: their difference would not be the defense's.
    if first.cell.config.attack != other.cell.config.attack:
        return None
    if first.users != other.users or not np.array_equal(first.member, other.member):
        raise InputError(f"cells {first.cell.name} and {other.cell.name} scored different users")
    return auroc_difference(first.sides, other.sides)


def _loss_difference(first: _Finished, other: _Finished) -> Difference | None:
    if _measured_on(first) != _measured_on(other):
        return None
    users = sorted(first.losses.keys() & other.losses.keys())
    if len(users) < max(len(first.losses), len(other.losses)):
        raise InputError(f"cells {first.cell.name} and {other.cell.name} were measured on different held-out users")
    # A cell whose record has no utility has too few of them.
    if first.record.utility is None or other.record.utility is None:
        return None
    one, two = (np.array([its.losses[user].loss for user in users]) for its in (first, other))
    return mean_difference(one, two)


def _measured_on(its: _Finished) -> tuple[object, ...]:
    """What decides test texts and their tokens: losses per token of other ones do not compare."""
    config = its.cell.config
    return config.audit.test_texts_per_user, config.attack.max_characters, config.model


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
