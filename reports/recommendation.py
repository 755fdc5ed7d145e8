"""What to do with the model: the one function that recommends, and the organisation's limits that it applies.

Never against a contradicted guarantee, then by the limits of ``decision.require``, then by the answer.
"""

import math

from heldin.audit.answer import DecisionFacts
from heldin.audit.blind import REFERENCE
from heldin.audit.decision import Answer, Promise
from heldin.audit.requirement import Requirement
from heldin.bounds.verdict import NO_CLAIM, Outcome
from heldin.record.document import Record
from heldin.record.requirements import Held, held_against
from heldin.reports.wording import MEASURES, name_measure, sentence
from heldin.words.answer import ComparisonFlaw
from heldin.words.page_one import Advice, Limit, Next, Secret, Subject
from heldin.words.statement import Statement

# What a limit would be compared with, in the order in which people who decide ask for it.
_ASKED = (("auroc", True), ("epsilon_per_user", True), ("loss_gain_over_base", False))
_OF_TRAINING_FILE = (
    ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON,
    ComparisonFlaw.HELD_OUT_TEXTS_TRAINED_ON,
    ComparisonFlaw.HELD_IN_USERS_ABSENT,
)


def recommend(record: Record) -> Statement:
    """Return the recommendation with the next step, consistent with every other line of page one."""
    facts = record.decision
    answer = facts.decision.answer
    if any(v.claim != NO_CLAIM and v.outcome is Outcome.CONTRADICTED for v in record.judgement.verdicts):
        return Advice.RELEASE_NEVER(next=Next.CHECK_TRAINER())
    if answer is Answer.NOT_VALID:
        return Advice.COMPARISON(next=_planted(record, _repair(record)))
    if record.planted is not None and record.planted.unmet():
        return Advice.CONDITION(next=Next.DECLARE())
    if facts.decision.promise is Promise.ABOVE:
        return Advice.ABOVE(next=Next.CHECK_TRAINER())
    held = held_against(record, [limit.requirement() for limit in facts.by.require])
    if broken := [limit for limit in held if limit.outcome == "broken"]:
        return Advice.BROKEN(limits=_limits(broken), next=_after_broken_limit(broken))
    if left := [limit for limit in held if limit.outcome != "kept"]:
        unsure = any(limit.outcome == "not shown" for limit in left)
        return Advice.NOT_SHOWN(limits=_limits(left), next=_more(record) if unsure else Next.NOT_MEASURED())
    canaries = canaries_leak(record)
    if held:
        releases = {Answer.LEAKS: Advice.RELEASE_LEAKS, Answer.INCONCLUSIVE: Advice.RELEASE_INCONCLUSIVE}
        chosen = (
            Advice.RELEASE_CANARIES if canaries and answer is not Answer.LEAKS else releases.get(answer, Advice.RELEASE)
        )
        return chosen(limits=_limits(held), next=Next.ANNEX())
    return _advise_without_limits(record, answer, canaries=canaries)


def _advise_without_limits(record: Record, answer: Answer, *, canaries: bool) -> Statement:
    if answer is Answer.LEAKS:
        subject = (Subject.MODELS if record.trainings else Subject.MODEL)()
        private = record.decision.decision.promise is Promise.WITHIN and record.training is not None
        after = Next.SMALLER_EPSILON if private else Next.MITIGATE
        return Advice.LEAKS(subject=subject, secret=_SECRETS[record.split.audited](), next=after())
    if canaries:
        return Advice.CANARIES_LEAK(next=Next.MITIGATE())
    if answer is Answer.INCONCLUSIVE:
        return Advice.INCONCLUSIVE(next=_planted(record, _more(record)))
    guaranteed = record.training is not None and record.training.epsilon is not None and record.ceiling() is not None
    return Advice.NO_LEAK(next=(Next.AGAIN if guaranteed else Next.WITHOUT_GUARANTEE)())


