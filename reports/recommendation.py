"""The recommendation about the model. Only this module makes recommendations.

The recommendation never allows a release if a guarantee is contradicted. If the organisation has set limits
(``decision.require``), the recommendation depends on whether each limit is met, not shown to be met, or broken. Without
limits, the recommendation depends on the answer.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum

from heldin.attacks.access import OF_RELEASE
from heldin.audit.answer import DecisionFacts
from heldin.audit.blind import REFERENCE
from heldin.audit.decision import Answer, Promise
from heldin.bounds.verdict import NO_CLAIM, Outcome
from heldin.record.document import Record
from heldin.record.release import release_of
from heldin.record.requirements import Held, LimitStatus, held_against
from heldin.reports.wording import name_limit
from heldin.words.answer import ComparisonFlaw
from heldin.words.page_one import Advice, Next, Secret, Subject
from heldin.words.statement import Statement

_OF_TRAINING_FILE = (
    ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON,
    ComparisonFlaw.HELD_OUT_TEXTS_TRAINED_ON,
    ComparisonFlaw.HELD_IN_USERS_ABSENT,
)


class Grade(IntEnum):
    """How strongly a recommendation advises against a release."""

    NO_REASON = 0  # to hold the model back
    WITHIN_LIMITS = 1
    NOT_ON_THIS_EVIDENCE = 2
    NOT = 3
    NEVER = 4


_GRADES = {
    Advice.RELEASE_NEVER: Grade.NEVER,
    Advice.BROKEN: Grade.NOT,
    Advice.ABOVE: Grade.NOT,
    Advice.LEAKS: Grade.NOT,
    Advice.UNEVEN: Grade.NOT_ON_THIS_EVIDENCE,
    Advice.COMPARISON: Grade.NOT_ON_THIS_EVIDENCE,
    Advice.CONDITION: Grade.NOT_ON_THIS_EVIDENCE,
    Advice.NOT_SHOWN: Grade.NOT_ON_THIS_EVIDENCE,
    Advice.CANARIES_LEAK: Grade.NOT_ON_THIS_EVIDENCE,
    Advice.INCONCLUSIVE: Grade.NOT_ON_THIS_EVIDENCE,
    Advice.RELEASE: Grade.WITHIN_LIMITS,
    Advice.RELEASE_LEAKS: Grade.WITHIN_LIMITS,
    Advice.RELEASE_INCONCLUSIVE: Grade.WITHIN_LIMITS,
    Advice.RELEASE_CANARIES: Grade.WITHIN_LIMITS,
    Advice.NO_LEAK: Grade.NO_REASON,
}


def grade_of(advice: Statement) -> Grade:
    """Return how strongly a recommendation advises against a release."""
    return next(grade for code, grade in _GRADES.items() if advice.states(code))


def recommend(record: Record) -> Statement:
    """Return the most serious recommendation that applies, with the next step.

    A worse finding therefore never gives milder advice. If there are limits, a leak alone does not decide, because the
    limits set how much leakage is acceptable.
    """
    return max(_all_advice(record), key=grade_of)  # of equal grades the first


def _all_advice(record: Record) -> Iterator[Statement]:
    """Yield every recommendation that applies. Within a grade, the most important comes first."""
    held = held_against(record, [limit.requirement() for limit in record.decision.by.require])
    yield from _against_release(record, held)
    yield from _against_this_evidence(record, held)
    if held:
        yield _release_within(record, held)
    guaranteed = record.training is not None and record.training.epsilon is not None and record.ceiling() is not None
    yield Advice.NO_LEAK(next=None if guaranteed else Next.WITHOUT_GUARANTEE())


def _against_release(record: Record, held: Sequence[Held]) -> Iterator[Statement]:
    """Yield the recommendations that follow from findings about the model."""
    decision = record.decision.decision
    if any(v.claim != NO_CLAIM and v.outcome is Outcome.CONTRADICTED for v in record.judgement.verdicts):
        yield Advice.RELEASE_NEVER(next=Next.CHECK_TRAINER())
    if broken := [limit for limit in held if limit.status is LimitStatus.BROKEN]:
        yield Advice.BROKEN(limits=_limits(broken), next=_after_broken_limit(broken))
    if decision.promise is Promise.ABOVE:
        yield Advice.ABOVE(next=Next.CHECK_TRAINER())
    if decision.answer is Answer.LEAKS and not held:
        yield _advise_on_leak(record)


def _against_this_evidence(record: Record, held: Sequence[Held]) -> Iterator[Statement]:
    """Yield the recommendations that follow from insufficient evidence."""
    answer = record.decision.decision.answer
    # First, since it may be why the groups differ.
    if record.corpus.lost_unevenly:
        yield Advice.UNEVEN(next=Next.ROWS())
    if answer is Answer.NOT_VALID:
        yield Advice.COMPARISON(next=_planted(record, _repair(record)))
    if record.planted is not None and record.planted.unmet():
        yield Advice.CONDITION(next=Next.DECLARE())
    if unsure := [limit for limit in held if limit.status is LimitStatus.NOT_SHOWN]:
        yield Advice.NOT_SHOWN(limits=_limits(unsure), next=_more(record))
    if unknown := [limit for limit in held if limit.status is LimitStatus.NOT_MEASURED]:
        yield Advice.NOT_SHOWN(limits=_limits(unknown), next=Next.NOT_MEASURED())
    if canaries_leak(record) and not held:
        yield Advice.CANARIES_LEAK(next=Next.MITIGATE())
    if answer is Answer.INCONCLUSIVE and not held:
        yield Advice.INCONCLUSIVE(next=_planted(record, _more(record)))


def _release_within(record: Record, held: Sequence[Held]) -> Statement:
    """Return the recommendation that limits and answer allow, if nothing speaks against a release."""
    answer = record.decision.decision.answer
    releases = {Answer.LEAKS: Advice.RELEASE_LEAKS, Answer.INCONCLUSIVE: Advice.RELEASE_INCONCLUSIVE}
    by_canaries = canaries_leak(record) and answer is not Answer.LEAKS
    chosen = Advice.RELEASE_CANARIES if by_canaries else releases.get(answer, Advice.RELEASE)
    return chosen(limits=_limits(held), next=Next.ANNEX())


def _advise_on_leak(record: Record) -> Statement:
    subject = (Subject.MODELS if record.trainings else Subject.MODEL)()
    private = record.decision.decision.promise is Promise.WITHIN and record.training is not None
    after = Next.SMALLER_EPSILON if private else Next.MITIGATE
    return Advice.LEAKS(subject=subject, secret=_SECRETS[record.split.audited](), next=after())


_SECRETS = {"users": Secret.USERS, "canaries": Secret.USERS, "entities": Secret.ENTITIES, "both": Secret.BOTH}


def canaries_leak(record: Record) -> bool:
    """Return whether canary users leak in an audit of real users."""
    decision: DecisionFacts | None = record.canaries.decision if record.canaries else None
    return decision is not None and decision.decision.answer is Answer.LEAKS


def _repair(record: Record) -> Statement:
    """Return how to make the comparison valid."""
    flaws = record.decision.decision.flaws
    # A flaw of the files that were given, not of how users were split (``record.overlaps.training_flaws``).
    if any(flaw.states(code) for flaw in flaws for code in _OF_TRAINING_FILE):
        return Next.TRAINING_FILE()
    if any(baseline.name == REFERENCE and baseline.separates for baseline in record.blind):
        return Next.REFERENCE()
    return Next.COINS()


def _more(record: Record) -> list[Statement]:
    """Return steps that would make an audit conclusive, the most important step first."""
    decision, users = record.decision.decision, record.split.held_in + record.split.held_out
    if record.trainings is not None:
        return [Next.MORE_TRAININGS()]
    steps: list[Statement] = []
    if decision.reversed:
        # Two files may be swapped; coins that heldin drew cannot.
        steps.append((Next.SWAPPED if record.kind == "audit" else Next.SWAPPED_COINS)())
    if decision.unlearned or learned(record) is False:
        # More users would not help an audit of a model that learned nothing.
        steps.append((Next.LEARN_MORE if record.training else Next.GIVE_BASE)())
    if decision.weaker and (release := release_of(record.config)) is not None:
        # More users would not help this attacker to see more.
        return [*steps, Next.STRONGER(access=OF_RELEASE[release.access].value)]
    if users < decision.users_needed:
        return [*steps, Next.MORE_USERS(needed=decision.users_needed, users=users, audited=record.split.audited)]
    return steps or [Next.MORE_USERS_OR_TEXTS(audited=record.split.audited)]


def learned(record: Record) -> bool | None:
    """Return whether the model gained on people outside its training data; None if this was not measured."""
    gain = record.gain or (record.utility.gain if record.utility else None)
    return None if gain is None else gain.lower > 0.0


def _planted(record: Record, first: Statement | list[Statement]) -> Statement | list[Statement]:
    return first if record.planted is None else Next.PLANT_AGAIN(first=first)


def _after_broken_limit(broken: list[Held]) -> Statement:
    if not all(limit.exact for limit in broken):
        return Next.MITIGATE()
    return (Next.SMALLER_EPSILON if all(limit.value is not None for limit in broken) else Next.GET_GUARANTEE)()


def _limits(held: Sequence[Held]) -> list[Statement]:
    return [name_limit(limit.requirement) for limit in held]
