"""The conditions for certified statements about somebody else's training, and the evidence for each condition.

Measurements decide: if the log or the positive control contradicts a condition, the condition is not met, even if
somebody signs for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heldin.base.errors import InputError
from heldin.bounds.plan_claims import parse_claim_of
from heldin.planting.looks import Look, looks_that_saw_a_change
from heldin.planting.plant_folder import Manifest
from heldin.record.facts import LARGEST_DRIFT, EndpointFacts
from heldin.record.planted_facts import (
    Condition,
    ConditionName,
    ControlFacts,
    ControlOutcome,
    FormFacts,
    Known,
    Reason,
    TrainingCounts,
)
from heldin.record.planted_files import TRAINING, content_sha256

LOG_FAULTS = frozenset(
    {
        Reason.LOG_ABSENT,
        Reason.LOG_DAMAGED,
        Reason.LOG_OF_OTHER_MODEL,
        Reason.LOG_OF_OTHER_CONFIG,
        Reason.LOG_OF_OTHER_TOKENIZER,
        Reason.LOG_OF_OTHER_SET,
    }
)
_UNSHOWN = {
    ControlOutcome.UNDECIDED: Reason.CONTROL_UNDECIDED,
    ControlOutcome.UNUSABLE: Reason.CONTROL_UNUSABLE,
    ControlOutcome.NOT_MEASURED: Reason.CONTROL_NOT_MEASURED,
}
_THINNED = 0.5  # of other rows' share of tokens with loss, below which canary rows were not weighted alike
_FEWER = 0.75  # of other rows' reads, the same; a last epoch that is broken off leaves less of a difference


@dataclass(frozen=True)
class PlantedEvidence:
    """The audit's evidence about a training.

    Attributes:
        training: counts of the sequences that the model was given, from the log; None if no log is usable.
        fault: reason why no log is usable; None if a log is usable, or the plan expects no log.
        control: whether planted rows had an effect; None without canary users.
        form: how well text alone distinguishes canary rows from real rows, which contradicts no condition; None without
            canary users.
        other_base: whether the model is an adapter on a base other than the plan's reference. Logs do not record the
            base.
    """

    training: TrainingCounts | None = None
    fault: Reason | None = None
    control: ControlFacts | None = None
    form: FormFacts | None = None
    other_base: bool = False


def conditions_of(
    planted: Path,
    manifest: Manifest,
    look: Look,
    declared_by: str | None,
    evidence: PlantedEvidence,
    served: EndpointFacts | None = None,
) -> list[Condition]:
    """Return every condition (docs/theory.md#conditions-of-one-run), with the evidence from folder, log and signature.

    Args:
        planted: the folder that ``heldin plant`` wrote; the caller has read the folder, and drawn its coins again.
        declared_by: name of the person who declares what heldin cannot observe; None: nobody declares it.
        served: facts about the endpoint of the model; None: the model was loaded on this machine.
    """
    of_examples = any(parse_claim_of(text).of_examples for text in look.claims)
    paid = look.number <= manifest.looks
    return [
        _checked(ConditionName.FAIR_COINS, Reason.DRAWN_AGAIN),
        _checked(ConditionName.FIXED_BEFORE_COINS, Reason.HASHES_KEPT),
        _checked(ConditionName.SCORED_WITHOUT_COINS, Reason.LOOK_NOTED),
        _unchanged(planted, manifest, look, declared_by),
        _given(manifest, declared_by, evidence),
        _weighted_alike(declared_by, evidence),
        _declared(ConditionName.NOTHING_ELSE, declared_by),
        _declared(ConditionName.STARTED_UNSEEN, declared_by),
        *([_one_example(declared_by, evidence)] if of_examples else []),
        *([_answered(served, declared_by)] if served else []),
        *([_declared(ConditionName.EARLIER_LOOKS_UNUSED, declared_by)] if look.number > 1 else []),
        _checked(ConditionName.LOOKS_PAID, Reason.LOOKS_WITHIN)
        if paid
        else _not_met(ConditionName.LOOKS_PAID, Reason.LOOKS_EXCEEDED),
    ]


def found_changed(conditions: Sequence[Condition]) -> bool:
    """Return whether the training set exists but was changed after heldin wrote it."""
    return any(
        condition.name is ConditionName.SET_UNCHANGED
        and condition.reasons == [Reason.SET_CHANGED]
        and condition.look is None
        for condition in conditions
    )


def as_seen(before: Sequence[Condition], now: Sequence[Condition]) -> list[Condition]:
    """Return the current conditions. If somebody has since moved the training set, keep an earlier audit's finding
    about the set."""
    kept = next((c for c in before if c.name is ConditionName.SET_UNCHANGED and c.known_by is not Known.DECLARED), None)
    return [kept if kept is not None and _set_is_gone(condition) else condition for condition in now]


def _set_is_gone(condition: Condition) -> bool:
    gone = condition.look is not None or condition.reasons[0] in (Reason.SET_GONE, Reason.UNDECLARED)
    return condition.name is ConditionName.SET_UNCHANGED and gone


def _unchanged(planted: Path, manifest: Manifest, look: Look, declared_by: str | None) -> Condition:
    name = ConditionName.SET_UNCHANGED
    path = planted / TRAINING / manifest.file
    if not path.exists():
        if earlier := [number for number in looks_that_saw_a_change(planted) if number <= look.number]:
            return _not_met(name, Reason.SET_CHANGED, look=min(earlier))
        if declared_by is None:
            return _not_met(name, Reason.UNDECLARED)
        # What the model was trained on is declared by its hash all the same.
        return Condition(name=name, known_by=Known.DECLARED, reasons=[Reason.SET_GONE])
    try:
        same = content_sha256(path) == manifest.sha256
    except InputError:  # a part of a folder is missing
        same = False
    return _checked(name, Reason.SAME_HASH) if same else _not_met(name, Reason.SET_CHANGED)


def _given(manifest: Manifest, declared_by: str | None, evidence: PlantedEvidence) -> Condition:
    """Return whether the model was given every row and nothing else, by a usable log or else by declaration."""
    name, counts = ConditionName.GIVEN_EVERY_ROW, evidence.training
    if counts is None:
        # Absent and of another model: not counted as evidence where none was promised.
        lacking = evidence.fault in (Reason.LOG_ABSENT, Reason.LOG_OF_OTHER_MODEL, None)
        if lacking and manifest.evidence == "declared":
            return _declared(name, declared_by)
        return _not_met(name, evidence.fault or Reason.LOG_ABSENT)
    if counts.joined is not None:
        # No row can be recognised. Where the ends of sequences fit, the log does not tell whether every row was there.
        wrong = [Reason.JOINED_OF_OTHERS] if counts.joined.are_foreign else []
        wrong += [Reason.JOINED_WITHOUT_CANARIES] if counts.joined.lack_canaries else []
        return _not_met(name, *wrong) if wrong else _declared(name, declared_by, Reason.PACKED_WITHOUT_BOUNDARIES)
    wrong = _counted(
        (Reason.ROWS_MISSING, counts.missing),
        (Reason.ROWS_FOREIGN, counts.foreign),
        (Reason.TOKENS_UNSEEN, counts.unreadable),
        (Reason.ROWS_SILENT, counts.silent),
        (Reason.ROWS_SHORT, counts.short),
    )
    if wrong:
        return _not_met(name, *wrong)
    unseen = _counted(
        (Reason.LABELS_UNSEEN, counts.unlabelled),
        (Reason.ATTENTION_UNSEEN, counts.attention_unseen),
        (Reason.BASE_UNSEEN, evidence.other_base),
    )
    return _declared(name, declared_by, *unseen) if unseen else _checked(name, Reason.LOG_AGREES)


def _weighted_alike(declared_by: str | None, evidence: PlantedEvidence) -> Condition:
    """Return whether training treated all rows alike: as declared, unless the log or the positive control contradicts
    it."""
    name, wrong, counts = ConditionName.WEIGHTED_ALIKE, list[Reason](), evidence.training
    if counts is not None and counts.loss_share_canaries is not None and counts.loss_share_others is not None:
        thinned = counts.loss_share_canaries < _THINNED * counts.loss_share_others
        wrong += [Reason.CANARY_LOSS_THINNED] if thinned and counts.joined is None else []
    if counts is not None and counts.reads_canaries is not None and counts.reads_others is not None:
        fewer = counts.reads_canaries < _FEWER * counts.reads_others
        wrong += [Reason.CANARIES_GIVEN_LESS] if fewer and counts.joined is None else []
    if counts is not None and counts.order is not None and counts.order.tells_canaries:
        wrong.append(Reason.CANARIES_IN_ORDER)
    if evidence.control is not None and evidence.control.outcome.contradicts:
        wrong.append(Reason.CANARIES_UNLEARNED)
    if wrong:
        return _not_met(name, *wrong)
    control = evidence.control
    unshown = [] if control is None or control.shows_effect else [_UNSHOWN[control.outcome]]
    return _declared(name, declared_by, *unshown)


def _one_example(declared_by: str | None, evidence: PlantedEvidence) -> Condition:
    name, counts = ConditionName.ROW_IS_EXAMPLE, evidence.training
    if counts is None:
        return _declared(name, declared_by)
    if counts.joined is not None:
        return _not_met(name, Reason.PACKED_WITHOUT_BOUNDARIES)
    wrong = _counted(
        (Reason.ROWS_PACKED, counts.packed),
        (Reason.ROWS_REPEATED, counts.repeated),
        (Reason.ROWS_SPLIT, counts.pieces),
        (Reason.ROWS_FOREIGN, counts.foreign),
    )
    return _not_met(name, *wrong) if wrong else _checked(name, Reason.LOG_AGREES)


def _counted(*counts: tuple[Reason, int | None]) -> list[Reason]:
    """Return the reasons with a count above 0. If a count is unknown, another reason reports the gap in the log."""
    return [reason for reason, count in counts if count]


def _answered(served: EndpointFacts, declared_by: str | None) -> Condition:
    if served.drift > LARGEST_DRIFT:
        return _not_met(ConditionName.SERVED_ALONE, Reason.MODEL_CHANGED_WHILE_SERVED)
    return _declared(ConditionName.SERVED_ALONE, declared_by)


def _checked(name: ConditionName, reason: Reason) -> Condition:
    return Condition(name=name, known_by=Known.CHECKED, reasons=[reason])


def _not_met(name: ConditionName, *reasons: Reason, look: int | None = None) -> Condition:
    return Condition(name=name, known_by=Known.NOT_MET, reasons=list(reasons), look=look)


def _declared(name: ConditionName, by: str | None, *also: Reason) -> Condition:
    if by is None:  # a declaration would do, whatever else is unclear
        return _not_met(name, Reason.UNDECLARED)
    return Condition(name=name, known_by=Known.DECLARED, reasons=[Reason.SIGNED, *also])
