"""Every key of a config, read off the JSON schema: name, default, allowed values, meaning.

A key's meaning is the docstring below its field (base/section.py), its range is in the field's type; everything printed
here, in docs/configuration.md and in an editor (``file_schema``) comes from there.
"""

import difflib
import functools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml
from pydantic import BaseModel

from heldin.base.errors import InputError
from heldin.base.kinds import KIND_FORMAT
from heldin.base.section import LARGEST, MOST, SEEDS
from heldin.stages.measures.keys import MeasureKeys
from heldin.stages.run_config import EXTENDS, RunConfig

Node = Mapping[str, Any]
WIDTH = 100
RUN_PAGE = """\
# Configuration of a run

A run is one YAML file: `heldin run FILE`. This page lists every key. `heldin config run --markdown` writes it, and a
test compares it with the code.

- `heldin init run --kind KIND` writes a commented file to start from. `heldin config run SECTION` prints a part of this
  page.
- `heldin run FILE --check` reports mistakes in a file, and what a run would do, before anything is read.
- `heldin config run --schema` prints the JSON schema, with which an editor completes keys and shows their meanings. For
  the YAML language server, write `# yaml-language-server: $schema=heldin.schema.json` as the first line of a config.
- `--set finetune.epochs=3` replaces one key. The value is YAML: `--set 'defense={kind: none}'` replaces a whole
  section.
- In paths and in names of models and data sets, `$NAME` and `${NAME}` are environment variables, which must be set.
- An unknown key is an error, and so is a key that appears twice. heldin reports all errors at once, with the nearest
  valid key.

A key in a section that has kinds belongs to those kinds alone. `[]` follows the name of a list. In the file, its items
are below each other, each after a hyphen. Keys that several sections share are explained once; the other sections link
there.
"""
AUDIT_PAGE = """\
# Configuration of an audit

`heldin audit --config FILE` reads these keys. Options on the command line replace keys of the file. This page lists
every key. `heldin config audit --markdown` writes it, and a test compares it with the code. General rules are in
[configuration.md](configuration.md).
"""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PARTIAL = "InFilesThatExtend"


@dataclass(frozen=True)
class Key:
    """One key of a section.

    Attributes:
        name: dotted name, such as "finetune.epochs"; "[]" follows the name of a list of sections.
        allowed: allowed values, in words.
        required: whether there is no default.
        default: default as in YAML; None if required.
        default_alone: the default if the section is given without this key; None if it is the same.
    """

    name: str
    allowed: str
    required: bool
    default: str | None
    default_alone: str | None
    meaning: str


@dataclass(frozen=True)
class Block:
    """A section, or one kind of it: its keys that are not sections themselves.

    Attributes:
        name: dotted name; "" for the file as a whole.
        kinds: values of ``kind``, of this section or of the one around it, that these keys belong to.
        standing: "required", "may be left out", "none unless given" or "a list".
        keys: the keys in the order of the config.
    """

    name: str
    kinds: tuple[str, ...]
    standing: str
    meaning: str
    keys: tuple[Key, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return asdict(self)


@functools.cache
def blocks(config: type[BaseModel] = RunConfig) -> tuple[Block, ...]:
    """Return every section and kind of section of a config, in order."""
    schema = config.model_json_schema()
    listed = list(_blocks(schema, _Place("", "required"), schema))
    # Read by the loader, not by the model, so that no schema lists it.
    extends = Key("extends", "path", required=False, default="none", default_alone=None, meaning=EXTENDS)
    first = replace(listed[0], keys=(listed[0].keys[0], extends, *listed[0].keys[1:]))
    # Last: what is measured besides the attacks.
    last = [block for block in listed[1:] if block.name.split(".")[0] in MeasureKeys.model_fields]
    return (first, *(block for block in listed[1:] if block not in last), *last)


def blocks_at(name: str, config: type[BaseModel] = RunConfig) -> list[Block]:
    """Return those of a section and of what is in it, or the one block of a key with that key alone.

    Raises:
        InputError: no such section or key; the message names the nearest.
    """
    everything = blocks(config)
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
        name: dotted.
        standing: as in ``Block``.
        kinds: of the section around it.
        given: its default where it is left out whole.
        meaning: what a section means here, before what sections like it mean anywhere.
    """

    name: str
    standing: str
    kinds: tuple[str, ...] = ()
    given: Node = field(default_factory=dict)
    meaning: str = ""


def _blocks(node: Node, place: _Place, schema: Node) -> Iterator[Block]:
    """Yield the block of an object, then those of the sections in it."""
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


def _standing(name: str, default: object) -> str:
    if name.endswith("[]"):
        return "a list, empty unless given"
    return "none unless given" if default is None else "may be left out"


def _keeping(section: Node, value: Node) -> Node:
    """Return the section with the defaults that hold here, where a partial section keeps them."""
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
    """Return a value on one line, as a YAML file has it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    # YAML ends a document that is a bare scalar with a line of dots.
    return text.removesuffix("...\n").strip()


def _words(text: str) -> str:
    """Return the first paragraph on one line, without the marks of code."""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "'")


