"""The annex for whoever signs: what was tested and what was not, for which release, under which promise, what is left.

Every row follows from the record. EDPB Opinion 28/2024 is paraphrased from public quotations; its own text counts.
"""

from dataclasses import dataclass
from typing import Any, Literal

from heldin.audit.decision import Answer
from heldin.audit.headline import TRAININGS
from heldin.base.wording import at_most_counted, counted
from heldin.bounds.verdict import NO_CLAIM
from heldin.record.document import Record
from heldin.record.release import release_of
from heldin.record.requirements import epsilon_per_user
from heldin.reports.extraction import extraction_line
from heldin.reports.marks import marks_line
from heldin.reports.people import headline_of_a_dial
from heldin.reports.promise_words import promise_pairs
from heldin.reports.recommendation import limit_rows
from heldin.reports.wording import audited_by, texts_of

Status = Literal["run", "run, not valid", "not run", "out of scope"]
_NO_BOUND = "Neither this nor membership bounds the other."
NOT_ANONYMITY = (
    "heldin does not determine whether a model is anonymous or whether a law is kept. It states what was tested, by"
    " whom it could be done, and what was found; the decision is that of those who sign."
)
OPINION = (
    "Paraphrased from public quotations of EDPB Opinion 28/2024, whose own text counts. Listed are the paragraphs that"
    " were quoted; of the others between 43 and 58 this report says nothing."
)


@dataclass(frozen=True)
class Scenario:
    """A kind of attack, and whether it was tried.

    Attributes:
        name: what the attack is after.
        status: whether it was run here.
        attacker: what the attacker has.
        found: what was found, or what follows from not having looked.
    """

    name: str
    status: Status
    attacker: str
    found: str


def annex(record: Record) -> dict[str, Any]:
    """Everything that the annex prints, as text."""
    return {
        "tests": [[its.name, its.status, its.attacker, its.found] for its in scenarios(record)],
        "limits": limit_rows(record),
        "release": release_pairs(record),
        "promise": promise_pairs(record),
        "others": other_releases(record),
        "quality": quality_pairs(record),
        "repeat": when_to_repeat(record),
        "opinion": opinion_rows(record),
        "opinion_note": OPINION,
        "residual": residual_risk(record),
        "not_anonymity": NOT_ANONYMITY,
    }


def scenarios(record: Record) -> list[Scenario]:
    """Every kind of attack that a reader may ask for, the tested ones first."""
    return [
        *_membership(record),
        extraction(record),
        Scenario(
            "Attribute inference: what else is true of a person",
            "out of scope",
            "some facts about a person, and the model's answers about others",
            "heldin has no such test: nothing is known.",
        ),
        Scenario(
            "Reconstruction: training texts put together again",
            "out of scope",
            "the weights, or gradients of training",
            "heldin has no such test: nothing is known.",
        ),
        Scenario(
            "Inversion: what an answer or an inner state came from",
            "out of scope",
            "the model's answers or inner states, and no text of the person",
            "heldin has no such test: nothing is known.",
        ),
    ]


def extraction(record: Record) -> Scenario:
    """The row of extraction."""
    if record.extraction is not None:
        return Scenario(
            "Extraction: training texts that the model writes out",
            "run",
            "the beginning of a text, and as many answers of the model as are stated",
            " ".join(filter(None, (extraction_line(record), marks_line(record), _NO_BOUND))),
        )
    return Scenario(
        "Extraction: training texts that the model writes out",
        "not run",
        "the beginning of a text, and what the model writes after it",
        "Nothing is known. What was found of membership does not bound it.",
    )


