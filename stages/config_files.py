"""Configs as plain data: files that extend other files, overrides, and the differences between two configs."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.yaml_files import parse_yaml, read_yaml


def read_config(path: Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the content of a config file. ``extends`` has a path relative to the file; sections are merged key by key.

    Raises InputError for a file that is missing, is not a YAML mapping, or extends itself.
    """
    if not path.is_file():
        named = f", although '{extending[-1]}' extends this file" if extending else ""
        raise InputError(f"no such config: '{path}'{named}. Correct the path")
    # Resolved, or a circle by way of links or ``../`` would be followed for ever.
    if path.resolve() in [p.resolve() for p in extending]:
        raise InputError(f"'{path}' extends itself, through {', '.join(map(str, extending))}: remove one extends")
    content = read_yaml(path)
    if not isinstance(content, dict):
        kind = "nothing" if content is None else type(content).__name__
        raise InputError(f"{path}: the file contains {kind}. Write sections with keys")
    if "extends" not in content:
        return content
    base = content.pop("extends")
    if not isinstance(base, str):
        raise InputError(f"{path}: extends is {base!r}. Give the name of a file")
    # Under the file's own keys; a base may itself extend another.
    return merged(read_config(path.parent / base, (*extending, path)), content)


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``under``, with ``over`` replacing its values. Sections are merged key by key."""
    both = {
        key: merged(under[key], over[key])
        for key in over
        if isinstance(under.get(key), dict) and isinstance(over[key], dict)
    }
    # Lists are replaced whole: items have no names by which two lists could be merged.
    return {**under, **over, **both}


def with_overrides(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the content with ``a.b=value`` overrides applied. Raises InputError for an invalid override."""
    # Nested sections are changed in place below.
    changed = deepcopy(dict(content))
    for override in overrides:
        _override(changed, override)
    return changed


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise InputError(f"--set {override}: write key.key=value")
    *parents, last = key.split(".")
    section: Any = content
    for parent in parents:
        section = section.setdefault(parent, {}) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise InputError(f"--set {override}: '{parent}' is not a section. Give a key of a section")
    try:
        # As YAML, so that numbers, null and whole sections can be given, with the types a file gives them.
        section[last] = parse_yaml(value)
    except InputError as error:
        raise InputError(f"--set {override}: the value is {error}") from error


def differences(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name of every key that differs between two contents, with the value in ``b``; None if
    missing."""
    if isinstance(a, dict) and isinstance(b, dict):
        # The keys of both: one that only the earlier config has is a difference too.
        for key in dict.fromkeys([*a, *b]):
            yield from differences(a.get(key), b.get(key), f"{where}.{key}" if where else str(key))
    elif a != b:
        yield where, b


def first_difference(a: Any, b: Any) -> str:
    """Return the dotted name of the first key that differs between two contents; "" if they are equal."""
    return next((where for where, _ in differences(a, b)), "")
