"""Page one of a report, made from one record: the same facts and sentences for PDF, web page, terminal and JSON.

Statistics are on later pages. This module computes no numbers. Its sentences are in ``words.page_one``.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from heldin.attacks.access import OF_RELEASE, Access, falls_short
from heldin.attacks.protocol import AttackFacts
from heldin.audit.decision import Answer, Decision
from heldin.audit.flagged import Flagged
from heldin.base.files import text_sha256
from heldin.base.wording import counted
from heldin.bounds.design import Design
from heldin.bounds.verdict import NO_CLAIM, Outcome, Standing, Verdict
from heldin.corpus.sources.bad_rows import skipped_by_fault
from heldin.record.document import Record
from heldin.record.facts import EndpointFacts, SplitFacts, TrainingFacts
from heldin.record.planted_facts import Condition, ControlOutcome, Known, PlantedFacts, Reason, deciding
from heldin.record.release import Release, release_of
from heldin.reports.blocks import Banner, Block, FactList, Paragraph, Signature
from heldin.reports.limits import limit_facts, limit_rows
from heldin.reports.recommendation import canaries_leak, grade_of, learned, recommend
from heldin.reports.wording import attacker_asks
from heldin.words.evidence import ClaimLabel, Sees
from heldin.words.page_one import (
    Attacking,
    AttackNeeds,
    AuditedPeople,
    Change,
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
    Released,
    Texts,
    WhichAttacker,
)
from heldin.words.rows import SkippedText
from heldin.words.split import ConditionStated, SplitReason
from heldin.words.statement import Statement, code_named

# Share of flagged members beyond that of non-members, from which an attacker usually, or often, succeeds.
_USUALLY, _OFTEN = 0.45, 0.25
_FEW = 50  # people in a group, below which they are counted themselves and not of every 100


def state_answer(record: Record) -> list[Statement]:
    """Return the sentences below the banner. Leaks about canary users or to stronger attackers add a sentence."""
    finding = _find(record, record.decision.decision)
    if record.decision.decision.answer is Answer.LEAKS:
        return [finding]
    before = [Found.CANARIES_LEAK()] if canaries_leak(record) else []
    # However weak the attacker is whom the answer is about.
    leaking = [level for level in record.levels if level.decision.decision.answer is Answer.LEAKS]
    return [*before, finding, *(Found.STRONGER_LEAKS(sees=_sees(level.access)) for level in leaking[:1])]


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
            beyond = 0.0 if people is None else people.members_share - people.others_share
            often = (
                HowOften.USUALLY if beyond >= _USUALLY else HowOften.OFTEN if beyond >= _OFTEN else HowOften.SOMETIMES
            )
            texts = {"fresh": Texts.FRESH, "training": Texts.TRAINING}.get(record.scored_texts.kind, Texts.ANY)
            return Found[audited.upper()](texts=texts(), how_often=often())
        case Answer.NO_LEAK:
            # ``decide`` gives this answer only if the rate could be shown.
            assert decision.excluded_tpr is not None
            rates = {"rate": 100 * decision.excluded_tpr, "fpr": 100 * record.decision.by.fpr}
            if record.access is not Access.LOG_PROBABILITIES:
                return Found.NO_LEAK_TO(
                    sees=_sees(record.access), subjects=subjects, auroc=decision.excluded_auroc, **rates
                )
            return Found.NO_LEAK(subjects=subjects, auroc=decision.excluded_auroc, **rates)
        case Answer.INCONCLUSIVE:
            return _find_nothing(record, decision, subjects)
        case Answer.NOT_VALID:
            return Found.NOT_VALID(flaw=PlainFlaw[code_named(decision.flaws[0].code).name]())


def _find_nothing(record: Record, decision: Decision, subjects: Statement) -> Statement:
    """Return the most important reason why the audit is inconclusive."""
    if decision.reversed:
        # Two files may be swapped; coins that heldin drew cannot.
        return (Found.REVERSED if record.kind == "audit" else Found.REVERSED_BY_COINS)()
    if decision.unlearned:
        return Found.LEARNED_NOTHING(subjects=subjects)
    if decision.weaker:
        return Found.WEAKER(subjects=subjects, sees=_sees(record.access))
    if learned(record) is False:
        return Found.LEARNED_NOTHING_TOO_FEW(subjects=subjects)
    if record.access is not Access.LOG_PROBABILITIES:
        return Found.TOO_FEW_TO(subjects=subjects, sees=_sees(record.access))
    return Found.TOO_FEW(subjects=subjects)


def _state_training_file(split: SplitFacts) -> list[Statement]:
    """Return which audited users are in the named training file, and what heldin did not check; empty without a
    file."""
    file = split.training_file
    texts, users = split.overlaps.held_out_texts_in_training.count, split.overlaps.held_out_users_in_training.count
    if file is None or texts is None or users is None:
        return []
    if not file.texts_there:
        there = Evidence.MEMBERS_IN_FILE(count=file.members_there, members=split.held_in)
    elif file.texts_there == file.texts:
        there = Evidence.ALL_IN_FILE(texts=file.texts)
    else:
        there = Evidence.SOME_IN_FILE(count=file.texts_there, texts=file.texts)
    others = Evidence.OTHERS_NOT_IN_FILE(others=split.held_out)
    if texts or users:
        others = Evidence.OTHERS_IN_FILE(count=users, others=split.held_out, texts=texts)
    return [there, others, Evidence.FILE_STATED()]


def _by_claim_alone(record: Record) -> bool:
    """Return whether a contradicted claim is the only evidence for a leak."""
    decision = record.decision.decision
    return decision.answer is Answer.LEAKS and not decision.separates and bool(_contradicted(record))


def _contradicted(record: Record) -> list[Verdict]:
    return [v for v in record.judgement.verdicts if v.claim != NO_CLAIM and v.outcome is Outcome.CONTRADICTED]


def _gravest(contradicted: list[Verdict]) -> Verdict:
    return min(contradicted, key=lambda verdict: verdict.exit_code)  # 3, certified, before 4


def state_people(record: Record) -> list[Statement]:
    """Return how many people the counted attack flags, or why people cannot be counted."""
    if record.trainings is not None:
        return [People.OF_TRAININGS(with_user=record.trainings.with_user, runs=record.trainings.runs)]
    if record.decision.decision.answer is Answer.NOT_VALID:
        return [People.NOT_VALID()]
    flagged, best = record.flagged(), record.decision.best
    if flagged is None:
        return [People.TOO_FEW(users=counted(record.split.held_in + record.split.held_out, "user"))]
    most = record.allowed_share(flagged.others_share)
    # Other scores than this rate may contradict the guarantee, which would read as if it held.
    shown = most is not None and not _contradicted(record)
    allowed = People.ALLOWED(rate=100 * most) if shown and most is not None else None
    few = min(flagged.of_members, flagged.of_others) < _FEW
    statements = [
        (People.COUNTED_FEW if few else People.COUNTED)(
            **_counts(flagged), allowed=allowed, audited=record.split.audited
        )
    ]
    if best is not None:
        statements.append((People.BEST_FEW if few else People.BEST)(among=best.among, **_counts(best)))
    return statements


def _counts(flagged: Flagged) -> dict[str, Any]:
    """Return the numbers and words for a sentence about flagged people."""
    (lower, upper), (wrong_lower, wrong_upper) = flagged.members_limits, flagged.others_limits
    return {
        "attack": flagged.label,
        "which": Attacking[flagged.choice.name](attack=flagged.label, among=flagged.among),
        "count": flagged.members,
        "of": flagged.of_members,
        "rate": 100 * flagged.members_share,
        "lower": 100 * lower,
        "upper": 100 * upper,
        "wrong_count": flagged.others,
        "wrong_of": flagged.of_others,
        "wrong": 100 * flagged.others_share,
        "wrong_lower": 100 * wrong_lower,
        "wrong_upper": 100 * wrong_upper,
    }


def state_attack(record: Record) -> list[Statement]:
    """Return what the attack on page one needs, compared with the access that the planned release gives."""
    if record.decision.decision.answer is Answer.NOT_VALID:
        return []
    release, asks = release_of(record.config), record.counted_attack().asks
    held = None
    if release is not None:
        code = AttackNeeds.AS_RELEASED if suffices(release, asks) else AttackNeeds.MORE_THAN_RELEASED
        held = code(released=_released(release))
    if record.trainings is not None:
        return [AttackNeeds.OF_TRAININGS(held=held)]
    texts = max(1, round(record.attacker_texts / max(1, record.split.held_in + record.split.held_out)))
    return [AttackNeeds.NEEDS(asked=attacker_asks(asks), texts=counted(texts, "text"), held=held)]


def suffices(release: Release, asks: AttackFacts) -> bool:
    """Return whether recipients of the model have the access that an attack needs."""
    # Probabilities of a text's own tokens are less than those of all tokens.
    return asks.access in OF_RELEASE[release.access].covers and (
        release.access == "weights" or not asks.needs_vocabulary
    )


def state_attackers(record: Record) -> list[Statement]:
    """Return the tested attackers and the answer for each; empty if the only attacker has log-probabilities."""
    tested = {record.access, *(level.access for level in record.levels)}
    if tested == {Access.LOG_PROBABILITIES}:
        return []
    release = release_of(record.config)
    weak = falls_short(tuple(tested), None if release is None else release.access)
    decides = (WhichAttacker.DECIDES_TOO_WEAK if weak else WhichAttacker.DECIDES)(sees=_sees(record.access))
    others = [
        WhichAttacker.OTHER(
            sees=_sees(level.access),
            answer=level.decision.decision.answer.value,
            auroc=level.decision.decision.largest_auroc,
        )
        for level in record.levels
    ]
    strongest = Access.LOG_PROBABILITIES
    untested = [] if strongest in tested else [WhichAttacker.NOT_TESTED(sees=_sees(strongest))]
    return [decides, *others, *untested, *_state_conduct(record.target.endpoint)]


def _state_conduct(endpoint: EndpointFacts | None) -> list[Statement]:
    """Return cautions about the answers of an endpoint that generates text."""
    answers = None if endpoint is None else endpoint.answers
    if answers is None:
        return []
    stated = [WhichAttacker.REFUSED(count=answers.refused, samples=answers.samples)] if answers.refused else []
    # Short answers are often equal by themselves.
    if answers.cuts and answers.same > answers.cuts / 2:
        stated.append(WhichAttacker.SAME(count=answers.same, cuts=answers.cuts))
    return stated


def _sees(access: Access) -> Statement:
    return Sees[access.name]()


def _released(release: Release) -> Statement:
    return Released[release.access.replace("-", "_").upper()]()


def state_canaries(record: Record) -> list[Statement]:
    """Return the answer for canary users; empty if there are none, or if they are the audited people."""
    facts = record.canaries
    if facts is None or record.split.audited == "canaries":
        return []
    if facts.decision is None:
        return [People.CANARIES_NOT_COUNTED(answer="Inconclusive", users=facts.users, held_in=facts.held_in)]
    answer, flagged = facts.decision.decision.answer.value.capitalize(), facts.decision.flagged
    if flagged is None or not facts.decision.decision.separates:
        return [People.CANARIES_NOT_COUNTED(answer=answer, users=facts.users, held_in=facts.held_in)]
    return [People.CANARIES(answer=answer, **_counts(flagged))]


def state_evidence(record: Record) -> list[Statement]:
    """Return the strength of the evidence (certified, indicative or estimate), and the reason for it."""
    decision, planted = record.decision.decision, record.planted
    if decision.answer is Answer.NOT_VALID:
        return [Evidence.NOT_VALID()]
    if planted is not None and (unmet := planted.unmet()):
        return [_state_unmet(unmet)]
    if not decision.exact:
        checked = _state_training_file(record.split)
        if record.split.reason.states(SplitReason.ASSERTED_NO_COINS):
            return [Evidence.NOT_BY_COINS(), *checked]
        return [Evidence.PARTLY_CHECKED(), *checked] if checked else [Evidence.STATED()]
    # A contradicted guarantee has the standing of its own verdict.
    if _by_claim_alone(record) and _gravest(_contradicted(record)).standing is not Standing.CERTIFIED:
        return [Evidence.NOT_BY_COINS()]
    return [_state_exact(record), *(_state_planted(planted) if planted is not None else [])]


def _state_unmet(unmet: Sequence[Condition]) -> Statement:
    """Return the first condition that is not met; if all unmet conditions are only undeclared, return their number."""
    others = [condition for condition in unmet if condition.reasons != [Reason.UNDECLARED]]
    if others:
        return Evidence.NOT_MET(condition=ConditionStated[others[0].name.name]())
    return Evidence.NOT_DECLARED(count=len(unmet))


def _state_exact(record: Record) -> Statement:
    """Return the strength of the evidence for an audit in which chance decided who is a member."""
    by = record.decision.by
    how = (Evidence.BY_HALVES if record.split.reason.states(SplitReason.EXACT_HALF) else Evidence.BY_COINS)()
    # Limits are estimates from one training; only a leak is tested at an exact level.
    claims = Design.alpha if any(verdict.claim != NO_CLAIM for verdict in record.judgement.verdicts) else 0.0
    if record.decision.decision.answer is Answer.LEAKS:
        return Evidence.CERTIFIED(how=how, percent=100 * (by.auroc_level + by.tpr_level + claims))
    if record.trainings is not None:
        return Evidence.OF_TRAININGS(trainings=record.trainings.runs)
    return Evidence.ESTIMATE()


def _state_planted(planted: PlantedFacts) -> list[Statement]:
    """Return the weaknesses of the positive control, and who declared the facts that heldin cannot observe."""
    control = planted.control
    weak = control is not None and not control.shows_effect and control.outcome in _CONTROLS
    weaknesses = [_CONTROLS[control.outcome]()] if control is not None and weak else []
    if (decisive := deciding(planted.conditions)) is None:
        return weaknesses
    declared = sum(condition.known_by is Known.DECLARED for condition in planted.conditions)
    vouched = (Evidence.DECLARED_ONE if declared == 1 else Evidence.DECLARED)(
        declared_by=planted.declared_by,
        count=declared,
        of_all=len(planted.conditions),
        condition=ConditionStated[decisive.name.name](),
    )
    return [*weaknesses, vouched]


# Outcomes that contradict the training are conditions that are not met.
_CONTROLS = {
    ControlOutcome.UNDECIDED: Evidence.UNDECIDED,
    ControlOutcome.UNUSABLE: Evidence.UNUSABLE,
    ControlOutcome.NOT_MEASURED: Evidence.NOT_CONTROLLED,
}


def state_learned(record: Record) -> list[Statement]:
    """Return the consequence if the model gained nothing on people outside its training data; empty if the model
    gained."""
    if learned(record) is None:
        control = record.planted.control if record.planted else None
        if control is None or control.rows_lower is None:
            return [Learned.NOT_MEASURED()]
        return [] if control.rows_lower > 0.5 else [Learned.ROWS_NOT_SHOWN()]
    if learned(record):
        return []
    # The reference of an audit may be any model, such as a better one.
    if record.training is None:
        return [Learned.NOT_SHOWN()]
    if record.decision.decision.answer is Answer.LEAKS or canaries_leak(record):
        return [Learned.NOTHING_FOR_OTHERS()]
    defended = not record.training.is_plain or record.training.removals
    return [Learned.NOTHING(follows=(Follows.OF_DEFENSE if defended else Follows.OF_TRAINING)())]


def state_guarantee(record: Record) -> list[Statement]:
    """Return the claimed or computed guarantee, whether it is contradicted, and the epsilon that this audit could
    reach."""
    tested = [verdict for verdict in record.judgement.verdicts if verdict.claim != NO_CLAIM]
    training = record.training
    if not tested:
        if training is None:
            return [Guaranteed.NONE()]
        if training.epsilon is None:
            # The first reason, where a defense ran; the facts have them all. A run without any has no reasons.
            reasons = training.promise.values.get("reasons")
            first = reasons[:1] if isinstance(reasons, list) else training.promise
            return [Guaranteed.NO_GUARANTEE(reasons=first), *_state_earlier(training)]
        promise = Guaranteed.PLANNED(claim=training.guarantee_alone)
        return [promise, Guaranteed.NOT_TESTED(), *_state_declared(training), *_state_earlier(training)]
    claims = list(dict.fromkeys(verdict.claim for verdict in tested))
    statements: list[Statement] = []
    for claim in claims:
        verdicts = [verdict for verdict in tested if verdict.claim == claim]
        # All claims of a run are its plan's; of trainings some may have been typed.
        planned = record.kind == "run" or (record.kind == "trainings" and not claim.states(ClaimLabel.STATED))
        statements.append((Guaranteed.PLANNED if planned else Guaranteed.CLAIMED)(claim=claim))
        statements.append(_judge(record, verdicts))
    return [*statements, *_state_declared(training), *_state_earlier(training)]


def _state_declared(training: TrainingFacts | None) -> list[Statement]:
    """Return who declares the guarantee, if heldin did not compute it."""
    return [] if training is None or training.declared_by is None else [training.declared_by.stated]


def _state_earlier(training: TrainingFacts | None) -> list[Statement]:
    """Return the statement about earlier releases, if there are any, or if this release has a guarantee."""
    tells = training is not None and (training.epsilon is not None or (training.earlier and training.earlier.plans))
    return [training.earlier_stated] if training is not None and tells else []


def _judge(record: Record, verdicts: list[Verdict]) -> Statement:
    """Return the joint meaning of the verdicts on one claim, each for another group of people."""
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
    """Return the largest epsilon that this audit could have contradicted, rounded down to two decimals."""
    return math.floor(100 * max((verdict.max_certifiable_epsilon for verdict in verdicts), default=0.0)) / 100


def state_not_tested(record: Record) -> list[Statement]:
    """Return the facts that no test checked."""
    kinds = [] if record.extraction is not None else [NotTested.EXTRACTION()]
    kinds += [NotTested.WEIGHTS(), NotTested.ATTRIBUTES(), NotTested.RECONSTRUCTION()]
    if record.split.audited == "canaries" or record.trainings is not None:
        kinds.append(NotTested.REAL_USERS())
    return [NotTested.ALL(kinds=kinds)]


def state_change(record: Record) -> list[Statement]:
    """Return the further evidence that would change the answer."""
    return [Change.LEAKS() if canaries_leak(record) else Change[record.decision.decision.answer.name]()]


_LINES = (
    (Label.PEOPLE, state_people),
    (Label.ATTACK, state_attack),
    (Label.ATTACKER, state_attackers),
    (Label.EVIDENCE, state_evidence),
    (Label.CANARIES, state_canaries),
    (Label.LEARNED, state_learned),
    (Label.GUARANTEE, state_guarantee),
    (Label.RECOMMENDATION, lambda record: [recommend(record)]),
    (Label.LEFT_OUT, lambda record: record.left_out),
    (Label.NOT_TESTED, state_not_tested),
    (Label.CHANGE, state_change),
)


def lines(record: Record) -> Iterator[tuple[Label, list[Statement]]]:
    """Yield the lines of page one that apply, each as a label and its statements."""
    for label, state in _LINES:
        if statements := state(record):
            yield label, statements


def written(statements: list[Statement]) -> str:
    """Return the sentences of a line."""
    text = " ".join(str(statement).strip() for statement in statements)
    return f"{text[:1].upper()}{text[1:]}"


def report_id(record: Record) -> str:
    """Return an id of 12 hexadecimal digits for the content of the record."""
    return text_sha256(record.model_dump_json())[:12]


def written_date(created: str) -> str:
    """Return the date of an ISO timestamp as text, such as "27 November 2026"."""
    day = datetime.fromisoformat(created)
    return f"{day.day} {day:%B %Y}"


def describe_owner(release: Release | None) -> str:
    """Return the person responsible for the model, and the model's purpose."""
    stated = (None, None) if release is None else (release.owner, release.purpose)
    return " / ".join(text or "not stated" for text in stated) if any(stated) else "not stated"


