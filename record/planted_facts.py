"""The parts of a record about a planted training set, and the conditions for certified statements about it.

All parts are facts: names, states and numbers. ``record.condition_words`` turns facts into sentences.
"""

import math
from collections.abc import Iterable
from enum import StrEnum

from heldin.base.section import Facts
from heldin.record.facts import SkippedRows

_ENOUGH_ENDS = 20  # of sequences that were joined, from which they tell anything
_MOST_DEVIATION = 4.06  # standard errors that a normal number exceeds on either side with a probability of 5e-5


class ConditionName(StrEnum):
    """A condition for certified statements about a training that heldin did not run (docs/theory.md)."""

    FAIR_COINS = "fair_coins"
    FIXED_BEFORE_COINS = "fixed_before_coins"
    SCORED_WITHOUT_COINS = "scored_without_coins"
    SET_UNCHANGED = "set_unchanged"
    GIVEN_EVERY_ROW = "given_every_row"
    WEIGHTED_ALIKE = "weighted_alike"
    NOTHING_ELSE = "nothing_else"
    STARTED_UNSEEN = "started_unseen"
    ROW_IS_EXAMPLE = "row_is_example"
    SERVED_ALONE = "served_alone"
    EARLIER_LOOKS_UNUSED = "earlier_looks_unused"
    LOOKS_PAID = "looks_paid"


class Known(StrEnum):
    """How heldin knows whether a condition is met."""

    CHECKED = "checked"
    DECLARED = "declared"
    NOT_MET = "not met"


class Reason(StrEnum):
    """The reason why a condition has its state."""

    DRAWN_AGAIN = "drawn_again"
    HASHES_KEPT = "hashes_kept"
    LOOK_NOTED = "look_noted"
    SAME_HASH = "same_hash"
    SET_GONE = "set_gone"
    SET_CHANGED = "set_changed"
    SIGNED = "signed"
    UNDECLARED = "undeclared"
    LOG_AGREES = "log_agrees"
    LOG_ABSENT = "log_absent"
    LOG_DAMAGED = "log_damaged"
    LOG_OF_OTHER_MODEL = "log_of_other_model"
    LOG_OF_OTHER_CONFIG = "log_of_other_config"
    LOG_OF_OTHER_TOKENIZER = "log_of_other_tokenizer"
    LOG_OF_OTHER_SET = "log_of_other_set"
    PACKED_WITHOUT_BOUNDARIES = "packed_without_boundaries"
    JOINED_OF_OTHERS = "joined_of_others"
    JOINED_WITHOUT_CANARIES = "joined_without_canaries"
    TOKENS_UNSEEN = "tokens_unseen"
    ROWS_MISSING = "rows_missing"
    ROWS_FOREIGN = "rows_foreign"
    ROWS_SHORT = "rows_short"
    ROWS_SILENT = "rows_silent"
    LABELS_UNSEEN = "labels_unseen"
    ATTENTION_UNSEEN = "attention_unseen"
    BASE_UNSEEN = "base_unseen"
    CANARIES_GIVEN_LESS = "canaries_given_less"
    CANARIES_IN_ORDER = "canaries_in_order"
    CANARY_LOSS_THINNED = "canary_loss_thinned"
    ROWS_PACKED = "rows_packed"
    ROWS_REPEATED = "rows_repeated"
    ROWS_SPLIT = "rows_split"
    CANARIES_UNLEARNED = "canaries_unlearned"
    CONTROL_UNDECIDED = "control_undecided"
    CONTROL_UNUSABLE = "control_unusable"
    CONTROL_NOT_MEASURED = "control_not_measured"
    MODEL_CHANGED_WHILE_SERVED = "model_changed_while_served"
    LOOKS_WITHIN = "looks_within"
    LOOKS_EXCEEDED = "looks_exceeded"


class Condition(Facts):
    """A condition for certified statements.

    Attributes:
        name: name of the condition.
        known_by: how the condition is known: heldin checked it, the person who signs declared it, or it is not met.
        reasons: one or more reasons for the state.
        look: number of the earlier look that found the condition not met; null if there was none.
    """

    name: ConditionName
    known_by: Known
    reasons: list[Reason]
    look: int | None = None


