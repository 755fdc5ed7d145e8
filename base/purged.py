"""The mark of a folder whose secrets were removed: what reads these says so in one line."""

from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.strict_json import read_json

MARK = "purged.json"


def require_not_purged(folder: Path) -> None:
    """Raise InputError if ``heldin purge`` removed what ``folder`` held."""
    path = folder / MARK
    if not path.is_file():
        return
    try:
        when = read_json(path)["purged"]
    except (ValueError, KeyError, TypeError):
        when = "at a time that its damaged mark does not tell"
    raise InputError(
        f"'{folder}' was purged ({when}): keys, ledger and scores are gone, so that nothing in it can be recomputed or"
        " gone on with; start again in a new folder"
    )
