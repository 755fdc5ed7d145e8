"""The joint results of a sweep's cells: means over blocks, joint verdicts and bounds, and one epsilon for all cells."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from heldin.audit.blocks import LEAST_BLOCKS
from heldin.audit.decision import Answer
from heldin.base.errors import ConstantScores, ExitCode, InputError, TooFewUsers
from heldin.base.machine import version
from heldin.base.progress import Reporter
from heldin.bounds.one_run import fdp_bound
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import NO_CLAIM, Standing, holm
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.defenses.releases import users_epsilon
from heldin.record.document import Record, masked
from heldin.record.facts import Environment
from heldin.record.plan_fit import differences_of
from heldin.record.sweep import (
    JOINT_ALPHA,
    Attacker,
    CellOutcome,
    CellResult,
    Composed,
    JointVerdict,
    RocPoints,
    Rule,
    SweepResult,
    tests_of,
)
from heldin.stages.run_config import RunConfig
from heldin.stages.train.plan import mechanism_of
from heldin.sweeps.cell_plan import kept_hash, placed_cells, tries, tuning_cells
from heldin.sweeps.finished import Finished, finished_cells
from heldin.sweeps.running import CellState
from heldin.sweeps.shipping import shipping
from heldin.sweeps.sweep_config import PlacedCell, Sweep
from heldin.sweeps.variants import variant_results
from heldin.words.guarantee import EarlierText, Relation
from heldin.words.statement import Statement
from heldin.words.sweep_page import SweepNote

JOINT_RULE = "one-run f-DP"


def compare_cells(
    sweep: Sweep, out: Path, states: Mapping[str, CellState], reporter: Reporter, *, command: str
) -> SweepResult:
    """Compare the finished cells of a sweep.

    Args:
        out: folder of the sweep; every record must contain the hash of its plan.
        states: states of the sweep's cells, by name.
        command: the command line, without names of people.

    heldin leaves out a cell, with a message, in these cases: its record has another plan, config, corpus, reference or
    coins; it shares a training key; or another cell's model scored it. Joint results are corrected for all cells of the
    plan, with or without a result.
    """
    cells, plan, tuning = placed_cells(sweep, out), kept_hash(out), tuning_cells(sweep, out)
    finished, problems = finished_cells(cells, plan, reporter)
    verdicts = joint_verdicts(finished, cells)
    results = [_cell(cell, finished, states, verdicts, problems, len(cells)) for cell in cells]
    by_variant: dict[str, dict[int, Record]] = {}
    for measured in finished.values():
        by_variant.setdefault(measured.cell.variant.name, {})[measured.cell.block] = measured.record
    together = composed([*cells, *tuning])
    return SweepResult(
        name=sweep.config.name,
        sweep=plan,
        blocks=sweep.config.blocks,
        variants=variant_results(sweep, finished, results),
        cells=results,
        notes=[
            *_notes(sweep, results, sum(map(len, verdicts.values()))),
            *about_machines([cell.record.environment for cell in finished.values()]),
            *about_epsilon(sweep, choice_is_covered(sweep, cells, tuning), together),
        ],
        shipping=shipping(sweep, by_variant),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=version(),
        command=command,
        rule=_rule(sweep),
        attacker=_attacker(finished),
        composed=together,
        tried=tries(sweep, out),
        config=masked(sweep.variants[0].config.model_dump(mode="json")),
        folder=out,
    )


def _rule(sweep: Sweep) -> Rule | None:
    rule = sweep.config.decision
    if rule is None:
        return None
    words = [requirement.words() for requirement in rule.requirements()]
    return Rule(require=words, prefer=rule.prefer, candidates=list(rule.candidates), level=rule.level)


def _attacker(finished: Mapping[str, Finished]) -> Attacker | None:
    """Return the attacker if all finished cells have the same attacker; otherwise None."""
    attackers = [
        Attacker(
            attack=cell.record.primary_attack,
            asks=cell.record.primary().asks,
            aggregation=cell.record.primary().aggregation,
            texts=cell.record.scored_texts.kind,
            fpr=cell.record.decision.by.fpr,
            audited=cell.record.split.audited,
        )
        for cell in finished.values()
    ]
    return attackers[0] if attackers and all(attacker == attackers[0] for attacker in attackers) else None


def joint_verdicts(finished: Mapping[str, Finished], cells: Sequence[PlacedCell]) -> dict[str, list[JointVerdict]]:
    """Return each cell's verdicts, with p-values corrected for all planned cells and groups of people (Holm)."""
    own = {
        name: [verdict for verdict in cell.record.judgement.verdicts if verdict.claim != NO_CLAIM]
        for name, cell in finished.items()
    }
    tested = [(name, i) for name, verdicts in own.items() for i in range(len(verdicts))]
    # A test that was not made, or not yet, counts: comparing some cells, and again more, would else be to look twice.
    p_values = [1.0 if (p := own[name][i].p_value) is None else p for name, i in tested]
    missing = sum(_planned_tests(cell.config) for cell in cells if cell.name not in finished)
    adjusted = dict(zip(tested, holm([*p_values, *[1.0] * missing]), strict=False))
    return {
        name: [
            JointVerdict(
                subjects=verdict.subjects,
                claim=verdict.claim,
                outcome=verdict.outcome.value,
                standing=verdict.standing.value,
                p_value=verdict.p_value,
                adjusted=None if verdict.p_value is None else adjusted[name, i],
            )
            for i, verdict in enumerate(own_verdicts)
        ]
        for name, own_verdicts in own.items()
    }


