"""The check of measures passes ours and a package's, and finds what is wrong with false ones."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from heldin.base.files import text_sha256
from heldin.base.section import Facts
from heldin.record.facts import MeasuredTable
from heldin.stages.measures.extraction_measure import ExtractionOptions
from heldin.stages.measures.kinds import MEASURES
from heldin.stages.measures.marks import MarkOptions
from heldin.stages.measures.measure import Fingerprinted, Measure, MeasuredUsers, MeasureOptions
from heldin.testing.measures import check_measure


class LengthFacts(Facts):
    members: float
    non_members: float
    table: Any = None


class Lengths(MeasureOptions):
    """How long the texts of members and of non-members are."""

    flaw: ClassVar[str] = ""
    ledger: ClassVar[Any] = None

    def measure(self, subjects, models):
        return _Lengths(self, subjects, models[0])


@dataclass(frozen=True)
class _Lengths(Measure[dict[str, float]]):
    options: Lengths
    subjects: MeasuredUsers
    target: Fingerprinted

    def made_from(self):
        texts = repr(sorted(self.texts().items()))
        match self.options.flaw:
            case "one model":
                return text_sha256(texts)
            case "one corpus":
                return self.target.fingerprint
            case "restless":
                return str(random.random())
        return text_sha256(self.target.fingerprint, texts)

    def texts(self):
        canaries = self.subjects.canaries
        return {user: texts for user, texts in self.subjects.texts.whole().items() if user not in canaries}

    def compute(self, reporter):
        match self.options.flaw:
            case "moody":
                return {user: random.random() for user in self.texts()}
            case "broken":
                raise ZeroDivisionError("no texts")
            case "sees membership":
                self.options.ledger.read_text(encoding="utf-8")
        return {user: sum(len(str(text)) for text in texts) / len(texts) for user, texts in self.texts().items()}

    def columns(self, values):
        lengths = [round(value) if self.options.flaw == "rounds" else value for value in values.values()]
        return {"user": list(values), "length": lengths}

    def values(self, table):
        return dict(zip(table["user"].to_pylist(), table["length"].to_pylist(), strict=True))

    def facts(self, values, member: Mapping[str, bool]):
        sides = [[value for user, value in values.items() if member[user] is side] for side in (True, False)]
        if min(map(len, sides)) < (2 if self.options.flaw == "few" else 10) or self.options.flaw == "silent":
            return None
        means = [round(sum(side) / len(side), 2) for side in sides]
        name = max(values, key=values.__getitem__)
        table = {
            "names": {"head": ["longest"], "rows": [[name]]},
            "crooked": {"head": ["longest"], "rows": [["a", "b"]]},
        }.get(self.options.flaw, MeasuredTable(head=["members"], rows=[[str(means[0])]]))
        return LengthFacts(
            members=float("nan") if self.options.flaw == "nan" else means[0], non_members=means[1], table=table
        )


def test_all_our_measures_pass():
    ours = {"extraction": ExtractionOptions(prefix=4, suffix=4), "marks": MarkOptions()}
    assert ours.keys() == MEASURES.ours.keys()
    for name, options in ours.items():
        check_measure(options, name)


def test_a_measure_of_a_package_passes():
    check_measure(Lengths())


@pytest.mark.parametrize(
    ("flaw", "problem"),
    [
        ("broken", "compute"),
        ("moody", "determinism"),
        ("sees membership", "files"),
        ("rounds", "values"),
        ("one model", "made_from"),
        ("one corpus", "made_from"),
        ("restless", "made_from"),
        ("silent", "facts"),
        ("nan", "facts"),
        ("names", "facts"),
        ("crooked", "facts"),
        ("few", "few"),
    ],
)
def test_a_false_measure_is_found(flaw, problem, monkeypatch, tmp_path):
    monkeypatch.setattr(Lengths, "flaw", flaw)
    monkeypatch.setattr(Lengths, "ledger", tmp_path / "ledger.json")
    (tmp_path / "ledger.json").write_text("{}", encoding="utf-8")
    with pytest.raises(AssertionError) as found:
        check_measure(Lengths())
    assert problem in {line.split()[1].strip(":,") for line in str(found.value).splitlines()[1:]}
