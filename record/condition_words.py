"""Sentences about the conditions of an audit of a planted training set, for terminal and report."""

from heldin.base.wording import counted
from heldin.record.planted_facts import (
    Condition,
    ControlFacts,
    ControlOutcome,
    FormFacts,
    Known,
    PlantedFacts,
    ReadingOrder,
    Reason,
    TrainingCounts,
)
from heldin.words.evidence import Flaw
from heldin.words.split import ConditionStated
from heldin.words.statement import Statement

EASILY_TOLD = 0.8  # AUROC of canary rows against real ones, by text alone, from which a report warns


def statement(condition: Condition) -> Statement:
    """Return the sentence that states the condition."""
    return ConditionStated[condition.name.name]()


def explanation(condition: Condition, facts: PlantedFacts) -> str:
    """Return the reasons for the condition's state."""
    return "; ".join(_reason(reason, condition, facts) for reason in condition.reasons)


def unmet_flaws(facts: PlantedFacts) -> tuple[Statement, ...]:
    """Return the reasons why no statement is certified; empty if no condition is unmet."""
    unmet = facts.unmet()
    # Undeclared ones are counted, since every verdict and note repeats this; each is listed among the conditions.
    undeclared = [condition for condition in unmet if condition.reasons == [Reason.UNDECLARED]]
    flaws = [Flaw.CONDITION_NOT_MET(condition=statement(c)) for c in unmet if c not in undeclared]
    return (*flaws, *([Flaw.NOT_DECLARED(count=len(undeclared))] if undeclared else []))


def unshown_flaws(facts: PlantedFacts) -> tuple[Statement, ...]:
    """Return the reasons why no effect of canary rows is shown; empty if an effect is shown, or there are no canary
    users."""
    if facts.control is None or facts.control.shows_effect:
        return ()
    flaws = {
        ControlOutcome.UNDECIDED: Flaw.CONTROL_UNDECIDED,
        ControlOutcome.UNUSABLE: Flaw.CONTROL_UNUSABLE,
        ControlOutcome.NOT_MEASURED: Flaw.CONTROL_NOT_MEASURED,
    }
    # One that failed is a condition that is not met.
    return (flaws[facts.control.outcome](),) if facts.control.outcome in flaws else ()


def condition_lines(facts: PlantedFacts, *, every: bool = False) -> list[str]:
    """Return a line for each condition that heldin did not check. If a condition is not met, also return the counts.

    Args:
        facts: facts of the planted set.
        every: whether to also return checked conditions, and to return the counts in any case.
    """
    lines = [
        f"{condition.known_by.value} ({explanation(condition, facts)}): {statement(condition)}"
        for condition in facts.conditions
        if every or condition.known_by is not Known.CHECKED
    ]
    if facts.training is not None and (every or any(Reason.LOG_AGREES not in c.reasons for c in facts.unmet())):
        lines.append(f"training log: {training_line(facts.training)}")
    if facts.control is not None:
        lines.append(f"positive control: {control_line(facts.control)}")
    return lines


def training_line(counts: TrainingCounts) -> str:
    """Return a line with all counts of the sequences that training gave the model."""
    epochs = "" if counts.epochs is None else f", {counts.epochs:.3g} epochs"
    starts = "" if counts.starts == 1 else f" over {counts.starts} starts"
    given = f"{counted(counts.sequences, 'sequence')} for {counted(counts.rows, 'row')}{epochs}{starts}"
    if (joined := counts.joined) is not None:
        return (
            f"{given}; rows were joined and cut, so none can be recognised; of {joined.ends:,} ends of sequences"
            f" {joined.foreign:,} are in no row ({joined.foreign_expected:,.0f} expected) and {joined.canary:,} are in"
            f" canary rows ({joined.canary_expected:,.0f} expected)"
        )
    parts = [
        given,
        f"missing {counts.missing:,} ({counts.missing_canary_rows:,} of canary users)",
        f"foreign {counts.foreign:,}",
        f"without loss {_known(counts.silent)}",
        f"alike once cut {counts.alike:,}",
    ]
    optional = {
        f"cut at {counts.longest:,} tokens": counts.cut,
        "cut below the plan's sequence_length": counts.short,
        "further pieces of rows": counts.pieces,
        "packed": counts.packed,
        "repeated": counts.repeated,
        "no scored token inside the length limit": counts.late,
        "labels not seen": counts.unlabelled,
        "attention not seen": counts.attention_unseen,
        "tokens not seen": counts.unreadable,
        "canary users in training without loss": counts.silent_canary_users or 0,
    }
    parts += [f"{name} {count:,}" for name, count in optional.items() if count]
    return "; ".join(parts)


