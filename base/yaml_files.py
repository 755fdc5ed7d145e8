"""Safe YAML in which a repeated key is an error. PyYAML would silently use the last value.

heldin limits the number of values after expanding aliases, because nine lines can expand to billions of values.
"""

from pathlib import Path
from typing import Any

import yaml

from heldin.base.errors import InputError

_DEEPEST = 50  # sections and lists within each other
_REPEATED, _AT_LEAST = 10, 100_000  # values for each one that is written, and in any file
_BITS = 64  # of a whole number


# Not libyaml, which is faster: a file of 100,000 brackets ends the process there.
class _UniqueKeys(yaml.SafeLoader):
    """Refuses repeated keys, deep nesting, and aliases that expand to too many values."""

    def get_single_node(self) -> yaml.Node | None:
        """Compose the document like the safe loader, after checking depth and expansion."""
        root: yaml.Node | None = super().get_single_node()
        sizes: dict[int, int] = {}
        if root is not None:
            values = _values(root, sizes, 0)
            if values > max(_AT_LEAST, _REPEATED * len(sizes)):
                raise _refusal(f"the aliases expand to {values:.3g} values: write the values out", root)
        return root

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read a whole number like the safe loader. Refuses a number with too many digits."""
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > _BITS:
            raise _refusal("a whole number has too many digits: give a smaller number", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping like the safe loader, after checking that no key is repeated."""
        seen: set[str] = set()
        for key, _ in node.value:
            # "<<" merges another mapping and may legitimately occur several times.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                # Compared as written: the keys 1 and "1" count as one, since a config has no use for both.
                if key.value in seen:
                    raise _refusal(f"'{key.value}' is given twice: keep one", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


# PyYAML keeps its table of constructors by the function that the base class has.
_UniqueKeys.add_constructor("tag:yaml.org,2002:int", _UniqueKeys.construct_yaml_int)


def _values(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """Return the number of values in a node, including the node itself, with every alias written out.

    Args:
        node: the composed node; an alias in it is the node that the alias names.
        sizes: the number of values of each node, by identity, which this function fills in; 0 while it counts a node's
            parts.
        depth: number of sections and lists around the node.
    """
    if depth > _DEEPEST:
        raise _refusal("nested too deeply", node)
    size = sizes.get(id(node))
    if size == 0:
        raise _refusal("an alias refers to a section that contains it: write the values out", node)
    if size is None:
        sizes[id(node)] = 0
        size = 1
        if isinstance(node, yaml.ScalarNode) and any("\ud800" <= letter <= "\udfff" for letter in node.value):
            raise _refusal("a text contains a lone surrogate, which is not Unicode: remove this character", node)
        if isinstance(node, yaml.CollectionNode):
            pairs = isinstance(node, yaml.MappingNode)
            parts = [part for pair in node.value for part in pair] if pairs else node.value
            size += sum(_values(part, sizes, depth + 1) for part in parts)
        sizes[id(node)] = size
    return size


def _refusal(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def read_yaml(path: Path, *, names_people: bool = False) -> Any:
    """Return a file's content. Raises InputError, one line with the place, for broken YAML or repeated keys.

    Args:
        names_people: whether the keys are names of people, which error messages must not contain.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), names_people=names_people)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: broken YAML (not UTF-8 at byte {error.start}). Save the file as UTF-8") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_yaml(text: str, *, names_people: bool = False) -> Any:
    """Return the content of a YAML text. Raises InputError like ``read_yaml``, without a file's name."""
    try:
        # A subclass of the safe loader: a tag in the file can build no Python object.
        return yaml.load(text, _UniqueKeys)
    # First, because it is a kind of ``YAMLError``; its line number counts from 0.
    except yaml.constructor.ConstructorError as error:
        at = error.problem_mark
        where = "" if at is None else f"line {at.line + 1}: "
        raise InputError(f"{where}{'a key cannot be used' if names_people else error.problem}") from error
    except yaml.YAMLError as error:
        # Without what the file has there, which ``str(error)`` quotes.
        at, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "not YAML"
        where = "" if at is None else f", line {at.line + 1}, column {at.column + 1}"
        raise InputError(f"broken YAML ({problem}{where}). Correct the file") from error
    except RecursionError as error:
        raise InputError("broken YAML (nested too deeply). Use fewer levels") from error
    # What looks like a date or a number and is none, such as 2026-02-30.
    except (ValueError, AttributeError) as error:
        raise InputError(f"broken YAML ({error}): put quotes around text that looks like a date or a number") from error
