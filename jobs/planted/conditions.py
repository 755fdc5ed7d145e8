"""The conditions of a certified audit of somebody else's training, each with how it is known."""

from collections.abc import Sequence
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.bounds.claims import parse_claim_of
from heldin.jobs.planted.folder import TRAINING, Manifest
from heldin.jobs.planted.looks import Look, looks_that_saw_a_change
from heldin.jobs.planted.training_log import SeenRows, TrainingLog
from heldin.jobs.planted.training_set import content_sha256
from heldin.record.facts import LARGEST_DRIFT, EndpointFacts
from heldin.record.planted import UNDECLARED, Condition

_TRAINED = (
    "the model was trained on every row of the planted training set, and on no other text of its users or of those held"
    " out, by people and programs that knew nothing of who was held in but these rows"
)
_GIVEN = "the model was trained on every row of the planted training set, and its trainer was given no other"
_ELSE = (
    "nothing else in its training was text of these users, and the people and programs that trained it knew nothing of"
    " who was held in but these rows"
)
_STARTED = "what it was trained from, and the reference model, had not seen these users' texts"
_UNCHANGED = "the training set is as it was written"
_CHANGED = "was changed: its hash was"
_EXAMPLES = "each row was one training example: not split into several, not packed with others, not written twice"
_SERVED = "what answered at the endpoint was this model alone"
_EARLIER = "nothing that an earlier look found had a part in this training"


def conditions_of(
    planted: Path,
    manifest: Manifest,
    look: Look,
    declared_by: str | None,
    log: TrainingLog | None = None,
    served: EndpointFacts | None = None,
) -> list[Condition]:
    """Every condition (docs/theory.md#conditions-of-one-run), as far as a folder, a log and a signature can show it.

    Args:
        planted: the folder that ``heldin plant`` wrote, which was read and drawn again.
        manifest: what it says.
        look: the number of this look.
        declared_by: who declares what heldin cannot see; None: nobody.
        log: what ``AuditCallback`` wrote of the training that the audited model comes from; None: nothing.
        served: how the model was reached behind an endpoint; None: it was loaded here.
    """
    of_examples = any(parse_claim_of(text).unit == "example" for text in look.claims)
    return [
        Condition(
            condition="each audited user and canary user was held in by an independent fair coin under a fresh key",
            known_by="checked",
            note="drawn again under the key, they are those that the manifest commits to; a copied key is not seen",
        ),
        Condition(
            condition="attacks, references, thresholds, canary users and who is audited were fixed before the coins",
            known_by="checked",
            note=f"plan and models have the hashes that were kept before they were drawn, {manifest.plan[:16]}",
        ),
        Condition(
            condition="scores were made without looking at the coins",
            known_by="checked",
            note="the attack is given users and texts; this look was noted before they met the coins",
        ),
        _unchanged(planted, manifest, look, declared_by),
        *_trained(manifest, declared_by, log),
        _declared(_STARTED, declared_by),
        *([_one_example(declared_by, log)] if of_examples else []),
        *([_answered(served, declared_by)] if served else []),
        *([_declared(_EARLIER, declared_by)] if look.number > 1 else []),
        Condition(
            condition="no more looks were taken than were paid for beforehand",
            known_by="checked" if look.number <= manifest.looks else "not met",
            note=f"look {look.number} of {manifest.looks}"
            + (", models told apart by a public text's score" if served else ""),
        ),
    ]


def found_changed(conditions: Sequence[Condition]) -> bool:
    """Whether the training set was there and is not as it was written; one that is gone is not known to be."""
    return any(its.condition == _UNCHANGED and _CHANGED in its.note for its in conditions)


def as_seen(before: Sequence[Condition], now: Sequence[Condition]) -> list[Condition]:
    """The conditions now, with what an audit saw of a training set that has since been moved away."""
    seen = {its.condition: its for its in before if its.condition == _UNCHANGED and its.known_by != "declared"}
    return [seen.get(its.condition, its) if "not here any more" in its.note else its for its in now]


def rests_on_log(conditions: Sequence[Condition]) -> bool:
    """Whether the log of a training was at hand."""
    return any(its.condition == _GIVEN for its in conditions)


