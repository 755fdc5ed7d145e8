"""Every key of a config, read from the JSON schema: name, default, allowed values, meaning.

The meaning of a key is the docstring below its field (base/section.py), and the range of a key is in the field's type.
The text in docs/configuration.md (docs/config_pages.py), in an editor (``file_schema``) and in the terminal comes from
these two places.
"""

import difflib
import functools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml
from pydantic import BaseModel

from heldin.base.errors import InputError
from heldin.base.kinds import FAMILY, KIND_FORMAT, Registered
from heldin.base.section import LARGEST, MOST, SEEDS
from heldin.stages.families import family
from heldin.stages.measures.keys import MeasureKeys
from heldin.stages.run_config import EXTENDS, RunConfig

Node = Mapping[str, Any]
WIDTH = 100
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PARTIAL = "InFilesThatExtend"
_INSTALLED = "x-installed"  # at a node of a family: the kinds that packages register


@dataclass(frozen=True)
class Key:
    """One key of a section.

    Attributes:
        name: dotted name, such as "finetune.epochs"; the name of a list of sections ends with "[]".
        allowed: text about the allowed values.
        required: whether the key has no default.
        default: the default, written as YAML; None if the key is required.
        default_alone: the default if the section is present without this key; None if it equals ``default``.
    """

    name: str
    allowed: str
    required: bool
    default: str | None
    default_alone: str | None
    meaning: str


@dataclass(frozen=True)
class Block:
    """A section, or one kind of a section, with the keys that are not sections themselves.

    Attributes:
        name: dotted name; "" for the file as a whole.
        kinds: values of ``kind`` for which these keys are valid; ``kind`` is a key of this or of the enclosing section.
        standing: "required", "may be left out", "none unless given" or "a list".
        keys: the keys, in the order of the config.
    """

    name: str
    kinds: tuple[str, ...]
    standing: str
    meaning: str
    keys: tuple[Key, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)


def blocks(config: type[BaseModel] = RunConfig, *, installed: bool = False) -> tuple[Block, ...]:
    """Return every section of a config, and every kind of each section, in order.

    Args:
        installed: whether to also list the kinds of installed packages, by name and without importing them.
    """
    schema = _with_installed(_schema_of(config)) if installed else _schema_of(config)
    listed = list(_blocks(schema, _Place("", "required"), schema))
    # Read by the loader, not by the model, so that no schema lists it.
    extends = Key("extends", "path", required=False, default="none", default_alone=None, meaning=EXTENDS)
    first = replace(listed[0], keys=(listed[0].keys[0], extends, *listed[0].keys[1:]))
    # Last: what is measured besides the attacks.
    last = [block for block in listed[1:] if block.name.split(".")[0] in MeasureKeys.model_fields]
    return (first, *(block for block in listed[1:] if block not in last), *last)


@functools.cache
def _schema_of(config: type[BaseModel]) -> Node:
    return config.model_json_schema()


def _with_installed(node: Any) -> Any:
    """Return the schema with the kinds that installed packages register, each added to its family."""
    if isinstance(node, list):
        return [_with_installed(item) for item in node]
    if not isinstance(node, dict):
        return node
    copied = {key: _with_installed(value) for key, value in node.items()}
    if FAMILY in node:
        kinds = family(node[FAMILY])
        copied[_INSTALLED] = [entry for entry in kinds.registered() if entry.name not in kinds.ours]
    return copied


def blocks_at(name: str, everything: Sequence[Block]) -> list[Block]:
    """Return the blocks of a section and its subsections. For a key, return its block with only this key.

    Raises:
        InputError: the section or key does not exist; the message suggests the nearest name.
    """
    # Nobody types the brackets of a list's name.
    plain = name.replace("[]", "")
    # With the dot: ``corpus.user`` must not find ``corpus.users``.
    inside = [b for b in everything if f"{_plain(b.name)}.".startswith(f"{plain}.")]
    if inside:
        return inside
    keyed = [(b, tuple(key for key in b.keys if _plain(key.name) == plain)) for b in everything]
    if matching := [replace(b, keys=keys) for b, keys in keyed if keys]:
        return matching
    names = list(dict.fromkeys(_plain(n) for b in everything for n in (b.name, *(key.name for key in b.keys)) if n))
    # The last part alone: whoever asks for ``clip_norm`` means ``defense.clip_norm``.
    near = [n for n in names if n.rsplit(".", 1)[-1] == plain.rsplit(".", 1)[-1]]
    near = near or difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    hint = f": did you mean {' or '.join(near)}?" if near else ": heldin config lists them all"
    raise InputError(f"no section or key '{name}'{hint}")


def _plain(name: str) -> str:
    return name.replace("[]", "")


