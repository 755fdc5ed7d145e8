"""Families of kinds: the class for each name in a config.

A kind is heldin's own, or an installed package registers it (as an entry point in the family's group), or the config
gives the full name "package.module:Class". Python imports only the kind that a config names, and the import runs the
kind's code.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from heldin.base.config_errors import unknown_key
from heldin.base.errors import InputError, ResumableError
from heldin.base.section import Facts
from heldin.base.wording import with_version

KindClass = TypeVar("KindClass")
KIND_FORMAT = "kind"  # of a string in a JSON schema: a name that a package registers, or one that is written out
FAMILY = "x-family"  # of a node of a JSON schema: the family whose kinds stand there
_WRITTEN_OUT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Origin(Facts):
    """The package that a kind comes from.

    Attributes:
        family: the family's name.
        kind: name of the kind in the config.
        package: name of the distribution; the top-level module if no distribution has it.
        version: version of the distribution; None for modules that were not installed.
        sha256: hash of all Python files in the distribution's top-level modules, with their names.
    """

    family: str
    kind: str
    package: str
    version: str | None
    sha256: str

    @property
    def code(self) -> str:
        """Package, version and the beginning of the hash, as text."""
        return f"{with_version(self.package, self.version)} (code {self.sha256[:16]})"


@dataclass(frozen=True)
class Registered:
    """A kind that an installed package registers.

    Attributes:
        name: name of the kind in a config.
        target: the class, as "package.module:Class".
        package: name of the distribution.
        version: version of the distribution.
    """

    name: str
    target: str
    package: str
    version: str


@dataclass(frozen=True, eq=False)
class Family(Generic[KindClass]):
    """The kinds of one part of a config.

    Attributes:
        name: name of the family, in the plural, as in the entry-point group ``heldin.NAME``.
        contract: base class of every kind.
        ours: names of heldin's own kinds, with "package.module:Class" of each.
    """

    name: str
    contract: Any  # abstract, which a type checker lets nobody pass as a type
    ours: Mapping[str, str]

    @property
    def group(self) -> str:
        """The group of entry points for packages that register kinds."""
        return f"heldin.{self.name}"

    def registered(self) -> list[Registered]:
        """Return the kinds that installed packages register, sorted by name, without an import."""
        return list(_registered_in(self.group, tuple(sys.path)))

    def names(self) -> list[str]:
        """Return the short names of kinds: heldin's own names, then the names that packages register."""
        return [*self.ours, *dict.fromkeys(entry.name for entry in self.registered())]

    def find(self, name: str) -> type[KindClass]:
        """Import the class that a name means.

        Raises:
            InputError: there is no such kind, two packages register the name, the code cannot be imported, or the class
                is not in this family or lacks a required method.
        """
        target = self._target(name)
        if target in self.ours.values():
            return cast("type[KindClass]", _attribute(target))
        try:
            kind_class = _attribute(target)
        except Exception as error:  # whatever somebody else's module does when it is imported
            raise InputError(
                f"{self.name}: '{name}' cannot be imported ({type(error).__name__}: {error}): reinstall the package"
            ) from error
        if not (inspect.isclass(kind_class) and issubclass(kind_class, self.contract)):
            raise InputError(
                f"{self.name}: '{name}' is not a subclass of {_address(self.contract)}: derive the class from"
                f" {_address(self.contract)}"
            )
        if missing := getattr(kind_class, "__abstractmethods__", None):
            raise InputError(f"{self.name}: '{name}' lacks {', '.join(sorted(missing))}: define each of these methods")
        return cast("type[KindClass]", kind_class)

    def _target(self, name: str) -> str:
        # Whoever installs a package must not change what an existing config means: ours are ours.
        if name in self.ours:
            return self.ours[name]
        if clash := self.clash(name):
            raise InputError(
                f"{self.name}: '{name}' is registered by {' and '.join(clash)}: uninstall one of these packages, or"
                " write the class as 'package.module:Class'"
            )
        if (entry := next((entry for entry in self.registered() if entry.name == name), None)) is not None:
            return entry.target
        if _WRITTEN_OUT.fullmatch(name):
            return name
        raise InputError(
            f"{self.name}: there is no '{name}'. Choose from {', '.join(self.names())}, install the package that"
            " registers '{name}', or write its class as 'package.module:Class'"
        )

    def clash(self, name: str) -> list[str]:
        """Return the packages that claim this name, which may include heldin; empty unless several claim the name."""
        claims = {entry.package for entry in self.registered() if entry.name == name}
        claims |= {"heldin"} if name in self.ours else set()
        return sorted(claims) if len(claims) > 1 else []

    def origin(self, name: str) -> Origin | None:
        """Return the package that a kind comes from, without importing the kind; None for heldin's own kinds.

        Raises InputError for a name that is neither registered nor a full name, and for a module without files.
        """
        target = self._target(name)
        if target in self.ours.values():
            return None
        module = target.partition(":")[0].partition(".")[0]
        packages = _packages_of(tuple(sys.path))
        package, version = packages.get(module, (module, None))
        # All modules of a distribution: one may hold what another runs.
        modules = sorted({module} | {name for name, (of_package, _) in packages.items() if of_package == package})
        return Origin(family=self.name, kind=name, package=package, version=version, sha256=_sha256_of(modules))

    def require_same_code(self, origin: Origin) -> None:
        """Check that the code of a kind has not changed since an earlier use.

        Raises:
            InputError: the package is missing, or has another version or other files; the message states which.
        """
        try:
            now = self.origin(origin.kind)
        except InputError:
            there = "not installed"
        else:
            there = "heldin's own" if now is None else now.code
            if now == origin:
                return
        raise InputError(
            f"{self.name}: '{origin.kind}' was {origin.code} when this folder was made, and is {there} now: install"
            " the earlier version, or start again in a new folder"
        )


