"""Several addresses of one person: a YAML (or JSON) file that maps a person to the other names they write under."""

from collections.abc import Mapping
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.yaml_files import read_yaml


def load_aliases(path: Path) -> dict[str, str]:
    """Read ``person: [alias, ...]`` and return alias to person.

    Raises InputError if the file is missing or not such a mapping, if an alias belongs to two people, or if a person is
    given twice or is an alias of another person.
    """
    if not path.is_file():
        raise InputError(f"no such alias file: '{path}'")
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise InputError(f"{path.name}: expected lines like 'person: [alias, alias]'")
    person_of: dict[str, str] = {}
    for person, names in content.items():
        # A single alias may stand without a list; as text it would be read letter by letter.
        for alias in [names] if isinstance(names, str) else names or []:
            if (other := person_of.setdefault(str(alias), str(person))) != str(person):
                raise InputError(f"{path.name}: '{alias}' is an alias of both '{other}' and '{person}'")
    # No chains of aliases: where one ends would depend on the order of reading.
    for alias, person in person_of.items():
        if alias != person and person in person_of and person_of[person] != person:
            raise InputError(f"{path.name}: '{person}' is itself an alias of '{person_of[person]}'; name one person")
    return person_of