def control_line(control: ControlFacts) -> str:
    """Return the result of the positive control."""
    rows = f"AUROC {control.rows_auroc} for {control.trained_rows:,} trained and {control.untrained_rows:,} other rows"
    canaries = (
        f"AUROC {control.canary_auroc} for {control.held_in:,} canary users in training and {control.held_out:,} others"
    )
    match control.outcome:
        case ControlOutcome.NOT_MEASURED:
            return "not measured: too few canary users or real rows in a group, or the model is behind an endpoint"
        case ControlOutcome.UNUSABLE:
            return f"could not be used: the model did not measurably learn real rows ({rows})"
        case ControlOutcome.NO_EFFECT:
            return f"failed: the model learned real rows ({rows}) and did not learn canary rows ({canaries})"
        case ControlOutcome.WEAKENED:
            return f"failed: the model learned canary rows ({canaries}) less than real rows ({rows})"
        case ControlOutcome.UNDECIDED:
            return (
                f"undecided: the model learned real rows ({rows}); chance may explain what it learned of canary rows"
                f" ({canaries}); {_power(control)}"
            )
        case ControlOutcome.PASSED:
            return f"passed: the model learned canary rows ({canaries}; {rows})"


def _power(control: ControlFacts) -> str:
    if control.noticed_from is None:
        return "so few canary users and rows do not show whether canary rows were filtered"
    known = f"it would notice known filters from AUROC {control.noticed_from:.2g} of real rows on"
    return f"{known}, which this training {'reached' if control.shows_effect else 'did not reach for certain'}"


def form_line(form: FormFacts) -> str:
    """Return how canary users were made, and how well text alone distinguishes their rows from real rows."""
    kinds = ", ".join(kind.replace("_", "-") for kind in form.kinds)
    if form.auroc is None:
        return f"Canary users are of the kind {kinds}; too few rows to measure whether text alone tells them."
    warning = ""
    if form.auroc >= EASILY_TOLD:
        warning = (
            " A training that filters or weights rows by text could single them out, so the audit rests on the"
            " declaration that none did."
        )
    return (
        f"Canary users are of the kind {kinds}. A bag-of-words classifier tells canary rows from real rows with AUROC"
        f" {form.auroc:.2f} (0.5 is guessing).{warning}"
    )


_BY_LOG = "by the log of the training"
# The reasons whose sentence has no number.
_PLAIN = {
    Reason.DRAWN_AGAIN: (
        "drawn again under the key, they are those that the manifest commits to; a copied key is not noticed"
    ),
    Reason.LOOK_NOTED: "the attack is given users and texts; this look was noted before scores met coins",
    Reason.UNDECLARED: "nobody has declared it",
    Reason.LOG_ABSENT: "the plan asks for a log of the training, and there is none",
    Reason.LOG_DAMAGED: "the log of the training is damaged, or a part of it is missing",
    Reason.LOG_OF_OTHER_MODEL: (
        "the log of the training has no checkpoint with these weights (another run, or a model that was merged or saved"
        " otherwise)"
    ),
    Reason.LOG_OF_OTHER_CONFIG: (
        "the log of the training has these weights with another config: config.json was changed"
    ),
    Reason.LOG_OF_OTHER_TOKENIZER: "the log of the training has these weights with another tokenizer",
    Reason.BASE_UNSEEN: (
        "the adapter's base model is not the plan's reference, and the log does not show which base was used"
    ),
    Reason.LOG_OF_OTHER_SET: f"{_BY_LOG}, the model was trained on another planted set",
    Reason.MODEL_CHANGED_WHILE_SERVED: "a public text's score moved while the endpoint was audited",
    Reason.CANARIES_UNLEARNED: "the planted rows had no effect on the model, though other rows had",
}


