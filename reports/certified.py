"""What is certified, for page one: every claim with its outcome, and the highest lower bound on epsilon."""

from heldin.audit.decision import Answer
from heldin.bounds.judgement import Bound
from heldin.bounds.verdict import NO_CLAIM, Outcome, Standing, Verdict
from heldin.record.condition_words import declared_line
from heldin.record.document import Record
from heldin.reports.wording import audited_by, percent, sentence

_OUTCOMES = {
    Outcome.VIOLATED: "violated",
    # Neither is called certified: a test that rejects nothing shows nothing to be true.
    Outcome.CONSISTENT: "not contradicted, which does not show it to be true",
    Outcome.INCONCLUSIVE: "inconclusive, as perfect guessing could not have contradicted it",
}


NONE_FOLLOWS = "No lower bound on epsilon per {one} follows, as the comparison is not valid."


def bounds_that_follow(record: Record) -> list[Bound]:
    """The lower bounds that the design supports; of those audited none where their comparison is not valid."""
    # Canary users' bounds stand, whatever the groups of real users are.
    void = record.decision.decision.answer is Answer.NOT_VALID
    return [bound for bound in record.judgement.bounds if not (void and bound.subjects == audited_by(record).subjects)]


def certified(record: Record) -> str:
    """Return a sentence for each claim that was tested, one for the lower bounds, and one for what is declared.

    "No claim was tested." without one.
    """
    tested = [verdict for verdict in record.judgement.verdicts if verdict.claim != NO_CLAIM]
    claims = dict.fromkeys(verdict.claim for verdict in tested)  # in their order, each once
    sentences = [
        _of_claim(record, str(claim), [verdict for verdict in tested if verdict.claim == claim]) for claim in claims
    ]
    declared = declared_line(record.planted) if record.planted else None
    return " ".join(filter(None, [*(sentences or ["No claim was tested."]), _of_bounds(record), declared]))


def _of_claim(record: Record, claim: str, verdicts: list[Verdict]) -> str:
    whom: dict[str, list[str]] = {}
    for verdict in verdicts:
        # Canary users are judged by themselves, whatever the groups of real users are.
        void = record.decision.decision.answer is Answer.NOT_VALID and verdict.subjects == audited_by(record).subjects
        whom.setdefault(_found(verdict, void=void), []).append(str(verdict.subjects))
    # Whom a verdict is about is only in question where canary users are judged beside real ones.
    outcomes = [
        f"{outcome} ({', '.join(subjects)})" if record.canaries else outcome for outcome, subjects in whom.items()
    ]
    return sentence(f"{claim}: {'; '.join(outcomes)}")


def _found(verdict: Verdict, *, void: bool) -> str:
    outcome = "inconclusive, as the comparison is not valid" if void else _OUTCOMES[verdict.outcome]
    if verdict.standing is Standing.CERTIFIED:
        return f"{outcome}, {verdict.standing}" if verdict.outcome is Outcome.VIOLATED else outcome
    return f"{outcome}, {verdict.standing} only"


def _of_bounds(record: Record) -> str:
    judgement, unit = record.judgement, audited_by(record).one
    for standing in (Standing.CERTIFIED, Standing.INDICATIVE):
        bounds = [bound for bound in bounds_that_follow(record) if bound.standing is standing]
        if not bounds:
            continue
        best = max(bounds, key=lambda bound: bound.epsilon_lower)
        # As it is printed: a bound of 0.004 is none that a reader could see.
        if f"{best.epsilon_lower:.2f}" == "0.00":
            return f"No {standing} lower bound on epsilon per {unit} is above 0."
        subjects = f", on {best.subjects}" if record.canaries else ""
        only = "" if standing is Standing.CERTIFIED else " only"
        how = f"with {percent(best.level, 0)} confidence"
        # Picked after looking: each holds on its own, not the highest of several at the same level.
        if len(bounds) > 1:
            how += f" on its own, the highest of {len(bounds)} bounds"
        return f"Epsilon per {unit} is at least {best.epsilon_lower:.2f}{subjects} ({how}), {standing}{only}."
    if len(bounds_that_follow(record)) < len(judgement.bounds):
        return NONE_FOLLOWS.format(one=unit)
    if judgement.refused:
        return f"No lower bound on epsilon can be given: {judgement.refused[0].reason}."
    return "No lower bound on epsilon is certified."
