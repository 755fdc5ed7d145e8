"""The options that choose rows of the made-up corpus."""

from typing import TYPE_CHECKING

from heldin.base.errors import InputError

if TYPE_CHECKING:
    from heldin.corpus.made_up.chats import MadeUpRows


def made_up_rows(chat: bool, pairs: bool) -> "MadeUpRows":
    """Return the kind of rows that --chat or --pairs selects. Raises InputError if both are given."""
    from heldin.corpus.made_up.chats import MadeUpRows

    if chat and pairs:
        raise InputError("--chat and --pairs make different kinds of rows: give only one of these options")
    return MadeUpRows.PAIRS if pairs else MadeUpRows.CHATS if chat else MadeUpRows.MAILS
