"""The Enron mails as two papers read them, from the CMU tarball or its folder maildir.

Both papers read every message of every folder (ACCOUNT/FOLDER/1.). The papers are Kandpal et al. (2024), Appendix D.1,
and Chua et al. (2024), Appendix B.1.
"""

import hashlib
import itertools
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import existing
from heldin.corpus.presets.published import PresetTokens, another_format
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.mail import Maildir, addresses, body, header, is_maildir, parse_message
from heldin.corpus.sources.rows import Columns, batched
from heldin.corpus.sources.text_files import first_line

ENRON = "the Enron mails: enron_mail_*.tar.gz or its folder maildir, with ACCOUNT/FOLDER/1."
NGRAM = 20
FORWARDED_SUBJECT = re.compile(r"\s*fwd?\s*:", re.IGNORECASE)
FORWARDED_BODY = re.compile(r"-{3,}[ ]*forwarded (by|message)\b|begin forwarded message", re.IGNORECASE)
_COLUMNS = Columns(date="date")


def enron_kandpal(path: Path, _tokens: PresetTokens, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """Yield the mails that each mailbox's owner wrote, without an owner's exact duplicates. The address is the user."""
    return batched(enumerate(_owned(path), start=1), path.name, "owner's message", _COLUMNS, bad)


def enron_chua(path: Path, tokens: PresetTokens, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """Yield a record for each mail and receiver, with header fields as text, without forwarded and repetitive mails."""
    return batched(_per_receiver(path, tokens), path.name, "message", _COLUMNS, bad)


def owner_of(account: str, senders: Counter[str]) -> str | None:
    """Return the address of an account: the most frequent sender whose address contains the owner's last name.

    Args:
        account: name of the folder, LASTNAME-INITIAL.
        senders: for each address, the number of the account's mails from that address. For a tie, the first in the
            alphabet counts.
    """
    # An account without an initial is all last name.
    last_name = account.rpartition("-")[0].lower() or account.lower()
    named = [sender for sender in senders if last_name in sender]
    return min(named, key=lambda sender: (-senders[sender], sender)) if named else None


def is_forwarded(subject: str, text: str) -> bool:
    """Return whether a mail is marked as forwarded: FW: or Fwd: in the subject, or a line above the message."""
    return bool(FORWARDED_SUBJECT.match(subject) or FORWARDED_BODY.search(text))


def repeats_ngram(text: str, tokens: PresetTokens) -> bool:
    """Return whether any sequence of ``NGRAM`` tokens occurs more than once in the text."""
    parts = tokens.split(text)
    # A text of fewer tokens has no such sequence, and repeats none.
    grams = [tuple(parts[i : i + NGRAM]) for i in range(len(parts) - NGRAM + 1)]
    return len(set(grams)) < len(grams)


def enron_fingerprint(path: Path) -> str | None:
    """Return the folder's fingerprint; None for a tarball, because heldin hashes a tarball like any file."""
    return Maildir(path, "account").fingerprint() if path.is_dir() else None


def _owned(path: Path) -> Iterator[dict[str, Any]]:
    # Two mailboxes may belong to one person, so duplicates are found by address, not by mailbox.
    seen: set[bytes] = set()
    finished: set[str] = set()
    # One account in memory at a time: its owner is known only when all of its mails have been counted.
    for account, messages in itertools.groupby(_messages(path), key=lambda pair: pair[0]):
        if account in finished:
            raise InputError(
                f"'{path}' contains the account {account} twice: unpack the tarball again, and name the unpacked folder"
            )
        finished.add(account)
        mails = [(_sender(m), header(m, "Date"), body(m)) for _, m in messages]
        owner = owner_of(account, Counter(sender for sender, _, _ in mails if sender))
        for sender, date, text in mails:
            # Lone surrogates are hashed as they are: whether the text can be used is judged later, where bad rows are
            # reported.
            digest = hashlib.blake2b(f"{owner}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if sender == owner and text.strip() and digest not in seen:
                seen.add(digest)
                yield {"user": owner, "text": text, "date": date or None}


def _per_receiver(path: Path, tokens: PresetTokens) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, (_, message) in enumerate(_messages(path), start=1):
        subject, text, date = header(message, "Subject"), body(message), header(message, "Date")
        # The n-grams last, because tokenizing costs most.
        if not text.strip() or is_forwarded(subject, text) or repeats_ngram(text, tokens):
            continue
        sender = _sender(message)
        # A mail to several people is as many records of one user: user-local, but not record-local.
        for receiver in addresses(message, "To", "Cc", "Bcc"):
            fields = f"Date: {date}\nFrom: {sender}\nTo: {receiver}\nSubject: {subject}\n\n{text}"
            yield number, {"user": sender, "text": fields, "date": date or None}


def _sender(message: EmailMessage) -> str:
    return next(iter(addresses(message, "From")), "")


def _messages(path: Path) -> Iterator[tuple[str, EmailMessage]]:
    """Yield pairs (account, message). The messages of an account are consecutive."""
    if path.is_dir():
        if not is_maildir(path):
            # Folders are named after people.
            number = sum(1 for _ in path.iterdir())
            raise another_format(path, ENRON, f"a folder of {number} entries, and no message at such places")
        for file in Maildir(path).files():
            yield file.relative_to(path).parts[0], parse_message(file.read_bytes())
        return
    try:
        # As a stream: seeking in a compressed tarball would decompress it again and again.
        archive = tarfile.open(existing(path), "r|*")  # noqa: SIM115
    except tarfile.ReadError as error:
        raise another_format(path, ENRON, "a file that is not an archive") from error
    try:
        with archive:
            yield from _archived(path, archive)
    except (EOFError, OSError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"{path.name}: the tarball is damaged ({first_line(error)}): fetch the file again") from error


def _archived(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, EmailMessage]]:
    any_message = False
    for member in archive:
        parts = Path(member.name).parts
        stream = (
            archive.extractfile(member) if member.isfile() and parts[:1] == ("maildir",) and len(parts) > 3 else None
        )
        if stream is not None:
            any_message = True
            yield parts[1], parse_message(stream.read())
    if not any_message:
        raise another_format(path, ENRON, "a tarball without maildir/ACCOUNT/FOLDER/MESSAGE")