@dataclass(frozen=True)
class _Place:
    """The place of a section in the config.

    Attributes:
        name: dotted name.
        standing: see ``Block``.
        kinds: kinds of the enclosing section.
        given: value of the section if the config omits it.
        meaning: meaning of the section at this place; heldin prints this meaning before the meaning of the section's
            type.
    """

    name: str
    standing: str
    kinds: tuple[str, ...] = ()
    given: Node = field(default_factory=dict)
    meaning: str = ""


def _blocks(node: Node, place: _Place, schema: Node) -> Iterator[Block]:
    """Yield the block of an object, then the blocks of its subsections."""
    # A section without kinds inside one that has them belongs to the same kinds: ``source.parameters`` of one corpus.
    kind, required = node["properties"].get("kind", {}), node.get("required", ())
    kinds = tuple(kind.get("enum") or [kind["const"]]) if kind else place.kinds
    keys, sections = [], []
    for key, value in node["properties"].items():
        dotted = f"{place.name}.{key}" if place.name else key
        if below := _sections(value, schema):
            sections.append((dotted + "[]" * _array(value), value, below, key in required))
        else:
            keys.append(_key(dotted, node, place.given, schema))
    yield Block(place.name, kinds, place.standing, _words(place.meaning or node.get("description", "")), tuple(keys))
    # Sections after the section's own keys, as a file is read.
    for dotted, value, below, needed in sections:
        default = value.get("default")
        inner = _Place(
            dotted,
            "required" if needed else _standing(dotted, default),
            kinds,
            default if isinstance(default, dict) else {},
            # With several kinds each has its own docstring, and the field's words would stand above all of them.
            value.get("description", "") if len(below) == 1 else "",
        )
        for section in below:
            yield from _blocks(_keeping(section, value), inner, schema)
        for entry in _installed(value, schema):
            yield Block(dotted, (entry.name,), inner.standing, _of_package(entry), ())
    # Of a section that has a key for each kind.
    for entry in node.get(_INSTALLED, ()):
        yield Block(f"{place.name}.{entry.name}", (), _standing("", None), _of_package(entry), ())


def _of_package(entry: Registered) -> str:
    return f"Of the package {entry.package} {entry.version}, whose documentation lists the keys."


def _standing(name: str, default: object) -> str:
    if name.endswith("[]"):
        return "a list, empty unless given"
    return "none unless given" if default is None else "may be left out"


def _keeping(section: Node, value: Node) -> Node:
    """Return the section with this place's defaults, if they also apply when only some of its keys are set."""
    if not value.get("x-keeps-defaults"):
        return section
    # Pydantic's schema gives the class's defaults: a field with another default instance, such as pre-training's
    # recipe, would be listed with those of fine-tuning.
    default = value["default"]
    kept = {key: {**node, "default": default[key]} for key, node in section["properties"].items()}
    return {**section, "properties": kept}


def _key(name: str, section: Node, given: Node, schema: Node) -> Key:
    key = name.rsplit(".", 1)[-1]
    node = section["properties"][key]
    # A kind with a default in its class still has to be given wherever the section is.
    required = key == "kind" or key in section.get("required", ())
    # Two defaults: of a section that is left out whole (``given``), and of a section that is given without this key.
    own = node.get("default")
    default = given.get(key, own)
    return Key(
        name=name,
        allowed=_allowed(node, schema),
        required=required,
        default=None if required else as_yaml(default),
        default_alone=None if required or own == default else as_yaml(own),
        meaning=_words(node.get("description") or (section.get("description", "") if key == "kind" else "")),
    )