def state_release(release: Release | None) -> list[tuple[str, str]]:
    """Return rows about owner, purpose and release; a single row if the config states none of them."""
    if release is None:
        return [("Owner, purpose, release", "not stated")]
    return [("Owner/purpose", describe_owner(release)), ("Intended release", describe_release(release))]


def describe_auditor(release: Release | None) -> str:
    """Return who ran the audit."""
    return f"by {release.auditor}" if release is not None and release.auditor else "auditor not stated"


def describe_release(release: Release) -> str:
    """Return which access recipients will get, and who they are."""
    return f"{_released(release)}{f' to {release.who}' if release.who else ''}"


def _rounded(number: int) -> str:
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,}"


def state_data(record: Record) -> list[Statement]:
    """Return how many rows were skipped, and possible faults of the files; may be empty."""
    facts = record.corpus
    groups = [
        _ROWS_OF[group.group](parts=skipped_by_fault(group.without_text, group.unusable), rows=group.rows)
        for group in facts.skipped
        if group.without_text or group.unusable
    ]
    one_each = [SkippedText.ONE_EACH()] if record.kind == "audit" and facts.records == facts.users else []
    if not groups:
        return one_each
    stated = [SkippedText.ALL(groups=groups), *one_each]
    if any(group.users_lost for group in facts.skipped):
        lost = [group.users_lost for group in facts.skipped]
        both = len(lost) > 1
        stated.append(
            SkippedText.BOTH_LOST(members=lost[0], others=lost[1]) if both else SkippedText.USERS_LOST(users=lost[0])
        )
    if facts.lost_unevenly:
        members, others = (100 * group.users_with / group.users for group in facts.skipped)
        mine_lost, others_lost = (100 * group.users_lost / group.users for group in facts.skipped)
        rates = {"members": members, "members_lost": mine_lost, "others": others, "others_lost": others_lost}
        stated.append(SkippedText.UNEVEN(**rates))
    return stated