def _membership(record: Record) -> list[Scenario]:
    what, result = audited_by(record), record.named()  # the attack of the headline
    unreal = Scenario(
        "Membership of real users",
        "not run",
        "probabilities of a user's texts",
        "Nothing is known of real users: those who were tested were made to be found.",
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
    found = f"AUROC {result.auroc.value:.3f} ({result.auroc.lower:.3f} to {result.auroc.upper:.3f}); {answer.value}."
    if headline_of_a_dial(record):
        found += " With another setting of a dial: page one."
    rows = [
        Scenario(
            f"Membership of {what.unit}: was this {what.one} in training?",
            "run, not valid" if answer is Answer.NOT_VALID else "run",
            f"probabilities of texts under the model and a reference model; {texts_of(record.scored_texts.kind)}",
            found if answer is not Answer.NOT_VALID else "The groups, or the model, do not support a comparison.",
        )
    ]
    if record.split.audited == "canaries":
        rows.append(unreal)
    elif record.canaries is not None:
        best = max((g.auroc.value for g in record.canaries.groups if g.auroc), default=None)
        most = "too few on a side" if best is None else f"at most AUROC {best:.3f} of a group"
        rows.append(
            Scenario(
                "Membership of canary users, made to be found",
                "run",
                "the same",
                f"{counted(record.canaries.users, 'canary user')}: {most}.",
            )
        )
    return rows


def release_pairs(record: Record) -> list[list[str]]:
    """(what, value) of the config's release block, and what it means for the tests; "" is a line to fill in."""
    release = release_of(record)
    if release is None:
        return [["what they can have of the model", ""], ["how much they can ask", ""], ["who gets it", ""]]
    limit = release.rate_limit
    meaning = {
        "weights": (
            "Every attack above can be tried, at any number of queries, and what was given away cannot be called back."
            " Tests that ask for log-probabilities alone say too little."
        ),
        "log-probabilities": "The tests of membership had what these people will have.",
        "text": "The tests of membership had more than these people will have; extraction needs no more than text.",
    }
    return [
        ["what they can have of the model", f"{release.access} (as declared)"],
        [
            "how much they can ask",
            "no limit is stated" if limit is None else f"{limit:,} queries a day" if isinstance(limit, int) else limit,
        ],
        ["who gets it", release.who or "not stated"],
        ["what this means for the tests", meaning[release.access]],
    ]


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
    controls = (
        "none could be run"
        if not record.blind
        else f"{', '.join(blind)} of {len(record.blind)} separated the groups without the model"
        if blind
        else f"{counted(len(record.blind), 'baseline')} without the model, none of which separated the groups"
    )
    rows = [
        ["how many were tested", f"{s.held_in:,} {what.member} and {s.held_out:,} {what.other}"],
        ["with how much", f"{record.attacker_texts:,} texts; {counted(d.scores, 'score')} of {_attacks(record)}"],
        ["who is on which side", f"{s.standing_reason} ({'certifiable' if s.certifiable else 'indicative only'})"],
        ["by chance alone", _false_alarms(record)],
    ]
    if record.trainings is None:
        rows.append(["controls", controls])
    if record.planted is not None:
        met = [its.known_by for its in record.planted.conditions]
        ways = ", ".join(f"{met.count(way)} {way}" for way in ("checked", "declared", "not met") if way in met)
        rows.append(["conditions of certified statements", ways])
    return rows


def _false_alarms(record: Record) -> str:
    d = record.decision
    if not d.decision.exact:
        return 'nothing bounds how often "leaks" is false: the p-values are indicative'
    said = f'a false "leaks" by the attacks in {100 * (d.by.auroc_level + d.by.tpr_level):g} % of audits at most'
    claims = sum(its.claim != NO_CLAIM for its in record.judgement.verdicts)
    if not claims:
        return said
    which = "the tested claim" if claims == 1 else f"each of the {claims} tested claims"
    return f"{said}; {which} has a level of its own"


def _attacks(record: Record) -> str:
    return counted(len({its.attack for its in record.attacks}), "attack")


def when_to_repeat(record: Record) -> list[str]:
    """When this audit no longer speaks for the model."""
    said = [
        "After any further training, or any change of the texts, the defense or the base model.",
        "When stronger attacks are known: an audit is evidence against the attacks that were run.",
    ]
    release = release_of(record)
    if release is None or release.access != "weights":
        said.append("When more people get the model, or more of it.")
    else:
        said.append("Before the weights are given away: afterwards no audit can change who has them.")
    decided = record.decision.decision
    if decided.answer is Answer.INCONCLUSIVE:
        needed = at_most_counted(decided.users_needed, before="about ")
        what = TRAININGS if record.trainings is not None else audited_by(record)
        said.append(f"Before anything is decided: {needed} {what.unit} would settle what this audit left open.")
    if record.planted is not None and record.planted.look < record.planted.looks:
        left = record.planted.looks - record.planted.look
        said.append(f"{counted(left, 'further look')} at checkpoints of this planted set {_are(left)} paid for.")
    return said


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def opinion_rows(record: Record) -> list[list[str]]:
    """(paragraphs, what they ask, where this report answers) of EDPB Opinion 28/2024."""
    all_of = scenarios(record)
    by_status = {
        status: ", ".join(its.name.split(":")[0].lower() for its in all_of if its.status == status)
        for status in ("run", "run, not valid", "not run", "out of scope")
    }
    covered = "; ".join(f"{status}: {names}" for status, names in by_status.items() if names)
    release = release_of(record)
    return [
        [
            "34, 43",
            "how likely personal data can be extracted directly, also with some probability",
            f"{extraction(record).status}; see the table of tests",
        ],
        [
            "43",
            "that this is insignificant for each person, not on average",
            _each_person(record),
        ],
        [
            "46",
            "the context of release: who can use which means",
            "not stated in the config; lines above" if release is None else f"{release.access}; above, as declared",
        ],
        [
            "55",
            "scope, number, frequency and quality of tests against attacks known today: membership and attribute"
            " inference, exfiltration, regurgitation, inversion, reconstruction; a passed test is evidence against that"
            " attack alone",
            f"{covered}; quality and repetition: above",
        ],
        [
            "58",
            "documents: the model, data and versions; threat models; the risk that is left, advice and decision",
            f"facts and fingerprints ({record.target.fingerprint[:8]}); the table of tests; the lines below",
        ],
    ]


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
    open_ = [its.name.split(":")[0].lower() for its in scenarios(record) if its.status in ("not run", "out of scope")]
    said.append(f"Nothing is known about: {', '.join(open_)}.")
    if record.training is not None and record.training.epsilon is not None:
        said.append("The promise rests on its conditions (facts, guarantee), and on code that was not proved right.")
    elif record.training is not None:
        said.append(f"No promise bounds attacks that were not tried on {what.unit}.")
    return said