def _unchanged(planted: Path, manifest: Manifest, look: Look, declared_by: str | None) -> Condition:
    what = _UNCHANGED
    path = planted / TRAINING / manifest.file
    short = manifest.sha256[:16]
    if not path.exists():
        if earlier := [number for number in looks_that_saw_a_change(planted) if number <= look.number]:
            saw = f"it is not here any more, and look {min(earlier)} found it changed: its hash was {short}"
            return Condition(condition=what, known_by="not met", note=saw)
        # What the model was trained on is declared by its hash all the same.
        its = _declared(what, declared_by)
        return its.model_copy(update={"note": f"{its.note}: it is not here any more, and its hash was {short}"})
    try:
        same = content_sha256(path) == manifest.sha256
    except InputError:  # a part of a folder is missing
        same = False
    if not same:
        return Condition(condition=what, known_by="not met", note=f"'{path.name}' {_CHANGED} {short}")
    return Condition(condition=what, known_by="checked", note=f"its hash is {short}")


def _trained(manifest: Manifest, declared_by: str | None, log: TrainingLog | None) -> list[Condition]:
    """What the model was trained on: declared, or what the log of its training shows and declared for the rest."""
    if log is None:
        return [_declared(_TRAINED, declared_by)]
    seen, epochs = log.seen, log.weights[-1].epochs
    if log.training_set != manifest.sha256:
        note = "by the log of its training, it was trained on another training set"
        return [Condition(condition=_GIVEN, known_by="not met", note=note), _declared(_ELSE, declared_by)]
    if seen is None or not seen.recognised or seen.unclear or (seen.missing and seen.foreign and not _most(seen)):
        # Cut, packed or written otherwise, or trained on other texts: the log does not tell which.
        return [_declared(_TRAINED, declared_by, f"; {_unknown(log)}")]
    wrong = []
    if seen.missing:
        wrong.append(f"without {seen.missing:,} of {counted(seen.rows, 'row')}")
    if seen.foreign:
        wrong.append(f"with {counted(seen.foreign, 'example')} that are none of its rows")
    if log.silent:
        wrong.append(f"without loss on {log.silent:,} of the first examples")
    if epochs < 1:
        wrong.append(f"for {epochs:.2g} epochs, so that not every row was read")
    found = (
        f"by the log of its training: {counted(seen.examples, 'example')} with {counted(seen.rows, 'row')},"
        f" {epochs:.3g} epochs"
    )
    if seen.cut:
        found += f", {seen.cut:,} of them cut at {seen.longest:,} tokens"
    if seen.repeated:
        found += f", rows repeated {seen.repeated:,} times"
    note = f"by the log of its training, it was trained {'; '.join(wrong)}" if wrong else found
    given = Condition(condition=_GIVEN, known_by="not met" if wrong else "checked", note=note)
    return [given, _declared(_ELSE, declared_by)]


def _most(seen: SeenRows) -> bool:
    """Whether most rows are examples as they are, so that the others are not merely written otherwise."""
    return 2 * seen.missing <= seen.rows


def _unknown(log: TrainingLog) -> str:
    """What the log does not tell, in words."""
    seen = log.seen
    if seen is None:
        return f"the log of its training says nothing of it: {log.unseen}"
    if not seen.recognised:
        return f"by the log of its training none of {counted(seen.examples, 'example')} has the tokens of a row"
    if seen.unclear:
        return f"by the log of its training {counted(seen.unclear, 'example')} may be the beginnings of several texts"
    return (
        f"by the log of its training {seen.missing:,} of {counted(seen.rows, 'row')} are no example as a whole, and"
        f" {counted(seen.foreign, 'example')} are no row"
    )


def _one_example(declared_by: str | None, log: TrainingLog | None) -> Condition:
    if log is None:
        return _declared(_EXAMPLES, declared_by)
    seen = log.seen
    if seen is None or not seen.recognised or seen.unclear:
        return _declared(_EXAMPLES, declared_by, f"; {_unknown(log)}")
    wrong = [
        words
        for count, words in (
            (seen.packed or not log.apart, "examples stand together in sequences"),
            (seen.repeated, "rows stand there again"),
            (seen.foreign, "examples are no row as a whole"),
        )
        if count
    ]
    if wrong:
        return Condition(
            condition=_EXAMPLES, known_by="not met", note=f"by the log of its training, {' and '.join(wrong)}"
        )
    return Condition(condition=_EXAMPLES, known_by="checked", note="by the log of its training")


def _answered(served: EndpointFacts, declared_by: str | None) -> Condition:
    if served.drift > LARGEST_DRIFT:
        moved = f"a public text's score moved by {served.drift:.2g} nats a token while it was audited"
        return Condition(condition=_SERVED, known_by="not met", note=moved)
    return _declared(_SERVED, declared_by)


def _declared(what: str, by: str | None, added: str = "") -> Condition:
    if by is None:
        return Condition(condition=what, known_by="not met", note=f"{UNDECLARED}{added}")
    return Condition(condition=what, known_by="declared", note=f"by {by}{added}")
