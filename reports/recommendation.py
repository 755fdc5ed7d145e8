"""What to do with the model: by the organisation's own limits, never against a violated claim, and by the answer."""

import math

from heldin.audit.blind import REFERENCE
from heldin.audit.decision import Answer, Promise
from heldin.audit.requirement import Requirement
from heldin.bounds.verdict import NO_CLAIM, Outcome, Standing
from heldin.record.document import Record
from heldin.record.requirements import Held, held_against
from heldin.reports.wording import audited_by, name_measure, sentence
from heldin.words.answer import ComparisonFlaw

# What a limit would be held against, in the order in which somebody who decides asks for it.
_ASKED = (("auroc", True), ("epsilon_per_user", True), ("loss_gain_over_base", False))
_OF_TRAINING_FILE = (
    ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON,
    ComparisonFlaw.HELD_OUT_TEXTS_TRAINED_ON,
    ComparisonFlaw.HELD_IN_USERS_ABSENT,
)
_PLANT_ANEW = " All this was fixed before the coins: it takes another planted training set, and another training."


def recommendation(record: Record) -> str:
    """Return whether to release, by the limits of ``decision.require``, or what a limit would have to say."""
    violated = [
        verdict
        for verdict in record.judgement.verdicts
        if verdict.claim != NO_CLAIM and verdict.outcome is Outcome.VIOLATED
    ]
    if violated:
        return f"Do not release: {violated[0].claim} is violated ({violated[0].standing.value}), whatever limits say."
    if record.decision.decision.answer is Answer.NOT_VALID:
        return "None: the comparison is not valid, so that nothing can be held against a limit."
    if record.decision.decision.promise is Promise.ABOVE:
        return "Do not release yet: the leak looks larger than the promise allows, whatever limits say."
    if record.planted and (unmet := record.planted.unmet()):
        from heldin.record.condition_words import statement

        return (
            f"None: a condition of the audit is not met ({statement(unmet[0])}), so it may speak of another training."
        )
    held = held_against(record, [limit.requirement() for limit in record.decision.by.require])
    if not held:
        return _propose_limits(record)
    broken = [limit for limit in held if limit.outcome == "broken"]
    if broken:
        return f"Do not release: {_list_limits(broken, 'is broken')}."
    left = [limit for limit in held if limit.outcome != "kept"]
    if left:
        others = len(held) - len(left)
        rest = "" if not others else " The other limit is kept." if others == 1 else f" The other {others} are kept."
        return f"Do not release yet: {_list_limits(left, 'is not shown to be kept')}. {_advise(left)}{rest}"
    leak = {
        Answer.LEAKS: (
            " A leak was found, of a size that these limits allow; below stands whom the model must not reach."
        ),
        Answer.INCONCLUSIVE: " The answer stays inconclusive: its own thresholds are not shown to be kept.",
    }.get(record.decision.decision.answer, "")
    return (
        f"Release, by the organisation's own limits: {_list_limits(held, 'is kept')}.{leak}"
        f"{_state_certainty(record, held)} What no test looked at is in the annex."
    )


def _state_certainty(record: Record, held: list[Held]) -> str:
    if all(limit.exact for limit in held):
        return ""
    text = " What was measured is an estimate from this one training, its interval included"
    return f"{text}." if record.split.certifiable else f"{text}, and indicative only: {record.split.standing_reason}."


def limit_rows(record: Record) -> list[list[str]]:
    """Return (limit, value, end of its 95 % interval, outcome) of each limit of ``decision.require``."""
    return [
        [
            name_measure(held.requirement.words()),
            "-" if held.value is None else f"{held.value:.4g}",
            # A promise is stated, not measured: it has no interval.
            "-" if held.reach is None or held.exact else f"{held.reach:.4g}",
            held.outcome,
        ]
        for held in held_against(record, [limit.requirement() for limit in record.decision.by.require])
    ]


def _list_limits(held: list[Held], how: str) -> str:
    return "; ".join(
        f'the limit "{name_measure(limit.requirement.words())}" {how}{_state_value(limit)}' for limit in held
    )


def _state_value(limit: Held) -> str:
    if limit.outcome == "not measured":
        return " (not measured)"
    if limit.exact:
        return " (there is no such promise)" if limit.value is None else f" (the plan's: {limit.value:.3g})"
    upper = limit.requirement.at_most is not None
    # A broken limit by the near end of the interval, any other by the far one.
    if limit.outcome == "broken":
        return f" (measured {limit.value:.3f}, and {'at least' if upper else 'at most'} {limit.reach:.3f} with 95 %)"
    return f" (measured {limit.value:.3f}, and {'up' if upper else 'down'} to {limit.reach:.3f} with 95 %)"


def _advise(left: list[Held]) -> str:
    if any(limit.outcome == "not shown" for limit in left):
        return "More users would narrow the interval."
    return "This audit did not measure it."


def _propose_limits(record: Record) -> str:
    """Return what limits would have to say, with what this record holds for each."""
    shown = []
    for measure, upper in _ASKED:
        # A limit that anything keeps: what counts is the end of the interval that it would be held against.
        asked = Requirement(measure, at_most=math.inf) if upper else Requirement(measure, at_least=-math.inf)
        (limit,) = held_against(record, [asked])
        if limit.reach is not None:
            words = name_measure(f"{measure} at {'most' if upper else 'least'}")
            shown.append(f"{words} ... ({_state_here(limit, upper=upper)} {limit.reach:.3g})")
    would = f" {sentence('; '.join(shown))}" if shown else ""
    return (
        "None: no limit was set before the audit (decision.require). A limit would have to say what this organisation"
        f" accepts.{would} A limit that is chosen after looking fits whatever was found."
    )