def as_yaml(value: Any) -> str:
    """Return a value on one line, in YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    # YAML ends a document that is a bare scalar with a line of dots.
    return text.removesuffix("...\n").strip()


def _words(text: str) -> str:
    """Return the first paragraph as one line, without code marks."""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "'")


def _array(node: Node) -> bool:
    return node.get("type") == "array"


def _target(node: Node, schema: Node) -> Node:
    section: Node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return section


def _sections(node: Node, schema: Node) -> list[Node]:
    """Return the objects that are allowed here; for a list, the objects that it may contain."""
    if "$ref" in node:
        return _sections(_target(node, schema), schema)
    if "properties" in node:
        return [node]
    if "items" in node:
        return _sections(node["items"], schema)
    options = [option for way in ("anyOf", "oneOf") for option in node.get(way, ())]
    return [section for option in options for section in _sections(option, schema)]


def _installed(node: Node, schema: Node) -> list[Registered]:
    """Return the kinds of installed packages that are allowed here; for a list, the kinds that it may contain."""
    if "$ref" in node:
        return _installed(_target(node, schema), schema)
    if "properties" in node:
        return []
    if "items" in node:
        return _installed(node["items"], schema)
    options = [option for way in ("anyOf", "oneOf") for option in node.get(way, ())]
    return [*node.get(_INSTALLED, ()), *(entry for option in options for entry in _installed(option, schema))]


def _allowed(node: Node, schema: Node) -> str:
    """Return a text about the allowed values."""
    if "$ref" in node:
        return _allowed(_target(node, schema), schema)
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return " | ".join(map(str, node["enum"]))
    options = [option for way in ("anyOf", "oneOf") for option in node.get(way, ())]
    if options:
        words = [_allowed(option, schema) for option in options]
        words[1:1] = [f"{entry.name} (of {entry.package})" for entry in node.get(_INSTALLED, ())]
        return " or ".join(words)
    match node.get("type"):
        case "array":
            least = "non-empty list" if node.get("minItems") else "list"
            return f"{least} of ({_allowed(node['items'], schema)})"
        case "boolean":
            return "true | false"
        case "integer" | "number":
            return _range(node)
        case "string":
            return {"path": "path", KIND_FORMAT: "a package's"}.get(node.get("format", ""), "text")
        case other:
            return str(other)


def _range(node: Node) -> str:
    """Return a text about the type and range of a number."""
    low, above = node.get("minimum"), node.get("exclusiveMinimum")
    high, below = node.get("maximum"), node.get("exclusiveMaximum")
    # "integer from 1" reads better than "integer above 0", and is the same set.
    if node["type"] == "integer" and above is not None:
        low, above = above + 1, None
    words = [str(node["type"])]
    words += [f"from {low:.12g}"] if low not in (None, -LARGEST) else []
    words += [f"above {above:.12g}"] if above is not None else []
    words += [f"to {high:.12g}"] if high not in (None, MOST, LARGEST) else []
    # A seed's range: the digits of 2147483648 say less.
    words += ["below 2^31" if below == 2**31 else f"below {below:.12g}"] if below not in (None, SEEDS) else []
    return " ".join(words)


def lines(blocks: Sequence[Block], width: int = WIDTH) -> list[str]:
    """Return the printed lines of each section: key, allowed values, default, meaning."""
    printed: list[str] = []
    for block in blocks:
        title = textwrap.wrap(_title(block), width, subsequent_indent="    ")
        printed += ["", *title] if printed else title
        printed += textwrap.wrap(block.meaning, width, initial_indent="  ", subsequent_indent="  ")
        for key in without_kind(block):
            head = f"{key.name}: {default_in(key, block)}   ({key.allowed})"
            printed += textwrap.wrap(head, width, initial_indent="    ", subsequent_indent=" " * 8)
            printed += textwrap.wrap(key.meaning, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return printed


def without_kind(block: Block) -> list[Key]:
    """Return the keys of a block, except ``kind`` if the title already contains it."""
    # Pydantic gives a kind's docstring to the key ``kind`` too: it would stand twice on the page.
    return [key for key in block.keys if key.meaning != block.meaning]


def _title(block: Block) -> str:
    if not block.name:
        return "(the file)"
    kinds = f", kind {' | '.join(block.kinds)}" if block.kinds else ""
    return f"{block.name}{kinds}: {block.standing}"


def default_in(key: Key, block: Block) -> str:
    """Return the default as text. Adds the default for a section that is present without the key, if it differs."""
    if key.required or key.default is None:
        return "required"
    if key.default_alone is None:
        return key.default
    return f"{key.default}, but {key.default_alone} if {block.name} is given without this key"


def file_schema(config: type[BaseModel] = RunConfig, title: str = "A file for heldin run") -> dict[str, Any]:
    """Return the schema of a file: a whole config, or a file with ``extends`` that has only the differing keys.

    A file with ``extends`` has no required keys, because the other file may have these keys.
    """
    whole = config.model_json_schema()
    partial = _relaxed(whole)
    # Both versions of every section stand in one file, so that those of a partial config need other names.
    definitions = {f"{name}{_PARTIAL}": content for name, content in partial.pop("$defs").items()}
    partial["properties"]["extends"] = {"type": "string", "title": "Extends", "description": EXTENDS}
    return {
        "$schema": DIALECT,
        "title": title,
        "$defs": {**whole.pop("$defs"), **definitions},
        # An editor decides by the file at hand whether to ask for what is required.
        "if": {"type": "object", "required": ["extends"]},
        "then": partial,
        "else": whole,
    }


def _relaxed(node: Any) -> Any:
    """Return the schema without required keys. anyOf replaces oneOf, because the kind of a section may be missing."""
    if isinstance(node, list):
        return [_relaxed(item) for item in node]
    if not isinstance(node, dict):
        return node
    # Without a required kind a part may fit several kinds, which oneOf refuses; for the same reason no discriminator.
    renamed = {"oneOf": "anyOf"}
    return {
        renamed.get(key, key): f"{value}{_PARTIAL}" if key == "$ref" else _relaxed(value)
        for key, value in node.items()
        # A list only: a config key named "required" would have a schema here, not a list.
        if not (key == "required" and isinstance(value, list)) and key != "discriminator"
    }