def _planned_tests(config: RunConfig) -> int:
    """Return the maximum number of tests in a cell of this config: one for audited users and each kind of canary
    user."""
    return 0 if not config.defense.is_private else 1 + len({spec.kind for spec in config.canaries})


def _cell(
    cell: PlacedCell,
    finished: Mapping[str, Finished],
    states: Mapping[str, CellState],
    verdicts: Mapping[str, list[JointVerdict]],
    problems: Mapping[str, str],
    cells: int,
) -> CellResult:
    state = states.get(cell.name)
    seconds = round(state.seconds, 1) if state else 0.0
    measured = finished.get(cell.name)
    if measured is None:
        return CellResult(
            block=cell.block,
            variant=cell.variant.name,
            state=_outcome(state, refused=cell.name in problems),
            reason=problems.get(cell.name, state.reason if state else ""),
            seconds=seconds,
        )
    record = measured.record
    utility, training = record.utility, record.training
    return CellResult(
        block=cell.block,
        variant=cell.variant.name,
        state="done",
        reason="",
        seconds=seconds,
        auroc=record.primary().auroc.value,
        loss=utility.loss if utility else None,
        perplexity=utility.perplexity if utility else None,
        gain=utility.gain.value if utility and utility.gain else None,
        gradients=training.gradients if training else None,
        peak_memory=record.environment.peak_memory,
        answer=record.decision.decision.answer.value,
        canaries_answer=_canaries_answer(record),
        verdicts=verdicts[cell.name],
        epsilon_at_least=joint_bound(measured, cells),
        held_in=record.split.held_in,
        held_out=record.split.held_out,
        ledger_commitment=record.split.ledger_commitment,
        roc=RocPoints(fpr=record.curve().fpr, tpr=record.curve().tpr),
        curve=training.curve if training else [],
        tests=tests_of(record),
        fit=training.fit if training else None,
        kinds=record.kinds,
    )


def _canaries_answer(record: Record) -> str | None:
    """Return the answer for canary users; None if there are none, or if they are the audited people."""
    if record.split.audited == "canaries" or record.canaries is None:
        return None
    # Too few canary users on a side for any test: nothing is known of them.
    decision = record.canaries.decision
    return Answer.INCONCLUSIVE.value if decision is None else decision.decision.answer.value


def _outcome(state: CellState | None, *, refused: bool) -> CellOutcome:
    """Return the state of a cell that is not compared. ``refused`` means that the comparison excludes its record."""
    if refused or (state is not None and state.code == ExitCode.BAD_INPUT):
        return "refused"
    if state is None or state.code is None:
        return "to do"
    return "halted" if state.halted else "failed"


def joint_bound(cell: Finished, cells: int) -> float | None:
    """Return a bound on audited users' epsilon at level alpha / number of planned cells, by a rule fixed before the
    sweep."""
    # Those audited come first in a record, before canary users.
    own = next((bound for bound in cell.record.judgement.bounds if bound.name == JOINT_RULE), None)
    if own is None or own.standing is not Standing.CERTIFIED:
        return None
    try:
        labelled = LabelledScores(cell.scores, cell.member, cell.users)
        return round(fdp_bound(labelled, cell.record.judgement.delta, alpha=JOINT_ALPHA, attacks=cells).epsilon, 3)
    except (TooFewUsers, ConstantScores):
        return None


