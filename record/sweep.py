"""The document of a sweep: results of its cells one by one and together. Every number of a comparison comes from it."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from heldin.attacks.protocol import AttackFacts
from heldin.audit.blocks import Summary
from heldin.audit.results import ExtractionFacts, MarkFacts
from heldin.audit.shipping import Shipping
from heldin.base.artefacts import read_document, write_document
from heldin.base.errors import ExitCode, InputError
from heldin.base.kinds import Origin
from heldin.base.section import Facts
from heldin.bounds.verdict import Outcome, Standing
from heldin.record.document import Record
from heldin.record.facts import PLAIN, Ceiling, CurvePoint
from heldin.record.plan_fit import PlanFit
from heldin.words.statement import Statement

JOINT_ALPHA = 0.05  # of all statements of a sweep together
FILE = "comparison.json"
TUNING = "tuning"  # the folder, within a sweep's, of the sweep that tunes it


class CellTests(Facts):
    """The tests of one cell, as its record has them.

    Attributes:
        scores: number of scores that were judged.
        sides: who decided who is held in.
        certifiable: whether statements on these sides may be certified.
        false_alarms: probability at most of a false "leaks"; null if nothing bounds it.
        separating: those of them that separated the groups.
        extraction: what sampling would emit of training texts; null if it was not measured.
        marks: exposure of canary users' marks; null if it was not measured.
    """

    texts: int
    scores: int
    attacks: int
    sides: Statement
    certifiable: bool
    false_alarms: float | None
    baselines: int
    separating: list[str]
    extraction: ExtractionFacts | None
    marks: MarkFacts | None


def tests_of(record: Record) -> CellTests:
    """Return the tests of a cell's record."""
    facts, by = record.decision, record.decision.by
    return CellTests(
        texts=record.attacker_texts,
        scores=facts.scores,
        attacks=len({attack.attack for attack in record.attacks}),
        sides=record.split.reason,
        certifiable=record.split.certifiable,
        false_alarms=by.auroc_level + by.tpr_level if facts.decision.exact else None,
        baselines=len(record.blind),
        separating=[rule.name for rule in record.blind if rule.separates],
        extraction=record.extraction,
        marks=record.marks,
    )


class JointVerdict(Facts):
    """A verdict of a cell among those of all cells.

    Attributes:
        subjects: whom it is about.
        outcome: outcome in the cell's own record.
        standing: standing in the cell's own record.
        p_value: smallest level that rejects the claim; null if no test was made.
        adjusted: the same after Holm's correction over all cells and groups of people; null likewise.
    """

    subjects: Statement
    claim: Statement
    outcome: str
    standing: str
    p_value: float | None
    adjusted: float | None

    @property
    def jointly_contradicted(self) -> bool:
        """Return if the claim is contradicted, certified at 95 % for all cells at once and by the cell's record too."""
        certified = self.standing == Standing.CERTIFIED.value and self.outcome == Outcome.CONTRADICTED.value
        return certified and self.adjusted is not None and self.adjusted <= JOINT_ALPHA


class RocPoints(Facts):
    """The ROC curve of a cell's primary attack, between groups of ten users or more.

    Attributes:
        fpr: false-positive rates, ascending, from 0 to 1.
        tpr: true-positive rates at these.
    """

    fpr: list[float]
    tpr: list[float]


class CanaryPoint(Facts):
    """The AUROC of canary users of one kind under a variant.

    Attributes:
        kind: how they were made.
        length: length of the substring in tokens; null for other kinds.
        documents: number of training documents; null if all are used.
        auroc: AUROC of the primary attack over the blocks.
    """

    kind: str
    length: int | None
    documents: int | None
    auroc: Summary


class Band(Facts):
    """The exposure of a third of the held-in users under a variant. The thirds are the same people for all variants.

    Attributes:
        of: what they were sorted by under the first variant: their number of training records, or how far their words
            are from everybody else's (KL divergence, nats).
        third: from 1, the lowest.
        typical: mean of that over the users of the third.
        users: number of users, all blocks together.
        above: mean share of held-out users with a lower score; 0.5 if nothing tells the sides apart.
    """

    of: Literal["records", "word divergence"]
    third: int
    typical: float
    users: int
    above: float


CellOutcome = Literal["done", "halted", "failed", "refused", "to do"]


