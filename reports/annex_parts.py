"""The sections that the annexes of runs, audits and sweeps have in common.

EDPB Opinion 28/2024 is paraphrased from public quotations; only its own text is authoritative. NIST SP 800-226 (figures
4 and 5) warns that epsilons for different units or deltas are not comparable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import yaml

from heldin.attacks.access import OF_RELEASE, Access
from heldin.attacks.protocol import AttackFacts
from heldin.base.wording import counted
from heldin.record.release import Release
from heldin.reports.blocks import (
    Attachment,
    Blanks,
    Block,
    Entry,
    FactList,
    Paragraph,
    Reference,
    Remarks,
    Signature,
    Table,
)
from heldin.reports.wording import sentence
from heldin.words.guarantee import relation_of
from heldin.words.statement import Statement

S = TypeVar("S")
Status = Literal["run", "run, not valid", "not run", "out of scope"]
EXTRACTION = "Extraction: training texts that the model writes out"
NO_BOUND = "A low risk of extraction does not imply a low risk of membership inference, or the reverse."
NOT_ANONYMITY = (
    "heldin does not determine whether a model is anonymous or complies with a law. It reports what was tested, who"
    " could do it, and what was found. The people who sign decide."
)
_NO_TEST = "heldin has no such test."


@dataclass(frozen=True)
class Scenario:
    """A kind of attack, and whether it was tested.

    Attributes:
        name: goal of the attack.
        status: whether this audit tested the attack.
        attacker: access and inputs of the attacker.
        result: result of the test, or the consequence of not testing.
    """

    name: str
    status: Status
    attacker: str
    result: str

    @property
    def short(self) -> str:
        """Return the kind of attack in a few words that fit into a sentence."""
        name = self.name.split(":")[0].split(",")[0]
        return name[:1].lower() + name[1:]


OUT_OF_SCOPE = (
    Scenario(
        "Attribute inference: what else is true of a person",
        "out of scope",
        "some facts about a person, and the model's answers about others",
        _NO_TEST,
    ),
    Scenario(
        "Reconstruction: training texts recovered from weights or gradients",
        "out of scope",
        "the weights, or gradients of training",
        _NO_TEST,
    ),
    Scenario(
        "Inversion: what an answer or an inner state came from",
        "out of scope",
        "the model's answers or inner states, and no text of the person",
        _NO_TEST,
    ),
)
EXTRACTION_NOT_RUN = Scenario(
    EXTRACTION,
    "not run",
    "the beginning of a text, and what the model writes after it",
    "Not tested. Results on membership do not limit it.",
)


def list_entries(
    *,
    tests: Callable[[S], Sequence[Scenario]],
    release: Callable[[S], FactList],
    promise: Callable[[S], FactList],
    others: Callable[[S], Sequence[str]],
    quality: Callable[[S], FactList],
    repeat: Callable[[S], Remarks],
    opinion: Callable[[S], Table],
    residual: Callable[[S], list[Block]],
    limits: Callable[[S], str | None] = lambda _: None,
) -> tuple[Entry[S], ...]:
    """Return the table of contents of the annex."""

    def part(key: str, title: str, make: Callable[[S], Any]) -> Entry[S]:
        return Entry(key, title, make, level=2, whole=True)

    return (
        Entry("annex", "Annex for those who sign"),
        part("tests", "What was tested, and what was not", lambda subject: _tests(tests(subject))),
        part("own-limits", "The organisation's own limits", limits),
        part("release", "To whom the model will be given", release),
        part("promise-terms", "What the guarantee means", promise),
        part("others", "Other releases about the same people", lambda subject: [Remarks(others(subject)), _OTHERS]),
        part("quality", "How much was tested, and how well", quality),
        part("when-to-repeat", "When to test again", repeat),
        part("opinion", "EDPB Opinion 28/2024", opinion),
        part("residual", "Residual risk", residual),
    )


# What page two says of the annex; a PDF adds the page.
REFERENCE = Reference(
    "The annex lists what was tested, what was not, the intended release and the residual risk", "annex"
)
_OTHERS = Blanks("Known to those who sign: other models, statistics or data about these people")


def _tests(scenarios: Sequence[Scenario]) -> Table:
    rows = [[scenario.name, scenario.status, scenario.attacker, scenario.result] for scenario in scenarios]
    note = (
        "Out of scope: heldin has no such test. No row implies another: a model that hides membership may write"
        " training texts, and the reverse."
    )
    head = ("attack", "here", "what the attacker has", "what was found")
    return Table(head, rows, note, widths=(1.2, 0.55, 1.25, 1.9))


def sign(lines: Sequence[str], basis: str) -> list[Block]:
    """Return the residual risk, and the lines to sign."""
    blanks = Blanks("Accepted, with reasons; advice of the data-protection officer")
    return [Remarks(lines), blanks, Paragraph(NOT_ANONYMITY), Signature(f"this report, {basis}")]


def list_untried(scenarios: Sequence[Scenario]) -> str:
    """Return a sentence that lists the kinds of attack that were not tested."""
    untried = [scenario.short for scenario in scenarios if scenario.status in ("not run", "out of scope")]
    return f"Not tested: {', '.join(untried)}."


def state_release(
    release: Release | None, attacks: Mapping[str, AttackFacts], tests: str = "The tests of membership"
) -> FactList:
    """Return the release section of the config, and its meaning for tests by these attacks."""
    if release is None:
        return FactList([("access", ""), ("rate limit", ""), ("recipients", "")])
    limit = release.rate_limit
    meaning = (
        "Recipients can try every attack above, with any number of queries, and released weights cannot be taken back."
        " Tests that use log-probabilities alone say too little."
        if release.access == "weights"
        else _compare_access(OF_RELEASE[release.access], attacks, tests)
    )
    return FactList(
        [
            ["access", f"{release.access} (as declared)"],
            [
                "rate limit",
                "no limit is stated"
                if limit is None
                else f"{limit:,} queries a day"
                if isinstance(limit, int)
                else limit,
            ],
            ["recipients", release.who or "not stated"],
            ["what this means for the tests", meaning],
        ]
    )


def _compare_access(given: Access, attacks: Mapping[str, AttackFacts], tests: str) -> str:
    """Return how the tests' access to the model compares with the recipients' access."""
    used = [level for level in Access if level in {asks.access for asks in attacks.values()}]
    if used and used[0] not in given.covers:
        return f"{tests} used more access than the recipients will have; extraction needs only text."
    if used and used[0] is not given:
        return f"{tests} used less access than the recipients will have, who may find more."
    more = [name for name, asks in attacks.items() if asks.needs_vocabulary]
    had = f"{tests} used the same access as the recipients will have"
    return f"{had}, except {' and '.join(more)}, which used the probabilities of all tokens." if more else f"{had}."


def list_occasions(release: Release | None, *, more: Sequence[str]) -> Remarks:
    """Return the events after which an audit is no longer valid for its model: the general ones, and those in
    ``more``."""
    lines = [
        "After any further training, or any change of the texts, the defense or the base model.",
        "When stronger attacks are known: an audit is evidence against the attacks that were run.",
        "Before the weights are released: afterwards no audit can change who has them."
        if release is not None and release.access == "weights"
        else "When more people get access, or more access.",
    ]
    return Remarks([*lines, *more])


def answer_opinion(
    scenarios: Sequence[Scenario], release: Release | None, *, each_person: str, documents: str
) -> Table:
    """Return the table for EDPB Opinion 28/2024: paragraphs, their questions, and where the report answers them.

    Args:
        each_person: the report's results for each person, instead of on average.
        documents: where the report lists the model, the data and the versions.
    """
    by_status = {
        status: ", ".join(scenario.short for scenario in scenarios if scenario.status == status)
        for status in ("run", "run, not valid", "not run", "out of scope")
    }
    covered = "; ".join(f"{status}: {names}" for status, names in by_status.items() if names)
    extraction = next(scenario.status for scenario in scenarios if scenario.name == EXTRACTION)
    rows = [
        [
            "34, 43",
            "how likely personal data can be extracted directly, also with some probability",
            f"{extraction}; see the table of tests",
        ],
        ["43", "that this is insignificant for each person, not on average", each_person],
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
            "documents: the model, data and versions; threat models; residual risk, advice and decision",
            f"{documents}; the table of tests; the lines below",
        ],
    ]
    note = (
        "Paraphrased from public quotations of EDPB Opinion 28/2024; the text of the opinion is authoritative. The"
        " table lists the quoted paragraphs, and no others between 43 and 58."
    )
    return Table(("paragraph", "what it asks", "in this report"), rows, note, widths=(0.45, 2, 2))


def describe_controls(baselines: int, separating: Sequence[str]) -> str:
    """Return the results of the baselines, which never use the model."""
    if not baselines:
        return "none could be run"
    if separating:
        return f"{', '.join(separating)} of {baselines} baselines separated the groups without the model"
    return f"none of {counted(baselines, 'baseline')} separated the groups without the model"


_NEIGHBOURS = {
    "add_remove": (
        "Two training sets count as neighbours if one has everything of one more {unit} than the other (add/remove).",
        "Epsilon and delta limit how far a model trained on the one may differ from one trained on the other.",
        "Exchanging one for another takes two such steps, so do not compare with an epsilon for exchange.",
    ),
    "zero_out": (
        "Two training sets count as neighbours if in one of them all of one {unit} counts as nothing (zero-out).",
        "How many there are is taken as public.",
        "Compare only with an epsilon for the same relation.",
    ),
    "replace": (
        "Two training sets count as neighbours if one {unit} is exchanged for another (replace).",
        "How many there are is taken as public.",
        "For the same training it is larger than for adding or removing one: compare only with others for exchange.",
    ),
    "fixed_incidence": (
        "Two training sets count as neighbours if they have the same slots, which say who wrote a record and whom it"
        " names, and those of one user and one entity are empty in one of them (fixed incidence).",
        "That a slot exists, and whom it names, is not hidden.",
        "Compare only with an epsilon for the same relation.",
    ),
}


@dataclass(frozen=True)
class Promised:
    """A guarantee of a record or a sweep.

    Attributes:
        guarantee: the guarantee with its conditions; None if a sweep has no guarantee.
        unit: user, example, user-entity or none.
        protected: a word or two for the protected unit.
        users: number of users trained on; None if unknown.
    """

    guarantee: Statement | None
    unit: str
    protected: str
    epsilon: float | None
    delta: float | None
    users: int | None


def explain_promise(promise: Promised, unit: str) -> list[list[str]]:
    """Return (term, up to three sentences) for unit, delta and neighbours. ``unit`` is the unit that the audit
    counts."""
    if promise.epsilon is None or promise.delta is None:
        nothing = "None: there is no guarantee."
        return [
            ["unit", f"{sentence(str(promise.guarantee))} The audit counts by {unit}."],
            ["delta", nothing],
            ["neighbours", nothing],
        ]
    return [["unit", _unit(promise)], ["delta", _delta(promise)], ["neighbours", _neighbours(promise)]]


def _unit(promise: Promised) -> str:
    same = "Compare this epsilon only with one for the same unit."
    match promise.unit:
        case "user":
            return f"The unit is a user. All texts of one user are protected together, however many there are. {same}"
        case "example":
            return (
                "The unit is one record, not a person. Each record of a person is protected, and all records of the"
                f" person together are protected less. {same}"
            )
        case _:
            if promise.protected == "user and entity":
                unit, others = "one user together with one entity", "a user alone and an entity alone have other values"
            else:
                unit, others = f"a {promise.protected}", "people with more or fewer records have other values"
            return (
                f"The unit is {unit}: epsilon {promise.epsilon:.3g} is for this unit, and {others} (see Facts). {same}"
            )


def _delta(promise: Promised) -> str:
    assert promise.delta is not None
    times = ""
    if promise.users is not None:
        times = (
            f" Multiplied by the {counted(promise.users, 'user')} trained on, delta is"
            f" {promise.delta * promise.users:.2g}, which should be far below 1."
        )
    return (
        f"The probability of an outcome may exceed the limit of epsilon by delta, which is {promise.delta:g}.{times}"
        " An epsilon at a larger delta looks smaller, so compare only at the same delta."
    )


def _neighbours(promise: Promised) -> str:
    key = None if promise.guarantee is None else relation_of(promise.guarantee)
    if key is None:
        return (
            "The guarantee says which training sets count as neighbours (see Facts). Compare only with an epsilon"
            " for the same relation."
        )
    unit = {"user": "user", "example": "record"}.get(promise.unit, promise.protected)
    return " ".join(_NEIGHBOURS[key]).format(unit=unit)


def attach_configuration(config: Mapping[str, Any]) -> Attachment:
    """Return the configuration as an attached file of the report."""
    text = yaml.safe_dump(dict(config), sort_keys=False, width=100)
    return Attachment("configuration.yaml", text, "the whole configuration, without patterns of user names")
