"""Kinds by name: ours, those that packages register, and classes that are written out."""

import sys
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.kinds import Family, KindsByName, NameOfKind, OfKind, origins_in
from heldin.base.section import Count, Section
from tests.refusals import names, refused


class Pet(Section, ABC):
    kind: str

    @abstractmethod
    def says(self) -> str: ...


class Dog(Pet):
    kind: Literal["dog"] = "dog"
    barks: Count = 1

    def says(self) -> str:
        return "woof " * self.barks

    @model_validator(mode="after")
    def _not_too_loud(self):
        if self.barks > 9:
            raise ValueError("barks: more than nine wake the neighbours {really}")
        return self


PETS = Family[Pet]("pets", Pet, {"dog": f"{__name__}:Dog"})


class Home(Section):
    pet: Annotated[Pet, OfKind(PETS)]
    pets: tuple[Annotated[Pet, OfKind(PETS)], ...] = ()
    gone: tuple[Annotated[str, NameOfKind(PETS)], ...] = ()
    beds: dict[Annotated[str, NameOfKind(PETS)], int] = Field(default_factory=dict)
    neighbour: "Home | None" = None


class Named(Section, ABC):
    @abstractmethod
    def says(self) -> str: ...


class Poodle(Named):
    barks: Count = 1

    def says(self) -> str:
        return "woof " * self.barks


PETS_BY_NAME = Family[Named]("by name", Named, {"poodle": f"{__name__}:Poodle"})
KENNEL = """
from tests.base.test_kinds import Named

class Wolf(Named):
    howls: int = 1
    def says(self): return ""
"""
CAT = """
from tests.base.test_kinds import Pet
from pydantic import Field

class Cat(Pet):
    purrs: int = Field(1, ge=1)
    def says(self): return "meow"

class Stone(Pet):
    pass

class Plant:
    pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that installs a package: a module, and the names under which it registers classes."""

    def install(name, code, entries=(), version="2.1"):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        about = tmp_path / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (about / "RECORD").write_text(f"{name}.py,,\n", encoding="utf-8")
        lines = "".join(f"{key} = {target}\n" for key, target in entries)
        (about / "entry_points.txt").write_text(f"[heldin.pets]\n{lines}", encoding="utf-8")
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)] if str(tmp_path) not in sys.path else sys.path[:])
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "path_importer_cache", {})
        return name

    return install


def test_a_kind_of_ours_is_found_by_its_name_and_keeps_it():
    home = checked(Home, {"pet": {"kind": "dog", "barks": 2}, "pets": [{"kind": "dog"}]}, "home.yaml")
    assert (home.pet.says(), home.pets) == ("woof woof ", (Dog(),))
    dumped = home.model_dump()
    assert (dumped["pet"], dumped["pets"]) == ({"kind": "dog", "barks": 2}, ({"kind": "dog", "barks": 1},))
    assert Home.model_validate_json(home.model_dump_json()) == home
    assert PETS.origin("dog") is None
    assert origins_in(home) == []


@pytest.mark.parametrize("name", ["cat", "strangers:Cat"])
def test_a_kind_of_a_package_is_found_by_its_name_and_written_out(package, name):
    package("strangers", CAT, [("cat", "strangers:Cat")])
    home = checked(Home, {"pet": {"kind": name, "purrs": 3}}, "home.yaml")
    assert (home.pet.says(), home.pet.purrs, home.model_dump()["pet"]["kind"]) == ("meow", 3, name)
    origin = PETS.origin(name)
    assert (origin.package, origin.version, len(origin.sha256)) == ("strangers", "2.1", 64)
    assert Home.model_validate(home.model_dump()) == home
    assert origins_in(home) == [origin]


def test_every_place_of_a_config_is_looked_at_for_kinds_of_packages(package):
    package("strangers", CAT, [("cat", "strangers:Cat")])
    package("others", CAT, [("tom", "others:Cat")])
    dog, cat = {"kind": "dog"}, {"kind": "cat"}
    places = [
        {"pet": cat},
        {"pet": dog, "pets": [dog, cat, cat]},
        {"pet": dog, "gone": ["dog", "cat"]},
        {"pet": dog, "beds": {"dog": 1, "cat": 2}},
        {"pet": dog, "neighbour": {"pet": dog, "pets": [cat]}},
    ]
    for content in places:
        assert [origin.package for origin in origins_in(checked(Home, content, ""))] == ["strangers"]
    both = checked(Home, {"pet": {"kind": "tom"}, "pets": [cat]}, "")
    assert [(origin.kind, origin.package) for origin in origins_in(both)] == [("tom", "others"), ("cat", "strangers")]


class Zoo(Section):
    pets: Annotated[dict[str, Named], KindsByName(PETS_BY_NAME)] = Field({})


