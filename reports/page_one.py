"""Page one: the same facts and sentences for PDF, web page, terminal and JSON, from one record.

Statistics are on later pages. No number is computed here, and ``words.page_one`` has the sentences.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from heldin.audit.decision import Answer, Decision
from heldin.base.files import text_sha256
from heldin.bounds.design import Design
from heldin.bounds.verdict import NO_CLAIM, Outcome, Standing, Verdict
from heldin.record.document import Record
from heldin.record.planted_facts import Known, Reason, deciding
from heldin.record.release import Release, release_of
from heldin.reports.blocks import Banner, Block, FactList, Paragraph, Signature
from heldin.reports.recommendation import canaries_leak, recommend
from heldin.words.evidence import ClaimLabel
from heldin.words.page_one import (
    AuditedPeople,
    Baselines,
    Evidence,
    Follows,
    Found,
    Guaranteed,
    HowOften,
    Label,
    Learned,
    NotTested,
    People,
    PlainFlaw,
    Texts,
)
from heldin.words.split import ConditionStated, SplitReason
from heldin.words.statement import Statement, code_named

_USUALLY, _OFTEN = 50.0, 20.0  # flagged members of 100, from which an attacker usually, or often, succeeds
_ACCESS = {"weights": "the weights", "log-probabilities": "log-probabilities of texts", "text": "generated text"}


def state_answer(record: Record) -> list[Statement]:
    """Return the sentence below the banner, after one more where canary users leak."""
    finding = _find(record, record.decision.decision)
    leak = canaries_leak(record) and record.decision.decision.answer is not Answer.LEAKS
    return [*([Found.CANARIES_LEAK()] if leak else []), finding]


def _find(record: Record, decision: Decision) -> Statement:
    audited = "trainings" if record.trainings is not None else record.split.audited
    subjects = AuditedPeople[audited.upper()]()
    match decision.answer:
        case Answer.LEAKS if record.trainings is not None:
            return Found.OF_TRAININGS()
        case Answer.LEAKS if _by_claim_alone(record):
            return Found.BY_CLAIM_ALONE()
        case Answer.LEAKS:
            people = record.flagged()
            share = 0.0 if people is None else people.members
            often = HowOften.USUALLY if share >= _USUALLY else HowOften.OFTEN if share >= _OFTEN else HowOften.SOMETIMES
            texts = {"fresh": Texts.FRESH, "training": Texts.TRAINING}.get(record.scored_texts.kind, Texts.ANY)
            return Found[audited.upper()](texts=texts(), how_often=often())
        case Answer.NO_LEAK:
            return Found.NO_LEAK(subjects=subjects)
        case Answer.INCONCLUSIVE:
            if decision.unlearned:
                return Found.LEARNED_NOTHING(subjects=subjects)
            return Found.REVERSED() if decision.reversed else Found.TOO_FEW(subjects=subjects)
        case Answer.NOT_VALID:
            return Found.NOT_VALID(flaw=PlainFlaw[code_named(decision.flaws[0].code).name]())


def _by_claim_alone(record: Record) -> bool:
    """Return whether a contradicted claim is all that speaks for a leak."""
    decision = record.decision.decision
    return decision.named is None and decision.strongest == 0 and bool(_contradicted(record))


def _contradicted(record: Record) -> list[Verdict]:
    return [v for v in record.judgement.verdicts if v.claim != NO_CLAIM and v.outcome is Outcome.CONTRADICTED]


def _gravest(contradicted: list[Verdict]) -> Verdict:
    return min(contradicted, key=lambda verdict: verdict.exit_code)  # 3, certified, before 4


def state_people(record: Record) -> list[Statement]:
    """Return how many people the best attack flags, or why that cannot be counted."""
    if record.trainings is not None:
        return [People.OF_TRAININGS(with_user=record.trainings.with_user, runs=record.trainings.runs)]
    if record.decision.decision.answer is Answer.NOT_VALID:
        return [People.NOT_VALID()]
    people, stated = record.flagged(), 100 * record.decision.by.fpr
    if people is None:
        return [People.TOO_FEW(others=record.split.held_out, percent=stated)]
    # Other scores than this rate may contradict the guarantee, which would read as if it were kept.
    shown = people.allowed is not None and not _contradicted(record)
    allowed = People.ALLOWED(rate=people.allowed) if shown else None
    counted_people = People.COUNTED(
        rate=people.members,
        lower=people.lower,
        upper=people.upper,
        wrong=float(f"{people.others:.3g}"),
        allowed=allowed,
        audited=record.split.audited,
    )
    if math.isclose(people.others, stated):
        return [counted_people]
    return [counted_people, People.OTHER_RATE(percent=stated)]


def state_canaries(record: Record) -> list[Statement]:
    """Return the answer for planted canary users; empty without any, or where they are the ones audited."""
    facts = record.canaries
    if facts is None or record.split.audited == "canaries":
        return []
    if facts.decision is None:
        return [People.CANARIES_NOT_COUNTED(answer="Inconclusive", users=facts.users, held_in=facts.held_in)]
    answer, named = facts.decision.decision.answer.value.capitalize(), facts.decision.decision.named
    if named is None:
        return [People.CANARIES_NOT_COUNTED(answer=answer, users=facts.users, held_in=facts.held_in)]
    return [
        People.CANARIES(
            answer=answer,
            rate=named.of_1000 / 10,
            lower=named.lower / 10,
            upper=named.upper / 10,
            wrong=float(f"{100 * named.fpr:.3g}"),
        )
    ]


def state_evidence(record: Record) -> list[Statement]:
    """Return how strong the evidence is: certified, indicative or an estimate, and why."""
    decision, planted = record.decision.decision, record.planted
    by = record.decision.by
    if decision.answer is Answer.NOT_VALID:
        return [Evidence.NOT_VALID()]
    if planted is not None and (unmet := planted.unmet()):
        undeclared = [condition for condition in unmet if condition.reasons == [Reason.UNDECLARED]]
        others = [condition for condition in unmet if condition not in undeclared]
        if others:
            return [Evidence.NOT_MET(condition=ConditionStated[others[0].name.name]())]
        return [Evidence.NOT_DECLARED(count=len(undeclared))]
    if not decision.exact:
        not_by_coins = record.split.reason.states(SplitReason.ASSERTED_NO_COINS)
        return [(Evidence.NOT_BY_COINS if not_by_coins else Evidence.STATED)()]
    how = (Evidence.BY_HALVES if record.split.reason.states(SplitReason.EXACT_HALF) else Evidence.BY_COINS)()
    # A contradicted guarantee has the standing of its own verdict.
    if _by_claim_alone(record) and _gravest(_contradicted(record)).standing is not Standing.CERTIFIED:
        return [Evidence.NOT_BY_COINS()]
    # Limits are estimates from one training; only a leak is tested at an exact level.
    claims = Design.alpha if any(verdict.claim != NO_CLAIM for verdict in record.judgement.verdicts) else 0.0
    level = 100 * (by.auroc_level + by.tpr_level + claims)
    if decision.answer is Answer.LEAKS:
        stated = Evidence.CERTIFIED(how=how, percent=level)
    elif record.trainings is not None:
        stated = Evidence.OF_TRAININGS(trainings=record.trainings.runs)
    else:
        stated = Evidence.ESTIMATE()
    if planted is None or (decisive := deciding(planted.conditions)) is None:
        return [stated]
    declared = sum(condition.known_by is Known.DECLARED for condition in planted.conditions)
    vouched = Evidence.DECLARED_ONE if declared == 1 else Evidence.DECLARED
    return [
        stated,
        vouched(
            declared_by=planted.declared_by,
            count=declared,
            of_all=len(planted.conditions),
            condition=ConditionStated[decisive.name.name](),
        ),
    ]


def state_learned(record: Record) -> list[Statement]:
    """Return whether the model learned: its gain on people outside its training data, with the interval."""
    gain = record.gain or (record.utility.gain if record.utility else None)
    if gain is None:
        return [Learned.NOT_MEASURED()]
    per = record.gain.per if record.gain else "token"
    values = {"gain": gain.value, "lower": gain.lower, "upper": gain.upper, "per": per}
    if gain.lower > 0.0:
        return [(Learned.YES if record.training else Learned.MORE_THAN_REFERENCE)(**values)]
    # The reference of an audit may be any model, such as a better one.
    if record.training is None:
        return [Learned.NOT_SHOWN(**values)]
    if record.decision.decision.answer is Answer.LEAKS or canaries_leak(record):
        return [Learned.NOTHING_FOR_OTHERS(**values)]
    defended = record.training.defense != "none" or record.training.removals
    return [Learned.NOTHING(**values, follows=(Follows.OF_DEFENSE if defended else Follows.OF_TRAINING)())]


def state_guarantee(record: Record) -> list[Statement]:
    """Return what was claimed or accounted for, whether it is contradicted, and the reach of this audit."""
    tested = [verdict for verdict in record.judgement.verdicts if verdict.claim != NO_CLAIM]
    training = record.training
    reach = _reach(record.judgement.verdicts)
    void = record.decision.decision.answer is Answer.NOT_VALID
    able = [Guaranteed.NO_REACH(reach=reach)] if reach > 0.0 and not void else []
    if not tested:
        if training is None:
            return [Guaranteed.NONE(), *able]
        if training.epsilon is None:
            # The first reason, where a defense ran; the facts have them all. A run without any has no reasons.
            reasons = training.promise.values.get("reasons")
            first = reasons[:1] if isinstance(reasons, list) else training.promise
            return [Guaranteed.NO_GUARANTEE(reasons=first), *able]
        return [Guaranteed.PLANNED(claim=training.guarantee_alone), Guaranteed.NOT_TESTED()]
    claims = list(dict.fromkeys(verdict.claim for verdict in tested))
    statements: list[Statement] = []
    for claim in claims:
        verdicts = [verdict for verdict in tested if verdict.claim == claim]
        # All claims of a run are its plan's; of trainings some may have been typed.
        planned = record.kind == "run" or (record.kind == "trainings" and not claim.states(ClaimLabel.STATED))
        statements.append((Guaranteed.PLANNED if planned else Guaranteed.CLAIMED)(claim=claim))
        statements.append(_judge(record, verdicts))
    return statements


def _judge(record: Record, verdicts: list[Verdict]) -> Statement:
    """Return what the verdicts on one claim, of different groups of people, say together."""
    contradicted = [verdict for verdict in verdicts if verdict.outcome is Outcome.CONTRADICTED]
    if contradicted:
        gravest = _gravest(contradicted)
        subjects = Guaranteed.BY_SUBJECTS(subjects=gravest.subjects) if record.canaries else None
        return Guaranteed.CONTRADICTED(subjects=subjects, evidence=gravest.standing.value)
    reach = _reach(verdicts)
    if record.decision.decision.answer is Answer.NOT_VALID:
        return Guaranteed.NOT_VALID()
    if any(verdict.outcome is Outcome.CONSISTENT for verdict in verdicts):
        # A curve may be in reach although its epsilon at this delta is not.
        claimed = verdicts[0].claim.values.get("epsilon")
        below = isinstance(claimed, int | float) and claimed < reach
        return Guaranteed.WITHIN_REACH(reach=reach) if below else Guaranteed.NOT_CONTRADICTED()
    return Guaranteed.OUT_OF_REACH(reach=reach)


def _reach(verdicts: Sequence[Verdict]) -> float:
    """Return the largest epsilon that the audit could have contradicted, rounded down to two decimals."""
    return math.floor(100 * max((verdict.max_certifiable_epsilon for verdict in verdicts), default=0.0)) / 100


def state_not_tested(record: Record) -> list[Statement]:
    """Return what no test looked at."""
    kinds = [] if record.extraction is not None else [NotTested.EXTRACTION()]
    kinds += [NotTested.WEIGHTS(), NotTested.ATTRIBUTES(), NotTested.RECONSTRUCTION()]
    if record.split.audited == "canaries" or record.trainings is not None:
        kinds.append(NotTested.REAL_USERS())
    return [NotTested.ALL(kinds=kinds)]


_LINES = (
    (Label.PEOPLE, state_people),
    (Label.EVIDENCE, state_evidence),
    (Label.CANARIES, state_canaries),
    (Label.LEARNED, state_learned),
    (Label.GUARANTEE, state_guarantee),
    (Label.RECOMMENDATION, lambda record: [recommend(record)]),
    (Label.NOT_TESTED, state_not_tested),
)


def lines(record: Record) -> Iterator[tuple[Label, list[Statement]]]:
    """Yield the lines of page one, each a label and what it states; lines that do not apply are left out."""
    for label, state in _LINES:
        if statements := state(record):
            yield label, statements


def written(statements: list[Statement]) -> str:
    """Return the sentences of a line."""
    text = " ".join(str(statement).strip() for statement in statements)
    return f"{text[:1].upper()}{text[1:]}"


def report_id(record: Record) -> str:
    """Return 12 hexadecimal digits that identify what the record holds."""
    return text_sha256(record.model_dump_json())[:12]


def written_date(created: str) -> str:
    """Return the day of a time in ISO format in words, as "27 November 2026"."""
    day = datetime.fromisoformat(created)
    return f"{day.day} {day:%B %Y}"


def describe_owner(release: Release | None) -> str:
    """Return who is responsible for the model, and what it is for."""
    stated = (None, None) if release is None else (release.owner, release.purpose)
    return " / ".join(text or "not stated" for text in stated) if any(stated) else "not stated"


def describe_release(release: Release | None) -> str:
    """Return what will be given to whom."""
    if release is None:
        return "not stated"
    return _ACCESS[release.access] + (f" to {release.who}" if release.who else "")


def _rounded(number: int) -> str:
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,}"


def identify(record: Record) -> FactList:
    """Return what was audited: model, owner, purpose, release, date and report id."""
    release = release_of(record.config)
    parameters = record.target.parameters
    size = "" if parameters is None else f", {_rounded(parameters)} parameters"
    counts = f"{record.split.held_in:,} members, {record.split.held_out:,} non-members"
    if record.trainings is not None:
        counts = f"{record.trainings.runs:,} trainings"
    return FactList(
        [
            ("Model", f"{record.name} ({record.target.name}{size})"),
            ("Owner/purpose", describe_owner(release)),
            ("Intended release", describe_release(release)),
            ("Audit", f"{written_date(record.created)}, {counts}, report {report_id(record)}"),
        ]
    )


def show_answer(record: Record) -> list[Block]:
    """Return what was audited, and the answer in its banner."""
    return [identify(record), Banner(record.decision.decision.answer.value, written(state_answer(record)))]


def show_lines(record: Record) -> list[Block]:
    """Return the lines of page one, and the line to sign."""
    blocks: list[Block] = [
        Paragraph(written(statements), lead=f"{label.sentence}.") for label, statements in lines(record)
    ]
    return [*blocks, Signature("this page")]


def summary_lines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of page one for a terminal: the answer first, and what blind baselines show."""
    yield "answer", f"{record.decision.decision.answer.value.capitalize()}. {written(state_answer(record))}"
    for label, statements in lines(record):
        if label is Label.RECOMMENDATION:
            yield "baselines", str(state_baselines(record))
        yield label.sentence.lower(), written(statements)


def state_baselines(record: Record) -> Statement:
    """Return whether any baseline distinguishes the groups without the audited model."""
    if not record.blind:
        return Baselines.NOT_RUN()
    separating = [baseline.name for baseline in record.blind if baseline.separates]
    if separating:
        return Baselines.SEPARATE(names=", ".join(separating))
    return Baselines.NONE_SEPARATES(count=len(record.blind))


def summary_facts(record: Record) -> dict[str, Any]:
    """Return page one as JSON has it: codes and numbers, with the recommendation also in words."""
    people, advice = record.flagged(), recommend(record)
    return {
        "answer": record.decision.decision.answer.value,
        "people": people and asdict(people),
        "recommendation": str(advice),
        "page_one": {
            "answer": [statement.model_dump(mode="json") for statement in state_answer(record)],
            **{
                label.name.lower(): [statement.model_dump(mode="json") for statement in statements]
                for label, statements in lines(record)
            },
        },
        "report_id": report_id(record),
        "headline": record.decision.headline,
    }