def _array(node: Node) -> bool:
    return node.get("type") == "array"


def _target(node: Node, schema: Node) -> Node:
    section: Node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return section


def _sections(node: Node, schema: Node) -> list[Node]:
    """Return the objects that may stand here, or in the list that stands here."""
    if "$ref" in node:
        return _sections(_target(node, schema), schema)
    if "properties" in node:
        return [node]
    if "items" in node:
        return _sections(node["items"], schema)
    options = [option for way in ("anyOf", "oneOf") for option in node.get(way, ())]
    return [section for option in options for section in _sections(option, schema)]


def _allowed(node: Node, schema: Node) -> str:
    """Return the allowed values in words."""
    if "$ref" in node:
        return _allowed(_target(node, schema), schema)
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return " | ".join(map(str, node["enum"]))
    options = [option for way in ("anyOf", "oneOf") for option in node.get(way, ())]
    if options:
        return " or ".join(_allowed(option, schema) for option in options)
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
    """Return a number's type and range."""
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
    """Return the sections one after the other: key, allowed values, default, meaning."""
    printed: list[str] = []
    for block in blocks:
        title = textwrap.wrap(_title(block), width, subsequent_indent="    ")
        printed += ["", *title] if printed else title
        printed += textwrap.wrap(block.meaning, width, initial_indent="  ", subsequent_indent="  ")
        for key in _shown(block):
            head = f"{key.name}: {_default(key, block)}   ({key.allowed})"
            printed += textwrap.wrap(head, width, initial_indent="    ", subsequent_indent=" " * 8)
            printed += textwrap.wrap(key.meaning, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return printed


def markdown(blocks: Sequence[Block], introduction: str = RUN_PAGE) -> str:
    """Return the page: introduction and sections. Each key is explained once; other sections that have it link there.

    The place of a key is the least nested of the sections that share it, or the one with the shortest name.
    """
    blocks = list(dict.fromkeys(blocks))
    places = sorted(blocks, key=lambda block: (block.name.count("."), len(block.name)))
    parts, repeated = [introduction], list[str]()
    for block in blocks:
        if any(_within(block.name, name) for name in repeated):
            continue
        same = _same(block.name, blocks, places)
        parts.append(_head(block, whole=same is not None))
        if same is not None:
            repeated.append(block.name)
            parts.append(f"The keys are those of {_link(same, whole=True)}.\n")
        else:
            parts += _tables(block, places)
    return "\n".join(parts).rstrip("\n")


def _within(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def _same(name: str, blocks: Sequence[Block], places: Sequence[Block]) -> Block | None:
    """Return the first block of the section that explains all keys of this one, with these defaults, if it is another.

    Sections below both are the same too.
    """
    wanted = _contents(name, blocks)
    first = next((place for place in places if place.name and _contents(place.name, blocks) == wanted), None)
    return first if first is not None and first.name != name and any(block[2] for block in wanted) else None


def _contents(name: str, blocks: Sequence[Block]) -> list[tuple[Any, ...]]:
    """Return what makes two sections the same, wherever they are."""
    # The words above the keys belong to the place, and the kinds may be those of a section around it.
    return list(
        dict.fromkeys(
            (block.name[len(name) :], len(block.kinds), tuple(replace(key, name=_last(key)) for key in block.keys))
            for block in blocks
            if name and _within(block.name, name)
        )
    )


def _head(block: Block, *, whole: bool) -> str:
    level = "##" if block.name.count(".") == 0 else "###"
    # Above a section that has kinds each kind has words of its own.
    meaning = "" if whole and block.kinds else f"\n{_cell(block.meaning)}\n"
    return f"{level} {_heading(block, whole=whole)}\n{meaning}"


def _heading(block: Block, *, whole: bool) -> str:
    name = f"`{block.name}`" if block.name else "The file"
    kinds = f", kind {' or '.join(f'`{kind}`' for kind in block.kinds)}" if block.kinds and not whole else ""
    return f"{name}{kinds}{f' ({block.standing})' if block.name else ''}"


def _link(block: Block, *, whole: bool) -> str:
    # Of a list of kinds the first says enough in a sentence.
    kind = f", kind `{block.kinds[0]}`" if block.kinds and not whole else ""
    anchor = re.sub(r"[^a-z0-9_ -]", "", _heading(block, whole=False).lower()).replace(" ", "-")
    return f"[`{block.name}`{kind}](#{anchor})"


def _tables(block: Block, places: Sequence[Block]) -> Iterator[str]:
    """Yield the table of the keys that are explained here, and lines that refer to the places of others."""
    own, elsewhere = [], dict[str, list[str]]()
    for key in _shown(block):
        place, same = next((b, k) for b in places for k in b.keys if _explains(k, key) and _alike(b, block))
        if place == block:
            own.append(key)
            continue
        default = "" if _default(same, place) == _default(key, block) else f" (default {_default(key, block)})"
        elsewhere.setdefault(_link(place, whole=False), []).append(f"`{_last(key)}`{_cell(default)}")
    if own:
        rows = ["| key | allowed | default | meaning |", "|---|---|---|---|"]
        rows += [
            f"| `{_last(key)}` | {_cell(key.allowed)} | {_cell(_default(key, block))} | {_cell(key.meaning)} |"
            for key in own
        ]
        yield "\n".join(rows) + "\n"
    for link, names in elsewhere.items():
        yield f"As in {link}: {', '.join(names)}.\n"


def _explains(key: Key, other: Key) -> bool:
    return (_last(key), key.allowed, key.meaning) == (_last(other), other.allowed, other.meaning)


def _alike(block: Block, other: Block) -> bool:
    """Return whether a reader would look for keys of one in the other: they share more than one, or all."""
    shared = [key for key in other.keys if any(_explains(own, key) for own in block.keys)]
    return block == other or len(shared) > 1 or len(shared) == len(_shown(other))


def _last(key: Key) -> str:
    return key.name.rsplit(".", 1)[-1]


def _shown(block: Block) -> list[Key]:
    """Return the keys, without ``kind`` if the title already says it."""
    # Pydantic gives a kind's docstring to the key ``kind`` too: it would stand twice on the page.
    return [key for key in block.keys if key.meaning != block.meaning]


def _title(block: Block) -> str:
    if not block.name:
        return "(the file)"
    kinds = f", kind {' | '.join(block.kinds)}" if block.kinds else ""
    return f"{block.name}{kinds}: {block.standing}"


def _default(key: Key, block: Block) -> str:
    if key.required or key.default is None:
        return "required"
    if key.default_alone is None:
        return key.default
    return f"{key.default}, but {key.default_alone} where {block.name} is given without it"


def _cell(text: str) -> str:
    # A bar ends a cell, two asterisks make text bold, and two dollar signs would enclose a formula.
    return re.sub(r"([|*$])", r"\\\1", text)


def file_schema(config: type[BaseModel] = RunConfig, title: str = "A file for heldin run") -> dict[str, Any]:
    """Return the schema of a file: a whole config, or, below ``extends``, the part of one that differs.

    In such a part nothing is required, since what it leaves out is in the other file.
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
    """Return the schema with nothing required; a section's kind may then be undetermined, so anyOf replaces oneOf."""
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
