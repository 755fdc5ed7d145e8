"""Unit, delta and neighbouring data sets of a promise in plain words, and when two epsilons may be compared.

NIST SP 800-226 (figures 4 and 5) warns that equal epsilons of other units or deltas do not compare.
"""

from dataclasses import dataclass

from heldin.base.wording import counted
from heldin.record.document import Record
from heldin.reports.wording import audited_by, sentence
from heldin.words import Statement
from heldin.words.evidence import delta_of
from heldin.words.guarantee import relation_of

_NEIGHBOURS = {
    "add_remove": (
        "Two training sets count as neighbours if one has everything of one more {unit} than the other (add/remove).",
        "Epsilon and delta limit how far a model trained on the one may differ from one trained on the other.",
        "Exchanging one for another is two such steps: do not compare with an epsilon for exchange.",
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


_FOUND_BY = {
    "patterns": "what Presidio's patterns find ({which}), and names of people are none of them",
    "words": "the names of a list, where they stand as they are listed",
    "spacy": "what a spaCy pipeline takes for one",
    "gold": "what the last column of the CoNLL file marks",
}


@dataclass(frozen=True)
class Promised:
    """A promise, as a record or a sweep has it.

    Attributes:
        guarantee: with its conditions; None if a sweep has none.
        unit: whom it protects: user, example, user_entity or none.
        protected: the same in a word or two.
        epsilon: of the guarantee; None without one.
        delta: of the guarantee.
        users: number of users trained on; None: not known.
    """

    guarantee: Statement | None
    unit: str
    protected: str
    epsilon: float | None
    delta: float | None
    users: int | None


def promise_pairs(record: Record) -> list[list[str]]:
    """(term, up to three sentences) of unit, delta and neighbours."""
    t, unit = record.training, audited_by(record).one
    if t is None:
        return [
            ["unit", f"Not known: the model was trained elsewhere. The audit counts by {unit}."],
            ["delta", _delta_of_bounds(record)],
            ["neighbours", "Not known: a promise would have to say which training sets count as neighbours."],
        ]
    first, *others = in_words(Promised(t.promise, t.unit, t.protected, t.epsilon, t.delta, t.users), unit)
    return [[first[0], first[1] + _entities(record)], *others]


def _entities(record: Record) -> str:
    """What an entity is to a promise that names entities; nothing for the others."""
    source = record.config.get("defense", {}).get("entities") or {}
    recognised = _FOUND_BY.get(source.get("kind", ""))
    if recognised is None or record.training is None or record.training.unit != "user_entity":
        return ""
    return f" An entity here is {recognised.format(which=', '.join(source.get('which', ())).replace('_', ' '))}."


def _delta_of_bounds(record: Record) -> str:
    labels = dict.fromkeys(verdict.claim for verdict in record.judgement.verdicts)
    claims = [str(label) for label in labels if delta_of(label) == record.judgement.delta]
    source = "chosen for the audit" if not claims else f"as it was claimed: {', '.join(claims)}"
    return f"That of the bounds in this report is {record.judgement.delta:g}, {source}."


def in_words(promise: Promised, unit: str) -> list[list[str]]:
    """(term, up to three sentences) of unit, delta and neighbours; ``one`` is whom the audit counts by."""
    if promise.epsilon is None or promise.delta is None:
        nothing = "There is none: it belongs to a promise."
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
            return f"The unit is a user. Whatever one user wrote is protected as a whole, however much it is. {same}"
        case "example":
            return (
                "The unit is one record, not a person. Of somebody with several records each is protected, and all of"
                f" them together less. {same}"
            )
        case _:
            if promise.protected == "user and entity":
                unit, others = "one user together with one entity", "a user alone and an entity alone have their own"
            else:
                unit, others = f"a {promise.protected}", "whoever has more or fewer has another"
            return f"The unit is {unit}: epsilon {promise.epsilon:.3g} is for that, and {others} (facts). {same}"


def _delta(promise: Promised) -> str:
    assert promise.delta is not None
    times = ""
    if promise.users is not None:
        times = (
            f" Times the {counted(promise.users, 'user')} trained on it is {promise.delta * promise.users:.2g}, and"
            " should be far below 1."
        )
    return (
        f"delta is {promise.delta:g}: by that much the probability of an outcome may exceed what epsilon allows.{times}"
        " An epsilon at a larger delta looks smaller: compare only at the same delta."
    )


def _neighbours(promise: Promised) -> str:
    key = None if promise.guarantee is None else relation_of(promise.guarantee)
    if key is None:
        return (
            "Two training sets count as neighbours as the guarantee says (facts). Compare only with an epsilon for the"
            " same relation."
        )
    unit = {"user": "user", "example": "record"}.get(promise.unit, promise.protected)
    return " ".join(_NEIGHBOURS[key]).format(unit=unit)