def test_a_kind_may_be_the_key_of_its_section(package):
    package("strangers", KENNEL)
    zoo = checked(Zoo, {"pets": {"poodle": {"barks": 2}, "strangers:Wolf": {}}}, "zoo.yaml")
    assert [(name, pet.says()) for name, pet in zoo.pets.items()] == [("poodle", "woof woof "), ("strangers:Wolf", "")]
    assert Zoo.model_validate(zoo.model_dump()) == zoo
    assert Zoo.model_validate({"pets": {"poodle": None}}).pets == {}
    assert [(origin.family, origin.kind) for origin in origins_in(zoo)] == [("by name", "strangers:Wolf")]
    properties = Zoo.model_json_schema()["properties"]["pets"]["properties"]
    assert properties.keys() == {"poodle"}


@pytest.mark.parametrize(
    ("pets", "place", "data"),
    [
        ({"podle": {}}, "pets.podle", "'poodle'"),
        ({"poodle": {"barks": 0}}, "pets.poodle.barks", 0),
        ({"poodle": 3}, "pets.poodle", 3),
        ({"strangers:Wolf": {"howl": 1}}, "pets.strangers:Wolf.howl", "'howls'"),
        ({"strangers:Cat": {}}, "pets.strangers:Cat", "AttributeError"),
        ([], "pets", "[]"),
    ],
)
def test_a_mistake_below_a_name_is_one_line_in_its_place(package, pets, place, data):
    package("strangers", KENNEL)
    with pytest.raises(InputError) as caught:
        checked(Zoo, {"pets": pets}, "zoo.yaml")
    (line,) = str(caught.value).splitlines()[1:]
    assert (line.split(": ")[0].strip(), names(line, data)) == (place, True)


def test_what_is_not_named_is_not_imported(package):
    package("explosive", "raise SystemError('imported')", [("bomb", "explosive:Bomb")])
    assert checked(Home, {"pet": {"kind": "dog"}}, "home.yaml").pet == Dog()
    assert [(entry.name, entry.package) for entry in PETS.registered()] == [("bomb", "explosive")]
    assert PETS.names() == ["dog", "bomb"]
    with refused(naming=("home.yaml", "'bomb'", "SystemError")):
        checked(Home, {"pet": {"kind": "bomb"}}, "home.yaml")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"kind": "dgo"}, ("pet.kind", "'dgo'", "'dog'")),
        ({"kind": 3}, ("pet.kind", "'3'", "dog")),
        ({"barks": 3}, ("pet.kind", "dog")),
        ("dog", ("pet: ", "'dog'")),
        ({"kind": "dog", "bark": 3}, ("pet.bark: ", "'barks'")),
        ({"kind": "dog", "barks": "x"}, ("pet.barks: ", "'x'")),
        ({"kind": "dog", "barks": 10}, ("pet: ", "{really}")),
        ({"kind": "nowhere.at_all:Cat"}, ("pet: ", "'nowhere.at_all:Cat'", "ModuleNotFoundError")),
        ({"kind": "strangers:Dog"}, ("pet: ", "'strangers:Dog'", "AttributeError")),
        ({"kind": "strangers:Plant"}, ("pet: ", "'strangers:Plant'", "tests.base.test_kinds.Pet")),
        ({"kind": "strangers:Stone"}, ("pet: ", "'strangers:Stone'", "says")),
        ({"kind": "strangers:Cat", "purrs": 0}, ("pet.purrs: ", "1")),
        ({"kind": "strangers:Cat", "pur": 1}, ("pet.pur: ", "'purrs'")),
        ({"kind": "strangers:Cat", "wheels": 1}, ("pet.wheels: ", "kind, purrs")),
        ({"kind": "dog", "wheels": 1}, ("pet.wheels: ", "kind, barks")),
    ],
)
def test_a_mistake_is_one_line_in_its_place(package, content, problem):
    package("strangers", CAT)
    with refused(by="checked", naming=("home.yaml: 1 error", *problem)):
        checked(Home, {"pet": content}, "home.yaml")


def test_a_name_that_two_register_is_refused(package):
    package("strangers", CAT, [("cat", "strangers:Cat"), ("dog", "strangers:Cat")])
    package("others", CAT, [("cat", "others:Cat")])
    with refused(by="Family._target", naming=("'cat'", "others", "strangers")):
        PETS.find("cat")
    # Ours stay ours, whatever is installed.
    assert (PETS.find("dog"), PETS.origin("dog")) == (Dog, None)
    assert (PETS.clash("dog"), PETS.clash("cat")) == (["heldin", "strangers"], ["others", "strangers"])


def test_a_hash_is_of_all_modules_of_a_distribution(package, tmp_path):
    package("strangers", CAT)
    (tmp_path / "helpers.py").write_text("SIGN = 1\n", encoding="utf-8")
    with (tmp_path / "strangers-2.1.dist-info" / "RECORD").open("a", encoding="utf-8") as record:
        record.write("helpers.py,,\n")
    before = PETS.origin("strangers:Cat").sha256
    (tmp_path / "helpers.py").write_text("SIGN = -1\n", encoding="utf-8")
    assert PETS.origin("strangers:Cat").sha256 != before


def test_other_code_has_another_hash(package, tmp_path):
    package("strangers", CAT)
    before = PETS.origin("strangers:Cat").sha256
    (tmp_path / "strangers.py").write_text(CAT + "\n# changed\n", encoding="utf-8")
    assert PETS.origin("strangers:Cat").sha256 != before
