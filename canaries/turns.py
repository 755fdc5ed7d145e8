"""Canary users whose records are rows of turns, as in the corpus. The text of a record is in a turn that counts."""

from dataclasses import replace

from heldin.base.errors import InputError
from heldin.canaries.users import CanaryRecord, CanaryUser, public_dice
from heldin.corpus.chat.opening import RowReading
from heldin.corpus.document import Counting, Document
from heldin.corpus.made_up.chats import question, refusal


def in_turns(user: CanaryUser, reading: RowReading, seed: int) -> CanaryUser:
    """Return the canary user with a conversation of two turns for each text. Records with their own form do not change.

    The counted turn contains the text. The other turn is a request or a short answer, which canary users may share.

    Args:
        user: canary user with texts.
        reading: how the rows of the corpus become documents.
        seed: public seed.

    Raises:
        InputError: no part of a text counts under the template.
    """
    if user.has_form:
        return user
    dice = public_dice(seed, "turns of a canary user", user.canary.user)
    records = []
    for record in user.records:
        turns = [question(dice), record.text]
        if reading.counting is Counting.USER:
            turns.reverse()
        document = _document(reading, turns[0], turns[1], refusal(dice))
        at = document.text.find(record.text)
        position = None if record.position is None or at < 0 else at + record.position
        records.append(CanaryRecord(record.id, document, record.date, position, record.lent))
    return replace(user, records=tuple(records))


def _document(reading: RowReading, asked: str, answered: str, rejected: str) -> Document:
    try:
        document = reading.made(asked, answered, rejected)
    except ValueError as error:
        raise InputError(f"a row of a canary user: {error}") from error
    if not document.counted:
        raise InputError(f"no turn of a canary user's row is scored ({reading.counting}): choose other turns")
    return document