def _state_here(limit: Held, *, upper: bool) -> str:
    if limit.exact:
        return "this plan:"
    return "here, with 95 %, up to" if upper else "here, with 95 %, down to"


def next_step(record: Record) -> str:
    """Return what follows from the answer, for anyone who decides what to do with the model."""
    facts, words = record.decision, audited_by(record)
    match facts.decision.answer:
        case Answer.LEAKS:
            return _next_after_a_leak(record)
        case Answer.NO_LEAK:
            bound = (
                "The guarantee bounds the others."
                # An epsilon per example bounds no attack on a user who has several.
                if record.training and record.training.epsilon is not None and record.ceiling() is not None
                else f"Only a DP guarantee for {_protected(record)} would bound those that were not tried."
            )
            return (
                f"These attacks give no reason to hold the model back. {bound} Audit again after any further training"
                " on these texts, and when stronger attacks are known."
            )
        case Answer.INCONCLUSIVE:
            # Two files may be exchanged; coins that heldin drew cannot.
            if facts.decision.reversed and record.kind == "audit":
                return (
                    "Do not read this as safe. Check which file holds the held-in users and which the held-out ones,"
                    f" and which model is the reference; then audit again.{_anew(record)}"
                )
            enough = "heldin power plans how many"
            if record.split.held_in + record.split.held_out < facts.decision.users_needed:
                enough = (
                    "as many as the headline names do in four of five audits if nothing leaks; heldin power plans other"
                    " numbers"
                )
            more = f"Audit more {words.unit} ({enough})"
            of_each = "let the attacker have more texts of each"
            # Of an audit of two files it is the files that decide.
            how = "--texts training, and files of them" if record.kind == "audit" else "attack.documents: [training]"
            ways = (
                f"{more}, or {of_each}."
                if record.scored_texts.kind == "training"
                else f"{more}, {of_each}, or give it the training documents ({how}), which leak more than fresh ones."
            )
            return f"Do not read this as safe. {ways}{_anew(record)}"
        # A flaw of the files that were given, not of how users were split: in the words of
        # ``record.overlaps.training_flaws``.
        case Answer.NOT_VALID if any(flaw.states(code) for flaw in facts.decision.flaws for code in _OF_TRAINING_FILE):
            return (
                "Nothing follows for the model, either way. Give users who are in this training file as held-in and"
                " users who are not in it as held-out, or the file that this model was trained on, and audit again."
            )
        case Answer.NOT_VALID:
            check = ""
            if any(baseline.name == REFERENCE and baseline.separates for baseline in record.blind):
                check = (
                    "First check that the reference model never saw these users, and that it is not exchanged with the"
                    " audited one. Then, or if that is so: "
                )
            return (
                f"Nothing follows for the model, either way. {check}Draw held-in and held-out users by fair coins"
                " before training (heldin run does), or take both groups from one source and time, and audit again."
            )


def _anew(record: Record) -> str:
    return "" if record.planted is None else _PLANT_ANEW


def _next_after_a_leak(record: Record) -> str:
    match record.decision.decision.promise:
        # In the order of gravity; without a promise (None) the leak itself is what counts.
        case Promise.BEYOND:
            verdicts = record.judgement.verdicts
            sure = any(v.outcome is Outcome.VIOLATED and v.standing is Standing.CERTIFIED for v in verdicts)
            return (
                f"Do not release: the training {'does not' if sure else 'seems not to'} keep what is promised, or the"
                " promise is for another training. Check noise, clipping, sampling and keys, in this order; heldin"
                " audit-trainer tests each."
            )
        case Promise.ABOVE:
            return (
                "Do not release before this is settled: the leak looks larger than the promise allows. More"
                f" {audited_by(record).unit} would certify it (heldin power); heldin audit-trainer tests the trainer"
                " itself."
            )
        case Promise.WITHIN if record.training is None and record.trainings is None:
            return (
                "By the estimate a leak of this size is within the promise that was stated for this audit. That the"
                " training keeps it is not shown: how this model was trained is not known here. If it is more than you"
                f" accept, do not give the model to anyone who must not learn {_learnt(record)}."
            )
        case Promise.WITHIN:
            return (
                "By the estimate a leak of this size is within what was promised. If it is more than you accept, train"
                " at a smaller epsilon, or release to fewer people."
            )
    subject = "its models" if record.trainings else "this model"
    return (
        f"Do not give {subject} to anyone who must not learn {_learnt(record)}. DP training for"
        f" {_protected(record)} bounds every attack; deduplication, fewer records of each and fewer epochs lower"
        " this one. Then audit again."
    )


def _protected(record: Record) -> str:
    """Whom a promise would have to be made to: canary users stand for users."""
    return "users" if record.split.audited == "canaries" else audited_by(record).unit


def _learnt(record: Record) -> str:
    match record.split.audited:
        case "users" | "canaries":
            return "whose texts it was trained on"
        case "entities":
            return "who is named in the texts that it was trained on"
        case "both":
            return "whose texts it was trained on, and who is named in them"
