"""Columns of a training set that name people, from which whoever trains could tell whose rows canary rows copy."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from heldin.base.errors import InputError
from heldin.canaries.config import SubstringCanaries
from heldin.corpus.sources.rows import BadRows
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.training_set import TrainingSet

SAMPLE = 100_000  # rows that are looked at
_LEAST = 20  # values below which nothing is said of a column
_MOST = 0.95  # share of rows whose value stands with one user alone
_PARTS = re.compile(r"[^0-9A-Za-z]+")
_Values = dict[str, tuple[set[str], list[int]]]  # by value the users beside whom it stands, and the number of its rows


def require_no_telling_column(config: PlantConfig, source: TrainingSet) -> None:
    """Refuse columns that name people: an address, or an id that begins with a user's number.

    Canary rows take all columns but users, ids, dates and texts from rows that nobody is trained on, those of held-out
    users among them. The name of a person who stands there, and nowhere else, then says who is held out.

    Raises InputError if there is one, and canary users are made up.
    """
    its = source.columns
    if its.user is None or all(isinstance(spec, SubstringCanaries) for spec in config.canaries):
        return
    rows = itertools.islice(source.rows(BadRows(skip=True, to_skip="")), SAMPLE)
    own = {its.user, its.id, its.date, *source.text.columns}
    column = telling_column(((record["user"] or "", row) for record, row in rows), own)
    if column is not None:
        raise InputError(
            f"'{source.path}': column '{column}' names people, or numbers them, and canary rows take it from others'"
            " rows, which would show who is held out: name it under 'columns' if it is an id, else leave it out"
        )


def telling_column(rows: Iterable[tuple[str, Mapping[str, Any]]], own: set[str | None]) -> str | None:
    """The first column of which the values, or a part of them, stand in several rows of one user each.

    Args:
        rows: each row's user and its columns.
        own: columns that are not copied.
    """
    # By column and number of the part; the whole value is part -1.
    found: dict[tuple[str, int], _Values] = defaultdict(dict)
    everybody: set[str] = set()
    for user, row in rows:
        everybody.add(user)
        for name, value in row.items():
            if name in own or value is None:
                continue
            text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
            for part, its in enumerate((text, *_PARTS.split(text)[:8]), start=-1):
                users, count = found[name, part].setdefault(its, (set(), [0]))
                users.add(user)
                count[0] += 1
    for (name, _), values in found.items():
        total = sum(count[0] for _, count in values.values())
        alone = sum(count[0] for users, count in values.values() if len(users) == 1)
        if len(everybody) > 1 and total >= max(_LEAST, 2 * len(values)) and alone >= _MOST * total:
            return name
    return None