def _reason(reason: Reason, condition: Condition, facts: PlantedFacts) -> str:
    counts = facts.training
    if counts is not None and reason in _COUNTED:
        return f"{_BY_LOG}, {_COUNTED[reason](counts)}"
    if reason in _PLAIN:
        return _PLAIN[reason]
    match reason:
        case Reason.HASHES_KEPT:
            return f"plan and models have the hashes that were kept before the coins, {facts.plan[:16]}"
        case Reason.SAME_HASH:
            return f"its hash is {facts.training_set[:16]}"
        case Reason.SET_GONE:
            return f"signed by {facts.declared_by}: the file is gone, and its hash was {facts.training_set[:16]}"
        case Reason.SET_CHANGED:
            look = "" if condition.look is None else f", as look {condition.look} found"
            return f"the file was changed after heldin wrote it{look}: its hash was {facts.training_set[:16]}"
        case Reason.SIGNED:
            return f"signed by {facts.declared_by}"
        case Reason.LOOKS_WITHIN | Reason.LOOKS_EXCEEDED:
            return f"look {facts.look} of {facts.looks}"
        case Reason.CONTROL_UNDECIDED | Reason.CONTROL_UNUSABLE | Reason.CONTROL_NOT_MEASURED:
            return str(Flaw[reason.name]())
        case _:
            return _BY_LOG


def _known(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


def _times(counts: TrainingCounts) -> str:
    most = counted(counts.most_reads, "time")
    return most if counts.fewest_reads == counts.most_reads else f"{counts.fewest_reads} to {most}"


def _order(order: ReadingOrder | None) -> str:
    if order is None:
        return ""
    by_mean = abs(order.deviation) >= abs(order.last_deviation)
    earlier, given = (order.earlier, "were given") if by_mean else (order.last_earlier, "were last given")
    return (
        f"canary rows {given} earlier than other rows in {100 * earlier:.0f} of 100 pairs; an order that depends on no"
        " text gives about 50"
    )


_COUNTED = {
    Reason.LOG_AGREES: lambda c: (
        f"{counted(c.sequences, 'sequence')} with all {counted(c.rows, 'row')}, each given {_times(c)}"
    ),
    Reason.PACKED_WITHOUT_BOUNDARIES: lambda c: (
        f"{counted(c.sequences, 'sequence')} of one length hold no row as a whole: rows seem to be joined and cut"
    ),
    Reason.JOINED_OF_OTHERS: lambda c: (
        f"rows were joined and cut, and {c.joined.foreign:,} of {c.joined.ends:,} ends of sequences are in no row;"
        f" {c.joined.foreign_expected:,.0f} were expected"
    ),
    Reason.JOINED_WITHOUT_CANARIES: lambda c: (
        f"rows were joined and cut, and {c.joined.canary:,} of {c.joined.ends:,} ends of sequences are in canary rows;"
        f" {c.joined.canary_expected:,.0f} were expected"
    ),
    Reason.TOKENS_UNSEEN: lambda c: f"the tokens of {c.unreadable:,} forward passes were not seen",
    Reason.ROWS_MISSING: lambda c: (
        f"{c.missing:,} of {counted(c.rows, 'row')} were never given, {c.missing_canary_rows:,} of them canary users'"
    ),
    Reason.ROWS_FOREIGN: lambda c: f"{c.foreign:,} of {counted(c.sequences, 'sequence')} are no row of the set",
    Reason.ROWS_SHORT: lambda c: (
        f"{counted(c.short, 'row')} were cut at {c.longest:,} tokens, below the plan's sequence_length"
    ),
    Reason.LABELS_UNSEEN: lambda c: (
        f"the labels of {c.unlabelled:,} of {counted(c.sequences, 'sequence')} were not seen"
    ),
    Reason.ATTENTION_UNSEEN: lambda c: (
        f"the log does not show to which tokens of {c.attention_unseen:,} of {counted(c.sequences, 'sequence')} the"
        " model could attend"
    ),
    Reason.CANARIES_IN_ORDER: lambda c: _order(c.order),
    Reason.CANARIES_GIVEN_LESS: lambda c: (
        f"canary rows were given {c.reads_canaries or 0:.3g} times on average, and other rows {c.reads_others or 0:.3g}"
        " times"
    ),
    Reason.ROWS_SILENT: lambda c: (
        f"{counted(c.silent or 0, 'row')} never bore a loss, and"
        f" {counted(c.silent_canary_users or 0, 'canary user')} had"
        " no row that did"
    ),
    Reason.CANARY_LOSS_THINNED: lambda c: (
        f"loss was counted on {100 * (c.loss_share_canaries or 0):.0f} % of the tokens of canary rows and on"
        f" {100 * (c.loss_share_others or 0):.0f} % of other rows' tokens"
    ),
    Reason.ROWS_PACKED: lambda c: f"{c.packed:,} sequences shared a row of a batch with others",
    Reason.ROWS_REPEATED: lambda c: f"rows were repeated {c.repeated:,} times within epochs",
    Reason.ROWS_SPLIT: lambda c: f"{c.pieces:,} sequences are further pieces of rows",
}
