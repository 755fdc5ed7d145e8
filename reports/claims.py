"""The sections on claims and on bounds of epsilon, with tests, conclusions and conditions."""

from collections.abc import Sequence

from heldin.audit.decision import Answer
from heldin.bounds.judgement import Bound
from heldin.bounds.verdict import NO_CLAIM, Outcome, Standing, Verdict, describe_outcome
from heldin.record.document import Record
from heldin.reports.blocks import Block, Small, Table
from heldin.reports.wording import audited_by, audited_subjects, name_primary, percent, sentence

_NONE_FOLLOWS = "No lower bound on epsilon per {unit} follows, as the comparison is not valid."


def _bounds_that_follow(record: Record) -> list[Bound]:
    """Return the lower bounds that the design supports. Bounds on audited people need a valid comparison."""
    # Canary users' bounds stand, whatever the groups of real users are.
    void = record.decision.decision.answer is Answer.NOT_VALID
    return [bound for bound in record.judgement.bounds if not (void and bound.subjects == audited_subjects(record))]


def describe_verdicts(record: Record) -> str:
    """Return the verdict on each claim, and the highest bound with its name."""
    judgement = record.judgement
    sentences = _count_contradicted(judgement.verdicts)
    for verdict in judgement.verdicts:
        reason = sentence(verdict.reason)
        whom = f"{verdict.subjects}, " if record.canaries else ""
        # The reason becomes the end of a sentence that begins with whom it is about.
        stated = f"{whom.capitalize()}{reason[0].lower()}{reason[1:]}" if whom else reason
        outcome = f"{describe_outcome(verdict.outcome, verdict.standing)}"
        sentences.append(stated if verdict.claim == NO_CLAIM else f"On {verdict.claim}: {whom}{outcome}. {reason}")
    sentences += [sentence(warning) for verdict in judgement.verdicts for warning in verdict.warnings]
    # Estimates, and bounds under a condition that nobody checks (docs/theory.md#noise-family), are in the table only:
    # the best of all would often be one of them.
    follow = _bounds_that_follow(record)
    certified, indicative = ([b for b in follow if b.standing is s] for s in (Standing.CERTIFIED, Standing.INDICATIVE))
    # What rests on conditions that nobody checks is never named before what is certified.
    if bounds := certified or indicative:
        best = max(bounds, key=lambda bound: bound.epsilon_lower)
        subjects = f"on {best.subjects}, " if record.canaries else ""
        together = len({bound.subjects for bound in bounds}) > 1
        paid = "; the correction covers all groups of people" if together else ""
        sentences.append(
            f"Of the {len(bounds)} lower bounds on epsilon per {audited_by(record).singular} (at delta"
            f" {judgement.delta:g}) that this design supports, the highest is {best.epsilon_lower:.2f}"
            f" ({subjects}{best.name}, {percent(best.level, 0)}, {best.standing}). It was picked after seeing all of"
            f" them, and each bound holds on its own{paid}."
        )
    elif len(_bounds_that_follow(record)) < len(judgement.bounds):
        sentences.append(_NONE_FOLLOWS.format(unit=audited_by(record).singular))
    # One reason: the other bounds are refused for the same design.
    elif judgement.refused:
        sentences.append(f"No bound on epsilon can be given: {judgement.refused[0].reason}.")
    return " ".join(sentences)


