"""What the annexes of an audit and of a sweep have in common: kinds of attack, release, opinion, what nothing covers.

EDPB Opinion 28/2024 is paraphrased from public quotations; its own text counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from heldin.attacks.statistics import asks_for_vocabulary
from heldin.base.wording import counted
from heldin.record.release import Release

Status = Literal["run", "run, not valid", "not run", "out of scope"]
EXTRACTION = "Extraction: training texts that the model writes out"
NO_BOUND = "Neither this nor membership bounds the other."
NOT_ANONYMITY = (
    "heldin does not determine whether a model is anonymous or whether a law is kept. It states what was tested, by"
    " whom it could be done, and what was found; the decision is that of those who sign."
)
TESTS_NOTE = (
    "Out of scope: heldin has no such test. No row bounds another: a model that hides membership may write texts out,"
    " and the reverse."
)
OPINION = (
    "Paraphrased from public quotations of EDPB Opinion 28/2024, whose own text counts. Listed are the paragraphs that"
    " were quoted; of the others between 43 and 58 this report says nothing."
)
_NO_TEST = "heldin has no such test: nothing is known."


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

    @property
    def short(self) -> str:
        """The kind of attack in a few words, within a sentence."""
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
        "Reconstruction: training texts put together again",
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
    "Nothing is known. What was found of membership does not bound it.",
)


def rows_of_tests(scenarios: Sequence[Scenario]) -> list[list[str]]:
    """A row for each kind of attack: name, status, what the attacker has, what was found."""
    return [[scenario.name, scenario.status, scenario.attacker, scenario.found] for scenario in scenarios]


def nothing_known(scenarios: Sequence[Scenario]) -> str:
    """The kinds of attack that were not tried, in a sentence."""
    untried = [scenario.short for scenario in scenarios if scenario.status in ("not run", "out of scope")]
    return f"Nothing is known about: {', '.join(untried)}."


def release_pairs(
    release: Release | None, attacks: Sequence[str], tests: str = "The tests of membership"
) -> list[list[str]]:
    """(what, value) of the config's release block, and what it means for the tests; "" is a line to fill in.

    Args:
        release: of the config; None without one.
        attacks: names of the attacks on membership that these are.
        tests: what they are called.
    """
    if release is None:
        return [["what they can have of the model", ""], ["how much they can ask", ""], ["who gets it", ""]]
    limit = release.rate_limit
    more = list(dict.fromkeys(name for name in attacks if asks_for_vocabulary(name)))
    had = f"{tests} had what these people will have"
    meaning = {
        "weights": (
            "Every attack above can be tried, at any number of queries, and what was given away cannot be called back."
            " Tests that ask for log-probabilities alone say too little."
        ),
        "log-probabilities": f"{had}, but for {' and '.join(more)}, which had the probabilities of all tokens."
        if more
        else f"{had}.",
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


def when_to_repeat(release: Release | None) -> list[str]:
    """When an audit no longer speaks for its model, whatever it found."""
    lines = [
        "After any further training, or any change of the texts, the defense or the base model.",
        "When stronger attacks are known: an audit is evidence against the attacks that were run.",
    ]
    if release is None or release.access != "weights":
        return [*lines, "When more people get the model, or more of it."]
    return [*lines, "Before the weights are given away: afterwards no audit can change who has them."]


def opinion_rows(
    scenarios: Sequence[Scenario], release: Release | None, *, each_person: str, documents: str
) -> list[list[str]]:
    """(paragraphs, what they ask, where the report answers) of EDPB Opinion 28/2024.

    Args:
        scenarios: every kind of attack.
        release: to whom the model will be given; None: not stated.
        each_person: what is said of each person, not on average.
        documents: where the model, data and versions stand.
    """
    by_status = {
        status: ", ".join(scenario.short for scenario in scenarios if scenario.status == status)
        for status in ("run", "run, not valid", "not run", "out of scope")
    }
    covered = "; ".join(f"{status}: {names}" for status, names in by_status.items() if names)
    extraction = next(scenario.status for scenario in scenarios if scenario.name == EXTRACTION)
    return [
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
            "documents: the model, data and versions; threat models; the risk that is left, advice and decision",
            f"{documents}; the table of tests; the lines below",
        ],
    ]


def controls(baselines: int, separating: Sequence[str]) -> str:
    """What the baselines that never saw the model said, in words."""
    if not baselines:
        return "none could be run"
    if separating:
        return f"{', '.join(separating)} of {baselines} separated the groups without the model"
    return f"{counted(baselines, 'baseline')} without the model, none of which separated the groups"
