"""Canary users made of real rows. Text and form are real, so no text filter can single these users out.

The rows move from the users who wrote them to the canary users. Training sees a row if, and only if, its canary user is
a member.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from heldin.base.coins import first_in_keyed_order, keyed_order, seed_key
from heldin.base.errors import InputError
from heldin.canaries.contract import CanaryInput, Documents, NumberedCanaries, RecordStep
from heldin.canaries.users import Canary, CanaryRecord, CanaryUser
from heldin.corpus.store import CorpusStore

KIND: Final = "real_rows"


class RealRowCanaries(NumberedCanaries):
    """Users made from rows of unaudited real users, so no text filter can recognise them. Only for ``heldin plant``."""

    needs_rows: ClassVar[bool] = True

    kind: Literal["real_rows"] = KIND
    documents: Documents = (1,)
    """Number of training records per canary user, if the canary user is a member. All records of a canary user come
    from one real user. heldin adds further records for the attacker and the evaluation.
    """

    def make(self, given: CanaryInput) -> list[CanaryUser]:
        """Return the section's users. Raises InputError outside ``heldin plant``, or without enough rows."""
        if given.forms is None:
            raise InputError("canaries: real_rows is only for heldin plant. Choose another kind")
        rows_of = given.forms.takeable()
        # Those with most documents first, since fewer users have so many rows.
        return [
            user
            for documents, names in reversed(list(self.names(given.number)))
            for user in real_row_users(
                given.store, names, rows_of, documents=documents, needed=given.records(documents), seed=given.seed
            )
        ]

    def written(self) -> list[int]:
        """Return an empty list, because no row is added: rows only change owner."""
        return []

    def record_steps(self) -> list[RecordStep]:
        """Return an empty list.

        Rows move before any coin is drawn, and no epsilon covers a set that others train on.
        """
        return []


def real_row_users(
    store: CorpusStore,
    names: Sequence[str],
    rows_of: dict[str, Sequence[int]],
    *,
    documents: int,
    needed: int,
    seed: int,
) -> list[CanaryUser]:
    """Take the rows of each canary user from one real user, who keeps at least one row.

    Args:
        rows_of: for each user, the rows that may be taken. The function removes each user whose rows it takes. If the
            authors are unknown, all rows belong to one user.
        documents: see ``Canary``.
        needed: number of rows of each canary user, set-aside rows included.
        seed: public seed. The choice of rows depends on the seed and the rows' ids, and not on a coin.

    Raises:
        InputError: too few users have enough rows.
    """
    key, unknown = seed_key(seed), len(rows_of) == 1
    waiting = keyed_order(key, f"lenders of {documents} rows", list(rows_of))
    made: list[CanaryUser] = []
    for name in names:
        lender = next((user for user in waiting if len(rows_of.get(user, ())) > needed), None)
        if lender is None:
            raise InputError(
                f"canaries: each of {len(names)} canary users with {documents} real rows needs an unaudited user"
                f" with {needed + 1} different rows ({needed - documents} are set aside), but only {len(made)}"
                " users have so many rows. Lower users or documents, or audit fewer real users"
            )
        rows = rows_of.pop(lender)
        order = first_in_keyed_order(key, f"rows of {name}", [store.id(row) for row in rows], needed)
        taken = [rows[place] for place in order]
        if unknown:
            gone = set(taken)
            rows_of[lender] = [row for row in rows if row not in gone]
        records = (store.record(row) for row in taken)
        made.append(
            CanaryUser(
                Canary(name, KIND, None, documents, None, ""),
                tuple(
                    CanaryRecord(f"{name}/{number:05d}", record.document, record.date, None, record.row)
                    for number, record in enumerate(records)
                ),
            )
        )
    return made


def takeable_rows(store: CorpusStore, rows_of: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Return the rows with a text that no other row has. If another row keeps a text, training could still see the text
    without this row."""
    seen: set[str] = set()
    twice: set[str] = set()
    for row in range(len(store)):
        text = store.text(row)
        (twice if text in seen else seen).add(text)
    return {user: [row for row in rows if store.text(row) not in twice] for user, rows in rows_of.items()}