class JoinedRows(Facts):
    """Counts of the ends of sequences, for training that joined and cut rows, so the log shows no whole row.

    Attributes:
        ends: number of token runs at the beginning and the end of each distinct sequence.
        foreign: number of ends that are in no row.
        foreign_expected: expected number of ends that extend over two rows.
        canary: number of ends that are only in canary users' rows.
        canary_expected: expected value of ``canary``.
    """

    ends: int
    foreign: int
    foreign_expected: float
    canary: int
    canary_expected: float

    @property
    def are_foreign(self) -> bool:
        """Return whether far more ends are in no row than joining of rows explains."""
        return self.ends >= _ENOUGH_ENDS and self.foreign > (self.foreign_expected + self.ends) / 2

    @property
    def lack_canaries(self) -> bool:
        """Return whether clearly fewer ends than expected are in canary rows. By chance, this has probability below
        1e-6."""
        return self.canary < self.canary_expected - 5 * math.sqrt(self.canary_expected)


class ReadingOrder(Facts):
    """The positions of canary rows and other rows in the order of all sequences of the training.

    Attributes:
        canary_users: number of canary users whose rows were read.
        other_users: number of other users whose rows were read.
        earlier: probability that a canary row was read earlier than another row, on average over its reads.
        deviation: ``earlier`` minus 1/2, in standard errors.
        last_earlier: probability that a canary row was read for the last time before another row's last time.
        last_deviation: ``last_earlier`` minus 1/2, in standard errors.
    """

    canary_users: int
    other_users: int
    earlier: float
    deviation: float
    last_earlier: float
    last_deviation: float

    @property
    def tells_canaries(self) -> bool:
        """Return whether the positions of canary rows differ from the positions of other rows.

        If the order depends on no text, the probability of a false alarm is 1 in 10,000 for both tests together.
        """
        return max(abs(self.deviation), abs(self.last_deviation)) > _MOST_DEVIATION


class TrainingCounts(Facts):
    """Counts of the sequences that training gave the model, from the log of ``AuditCallback``.

    Attributes:
        starts: number of starts of the training: 1, plus 1 for each time it resumed from a checkpoint.
        processes: largest number of processes that trained together.
        steps: number of optimizer steps.
        epochs: number of epochs that the trainer counted; null if it does not count epochs.
        sequences: number of sequences that the model was given, over all epochs.
        longest: number of tokens in the longest sequence, without special tokens.
        rows: number of rows in the planted set.
        late: number of rows without a scored token within the length limit. Training may count no loss on these rows.
        missing: lower limit of the number of rows that were never given; does not count ``late`` rows.
        missing_canary_rows: number of canary users' rows among ``missing``.
        foreign: number of sequences that are neither a row nor a part of a row.
        silent: number of rows with some logged labels and no token with loss; ``late`` rows do not count. Null if the
            log saw no labels.
        unlabelled: number of sequences with labels that the log did not see. They give no information about the loss.
        attention_unseen: number of sequences with an unknown attention mask.
        unreadable: number of forward passes with tokens that the log did not see.
        cut: number of rows with more tokens than the longest sequence.
        short: number of rows that were cut below the plan's length limit, without the rest in another sequence.
        pieces: number of sequences that are a second or later part of a row.
        alike: number of rows that, after cutting, equal a row with another text.
        repeated: how often a row was given again within an epoch, over all rows.
        packed: number of sequences that shared a row of a batch with others.
        fewest_reads: smallest number of times that a row was given.
        most_reads: largest number of times that a row was given.
        joined: counts of the ends of sequences, if sequences look like joined and cut rows; null otherwise.
        silent_canary_users: number of members among canary users whose rows never had a loss; null if no labels were
            visible.
        reads_canaries: mean number of times that a canary row was given; null without canary rows.
        reads_others: mean number of times that a real row was given.
        loss_share_canaries: mean share of a canary row's tokens with loss, over sequences with visible labels; null if
            there are none.
        loss_share_others: mean share of a real row's tokens with loss, over sequences with visible labels.
        order: when training read canary users' rows; null if no row can be recognised, or there are too few users.
    """

    starts: int
    processes: int
    steps: int
    epochs: float | None
    sequences: int
    longest: int
    rows: int
    late: int
    missing: int
    missing_canary_rows: int
    foreign: int
    silent: int | None
    unlabelled: int
    attention_unseen: int
    unreadable: int
    cut: int
    short: int
    pieces: int
    alike: int
    repeated: int
    packed: int
    fewest_reads: int
    most_reads: int
    joined: JoinedRows | None
    silent_canary_users: int | None
    reads_canaries: float | None
    reads_others: float | None
    loss_share_canaries: float | None
    loss_share_others: float | None
    order: ReadingOrder | None = None


class ControlOutcome(StrEnum):
    """The result of the positive control (docs/theory.md#positive-control)."""

    PASSED = "passed"
    NO_EFFECT = "no_effect"
    WEAKENED = "weakened"
    UNDECIDED = "undecided"
    UNUSABLE = "unusable"
    NOT_MEASURED = "not_measured"

    @property
    def contradicts(self) -> bool:
        """Return whether the model did not learn canary rows like other rows."""
        return self in (ControlOutcome.NO_EFFECT, ControlOutcome.WEAKENED)


