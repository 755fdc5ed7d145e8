"""Validate a config with pydantic. Reports all errors at once, one line each, and suggests the nearest valid key."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from heldin.base.errors import InputError
from heldin.base.section import NAME

Config = TypeVar("Config", bound=BaseModel)


def checked(
    model: type[Config], content: Mapping[str, Any], where: str, options: Mapping[str, str] | None = None
) -> Config:
    """Validate the content of a config.

    Args:
        model: pydantic model of the config.
        content: merged content of the file and the command's options.
        where: name of the file, for errors; "" if all content comes from options.
        options: for each value from an option, the dotted key and the command-line option.

    Raises:
        InputError: the config has errors. The message lists them, and is one line if the only error is in an option.
    """
    try:
        return model.model_validate(content)
    except TypeError as error:  # pydantic's, where a section that is made by keywords has a key that is no text
        raise InputError(f"{where or 'config'}: {error}. Write each key as text") from error
    except ValidationError as error:
        lines = [_explained(detail, model, options or {}) for detail in error.errors()]
        # An error in an option is not in the file, so that a heading with its name would mislead.
        if len(lines) == 1 and (lines[0].startswith("--") or not where):
            raise InputError(lines[0]) from error
        count = f"{len(lines)} errors" if len(lines) > 1 else "1 error"
        head = f"{where}: {count}" if where else count
        raise InputError("\n".join([head, *(f"  {line}" for line in lines)])) from error


def _explained(error: Any, model: type[BaseModel], options: Mapping[str, str]) -> str:
    """Return one line for one pydantic error, with the nearest valid key if a key is unknown."""
    schema, kinds = _schema_of(model)
    # Pydantic puts the tag of a discriminated union into the location; the user never wrote it there. A key that is
    # called like a tag elsewhere stays.
    place = error["loc"]
    # What is unknown is a key, and no tag, whatever it is called.
    within = place[:-1] if error["type"] in _UNKNOWN else place
    tags = {i for i, part in enumerate(within) if part in kinds and part not in _keys_at(place[:i], schema, kinds)}
    location = ".".join(str(part) for i, part in enumerate(place) if i not in tags)
    location = options.get(location, location)
    if (of_keys := _about_keys(error, location, schema, kinds)) is not None:
        return of_keys
    message = _PLAIN.get(error["type"]) or error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch":
        message = _PATTERNS.get(error["ctx"]["pattern"], message)
    # A validator of ours has the value in its message already; a whole section would fill the screen.
    shown = (
        ""
        if isinstance(error.get("input"), dict) or error["type"] == "value_error"
        else f" (found {_shown(error['input'])})"
    )
    return f"{location or 'config'}: {message}{shown}"


def _about_keys(error: Any, location: str, schema: dict[str, Any], kinds: set[str]) -> str | None:
    """Return one line for an unknown key or kind, or a missing kind; None for another error."""
    if error["type"] in _UNKNOWN:
        # A package's section brings its keys along: the schema has none of its kinds.
        given = error["ctx"]["keys"].split(", ") if error["type"] == UNKNOWN_KEY else None
        valid = list(dict.fromkeys(given or _keys_at(error["loc"][:-1], schema, kinds)))
        near = _nearest(str(error["loc"][-1]), valid)
        hint = f"; did you mean '{near}'?" if near else f"; choose from {', '.join(valid)}" if valid else ""
        return f"{location}: unknown key{hint}"
    if error["type"] == "union_tag_invalid":
        allowed = [tag.strip(" '") for tag in error["ctx"]["expected_tags"].split(",")]
        tag = error["ctx"]["tag"]
        given = error["input"].get("kind") if isinstance(error["input"], dict) else None
        near = _nearest(tag, allowed) if isinstance(given, str) else None
        hint = f"did you mean '{near}'?" if near else f"choose from {', '.join(allowed)}"
        return f"{location}.kind: there is no '{tag}'; {hint}"
    if error["type"] == "union_tag_not_found":
        allowed = [tag for section in _sections_at(error["loc"], schema, kinds) for tag in _kinds_of(section)]
        return f"{location}.kind: this key is required; choose from {', '.join(dict.fromkeys(allowed))}"
    return None


UNKNOWN_KEY = "unknown_key"  # type of an error whose context lists the keys that there are
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument", UNKNOWN_KEY}


def unknown_key(model: type[BaseModel], place: tuple[int | str, ...]) -> PydanticCustomError:
    """Return the error of an unknown key, with the keys that the package's model has at that place.

    Args:
        place: place of the section that has the key.
    """
    keys = ", ".join(dict.fromkeys(_keys_at(place, *_schema_of(model))))
    return PydanticCustomError(UNKNOWN_KEY, "unknown key; choose from {keys}", {"keys": keys})


def _shown(value: object) -> str:
    """Return a value as text, shortened if it is too long to read."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of more than 4,300 digits
        return "a value that is too long to be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 200  # characters


