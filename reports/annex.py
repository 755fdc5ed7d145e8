"""The annex for whoever signs: what was tested and what was not, for which release, under which promise, what is left.

Every row follows from the record. What the annex of a sweep says alike is in ``annex_parts``.
"""

from typing import Any

from heldin.audit.bootstrap import Estimate
from heldin.audit.coarse import brief
from heldin.audit.decision import Answer
from heldin.base.wording import at_most_counted, counted
from heldin.bounds.verdict import NO_CLAIM
from heldin.record.document import Record
from heldin.record.planted_facts import Known
from heldin.record.release import release_of
from heldin.record.requirements import epsilon_per_user
from heldin.reports import annex_parts as parts
from heldin.reports.annex_parts import Scenario
from heldin.reports.extraction import extraction_line, most_left
from heldin.reports.marks import marks_line
from heldin.reports.people import attacker_asks, headline_of_a_dial
from heldin.reports.promise_words import promise_pairs
from heldin.reports.recommendation import limit_rows
from heldin.reports.wording import audited_by, texts_of
from heldin.words.people import TRAININGS


def annex(record: Record) -> dict[str, Any]:
    """Everything that the annex prints, as text."""
    release = release_of(record.config)
    return {
        "tests": parts.rows_of_tests(scenarios(record)),
        "tests_note": parts.TESTS_NOTE,
        "limits": limit_rows(record),
        "limits_note": (
            "Set before the audit (decision.require). Value: of the attack whose interval reaches farthest. Not shown:"
            " the limit lies within the interval. Each attack is held against the limit by its own interval, which is"
            " enough to say that all keep it; intervals of all scores at once are wider, since they let a reader pick"
            " one."
        ),
        "release": parts.release_pairs(release, [its.attack for its in record.attacks]),
        "promise": promise_pairs(record),
        "others": other_releases(record),
        "quality": quality_pairs(record),
        "repeat": when_to_repeat(record),
        "opinion": parts.opinion_rows(
            scenarios(record),
            release,
            each_person=_each_person(record),
            documents=f"facts and fingerprints ({record.target.fingerprint[:8]})",
        ),
        "opinion_note": parts.OPINION,
        "residual": residual_risk(record),
        "not_anonymity": parts.NOT_ANONYMITY,
    }


def scenarios(record: Record) -> list[Scenario]:
    """Every kind of attack that a reader may ask for, the tested ones first."""
    return [*_membership(record), _extraction(record), *parts.OUT_OF_SCOPE]


def _extraction(record: Record) -> Scenario:
    if record.extraction is None:
        return parts.EXTRACTION_NOT_RUN
    return Scenario(
        parts.EXTRACTION,
        "run",
        "the beginning of a text, and as many answers of the model as are stated",
        " ".join(filter(None, (extraction_line(record), marks_line(record), parts.NO_BOUND))),
    )


def _membership(record: Record) -> list[Scenario]:
    what, result = audited_by(record), record.named()  # the attack of the headline
    unreal = Scenario(
        "Membership of real users",
        "not run",
        "probabilities of a user's texts",
        "Nothing is known of real users as they are: those who were tested were made for this audit.",
    )
    if record.trainings is not None:
        return [
            Scenario(
                "Membership of one worst-case user: was this user in training?",
                "run",
                "the model of a training, the base model, and every document of that user",
                f"AUROC {result.auroc.value:.3f} over {counted(record.trainings.runs, 'training')}.",
            ),
            unreal,
        ]
    answer = record.decision.decision.answer
    area = result.auroc
    if headline_of_a_dial(record):
        # The leading attack, which was fixed beforehand: its own interval holds.
        found = f"{result.attack}: AUROC {area.value:.3f}, {area.lower:.3f} to {area.upper:.3f}; with another setting"
        found += f" of a dial, {answer.value}: page one."
    else:
        found = f"{result.attack}: AUROC {area.value:.3f}, {_together(record, area)}; {answer.value}."
    rows = [
        Scenario(
            f"Membership of {what.unit}: was this {what.singular} in training?",
            "run, not valid" if answer is Answer.NOT_VALID else "run",
            f"{attacker_asks(result.attack)}; texts of theirs, {texts_of(record.scored_texts.kind)}",
            found if answer is not Answer.NOT_VALID else "The groups, or the model, do not support a comparison.",
        )
    ]
    if record.split.audited == "canaries":
        rows.append(unreal)
    elif record.canaries is not None:
        areas = [g.auroc for g in record.canaries.groups if g.auroc]
        most = "too few on a side"
        if areas:
            best = max(areas, key=lambda its: its.value)
            most = (
                f"the highest AUROC of {counted(len(areas), 'group')} is {best.value:.3f} ({best.lower:.3f} to"
                f" {best.upper:.3f}, of this group alone)"
            )
        rows.append(
            Scenario(
                "Membership of canary users",
                "run",
                "the same",
                f"{counted(record.canaries.users, 'canary user')}: {most}.",
            )
        )
    return rows


def _together(record: Record, area: Estimate) -> str:
    """What holds for all scores at once: an interval of one that was picked by its AUROC would not hold."""
    scores, decision = record.decision.scores, record.decision.decision
    if scores == 1:
        return f"{area.lower:.3f} to {area.upper:.3f}"
    if decision.answer is Answer.LEAKS:
        return f"picked among {scores} scores, its interval on page one"
    return f"and of {scores} scores none above {brief(decision.excluded_auroc):.2f} at 95 %"