@functools.cache
def _packages_of(path: tuple[str, ...]) -> Mapping[str, tuple[str, str | None]]:
    """Return the distribution and version of each top-level module, read once per search path."""
    by_module = metadata.packages_distributions()
    return {module: (packages[0], metadata.version(packages[0])) for module, packages in by_module.items()}


@functools.cache
def _registered_in(group: str, path: tuple[str, ...]) -> tuple[Registered, ...]:
    """Return the entry points of every installed package, read once per search path."""
    entries = set()
    for entry in metadata.entry_points(group=group):
        assert entry.dist is not None  # ``entry_points`` gives none without
        entries.add(Registered(entry.name, entry.value, entry.dist.name, entry.dist.version))
    return tuple(sorted(entries, key=lambda entry: (entry.name, entry.package)))


def _address(kind_class: type) -> str:
    return f"{kind_class.__module__}.{kind_class.__name__}"


def _attribute(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _sha256_of(modules: Sequence[str]) -> str:
    """Return the SHA-256 of the Python files in top-level modules, by relative name."""
    digest = hashlib.sha256()
    for module in modules:
        for name, path in sorted(_files_of(module).items()):
            try:
                content = path.read_bytes()
            except OSError as error:  # of a module that was loaded before its file went
                raise InputError(
                    f"module '{module}': '{path}' cannot be read: install the package of this module again"
                ) from error
            # With both lengths: no file's end can be taken for another's beginning.
            digest.update(f"{len(name)} {len(content)} {name}".encode() + content)
    return digest.hexdigest()


def _files_of(module: str) -> dict[str, Path]:
    """Return a map from name to path of a top-level module's Python files. Raises InputError without such files."""
    spec = importlib.util.find_spec(module)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    if folders:
        return {
            f"{module}/{path.relative_to(folder).as_posix()}": path
            for folder in folders
            for path in folder.rglob("*.py")
        }
    if spec is None or not spec.origin:
        raise InputError(
            f"there is no module '{module}': install the package that has this module, or put its folder on PYTHONPATH"
        )
    return {Path(spec.origin).name: Path(spec.origin)}


@dataclass(frozen=True)
class OfKind:
    """Metadata of a config field for a kind of a family. The field is a section whose ``kind`` names the class.

    As in a pydantic union, the location of an error has the kind, and the JSON schema lists heldin's own kinds.
    """

    family: Family[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Validate with the class that ``kind`` names."""
        return core_schema.no_info_plain_validator_function(
            self._validated, metadata={"pydantic_js_functions": [self._json_schema]}
        )

    def _validated(self, value: object) -> object:
        if isinstance(value, self.family.contract):
            return value
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        kind = value.get("kind")
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        names = self.family.names()
        if not isinstance(kind, str) or (kind not in names and not _WRITTEN_OUT.fullmatch(kind)):
            tags = ", ".join(f"'{name}'" for name in names)
            raise PydanticKnownError(
                "union_tag_invalid", {"discriminator": "'kind'", "tag": str(kind), "expected_tags": tags}
            )
        try:
            kind_class = self.family.find(kind)
        except InputError as error:
            raise ValueError(str(error)) from error
        assert issubclass(kind_class, BaseModel)
        try:
            return kind_class.model_validate(value)
        except ValidationError as error:
            ours = kind in self.family.ours
            # As pydantic does for a union: only tags of ours are in the schema, by which they are left out again.
            place = (kind,) if ours else ()
            details = [_moved(detail, place, None if ours else kind_class) for detail in error.errors()]
            raise ValidationError.from_exception_data(kind_class.__name__, details) from error

    def _json_schema(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        ours = [handler(self.family.find(name).__pydantic_core_schema__) for name in self.family.ours]
        # Two names may lead to one class, such as those of file formats.
        distinct = [schema for i, schema in enumerate(ours) if schema not in ours[:i]]
        other = {
            "type": "object",
            "required": ["kind"],
            "not": {"properties": {"kind": {"enum": list(self.family.ours)}}},
        }
        return {"oneOf": [*distinct, other], FAMILY: self.family.name}


@dataclass(frozen=True)
class KindsByName(OfKind):
    """Metadata of a config field that maps names of a family's kinds to their sections, without a key ``kind``.

    A null section is left out, so a file that extends another file can remove one of its sections.
    """

    def _validated(self, value: object) -> object:
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        details: list[InitErrorDetails] = []
        sections: dict[str, BaseModel] = {}
        for name, content in value.items():
            if content is None or isinstance(content, self.family.contract):
                sections |= {} if content is None else {name: content}
                continue
            if name not in self.family.names() and not _WRITTEN_OUT.fullmatch(name):
                details.append(InitErrorDetails(type="extra_forbidden", loc=(name,), input=content))
                continue
            try:
                kind_class = self.family.find(name)
                sections[name] = kind_class.model_validate(content)
            except InputError as error:
                wrong = PydanticCustomError("kind", "{problem}", {"problem": str(error)})
                details.append(InitErrorDetails(type=wrong, loc=(name,), input=content))
            except ValidationError as error:
                others = None if name in self.family.ours else kind_class
                details += [_moved(detail, (name,), others) for detail in error.errors()]
        if details:
            raise ValidationError.from_exception_data(self.family.name, details)
        return sections

    def _json_schema(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        ours = {
            name: {
                "anyOf": [handler(self.family.find(name).__pydantic_core_schema__), {"type": "null"}],
                "default": None,
            }
            for name in self.family.ours
        }
        others = {"type": ["object", "null"]}
        return {"type": "object", "properties": ours, "additionalProperties": others, FAMILY: self.family.name}


def _moved(detail: Any, place: tuple[str, ...], of_package: type[BaseModel] | None) -> InitErrorDetails:
    """Return a section's error with the place of the section in front of its location.

    Args:
        place: place of the section.
        of_package: class of the section, if a package has it.
    """
    kept: str | PydanticCustomError = detail["type"]
    if detail["type"] == "extra_forbidden" and of_package is not None:
        kept = unknown_key(of_package, detail["loc"][:-1])
    elif detail["type"] not in _KNOWN:  # of a package's validator
        kept = PydanticCustomError(detail["type"], detail["msg"])
    return InitErrorDetails(type=kept, loc=(*place, *detail["loc"]), input=detail["input"], ctx=detail.get("ctx", {}))


_KNOWN = frozenset(get_args(core_schema.ErrorType))


@dataclass(frozen=True)
class NameOfKind:
    """Metadata of a config field for names of a family's kinds, for docs and editors."""

    family: Family[Any]

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """List heldin's own kinds, and allow other names."""
        others = {"type": "string", "format": KIND_FORMAT}
        return {"anyOf": [{"type": "string", "enum": list(self.family.ours)}, others], FAMILY: self.family.name}


def origins_in(config: BaseModel) -> list[Origin]:
    """Return, in the config's order and without repetitions, the origin of every kind that is not heldin's own."""
    origins = [origin for section in _sections(config) for origin in _origins(section)]
    return list(dict.fromkeys(origins))


def _origins(section: BaseModel) -> Iterator[Origin]:
    for name, field in type(section).model_fields.items():
        values = list(_leaves(getattr(section, name)))
        for marked in (*field.metadata, *_metadata_in(field.annotation)):
            if isinstance(marked, OfKind | NameOfKind):
                kinds = [value if isinstance(value, str) else getattr(value, "kind", None) for value in values]
                origins = (marked.family.origin(kind) for kind in kinds if isinstance(kind, str))
                yield from (origin for origin in origins if origin is not None)


def _metadata_in(annotation: Any) -> Iterator[Any]:
    """Yield everything that ``Annotated`` adds anywhere in a type."""
    yield from getattr(annotation, "__metadata__", ())
    for inner in get_args(annotation):
        yield from _metadata_in(inner)


def _sections(value: object) -> Iterator[BaseModel]:
    """Yield a section and all sections inside it, outer sections first."""
    for leaf in _leaves(value):
        if isinstance(leaf, BaseModel):
            yield leaf
            for name in type(leaf).model_fields:
                yield from _sections(getattr(leaf, name))


def _leaves(value: object) -> Iterator[object]:
    """Yield the values in lists and mappings, including keys."""
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


@contextlib.contextmanager
def in_one_line(where: str, *, ours: bool) -> Iterator[None]:
    """Turn an exception of a package's code into a one-line InputError with the place; with ``ours``, do nothing."""
    try:
        yield
    except (InputError, ResumableError):
        raise
    except Exception as error:  # whatever somebody else's code does
        if ours:
            raise
        raise InputError(f"{where} raised {type(error).__name__}: {' '.join(str(error).split())}") from error
