"""The checks of each family of kinds, and their stored results for the kinds of installed packages."""

import importlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import cache_root, strict_json, text_sha256, write_text
from heldin.base.kinds import Family, Origin
from heldin.base.machine import version
from heldin.stages.families import FAMILIES, family

# Checks of one class, or of one section that a class makes.
_OF_CLASSES = {"attacks": "heldin.testing.attacks:check_attack"}
_OF_SECTIONS = {
    "sources": "heldin.testing.sources:check_source",
    "defenses": "heldin.testing.defenses:check_defense",
    "mechanisms": "heldin.testing.mechanisms:check_mechanism",
    "canaries": "heldin.testing.canaries:check_canaries",
    "measures": "heldin.testing.measures:check_measure",
}

# What every section of a family has to be given, where its class gives no examples.
_SETTINGS: dict[str, dict[str, Any]] = {
    "mechanisms": {"population": 60, "steps": 5, "delta": 1e-3},
    "canaries": {"users": 4, "documents": (3, 2)},
}


@dataclass(frozen=True)
class Plugin:
    """A kind that an installed package registers, and the result of its suite.

    Attributes:
        family: name of the family.
        name: name of the kind in configs.
        target: import path, such as "package.module:Class".
        package: distribution that registers the kind.
        version: version of the distribution.
        suite: result for the installed code with this version of heldin: "passed", "failed" or "not run".
        problems: faults, one line each.
    """

    family: str
    name: str
    target: str
    package: str
    version: str
    suite: str
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return {**vars(self), "problems": list(self.problems)}


def installed() -> list[Plugin]:
    """Return the kinds of installed packages, with the last result of each suite. Imports no package."""
    return [
        Plugin(name, entry.name, entry.target, entry.package, entry.version, *_kept(name, entry.name, entry.target))
        for name in FAMILIES
        for entry in family(name).registered()
    ]


def checked(name: str) -> Plugin:
    """Import the kind with this name, run its suite, and store the result in the cache.

    Args:
        name: registered name of the kind; "FAMILY:NAME" if two families have this name.

    Raises:
        InputError: no installed package registers the kind.
    """
    wanted, _, alone = name.rpartition(":")
    matching = [plugin for plugin in installed() if plugin.name == alone and wanted in ("", plugin.family)]
    if len(matching) != 1:
        named = [f"{plugin.family}:{plugin.name}" for plugin in matching or installed()]
        wrong = "registered twice" if matching else "no kind of an installed package"
        raise InputError(f"'{name}' is {wrong}: choose from {', '.join(named) or 'none'}")
    (plugin,) = matching
    of_family = family(plugin.family)
    try:
        origin = of_family.origin(plugin.name)
        problems = run_suite(of_family, plugin.name)
    except InputError as error:  # it cannot be imported, or another package has its name
        return Plugin(**{**vars(plugin), "suite": "failed", "problems": (str(error),)})
    assert origin is not None
    path = _path(plugin.family, plugin.name, plugin.target)
    write_text(path, strict_json({"origin": origin.model_dump(), "heldin": version(), "problems": problems}) + "\n")
    return Plugin(**{**vars(plugin), "suite": "failed" if problems else "passed", "problems": tuple(problems)})


def run_suite(of_family: Family[Any], name: str) -> list[str]:
    """Run the checks of a family on one of its kinds. Return one line per problem."""
    kind_class = of_family.find(name)
    try:
        if of_family.name in _OF_CLASSES:
            check = _check(_OF_CLASSES[of_family.name])
            check(kind_class, name)
        else:
            _check_sections(of_family, kind_class, name)
    except AssertionError as error:
        return [line.removeprefix("  - ") for line in str(error).splitlines()[1:]] or [str(error)]
    return []


def _check_sections(of_family: Family[Any], kind_class: Any, name: str) -> None:
    check = _check(_OF_SECTIONS[of_family.name])
    with tempfile.TemporaryDirectory() as folder:
        sections = examples_of(of_family.name, kind_class, name, Path(folder))
        if of_family.name == "sources" and len(sections) > 1:  # of other contents, by which a fingerprint is held
            check(*sections[:2])
        for section in sections:
            check(section)


def examples_of(of_family: str, kind_class: Any, name: str, folder: Path) -> list[Any]:
    """Return sections for testing a class: the result of ``examples(kind, folder)``, or else one section with
    defaults."""
    if (examples := getattr(kind_class, "examples", None)) is not None:
        return list(examples(name, folder))
    try:
        settings = {"kind": name, **_SETTINGS.get(of_family, {})}
        accepted = {key: value for key, value in settings.items() if key in kind_class.model_fields}
        return [kind_class.model_validate(accepted)]
    except ValueError as error:
        raise AssertionError(
            f"{name}:\n  - some keys have no default: add a class method examples(kind, folder) that returns sections"
            " to test"
        ) from error


def _check(target: str) -> Callable[..., None]:
    module, _, name = target.partition(":")
    check: Callable[..., None] = getattr(importlib.import_module(module), name)
    return check


def _path(of_family: str, name: str, target: str) -> Path:
    return cache_root() / "plugins" / f"{text_sha256(of_family, name, target)[:32]}.json"


def _clash(packages: Sequence[str], target: str) -> str:
    if "heldin" in packages:
        return (
            "heldin has a kind with its name, and configs use that kind. Rename it in the package; until"
            f" then write '{target}'"
        )
    return (
        f"several packages register its name: {' and '.join(packages)}. Uninstall one, or write '{target}' in configs"
    )


def _kept(of_family: str, name: str, target: str) -> tuple[str, tuple[str, ...]]:
    """Return the last result. A result for other code, or from another version of heldin, becomes "not run"."""
    if clash := family(of_family).clash(name):
        return "failed", (_clash(clash, target),)
    try:
        kept = json.loads(_path(of_family, name, target).read_text(encoding="utf-8"))
        same = kept["heldin"] == version() and Origin(**kept["origin"]) == family(of_family).origin(name)
        return ("failed" if kept["problems"] else "passed", tuple(kept["problems"])) if same else ("not run", ())
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return "not run", ()
