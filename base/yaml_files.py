"""Safe YAML in which a repeated key is an error; PyYAML would silently keep the last one."""

from pathlib import Path
from typing import Any

import yaml

from heldin.base.errors import InputError


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that repeats a key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the safe loader, after checking that no key is repeated."""
        seen: set[str] = set()
        for key, _ in node.value:
            # "<<" merges another mapping and may legitimately occur several times.
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                # Compared as written: the keys 1 and "1" count as one, since a config has no use for both.
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"'{key.value}' is given twice: keep one", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """A file's content. Raises InputError, one line with the place, for broken YAML and for a repeated key."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: broken YAML (not UTF-8 at byte {error.start})") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Raises InputError like ``read_yaml``, without a file's name."""
    try:
        # A subclass of the safe loader: a tag in the file can build no Python object.
        return yaml.load(text, _UniqueKeys)
    # First, because it is a kind of ``YAMLError``; its line number counts from 0.
    except yaml.constructor.ConstructorError as error:
        at = error.problem_mark
        where = "" if at is None else f"line {at.line + 1}: "
        raise InputError(f"{where}{error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"broken YAML ({' '.join(str(error).split())})") from error
    except RecursionError as error:
        raise InputError("broken YAML (nested too deeply)") from error
    # What looks like a date or a number and is none, such as 2026-02-30.
    except (ValueError, AttributeError) as error:
        raise InputError(f"broken YAML ({error}): put text that looks like a date or a number into quotes") from error
