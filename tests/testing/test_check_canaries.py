"""The checks of canary kinds pass ours and a package's, and find what is wrong with false ones."""

import itertools
import random
from dataclasses import replace
from typing import ClassVar

import pytest

from heldin.canaries.contract import NumberedCanaries, RecordStep
from heldin.canaries.kinds import CANARIES
from heldin.canaries.users import CanaryUser, made_user, public_dice
from heldin.corpus.store import texts_of
from heldin.testing.canaries import check_canaries
from heldin.words.data_steps import DataStepText

SECTIONS = [
    {"kind": "unseen_token", "users": 4, "documents": [3, 2]},
    {"kind": "unseen_token", "users": 4, "documents": [3], "signature_tokens": 3, "disjoint": True},
    {"kind": "unseen_token", "users": 4, "documents": [3], "signature_tokens": 3, "rarity": "corpus"},
    {"kind": "high_temperature", "users": 2, "documents": [2], "tokens": 8},
    {"kind": "rare_phrase", "users": 4, "documents": [3, 2]},
    {"kind": "named_person", "users": 4, "documents": [3, 2]},
    {"kind": "real_rows", "users": 4, "documents": [3, 2]},
    {"kind": "substring", "lengths": [3, 5], "users": 3},
    {"kind": "substring", "lengths": [3, 5], "documents": [None, 4], "fraction": 0.6},
]
WORDS = ("moon", "rain", "stone", "river", "leaf", "wind", "snow", "lamp", "door", "road", "bird", "sand")


class Poem(NumberedCanaries):
    """Users who write poems with a first line of their own."""

    kind: str

    def make(self, given):
        return [
            self.poet(name, documents, given.texts(documents), public_dice(given.seed, "poem", name))
            for documents, names in self.names(given.number)
            for name in names
        ]

    def poet(self, name, documents, texts, dice):
        first = self.line(dice)
        return made_user(name, self.kind, documents, first, [f"{first}\n{self.line(dice)}" for _ in range(texts)])

    def line(self, dice):
        return " ".join(dice.choice(WORDS) for _ in range(9))

    def recipes(self, given):
        return self.one_recipe(given, lambda dice: [self.line(dice) for _ in range(given.count)])


class Drops(Poem):
    def make(self, given):
        return super().make(given)[:-1]


class FewRecords(Poem):
    def make(self, given):
        return [CanaryUser(user.canary, user.records[:-1]) for user in super().make(given)]


class OtherNames(Poem):
    def make(self, given):
        return [self.poet(f"poet {i}", 2, given.texts(2), random.Random(i)) for i in range(self.count())]


class Moody(Poem):
    calls: ClassVar = itertools.count()

    def poet(self, name, documents, texts, dice):
        return super().poet(name, documents, texts, random.Random(f"{name} {next(self.calls)}"))


class SeesMembership(Poem):
    """Writes otherwise if a ledger says that the user is held in."""

    ledger: ClassVar = None

    def poet(self, name, documents, texts, dice):
        held_in = name in self.ledger.read_text(encoding="utf-8")
        return super().poet(name, documents, texts, random.Random(f"{name} {held_in} {dice.random()}"))


class SameTexts(Poem):
    def poet(self, name, documents, texts, dice):
        return made_user(name, self.kind, documents, self.line(dice), [f"text {i}" for i in range(texts)])


class Unmarked(Poem):
    def poet(self, name, documents, texts, dice):
        user = super().poet(name, documents, texts, dice)
        return replace(user, canary=replace(user.canary, mark="another line"))


class OneMark(Poem):
    def poet(self, name, documents, texts, dice):
        lines = [f"the same\n{self.line(dice)}" for _ in range(texts)]
        return made_user(name, self.kind, documents, "the same", lines)


class NoSeed(Poem):
    def make(self, given):
        return super().make(replace(given, seed=0))


class ReadsUsers(Poem):
    """Quotes real users, and does not say so."""

    def make(self, given):
        return super().make(replace(given, seed=len(texts_of(given.store, [0])[0])))


class Undeclared(Poem):
    """Quotes real users, and says that what it does is user-local."""

    reads_users: ClassVar = True

    def record_steps(self):
        return [RecordStep(DataStepText.SUBSTRING(), user_local=True)]

    def poet(self, name, documents, texts, dice):
        return super().poet(name, documents, texts, random.Random(f"{name} {self.drawn} {dice.random()}"))

    def make(self, given):
        type(self).drawn = len(given.left)
        return super().make(given)

    drawn: ClassVar = 0


class OnceMore(Poem):
    """Each user's texts follow from how many there are."""

    def poet(self, name, documents, texts, dice):
        return super().poet(name, documents, texts, random.Random(f"{name} {self.users} {dice.random()}"))


class PublicMarks(Poem):
    def recipes(self, given):
        return self.one_recipe(given, lambda dice: [self.line(random.Random(i)) for i in range(given.count)])


class FewMarks(Poem):
    def recipes(self, given):
        return self.one_recipe(given, lambda dice: [self.line(dice)])


class PlantedMarks(Poem):
    def recipes(self, given):
        marks = [canary.mark for canary in given.canaries]
        return self.one_recipe(given, lambda dice: [dice.choice(marks) for _ in range(given.count)])


@pytest.mark.parametrize("section", SECTIONS, ids=lambda its: "-".join(map(str, its.values())))
def test_our_kinds_pass(section):
    check_canaries(CANARIES.find(section["kind"]).model_validate(section))


def test_all_our_kinds_are_tried():
    assert {section["kind"] for section in SECTIONS} == set(CANARIES.ours)


def test_a_kind_of_a_package_passes(tmp_path):
    (section,) = Poem.examples("poems:Poem", tmp_path)
    check_canaries(section)


@pytest.mark.parametrize(
    ("false", "problem"),
    [
        (Drops, "make"),
        (FewRecords, "make"),
        (OtherNames, "make"),
        (ReadsUsers, "make"),
        (Moody, "determinism"),
        (SeesMembership, "files"),
        (SameTexts, "texts"),
        (Unmarked, "marks"),
        (OneMark, "marks"),
        (NoSeed, "seed"),
        (Undeclared, "user_local"),
        (OnceMore, "others"),
        (PublicMarks, "recipes"),
        (FewMarks, "recipes"),
        (PlantedMarks, "recipes"),
    ],
)
def test_a_false_kind_is_found(false, problem, tmp_path):
    SeesMembership.ledger = tmp_path / "ledger.json"
    SeesMembership.ledger.write_text("canary/made:False/0/2/00001", encoding="utf-8")
    (section,) = false.examples("made:False", tmp_path)
    with pytest.raises(AssertionError) as found:
        check_canaries(section)
    assert problem in {line.split()[1].strip(":,") for line in str(found.value).splitlines()[1:]}
