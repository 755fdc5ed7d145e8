"""The names of users: several names of one person, and placeholders in tables for a missing name.

A YAML (or JSON) file maps each person to the person's other names.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.base.yaml_files import read_yaml


def load_aliases(path: Path) -> dict[str, str]:
    """Read ``person: [alias, ...]`` and return a map from alias to person.

    Raises InputError if the file is missing or is not such a mapping. Also raises InputError if an alias belongs to two
    people, or if a person occurs twice or is an alias of another person.
    """
    if not path.is_file():
        raise InputError(f"no such alias file: '{path}'. Correct the path")
    content = read_yaml(path, names_people=True)
    if not isinstance(content, Mapping):
        raise InputError(
            f"{path.name}: the file does not list people with their aliases. Write lines such as 'person: [alias,"
            " alias]'"
        )
    person_of: dict[str, str] = {}
    for number, (person, names) in enumerate(content.items(), start=1):
        # A single alias may stand without a list; as text it would be read letter by letter.
        for alias in [names] if isinstance(names, str) else names or []:
            if (other := person_of.setdefault(str(alias), str(person))) != str(person):
                first = list(map(str, content)).index(other) + 1
                raise InputError(
                    f"{path.name}: people {first} and {number} have the same alias. Give each alias to one person"
                )
    # No chains of aliases: where one ends would depend on the order of reading.
    for alias, person in person_of.items():
        if alias != person and person in person_of and person_of[person] != person:
            here, there = (list(map(str, content)).index(name) + 1 for name in (person, person_of[person]))
            raise InputError(
                f"{path.name}: person {here} is an alias of person {there}: list all aliases under one person"
            )
    return person_of


def missing_names(users: Iterable[str]) -> list[str]:
    """Return the users whose name is a placeholder for a missing name, such as "nan"."""
    return [user for user in users if user.strip().lower() in _NO_NAMES]


# A warning and not an error: a user may really have such a name, which only the corpus's owner can tell.
_NO_NAMES = {"nan", "none", "null", "na", "n/a", "<na>", "undefined", "unknown"}


def missing_names_line(users: Iterable[str]) -> str | None:
    """Return a warning about placeholders, or None if no user has such a name."""
    names = missing_names(users)
    if not names:
        return None
    return (
        f"warning: {counted(len(names), 'user')} with a name such as nan or null, which programs write for a missing"
        " name. Rows without a user may count as one person: leave them out with corpus.users.exclude, or correct"
        " the rows"
    )