_SECRETS = {"users": Secret.USERS, "canaries": Secret.USERS, "entities": Secret.ENTITIES, "both": Secret.BOTH}


def canaries_leak(record: Record) -> bool:
    """Return whether canary users leak in an audit of real users."""
    decision: DecisionFacts | None = record.canaries.decision if record.canaries else None
    return decision is not None and decision.decision.answer is Answer.LEAKS


def _repair(record: Record) -> Statement:
    """Return how to get a comparison that is valid."""
    flaws = record.decision.decision.flaws
    # A flaw of the files that were given, not of how users were split (``record.overlaps.training_flaws``).
    if any(flaw.states(code) for flaw in flaws for code in _OF_TRAINING_FILE):
        return Next.TRAINING_FILE()
    if any(baseline.name == REFERENCE and baseline.separates for baseline in record.blind):
        return Next.REFERENCE()
    return Next.COINS()


def _more(record: Record) -> Statement:
    """Return how to get an audit that decides."""
    decision, users = record.decision.decision, record.split.held_in + record.split.held_out
    if record.trainings is not None:
        return Next.MORE_TRAININGS()
    if decision.unlearned:
        return (Next.LEARN_MORE if record.training else Next.GIVE_BASE)()
    if decision.reversed:
        # Two files may be swapped; coins that heldin drew cannot.
        return (Next.SWAPPED if record.kind == "audit" else Next.SWAPPED_COINS)()
    if users < decision.users_needed:
        return Next.MORE_USERS(needed=decision.users_needed, users=users, audited=record.split.audited)
    return Next.MORE_USERS_OR_TEXTS(audited=record.split.audited)


def _planted(record: Record, first: Statement) -> Statement:
    return first if record.planted is None else Next.PLANT_AGAIN(first=first)


def _after_broken_limit(broken: list[Held]) -> Statement:
    if not all(limit.exact for limit in broken):
        return Next.MITIGATE()
    return (Next.SMALLER_EPSILON if all(limit.value is not None for limit in broken) else Next.GET_GUARANTEE)()


def _limits(held: list[Held]) -> list[Statement]:
    return [
        (Limit.AT_LEAST if limit.requirement.at_most is None else Limit.AT_MOST)(
            measure=MEASURES[limit.requirement.measure],
            value=limit.requirement.at_least if limit.requirement.at_most is None else limit.requirement.at_most,
        )
        for limit in held
    ]


def limit_rows(record: Record) -> list[list[str]]:
    """Return (limit, value, end of its 95 % interval, outcome) of each limit of ``decision.require``."""
    return [
        [
            name_measure(held.requirement.words()),
            "-" if held.value is None else f"{held.value:.4g}",
            # A guarantee is stated, not measured: it has no interval.
            "-" if held.reach is None or held.exact else f"{held.reach:.4g}",
            held.outcome,
        ]
        for held in held_against(record, [limit.requirement() for limit in record.decision.by.require])
    ]


def propose_limits(record: Record) -> str:
    """Return which limits could be set, with what this record holds for each; "" if limits are set."""
    if record.decision.by.require:
        return ""
    shown = []
    for measure, upper in _ASKED:
        # A limit that anything keeps: what counts is the end of the interval that it would be compared with.
        asked = Requirement(measure, at_most=math.inf) if upper else Requirement(measure, at_least=-math.inf)
        (limit,) = held_against(record, [asked])
        if limit.reach is not None:
            words = name_measure(f"{measure} at {'most' if upper else 'least'}")
            here = "this plan:" if limit.exact else f"here, with 95 %, {'up' if upper else 'down'} to"
            shown.append(f"{words} ... ({here} {limit.reach:.3g})")
    would = f" Possible limits: {sentence('; '.join(shown))}" if shown else ""
    return (
        "No acceptance limit was set before this audit (decision.require). Set limits before the next audit: a limit"
        f" chosen after seeing the result proves nothing.{would}"
    )