class ControlFacts(Facts):
    """The effect of canary rows, compared with real rows of the same training.

    The gain of a row is the reference's loss on the row minus the audited model's, in nats per token.

    Attributes:
        outcome: result of the control. Passed: members among canary users gained more than non-members. Weakened: they
            gained more, but less clearly than single real rows. No effect: they gained no more, and real rows gained
            more than chance explains. Undecided: chance may explain the difference. Unusable: trained real rows gained
            no more than others. Not measured: there are too few rows or canary users, or the model is behind an
            endpoint.
        trained_rows: number of trained real rows in the sample.
        untrained_rows: number of untrained real rows in the sample.
        rows_auroc: probability that a trained row gained more than an untrained row; null if it was not measured.
        rows_lower: lower limit of ``rows_auroc``.
        held_in: number of members among canary users.
        held_out: number of non-members among canary users.
        canary_auroc: probability that a member canary user's rows gained more than a non-member canary user's rows.
        canary_lower: lower limit of ``canary_auroc``.
        difference_lower: lower limit of ``rows_auroc`` minus ``canary_auroc``.
        level: probability that a limit is wrong.
        noticed_from: lowest AUROC of trained real rows for which the control notices each known filter with probability
            0.8, by the plan and by the measured rows; null if the control notices no such filter.
    """

    outcome: ControlOutcome
    trained_rows: int
    untrained_rows: int
    rows_auroc: float | None = None
    rows_lower: float | None = None
    held_in: int
    held_out: int
    canary_auroc: float | None = None
    canary_lower: float | None = None
    difference_lower: float | None = None
    level: float
    noticed_from: float | None = None

    @property
    def shows_effect(self) -> bool:
        """Return whether canary rows had an effect, or real rows were learned so clearly that a filter would be
        noticed."""
        if self.outcome is not ControlOutcome.UNDECIDED:
            return self.outcome is ControlOutcome.PASSED
        # The lower limit: the AUROC itself may have reached it by chance.
        return None not in (self.noticed_from, self.rows_lower) and (self.rows_lower or 0) >= (self.noticed_from or 1)


class FormFacts(Facts):
    """The separation of canary rows from real rows by text alone, measured before heldin drew coins.

    Attributes:
        canary_rows: number of canary rows in the sample.
        real_rows: number of real rows in the sample.
        auroc: AUROC of a bag-of-words classifier fitted on other rows; null if there are too few rows.
        kinds: kinds of canary users in the sample.
    """

    canary_rows: int
    real_rows: int
    auroc: float | None
    kinds: list[str]


class PlantedFacts(Facts):
    """A training set that heldin planted and on which somebody else trained.

    Attributes:
        planted: UTC time at which heldin wrote the set.
        plan: hash of all choices fixed before the coins were drawn.
        training_set: hash of the training set.
        rows: number of rows of the set.
        skipped: rows of the original set that were left out.
        look: number of this look at a checkpoint, starting at 1.
        looks: number of looks that the plan allows.
        evidence: evidence that the plan requires: a log of ``AuditCallback``, or a declaration.
        declared_by: person who declared the conditions that heldin cannot check; null if nobody did.
        conditions: the conditions of a certified statement, each with its evidence.
        training: counts of the sequences given to the model; null without a log.
        control: whether canary rows had an effect; null without canary users.
        form: the difference between canary rows and real rows by text alone; null without canary users.
    """

    planted: str
    plan: str
    training_set: str
    rows: int
    skipped: SkippedRows
    look: int
    looks: int
    evidence: str
    declared_by: str | None
    conditions: list[Condition]
    training: TrainingCounts | None = None
    control: ControlFacts | None = None
    form: FormFacts | None = None

    def unmet(self) -> list[Condition]:
        """Return the conditions that are not met."""
        return [condition for condition in self.conditions if condition.known_by is Known.NOT_MET]


def deciding(conditions: Iterable[Condition]) -> Condition | None:
    """Return the declared condition on which a certificate depends most; None if no condition is declared."""
    order = list(DECIDING)
    declared = [condition for condition in conditions if condition.known_by is Known.DECLARED]
    return min(declared, key=lambda condition: order.index(condition.name), default=None)


# The condition that a mistake breaks most easily comes first.
DECIDING = (
    ConditionName.GIVEN_EVERY_ROW,
    ConditionName.WEIGHTED_ALIKE,
    *(name for name in ConditionName if name not in (ConditionName.GIVEN_EVERY_ROW, ConditionName.WEIGHTED_ALIKE)),
)