def _notes(sweep: Sweep, results: Sequence[CellResult], judged: int) -> list[Statement]:
    notes = []
    if sweep.config.blocks < LEAST_BLOCKS:
        notes.append(SweepNote.FEW_BLOCKS(blocks=sweep.config.blocks, least=LEAST_BLOCKS))
    if judged:
        notes.append(SweepNote.TOGETHER(verdicts=judged))
    # Of the first block in which they differ: blocks differ by coins alone.
    misfits = {
        cell.variant: differing for cell in reversed(results) if cell.fit and (differing := differences_of(cell.fit))
    }
    notes += [SweepNote.MISFIT(variant=name, differences=misfits[name]) for name in sorted(misfits)]
    if len({variant.group for variant in sweep.variants}) > 1:
        notes.append(SweepNote.GROUPS())
    if missing := sum(result.missing for result in results):
        notes.append(SweepNote.UNFINISHED(missing=missing, planned=len(results)))
    return notes


def about_machines(ran: Sequence[Environment]) -> list[Statement]:
    """Return the differences between the cells' machines. They occur if a sweep resumes later or on another machine."""
    values_of = [
        ("heldin", {_code(environment) for environment in ran}),
        ("Python", {environment.python for environment in ran}),
        *(
            (name, {environment.packages.get(name, "none") for environment in ran})
            for name in sorted({n for e in ran for n in e.packages})
        ),
        ("device", {environment.device for environment in ran}),
    ]
    differ = [
        SweepNote.MACHINE(part=part, values=", ".join(sorted(values))) for part, values in values_of if len(values) > 1
    ]
    return [SweepNote.MACHINES(differences=differ)] if differ else []


def _code(ran: Environment) -> str:
    """Return heldin's version and revision, and whether files were modified after that revision."""
    if ran.git_revision is None:
        return ran.heldin
    commit, changed, _ = ran.git_revision.partition("+changes")
    return f"{ran.heldin} ({commit[:9]}{changed})"


def about_epsilon(sweep: Sweep, covered: bool, joint: Composed | None) -> list[Statement]:
    """Return the joint privacy cost of the cells, and whether it includes the choice of a variant."""
    notes = []
    if joint is not None:
        composes = SweepNote.NOT_COMPOSED if joint.epsilon is None else SweepNote.COMPOSED
        adjacency = joint.adjacency and Relation[joint.adjacency.upper()]()
        notes.append(
            composes(
                private=joint.private,
                epsilon=joint.epsilon,
                delta=joint.delta,
                adjacency=adjacency,
                others=SweepNote.OTHERS(others=joint.others) if joint.others else None,
            )
        )
        notes += dict.fromkeys(_about_earlier(variant.config) for variant in sweep.variants)
    if sweep.config.decision is not None:
        covers = covered and joint is not None and joint.epsilon is not None
        notes.append(SweepNote.COVERED() if covers else SweepNote.NOT_COVERED())
    return notes


def _about_earlier(config: RunConfig) -> Statement:
    """Return a variant's statement about earlier releases. The epsilon of a sweep never includes these releases."""
    if config.previous is None:
        return EarlierText.NOT_STATED()
    releases = sum(earlier.times for earlier in config.previous)
    return SweepNote.EARLIER(releases=releases) if releases else EarlierText.NONE()


def composed(cells: Sequence[PlacedCell]) -> Composed | None:
    """Return one epsilon for all private cells, including planned cells; None without a private cell.

    All groups of variants count together, because other coins and other set-asides may concern the same people. Shadow
    models count as cells, because a cell trains them with its own mechanism on the same users.

    Args:
        cells: all cells of a sweep, including tuning cells.
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
        epsilon=users_epsilon(private, delta) if len(adjacencies) == 1 else None,
        delta=delta,
        adjacency=adjacencies.pop() if len(adjacencies) == 1 else None,
    )


def choice_is_covered(sweep: Sweep, cells: Sequence[PlacedCell], tuning: Sequence[PlacedCell]) -> bool:
    """Return whether the composed epsilon covers the rule's choice for users who are always members.

    It does if the rule reads only private cells and audited users' own texts
    (docs/theory.md#several-training-runs-of-one-user). That is the case if the candidates and all tuning cells are
    private, and separate coins decide which users are audited.
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
    """Return the mechanism in the cell's plan, or else the mechanism that the cell's config plans; None if neither is
    possible."""
    path = cell.folder / "plan.json"
    try:
        return read_plan(path) if path.is_file() else mechanism_of(cell.config, plain_steps=1, clip_norm=1.0)
    except InputError:
        return None
