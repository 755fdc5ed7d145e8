"""Mail as a source: mbox files, and folders with one file per message, sorted by account (the Enron tarball's layout).

A message's text is its plain-text body, decoded. Messages have no record ids; the store makes the ids from user and
text.
"""

import email.errors
import email.policy
import email.utils
import os
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import Columns, Source, batched

MailUser = Literal["sender", "account"]
_PARSER: "BytesParser[EmailMessage]" = BytesParser(policy=email.policy.default)
SENDER = "From"  # column of the user, named like the header so that an error about a missing user is understood
# No id column: the Message-ID repeats when one mail is filed in several folders.
_COLUMNS = Columns(user=SENDER, date="date")
# What Python's parser raises for headers and parts that it cannot repair; RecursionError for comments or parts within
# each other by the thousand.
_BROKEN = (ValueError, TypeError, AttributeError, LookupError, RecursionError, email.errors.MessageError)


@dataclass(frozen=True)
class Mbox(Source):
    """A file of messages. A line that begins with "From " precedes each message. The user is the sender's address."""

    path: Path

    def fingerprint(self) -> str:
        """Hash of the file's bytes."""
        return text_sha256("mbox", file_sha256(existing(self.path)))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the messages. Reports a message without a sender or a text, with the number of the message."""
        return batched(enumerate(_messages_of_mbox(self.path), start=1), self.path.name, "message", _COLUMNS, bad)


@dataclass(frozen=True)
class Maildir(Source):
    """A folder with a folder per account and one file per message: ACCOUNT/FOLDER/1.

    Attributes:
        user: "sender": the user is the sender's address. "account": the user is the name of the account's folder. The
            account is the writer only if ``folders`` selects folders of sent mail.
        folders: names of the mail folders to read, such as ("sent", "sent_items", "_sent_mail"); empty: all folders.
    """

    path: Path
    user: MailUser = "sender"
    folders: tuple[str, ...] = ()

    @property
    def reason_if_empty(self) -> str | None:
        """Return why the source may have no usable record; None if all folders are read."""
        return f"no message is in a folder named {' or '.join(self.folders)}" if self.folders else None

    def fingerprint(self) -> str:
        """Hash of every file's path, size and modification time, and of the options."""
        # Contents are not read: Enron has half a million files.
        stats = [(str(p.relative_to(self.path)), p.stat().st_size, p.stat().st_mtime_ns) for p in self.files()]
        return text_sha256("maildir", repr(stats), self.user, repr(self.folders))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the messages, sorted by path."""
        return batched(enumerate(self._rows(), start=1), self.path.name, "message", _COLUMNS, bad)

    def files(self) -> Iterator[Path]:
        """Yield the files of the messages, sorted by path. Raises InputError if the folder does not exist."""
        if not self.path.is_dir():
            raise InputError(f"no such folder: '{self.path}'. Correct the path")
        for where, folders, names in os.walk(self.path):
            folders.sort()  # in place: ``os.walk`` descends in this order
            parts = Path(where).relative_to(self.path).parts
            # Files directly below the top folder belong to no account. An account named "sent" is not a folder of sent
            # mail.
            if parts and (not self.folders or any(part in self.folders for part in parts[1:])):
                yield from (Path(where) / name for name in sorted(names) if not name.startswith("."))

    def _rows(self) -> Iterator[dict[str, Any]]:
        for file in self.files():
            row = _row(file.read_bytes())
            if self.user == "account":
                row[SENDER] = file.relative_to(self.path).parts[0]
            yield row


def is_maildir(folder: Path) -> bool:
    """Return whether the first file below an account's folder begins like a message."""
    for file in Maildir(folder).files():
        with file.open("rb") as stream:
            first = stream.readline(1000)
        # A header is NAME: VALUE without a blank in its name; prose before a colon usually has one.
        name, colon, _ = first.partition(b":")
        return bool(colon) and b" " not in name
    return False


def _messages_of_mbox(path: Path) -> Iterator[dict[str, Any]]:
    with existing(path).open("rb") as stream:
        lines: list[bytes] | None = None
        blank = True
        for number, line in enumerate(stream, start=1):
            # Only after a blank line: a body line that begins "From " may stand unquoted elsewhere.
            if blank and line.startswith(b"From "):
                if lines is not None:
                    yield _row(b"".join(lines[:-1]))  # the blank line before "From " is the format's
                lines = []
            elif lines is None:
                if line.strip():
                    raise InputError(
                        f"{path.name} line {number}: not an mbox file, because a message there begins with a line"
                        " 'From '. Name another file"
                    )
            else:
                # Writers of mbox quote a body line "From " as ">From ", and ">From " as ">>From ".
                lines.append(line[1:] if line.startswith(b">") and line.lstrip(b">").startswith(b"From ") else line)
            blank = not line.strip()
        if lines is None:
            raise InputError(f"{path.name}: the mbox file contains no message. Name another file")
        yield _row(b"".join(lines[:-1] if lines and not lines[-1].strip() else lines))


def _row(raw: bytes) -> dict[str, Any]:
    """Return sender, plain text and date of a message. Missing values are None or empty, and row checks report them."""
    message = parse_message(raw)
    try:
        # In lower case, so that one address written in two ways is one user.
        sender = email.utils.parseaddr(str(message["From"] or ""))[1].lower()
        date = str(message["Date"]) if message["Date"] else None
    except _BROKEN:
        sender, date = "", None
    return {SENDER: sender, "text": body(message), "date": date}


def parse_message(raw: bytes) -> EmailMessage:
    """Parse a message; return an empty message if this fails. Most other defects show only when the message is read."""
    try:
        return _PARSER.parsebytes(raw)
    except _BROKEN:
        return EmailMessage()


def header(message: EmailMessage, name: str) -> str:
    """Return a header's text; "" if it is missing or cannot be read."""
    try:
        return str(message[name] or "")
    except _BROKEN:
        return ""


def addresses(message: EmailMessage, *names: str) -> list[str]:
    """Return distinct mail addresses in the headers ``names``, in lower case and in order, without people's names."""
    texts = (" ".join(header(message, name).split()) for name in names)
    # One header at a time, and none that is empty: some releases of Python 3.11 refuse all of several that are not each
    # one address.
    try:
        in_headers = [address for text in texts if text for _, address in email.utils.getaddresses([text])]
    except _BROKEN:
        return []
    return list(dict.fromkeys(address.lower() for address in in_headers if address))


def body(message: EmailMessage) -> str:
    """Return a message's plain text, decoded; "" if there is no plain text."""
    try:
        # Plain text only: the markup of an HTML part comes from a mail program and not from the writer.
        part = message.get_body(preferencelist=("plain",))
        if part is None:
            return ""
        try:
            return str(part.get_content())
        except (LookupError, ValueError):  # an unknown or a wrong charset
            content = part.get_payload(decode=True)
            return content.decode("utf-8", errors="replace") if isinstance(content, bytes) else ""
    except _BROKEN:
        return ""