class CellResult(Facts):
    """One cell.

    Attributes:
        state: done; halted (by a filter, without a model); failed, and the same command tries again; refused, because
            something must be corrected first; or to do.
        reason: the line that says why it failed or was refused; "" otherwise.
        seconds: duration of all its processes so far.
        auroc: AUROC of the primary attack; null unless done.
        loss: mean loss on held-out users' test texts, nats per token; null unless measured.
        perplexity: e to the mean loss over all tokens of these texts; null likewise.
        gain: base model's loss minus that; null likewise.
        gradients: number of records' gradients; null unless done.
        peak_memory: bytes; null unless done.
        answer: the audit's answer; null unless done.
        canaries_answer: the answer on canary users, where others are audited; null without canary users.
        verdicts: of the cell.
        epsilon_at_least: lower bound on the epsilon of those audited that holds for all cells at once with 95 %; null
            unless it is certified.
        held_in: number of audited held-in users and entities; null unless done.
        held_out: number of held-out ones.
        ledger_commitment: hash of the ledger; null unless done.
        roc: curve of the primary attack; null unless done.
        curve: what was measured during training.
        tests: what was tested; null unless done.
        fit: the plan held against the data; null without noise, and unless done.
        kinds: what its config names that is not heldin's own, and the code behind it.
    """

    block: int
    variant: str
    state: CellOutcome
    reason: str
    seconds: float
    auroc: float | None = None
    loss: float | None = None
    perplexity: float | None = None
    gain: float | None = None
    gradients: int | None = None
    peak_memory: int | None = None
    answer: str | None = None
    canaries_answer: str | None = None
    verdicts: list[JointVerdict] = Field(default_factory=list)
    epsilon_at_least: float | None = None
    held_in: int | None = None
    held_out: int | None = None
    ledger_commitment: str | None = None
    roc: RocPoints | None = None
    curve: list[CurvePoint] = Field(default_factory=list)
    tests: CellTests | None = None
    fit: PlanFit | None = None
    kinds: list[Origin] = Field(default_factory=list)

    @property
    def missing(self) -> bool:
        """Whether the cell has no result yet."""
        return self.state in ("failed", "refused", "to do")