def other_releases(record: Record) -> list[str]:
    """What the record knows of other models of the same people."""
    said = []
    if record.cell is not None:
        said.append(
            f"This model is one of a sweep (block {record.cell.block}, {record.cell.variant}): other models of its"
            " block had the same held-in people. The sweep's report states what all of them together promise."
        )
    if record.planted is not None:
        said.append(
            f"Of the models trained on the planted set this is look {record.planted.look} of"
            f" {record.planted.looks} that were paid for; what else was trained on it, heldin does not know."
        )
    attack = record.config.get("attack")
    shadows = attack.get("shadow_models", 0) if isinstance(attack, dict) else 0
    if shadows:
        said.append(f"{counted(int(shadows), 'shadow model')} were trained on draws of the same people; keep them in.")
    if record.trainings is not None:
        said.append(f"{counted(record.trainings.runs, 'model')} were trained, scored and thrown away.")
    if not said:
        said.append("The record knows of none; heldin looks at no model or statistic but those of this audit.")
    return said


def quality_pairs(record: Record) -> list[list[str]]:
    """(what, value) on how much was tested, and how well."""
    d, s = record.decision, record.split
    what = TRAININGS if record.trainings is not None else audited_by(record)
    blind = [its.name for its in record.blind if its.separates]
    rows = [
        ["how many were tested", f"{s.held_in:,} {what.member} and {s.held_out:,} {what.other}"],
        ["with how much", f"{record.attacker_texts:,} texts; {counted(d.scores, 'score')} of {_attacks(record)}"],
        ["who is on which side", f"{s.standing_reason} ({'certifiable' if s.certifiable else 'indicative only'})"],
        ["by chance alone", _false_alarms(record)],
    ]
    if record.trainings is None:
        rows.append(["controls", parts.controls(len(record.blind), blind)])
    if record.planted is not None:
        met = [condition.known_by for condition in record.planted.conditions]
        ways = ", ".join(f"{met.count(way)} {way.value}" for way in Known if way in met)
        rows.append(["conditions of certified statements", ways])
    return rows


def _false_alarms(record: Record) -> str:
    d = record.decision
    if not d.decision.exact:
        return 'nothing bounds how often "leaks" is false: the p-values are indicative'
    said = f'a false "leaks" by the attacks in {100 * (d.by.auroc_level + d.by.tpr_level):g} % of audits at most'
    verdicts = [its for its in record.judgement.verdicts if its.claim != NO_CLAIM]
    claims = len({its.claim for its in verdicts})
    if not claims:
        return said
    which = "the tested claim" if claims == 1 else f"each of the {claims} tested claims"
    # One verdict for each group of people on whom a claim is tested.
    shared = ", which groups of people share" if len(verdicts) > claims else ""
    return f"{said}; {which} has a level of its own{shared}"


def _attacks(record: Record) -> str:
    return counted(len({its.attack for its in record.attacks}), "attack")


def when_to_repeat(record: Record) -> list[str]:
    """When this audit no longer speaks for the model."""
    said = parts.when_to_repeat(release_of(record.config))
    decided = record.decision.decision
    if decided.answer is Answer.INCONCLUSIVE:
        needed = at_most_counted(decided.users_needed, before="about ")
        what = TRAININGS if record.trainings is not None else audited_by(record)
        said.append(
            f"Before anything is decided: {needed} {what.unit} would settle what this audit left open, in four of"
            " five audits if nothing leaks."
        )
    if record.planted is not None and record.planted.look < record.planted.looks:
        left = record.planted.looks - record.planted.look
        said.append(f"{counted(left, 'further look')} at checkpoints of this planted set {_are(left)} paid for.")
    return said


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _each_person(record: Record) -> str:
    promised = epsilon_per_user(record.training) is not None
    by = "a promise to every user, and what it rests on" if promised else "no promise bounds the odds of each person"
    if record.trainings is not None:
        return f"page one: {by}; measured for one worst-case user"
    return f"page one: {by}; measured in groups of ten or more, not for single people"


def residual_risk(record: Record) -> list[str]:
    """What is left after what was found."""
    decided, what = record.decision.decision, audited_by(record)
    found = {
        Answer.LEAKS: "Membership leaks to the attacker described; an attacker who knows more may do better.",
        Answer.NO_LEAK: (
            f"These attacks leave room for an AUROC of up to {decided.excluded_auroc:.2f}, and others were not tried."
        ),
        Answer.INCONCLUSIVE: (
            f"An AUROC of up to {decided.excluded_auroc:.2f} stays possible: too little was tested to say less."
        ),
        Answer.NOT_VALID: "Nothing follows about membership.",
    }
    said = [found[decided.answer] if record.trainings is None else "One user was tested; others may be hit harder."]
    said += filter(None, [most_left(record)])
    said.append(parts.nothing_known(scenarios(record)))
    if record.training is not None and record.training.epsilon is not None:
        said.append("The promise rests on its conditions (facts, guarantee), and on code that was not proved right.")
    elif record.training is not None:
        said.append(f"No promise bounds attacks that were not tried on {what.unit}.")
    return said