_ROWS_OF = {
    "corpus": SkippedText.OF_CORPUS,
    "held-in": SkippedText.OF_MEMBERS,
    "held-out": SkippedText.OF_NON_MEMBERS,
}


def identify(record: Record) -> FactList:
    """Return the subject of the audit: model, owner, purpose, release, date and report id."""
    release = release_of(record.config)
    parameters = record.target.parameters
    size = "" if parameters is None else f", {_rounded(parameters)} parameters"
    counts = f"{record.split.held_in:,} members, {record.split.held_out:,} non-members"
    if record.trainings is not None:
        counts = f"{record.trainings.runs:,} training runs"
    skipped = state_data(record)
    return FactList(
        [
            ("Model", f"{record.target.name}{size}"),
            *state_release(release),
            (
                "Audit",
                f"{written_date(record.created)}, {describe_auditor(release)}, {counts}, report {report_id(record)}",
            ),
            *([("Data", written(skipped))] if skipped else []),
        ]
    )


def show_answer(record: Record) -> list[Block]:
    """Return the subject of the audit, and the banner with the answer."""
    answer = record.decision.decision.answer.value
    return [identify(record), Banner(answer, answer.capitalize(), written(state_answer(record)))]


def show_lines(record: Record) -> list[Block]:
    """Return the lines of page one, and a line for the signature."""
    blocks: list[Block] = [
        Paragraph(written(statements), lead=f"{label.sentence}.") for label, statements in lines(record)
    ]
    return [*blocks, Signature("this page (heldin verify checks it)")]