class VariantResult(Facts):
    """One variant over its blocks.

    Attributes:
        group: its group: only variants of one group are held against each other.
        defense: kind of its defense, data defenses before it.
        promise: the guarantee in words; null before a cell is done.
        unit: whom epsilon protects, in a word or two.
        privacy_unit: the same as the mechanism has it: user, example, user-entity or none.
        trained_users: number of users trained on, in the first block.
        epsilon: epsilon of the guarantee; null without one.
        delta: delta of the guarantee.
        cells: number of cells that are done.
        auroc: AUROC of the primary attack.
        auroc_difference: that minus the first variant's of the group, in the same blocks; null for the first.
        loss: loss on held-out users' test texts, nats per token.
        perplexity: e to the mean loss over all tokens of these texts.
        loss_difference: that minus the first variant's, on the same users.
        gain: base model's loss minus the loss.
        seconds: mean duration of a cell.
        gradients: mean number of records' gradients.
        units_of_plan: mean number of units in training over the stated population; null without noise.
        gradients_of_plan: mean number of gradients in a step over the plan's; null where the plan does not decide it.
        jointly_contradicted: whether a claim is contradicted at 95 % for all cells at once, certified.
        differs: keys of its config that are not the first variant's, with their values.
        epsilon_per_user: epsilon, where it is every user's; null otherwise.
        flagged: of 100 members how many are flagged, by the attack that page one of each cell's report counts by: the
            deciding one where the cell leaks, else the primary one; null if some cell cannot count people.
        wrongly: of 100 non-members how many that attack flags, on average; null likewise.
        epsilon_at_least: largest of the cells' jointly certified lower bounds; null if no cell has one.
        ceiling: bound on attackers' ROC curves; null without a promise to those audited.
        canaries: how well canary users are found.
        bands: how exposed thirds of the held-in users are.
        dominated_by: variants that are no worse in anything and shown to be better in something.
    """

    name: str
    group: str
    defense: str
    promise: Statement | None
    unit: str | None
    privacy_unit: str | None = None
    trained_users: int | None = None
    epsilon: float | None
    delta: float | None
    cells: int
    auroc: Summary | None
    auroc_difference: Summary | None
    loss: Summary | None
    perplexity: Summary | None = None
    loss_difference: Summary | None
    gain: Summary | None
    seconds: float | None
    gradients: float | None
    units_of_plan: float | None = None
    gradients_of_plan: float | None = None
    jointly_contradicted: bool
    differs: dict[str, Any] = Field(default_factory=dict)
    epsilon_per_user: float | None = None
    flagged: Summary | None = None
    wrongly: float | None = None
    epsilon_at_least: float | None = None
    ceiling: Ceiling | None = None
    canaries: list[CanaryPoint] = Field(default_factory=list)
    bands: list[Band] = Field(default_factory=list)
    dominated_by: list[str] = Field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether it has no defense, on data or training."""
        return self.defense == PLAIN

    @property
    def label(self) -> str:
        """The name that reports use: "none" in a sentence would read as no variant."""
        if self.name != "none":
            return self.name
        return "plain training" if self.is_plain else '"none"'


class Tried(Facts):
    """A combination of the grid that tuned a variant.

    Attributes:
        values: the values that were tried, by key.
        public_loss: mean loss of public validation users over the blocks of tuning, nats per token; null if a filter
            ended training without a model.
        chosen: whether the variant has these values.
    """

    variant: str
    values: dict[str, Any]
    public_loss: float | None
    chosen: bool


class Composed(Facts):
    """The cost of all cells together for a user who is in all of them.

    Attributes:
        private: number of trainings with a promise to every user: cells, and shadow models under their mechanism.
        others: number of trainings without one.
        epsilon: of the private ones together; null if they cannot be composed, or it is too large to say anything.
        delta: delta of that epsilon.
        adjacency: which data sets count as neighbours; null if the private ones differ in it.
    """

    private: int
    others: int
    epsilon: float | None
    delta: float
    adjacency: str | None


class Rule(Facts):
    """The rule of the sweep's file, in words.

    Attributes:
        require: what a variant must keep.
        prefer: measure in which the variant that is shipped does best.
        candidates: variants that may be shipped.
        level: probability at most that a variant is recommended that breaks a limit.
    """

    require: list[str]
    prefer: str
    candidates: list[str]
    level: float


class Attacker(Facts):
    """The attacker, the same in all cells.

    Attributes:
        attack: the primary attack.
        asks: what it asks for and uses.
        aggregation: how the scores of a user's texts become one.
        texts: whether the scored texts were trained on.
        fpr: false-positive rate at which users are counted as named.
        audited: whose membership is tested.
    """

    attack: str
    asks: AttackFacts
    aggregation: str
    texts: Literal["fresh", "training", "mixed", "not known"]
    fpr: float
    audited: Literal["users", "entities", "both"]


class SweepResult(Facts):
    """A sweep.

    Attributes:
        internal: the result has exact statistics about private users: it is not to be published.
        name: that the file gives.
        sweep: hash of the plan, which every cell's record names.
        variants: in the file's order.
        cells: by block, then in the file's order.
        notes: what a reader must know.
        shipping: the answer of the file's rule; null without one.
        created: time at which the record was written, UTC.
        version: version of heldin that compared the cells.
        command: how the sweep was called, without names of people.
        rule: the file's rule; null without one.
        attacker: who attacks; null before a cell is done, or where cells are attacked in different ways.
        config: config of the first variant, user-name patterns left out.
        composed: what all cells, and those that tuned them, together cost a user; null without a private one.
        tried: what tuning tried; empty if nothing was tuned.
        tuning_contradicted: whether a cell that tuned violates a claim jointly, certified.
        folder: the sweep's folder, as its user named it; no part of the document, which may be moved.
    """

    internal: Literal[True] = True
    name: str
    sweep: str
    blocks: int
    variants: list[VariantResult]
    cells: list[CellResult]
    notes: list[Statement]
    shipping: Shipping | None = None
    created: str
    version: str
    command: str
    rule: Rule | None = None
    attacker: Attacker | None = None
    config: dict[str, Any]
    composed: Composed | None = None
    tried: list[Tried] = Field(default_factory=list)
    tuning_contradicted: bool = False
    folder: Path = Field(exclude=True)

    def cell_folder(self, block: int | None, variant: str) -> Path:
        """Return the folder of a training run."""
        return self.folder / "cells" / str(block) / variant

    @property
    def not_valid(self) -> set[str]:
        """The variants with a comparison that is not valid: nobody is counted under them."""
        return {cell.variant for cell in self.cells if cell.answer == "not valid"}

    @property
    def exit_code(self) -> int:
        """The exit code: CERTIFIED for a claim that is contradicted jointly, else that of a cell without a result.

        RESUMABLE if a cell failed, else BAD_INPUT if one was refused, else DONE.
        """
        if self.tuning_contradicted or any(variant.jointly_contradicted for variant in self.variants):
            return ExitCode.CERTIFIED
        states = {cell.state for cell in self.cells}
        if "failed" in states:
            return ExitCode.RESUMABLE
        return ExitCode.BAD_INPUT if "refused" in states else ExitCode.DONE


def write_sweep(result: SweepResult, folder: Path) -> None:
    """Write the document to ``folder``, whole or not at all."""
    write_document(folder / FILE, result.model_dump(mode="json"), private=False)


def read_sweep(folder: Path) -> SweepResult:
    """Read the document. Raises InputError if there is none, it is damaged, or of another version."""
    path = folder / FILE
    again = "run heldin sweep again, which goes on where it was"
    if not path.exists():
        if not (folder / "sweep.json").is_file():
            raise InputError(f"'{folder}' is not the folder of a sweep: give a folder that heldin sweep wrote")
        raise InputError(
            f"the sweep in '{folder}' is not finished: wait for it, or run its command again (log.txt contains the"
            " command)"
        )
    content = read_document(path, again)
    try:
        return SweepResult.model_validate({**content, "folder": folder})
    except ValidationError as error:
        raise InputError(f"'{path}' is damaged: {again}") from error