@cache
def _schema_of(model: type[BaseModel]) -> tuple[dict[str, Any], set[str]]:
    """Return the JSON schema of a config, and its union tags. Making the schema takes half a second."""
    schema = model.model_json_schema()
    return schema, _kinds(schema)


# Of pydantic's messages, those that speak of parsing and of Python's types.
_PLAIN = {
    "tuple_type": "a list was expected",
    "list_type": "a list was expected",
    "dict_type": "a section of keys and values was expected",
    "model_type": "a section of keys and values was expected",
    "model_attributes_type": "a section of keys and values was expected",
    "dataclass_type": "a section of keys and values was expected",
    "int_parsing": "a whole number was expected",
    "int_type": "a whole number was expected",
    "int_from_float": "a whole number was expected",
    "float_parsing": "a number was expected",
    "float_type": "a number was expected",
    "bool_parsing": "true or false was expected",
    "bool_type": "true or false was expected",
    "string_type": "text was expected",
    "missing": "this key is required",
    "finite_number": "a finite number was expected",
}


_PATTERNS = {NAME: "letters, digits, dots, underscores and hyphens were expected"}

# Names that other tools give to these settings, for the suggestion.
_ALSO_CALLED = {
    "lr": "learning_rate",
    "bs": "batch_size",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "max_steps": "steps",
    "max_length": "sequence_length",
    "max_seq_length": "sequence_length",
    "seq_len": "sequence_length",
    "warmup": "warmup_steps",
    "eps": "target_epsilon",
    "epsilon": "target_epsilon",
    "sigma": "noise_multiplier",
    "max_grad_norm": "clip_norm",
    "model_name": "base",
    "file": "path",
}


def _nearest(key: str, valid: Sequence[str]) -> str | None:
    """Return the valid key that the user probably meant: the key for another tool's name, or else the most similar
    key."""
    called = _ALSO_CALLED.get(key.lower())
    if called in valid:
        return called
    return next(iter(difflib.get_close_matches(key, valid, n=1, cutoff=0.5)), None)


def _kinds(schema: Any) -> set[str]:
    """Return all union tags that pydantic adds to error locations: ``kind`` values in the schema, "one", "several"."""
    # These two are the tags of ``OneOrSeveral`` in corpus/config.py, which has no field ``kind``.
    tags = {"one", "several"}
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        tags |= set(_kinds_of(schema))
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        tags |= _kinds(part)
    return tags


def _kinds_of(section: dict[str, Any]) -> list[str]:
    """Return the kinds that a section of the schema describes."""
    kind = section.get("properties", {}).get("kind", {})
    return [value for value in (*kind.get("enum", ()), kind.get("const")) if isinstance(value, str)]


def _keys_at(location: tuple[int | str, ...], schema: dict[str, Any], kinds: set[str]) -> Iterator[str]:
    """Yield the valid keys of the section at ``location``, from the config's JSON schema."""
    for section in _sections_at(location, schema, kinds):
        yield from section.get("properties", {})


def _sections_at(location: tuple[int | str, ...], schema: dict[str, Any], kinds: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the sections that the config's JSON schema allows at ``location``."""
    # Several nodes at once, because a union leaves open which of its sections the user meant.
    candidates = [schema]
    for part in location:
        nexts = []
        for node in candidates:
            for option in _resolved(node, schema):
                if part in kinds and part in _kinds_of(option):
                    nexts.append(option)
                elif isinstance(part, int) and "items" in option:
                    nexts.append(option["items"])
                elif part in option.get("properties", {}):
                    nexts.append(option["properties"][part])
        # A part that leads nowhere, such as the tag of a union, stays at this level.
        candidates = nexts or candidates
    # The last nodes reached are what stands there.
    for node in candidates:
        yield from _resolved(node, schema)


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        yield from _resolved(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], schema)
        return
    yield node
    for key in ("anyOf", "oneOf", "allOf"):
        for option in node.get(key, []):
            yield from _resolved(option, schema)
