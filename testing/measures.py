"""Checks of a measure."""

import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from heldin.attacks.scoring import AttackTexts
from heldin.base.artefacts import read_table, write_table
from heldin.base.files import text_sha256
from heldin.base.progress import SilentReporter
from heldin.base.section import Facts
from heldin.canaries.rare_phrase import RarePhraseCanaries, phrases, rare_phrase_users
from heldin.canaries.users import public_dice
from heldin.corpus.document import Document
from heldin.record.facts import MeasuredTable
from heldin.stages.measures.asked import AskedMeasure, is_finite
from heldin.stages.measures.measure import Measure, MeasuredUsers, MeasureOptions
from heldin.testing.problems import require, tried, watched_files
from heldin.testing.worlds import CONTEXT, mails, tiny_model

_TEXTS = 4  # of each user
_CANARIES = 24
_FEW = 6  # users: three of each group
_CACHE = "HELDIN_CACHE_DIR"


def check_measure(options: MeasureOptions, name: str = "measure under test") -> None:
    """Check that a measure gives the same values each time, keeps its table, and reveals nothing about single people.

    The values follow from models, texts and options. The values are the same each time, and need no file except
    heldin's stored scores. ``made_from`` changes with the audited model and with a text. A table that is written and
    read again gives the same values and facts. The facts are finite, fit into JSON, and contain no user name and no
    text. For groups of three people, only counts may depend on membership, because any other number would be about
    three people. If the facts have a ``table``, a report can print it.

    A measure receives no membership while it computes values. Its facts receive membership after all values are
    computed.

    Args:
        options: options with the settings to test. Use windows of a few tokens, because the models read 64.
        name: name of the measure in messages.

    Raises:
        AssertionError: lists all faults.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {_CACHE: folder}):
        measure = tried(lambda: _measure(options, _subjects()), "measure", problems)
        if measure is not None:
            values = tried(lambda: measure.compute(SilentReporter()), "compute", problems)
            if not problems:
                problems += _computed_again(measure, values, Path(folder))
                problems += _made_from(options, measure)
                problems += _facts(measure, values)
                problems += _nobody_alone(options)
    require(problems, name)


@dataclass(frozen=True)
class _Renamed:
    """A model with the same weights under another fingerprint."""

    fingerprint: str


def _measure(options: MeasureOptions, subjects: MeasuredUsers, target: Any = None) -> Measure[Any]:
    options.check(subjects, tiny_model(0))
    return AskedMeasure(options.measure(subjects, (target or tiny_model(0), tiny_model(1))), "measure under test")


@functools.cache
def _subjects(users: int | None = None, changed: str = "") -> MeasuredUsers:
    """Return users with made-up mails, and canary users."""
    texts: dict[str, list[Document]] = {}
    for mail in mails():
        texts.setdefault(mail.user, []).append(Document.of(mail.text + changed))
    texts = {user: own[:_TEXTS] for user, own in sorted(texts.items())[:users]}
    made = rare_phrase_users(
        [f"canary/{i}" for i in range(_CANARIES)], documents=_TEXTS, records=_TEXTS, phrase_words=3, seed=0
    )
    canaries = {user.canary.user: user.canary for user in made}
    texts |= {user.canary.user: [record.document for record in user.records] for user in made}
    training = [({user}, document.text) for user, own in texts.items() for document in own]
    drawn = phrases(RarePhraseCanaries(users=1).phrase_words, 100, public_dice(0, "marks", ""))
    return MeasuredUsers(
        AttackTexts(texts, 2000),
        lambda limit: {user: own[:limit] for user, own in texts.items()},
        b"key",
        CONTEXT,
        lambda: training,
        lambda: [mail.text for mail in mails(seed=2, users=4)],
        canaries,
        lambda: {"rare phrases": (list(canaries), drawn)},
        ("rare phrases",),
    )


def _member(subjects: MeasuredUsers, shift: int = 0) -> dict[str, bool]:
    """Return membership. Every second user is a member, beginning with the first or second; canary users never
    change."""
    real = [user for user in subjects.texts.texts if user not in subjects.canaries]
    member = {user: (i + shift) % 2 == 0 for i, user in enumerate(real)}
    return member | {user: i % 2 == 0 for i, user in enumerate(subjects.canaries)}


def _computed_again(measure: Measure[Any], values: Any, folder: Path) -> list[str]:
    problems: list[str] = []
    with watched_files() as opened:
        again = tried(lambda: measure.compute(SilentReporter()), "compute, again", problems)
    if others := [name for name in opened if not name.startswith(str(folder))]:
        problems.append(f"files: it reads '{others[0]}', but may use only its arguments")
    columns = tried(lambda: _columns(measure, values), "columns", problems)
    if problems:
        return problems
    if _columns(measure, again) != columns:
        problems.append("determinism: it computes other values the second time")
    path = folder / "table.parquet"
    tried(lambda: write_table(measure.columns(values), path, made_from="here"), "columns", problems)
    table = tried(lambda: read_table(path, made_from="here", say=lambda line: None), "columns", problems)
    kept = None if table is None else tried(lambda: _kept(measure, measure.values(table)), "values", problems)
    if not problems and kept != _kept(measure, values):
        problems.append("values: the values read from its table differ from the computed values")
    return problems


def _kept(measure: Measure[Any], values: Any) -> tuple[str, Facts | None]:
    """Return the table of values, and the facts that follow from the values."""
    return _columns(measure, values), measure.facts(values, _member(_subjects()))


def _columns(measure: Measure[Any], values: Any) -> str:
    """Return the columns as text, in which "not a number" equals itself."""
    return repr(pa.table(dict(measure.columns(values))).to_pydict())


def _made_from(options: MeasureOptions, measure: Measure[Any]) -> list[str]:
    problems: list[str] = []
    hashed = tried(measure.made_from, "made_from", problems)
    again = tried(lambda: _measure(options, _subjects()).made_from(), "made_from", problems)
    if hashed != again:
        problems.append("made_from: it differs for the same models, texts and options")
    other = _Renamed(text_sha256("other weights"))
    if tried(lambda: _measure(options, _subjects(), other).made_from(), "made_from", problems) == hashed:
        problems.append(
            "made_from: it is the same for another audited model, so that model's values would be taken for these"
        )
    changed = replace(_subjects(changed=" P.S."), marks_from=("other phrases",))
    if tried(lambda: _measure(options, changed).made_from(), "made_from", problems) == hashed:
        problems.append("made_from: it is the same for other texts, so their values would be taken for these")
    return problems


def _facts(measure: Measure[Any], values: Any) -> list[str]:
    problems: list[str] = []
    subjects = _subjects()
    facts = tried(lambda: measure.facts(values, _member(subjects)), "facts", problems)
    if facts is None:
        return problems or ["facts: there are none about twelve members and twelve non-members"]
    content = tried(lambda: facts.model_dump(mode="json"), "facts", problems)
    if content is None:
        return problems
    if not is_finite(content):
        problems.append("facts: a number is not finite")
    text = json.dumps(content, default=repr)
    people = {mail.user: mail.text for mail in mails()}
    if any(user in text for user in people) or any(json.dumps(mail)[1:-1] in text for mail in people.values()):
        problems.append("facts: they contain a user's name or text, but many people read a record")
    if "table" in content and isinstance(content["table"], Mapping):
        tried(functools.partial(MeasuredTable.model_validate, content["table"]), "facts, table", problems)
    return problems


def _nobody_alone(options: MeasureOptions) -> list[str]:
    problems: list[str] = []
    subjects = _subjects(users=_FEW)
    measure = _measure(options, subjects)
    values = tried(lambda: measure.compute(SilentReporter()), "compute, on few users", problems)

    def means(shift: int) -> list[float]:
        facts = measure.facts(values, _member(subjects, shift))
        return [] if facts is None else list(_no_counts(facts.model_dump(mode="json")))

    first, second = (tried(functools.partial(means, shift), "facts, on few users", problems) for shift in (0, 1))
    if not problems and first != second:
        problems.append(
            "few: a number about three members depends on who these are. Make groups of at least ten people"
        )
    return problems


def _no_counts(content: Any) -> Iterator[float]:
    """Yield the numbers in nested lists and mappings that are not integers."""
    if isinstance(content, float):
        yield content
    elif isinstance(content, Mapping | list):
        for part in content.values() if isinstance(content, Mapping) else content:
            yield from _no_counts(part)
