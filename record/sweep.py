"""The document of a sweep: the results of each cell and of all cells together. Comparisons use only its numbers."""

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
    """The tests in the record of one cell.

    Attributes:
        scores: number of judged scores.
        sides: how membership was decided.
        certifiable: whether statements about these groups may be certified.
        false_alarms: upper limit on the probability of a false "leaks"; null if there is none.
        separating: number of scores that separated the groups.
        extraction: how many people have training texts that sampling would emit; null if it was not measured.
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
    """Return the tests in the record of a cell."""
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
    """A cell's verdict, corrected for the verdicts of all other cells.

    Attributes:
        subjects: people whom the verdict is about.
        outcome: outcome in the cell's record.
        standing: strength of the evidence in the cell's record.
        p_value: smallest level at which the test rejects the claim; null if there was no test.
        adjusted: the p-value after Holm's correction over all cells and groups of people; null if there was no test.
    """

    subjects: Statement
    claim: Statement
    outcome: str
    standing: str
    p_value: float | None
    adjusted: float | None

    @property
    def jointly_contradicted(self) -> bool:
        """Return whether the claim is contradicted in the cell's record, and certified at 95 % for all cells
        together."""
        certified = self.standing == Standing.CERTIFIED.value and self.outcome == Outcome.CONTRADICTED.value
        return certified and self.adjusted is not None and self.adjusted <= JOINT_ALPHA


class RocPoints(Facts):
    """The ROC curve of a cell's primary attack, between groups of at least ten users.

    Attributes:
        fpr: false-positive rates, ascending, from 0 to 1.
        tpr: true-positive rates at the rates in ``fpr``.
    """

    fpr: list[float]
    tpr: list[float]


class CanaryPoint(Facts):
    """The AUROC of canary users of one kind under a variant.

    Attributes:
        kind: kind of the canary users.
        length: length of the substring in tokens; null for other kinds.
        documents: number of training documents; null if all are used.
        auroc: AUROC of the primary attack over the blocks.
    """

    kind: str
    length: int | None
    documents: int | None
    auroc: Summary


class Band(Facts):
    """The exposure of a third of the members under a variant. The thirds are the same people for all variants.

    Attributes:
        of: sorting key under the first variant: a user's number of training records, or the distance of the user's
            words from all others' words (KL divergence, nats).
        third: number of the third; 1 has the lowest values of the key.
        typical: mean of the sorting key over the users in the third.
        users: number of users, over all blocks.
        above: mean share of non-members with a lower score; 0.5 is guessing.
    """

    of: Literal["records", "word divergence"]
    third: int
    typical: float
    users: int
    above: float


CellOutcome = Literal["done", "halted", "failed", "refused", "to do"]


class CellResult(Facts):
    """The result of one cell.

    Attributes:
        state: done; halted (by a filter, without a model); failed (the same command tries it again); refused (the user
            must correct something first); or to do.
        reason: error message of a failed or refused cell; "" otherwise.
        seconds: duration of all processes of the cell so far.
        auroc: AUROC of the primary attack; null unless done.
        loss: mean loss on non-members' test texts, in nats per token; null unless measured.
        perplexity: exponential of the mean loss over all tokens of non-members' test texts; null unless measured.
        gain: the base model's loss minus ``loss``, in nats per token; null unless measured.
        gradients: number of computed gradients of records; null unless done.
        peak_memory: peak memory in bytes; null unless done.
        answer: the audit's answer; null unless done.
        canaries_answer: the answer for canary users, if the audit is about other people; null without canary users.
        verdicts: verdicts on the cell's claims.
        epsilon_at_least: lower bound on the epsilon of the audited people, valid for all cells together with 95 %
            confidence; null unless the bound is certified.
        held_in: number of audited members (users and entities); null unless done.
        held_out: number of audited non-members (users and entities); null unless done.
        ledger_commitment: hash of the ledger; null unless done.
        roc: curve of the primary attack; null unless done.
        curve: measurements during training.
        tests: the tests in the cell's record; null unless done.
        fit: the plan compared with the data; null without noise, or unless done.
        kinds: the config's kinds from other packages, and a hash of their code.
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
    """The result of one variant over its blocks.

    Attributes:
        group: group of the variant; a comparison uses variants of one group only.
        defense: kind of the variant's defense, preceded by its data defenses.
        promise: the guarantee as text; null if no cell is done.
        unit: a word or two for the unit that epsilon protects.
        privacy_unit: the unit in the mechanism's terms: user, example, user-entity or none.
        trained_users: number of users trained on, in the first block.
        epsilon: epsilon of the guarantee; null without a guarantee.
        delta: delta of the guarantee.
        cells: number of finished cells.
        auroc: AUROC of the primary attack.
        auroc_difference: ``auroc`` minus the AUROC of the group's first variant in the same blocks; null for the first
            variant.
        loss: loss on non-members' test texts, in nats per token.
        perplexity: exponential of the mean loss over all tokens of non-members' test texts.
        loss_difference: ``loss`` minus the loss of the group's first variant, on the same users.
        gain: the base model's loss minus ``loss``, in nats per token.
        seconds: mean duration of a cell.
        gradients: mean number of computed gradients of records.
        units_of_plan: mean number of units in training, divided by the stated population; null without noise.
        gradients_of_plan: mean number of gradients per step, divided by the plan's number; null if the plan does not
            determine it.
        jointly_contradicted: whether a claim is contradicted, certified at 95 % for all cells together.
        differs: config keys whose values differ from the first variant's, with their values.
        epsilon_per_user: epsilon, if it holds for every user; null otherwise.
        flagged: number of flagged people of every 100 members, by the attack on page one of each cell's report: the
            deciding attack if the cell leaks, else the primary attack; null if a cell cannot count people.
        wrongly: mean number of flagged people of every 100 non-members, by the same attack; null if ``flagged`` is
            null.
        epsilon_at_least: largest of the cells' jointly certified lower bounds; null if no cell has one.
        ceiling: bound on attackers' ROC curves; null without a guarantee for the audited people.
        canaries: AUROCs of canary users.
        bands: how exposed each third of the members is, with members sorted by number of records and by word divergence
            (``Band``).
        dominated_by: variants that are no worse in any measure, and significantly better in one.
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
        """Whether the variant has no defense, neither on the data nor in training."""
        return self.defense == PLAIN

    @property
    def label(self) -> str:
        """Name in reports. A defense named "none" would read as "no variant"."""
        if self.name != "none":
            return self.name
        return "plain training" if self.is_plain else '"none"'


class Tried(Facts):
    """A combination of settings that was tried to tune a variant.

    Attributes:
        values: the tried values, by key.
        public_loss: mean loss of public validation users over the tuning blocks, in nats per token; null if a filter
            ended training without a model.
        chosen: whether the variant uses these values.
    """

    variant: str
    values: dict[str, Any]
    public_loss: float | None
    chosen: bool


class Composed(Facts):
    """The cost of all cells together for a user who is in all of them.

    Attributes:
        private: number of trainings with a guarantee for every user: cells, and shadow models that use the cells'
            mechanism.
        others: number of trainings without a guarantee for every user.
        epsilon: epsilon of the private trainings together; null if heldin cannot compose the trainings, or if epsilon
            is too large to be useful.
        delta: delta of this epsilon.
        adjacency: which data sets count as neighbours; null if the private trainings use different relations.
    """

    private: int
    others: int
    epsilon: float | None
    delta: float
    adjacency: str | None


class Rule(Facts):
    """The decision rule in the sweep file, as text.

    Attributes:
        require: limits that a variant must meet.
        prefer: measure that ranks the variants that meet the limits.
        candidates: variants from which the rule may choose.
        level: upper limit on the probability that the recommended variant breaks a limit.
    """

    require: list[str]
    prefer: str
    candidates: list[str]
    level: float


class Attacker(Facts):
    """The attacker, which is the same in all cells.

    Attributes:
        attack: the primary attack.
        asks: what the attack needs from the model.
        aggregation: how the scores of a user's texts are combined into one score.
        texts: whether the scored texts are training texts.
        fpr: false-positive rate at which users count as flagged.
        audited: kind of people whose membership is tested.
    """

    attack: str
    asks: AttackFacts
    aggregation: str
    texts: Literal["fresh", "training", "mixed", "not known"]
    fpr: float
    audited: Literal["users", "entities", "both"]


class SweepResult(Facts):
    """The results of a sweep.

    Attributes:
        internal: true, because the result has exact statistics about private users: do not publish it.
        name: name in the sweep file.
        sweep: hash of the plan, which is in every cell's record.
        variants: results of the variants, in the order of the file.
        cells: results of the cells, by block and then in the order of the file.
        notes: facts that a reader must know.
        shipping: what the decision rule selected; null without a rule.
        created: UTC time at which the document was written.
        version: version of heldin that compared the cells.
        command: the command line, without names of people.
        rule: the decision rule in the file; null without a rule.
        attacker: the attacker; null if no cell is done, or if the cells' attackers differ.
        config: config of the first variant, without user-name patterns.
        composed: privacy cost of all cells, including tuning cells, for one user; null without a private cell.
        tried: combinations of settings that were tried in tuning; empty without tuning.
        tuning_contradicted: whether a tuning cell contradicts a claim, jointly certified.
        folder: the sweep's folder as its user gave it. It is not part of the document, because people may move the
            folder.
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
        """The variants whose comparison is invalid. heldin counts no people under these variants."""
        return {cell.variant for cell in self.cells if cell.answer == "not valid"}

    @property
    def exit_code(self) -> int:
        """Exit code: CERTIFIED for a jointly contradicted claim. Otherwise the code depends on the cells without a
        result:

        RESUMABLE if a cell failed, else BAD_INPUT if a cell was refused, else DONE.
        """
        if self.tuning_contradicted or any(variant.jointly_contradicted for variant in self.variants):
            return ExitCode.CERTIFIED
        states = {cell.state for cell in self.cells}
        if "failed" in states:
            return ExitCode.RESUMABLE
        return ExitCode.BAD_INPUT if "refused" in states else ExitCode.DONE


def write_sweep(result: SweepResult, folder: Path) -> None:
    """Write the document to ``folder``, completely or not at all."""
    write_document(folder / FILE, result.model_dump(mode="json"), private=False)


def read_sweep(folder: Path) -> SweepResult:
    """Read the document. Raises InputError if it is missing, damaged, or written by another version."""
    path = folder / FILE
    again = "run heldin sweep again to continue"
    if not path.exists():
        if not (folder / "sweep.json").is_file():
            raise InputError(f"'{folder}' is not the folder of a sweep: give a folder that heldin sweep wrote")
        raise InputError(
            f"the sweep in '{folder}' is not finished: wait until the sweep ends, or repeat the command in log.txt"
        )
    content = read_document(path, again)
    try:
        return SweepResult.model_validate({**content, "folder": folder})
    except ValidationError as error:
        raise InputError(f"'{path}' is damaged: {again}") from error