def _count_contradicted(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a sentence about the outcome of the claims; empty if no claim was tested."""
    # By claim, each of which may have a verdict on real users and one on canary users.
    tested = {verdict.claim for verdict in verdicts if verdict.claim != NO_CLAIM}
    if not tested:
        return []
    contradicted = len({verdict.claim for verdict in verdicts if verdict.outcome is Outcome.CONTRADICTED})
    if len(tested) == 1:
        outcome = "is contradicted" if contradicted else "is not contradicted, which does not show that it is true"
        return [f"The tested claim {outcome}."]
    outcome = f"{contradicted} {'is' if contradicted == 1 else 'are'} contradicted"
    if not contradicted:
        outcome = "none is contradicted, which does not show that they are true"
    return [f"Of the {len(tested)} tested claims, {outcome}."]


def tabulate_conditions(record: Record) -> Table | None:
    """Return the conditions for certified statements; None without a planted training set."""
    planted = record.planted
    if planted is None:
        return None
    from heldin.record.condition_words import control_line, explanation, statement, training_line

    rows = [
        [str(statement(condition)), condition.known_by.value, explanation(condition, planted)]
        for condition in planted.conditions
    ]
    if planted.training is not None:
        rows.append(["what the model was given", "measured", training_line(planted.training)])
    if planted.control is not None:
        rows.append(["positive control", "measured", control_line(planted.control)])
    note = "Declared: heldin did not observe the training, and relies on the person who signs."
    return Table(("condition", "known by", "how, or by whom"), rows, note, widths=(48, 12, 40))


def title_bounds(record: Record) -> str:
    """Return the heading of the table of bounds; "" without a bound."""
    judgement = record.judgement
    title = f"Lower bounds on epsilon per {audited_by(record).singular}, at delta {judgement.delta:g}"
    return title if judgement.bounds else ""


def tabulate_bounds(record: Record) -> list[Block]:
    """Return the lower bounds, and those bounds that the design does not support."""
    judgement = record.judgement
    # Whom a bound is about is only in question where canary users are judged beside real ones.
    rows = [
        [
            f"{bound.name}, {bound.subjects}" if record.canaries else bound.name,
            f"{bound.epsilon_lower:.3f}",
            percent(bound.level, 0),
            bound.standing,
            "not measured" if bound.coverage is None else percent(bound.coverage),
        ]
        for bound in judgement.bounds
    ]
    blocks: list[Block] = []
    if rows:
        note = (
            f"Bounds and claims use the scores of {name_primary(record)}. Coverage: how often such a bound was right on"
            " simulated mechanisms of known epsilon, for the mechanism where it was right least often. Conditional:"
            " right only if the assumption in the bound's name holds, which nobody checked."
        )
        head = ("bound", "epsilon at least", "level", "evidence", "lowest coverage measured")
        blocks.append(Table(head, rows, note, numeric=(1, 2, 4)))
    if refused := _refused(record):
        reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in refused.items())
        blocks.append(Small(f"Not given: {reasons}."))
    return blocks


def _refused(record: Record) -> dict[str, list[str]]:
    """Return the names of refused bounds by reason."""
    names: dict[str, list[str]] = {}
    for refused in record.judgement.refused:
        name = (
            f"{refused.name}, {refused.subjects}" if record.canaries and refused.name == "all bounds" else refused.name
        )
        if name not in (same_reason := names.setdefault(str(refused.reason), [])):
            same_reason.append(name)
    return names


def title_promise(record: Record) -> str:
    """Return the heading of the table of guarantees; "" without a guarantee."""
    training = record.training
    if training is None or training.by_exposure is None:
        return ""
    holders = training.by_exposure.counted == "holders"
    what_for = "The guarantee for a user and an entity" if holders else "The guarantee for each person"
    return f"{what_for}, at delta {training.delta:g}"


def tabulate_promise(record: Record) -> Table | None:
    """Return the guarantee by number of exposed records; None if there is no such guarantee."""
    training = record.training
    if training is None or training.by_exposure is None:
        return None
    promise = training.by_exposure
    if promise.counted == "holders":
        head = ["other users who may name the entity", "epsilon"]
        rows = [[f"{at.exposed:,}" if at.exposed else "a user alone", _epsilon(at.epsilon)] for at in promise.curve]
        note = "By the theorem of two-level sampling; a name that was missed in one text of one other user is included."
        if promise.claimed is not None:
            note += f" Claimed for this run: epsilon {promise.claimed:.4g}."
    else:
        head = ["records by or about the person", "epsilon"]
        rows = [[f"{at.exposed:,}", _epsilon(at.epsilon)] for at in training.exposed or promise.curve]
        note = (
            "Epsilon of a person who wrote, or is named in, so many training records, whether the name was"
            " recognised or not."
        )
        # Independent trainings state the curve alone: nobody's exposure was counted.
        if training.exposed:
            note += (
                " The shares were counted in these records: they are facts about private people, so do not publish"
                " them."
            )
            shares = {"users with at most that many": [at.users for at in training.exposed]}
            if all(at.entities is not None for at in training.exposed):
                shares["entities in at most that many"] = [at.entities or 0.0 for at in training.exposed]
            head += shares
            for row, values in zip(rows, zip(*shares.values(), strict=True), strict=True):
                row += [f"{100 * share:.1f} %" for share in values]
    return Table(head, rows, note, numeric=range(len(head)))


def _epsilon(value: float | None) -> str:
    return "above 1,000" if value is None else f"{value:.4g}"