def summary_lines(record: Record) -> Iterator[tuple[str, str]]:
    """Yield (label, text) of page one for a terminal: the answer, then the limits, then the other lines."""
    yield "answer", f"{record.decision.decision.answer.value.capitalize()}. {written(state_answer(record))}"
    for name, measured, reach, outcome in limit_rows(record):
        numbers = ", ".join(filter(None, (measured and f"measured {measured}", reach and f"95 % limit {reach}")))
        yield "limit", f"{outcome}; {name}{numbers and f' ({numbers})'}"
    if skipped := state_data(record):
        yield "data", written(skipped)
    for label, statements in lines(record):
        yield label.sentence.lower(), written(statements)


def summary_facts(record: Record) -> dict[str, Any]:
    """Return page one as JSON values: codes and numbers, and the recommendation also as a sentence."""
    people, advice = record.flagged(), recommend(record)
    best = record.decision.best
    return {
        "answer": record.decision.decision.answer.value,
        "people": people and people.model_dump(mode="json"),
        "best_attack": best and best.model_dump(mode="json"),
        "limits": limit_facts(record),
        "skipped": [group.model_dump(mode="json") for group in record.corpus.skipped],
        "recommendation": str(advice),
        "grade": grade_of(advice).name.lower(),
        "page_one": {
            "answer": [statement.model_dump(mode="json") for statement in state_answer(record)],
            "data": [statement.model_dump(mode="json") for statement in state_data(record)],
            **{
                label.name.lower(): [statement.model_dump(mode="json") for statement in statements]
                for label, statements in lines(record)
            },
        },
        "report_id": report_id(record),
        "headline": record.decision.headline,
    }
