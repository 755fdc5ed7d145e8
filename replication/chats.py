"""Convert plays and mails to chats. A chat is a speech that a character hears, or a mail, and the answer to it.

No record of a user contains another user's words, so an audit of these users has nobody on both sides of a chat. In
each play, the user is the character with the most answers. For mails, heldin leaves out conversations in which one user
asks another user.
"""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import whole_file

LONGEST = 1000  # characters of a speech or an answer that are kept, from its beginning
QUESTION = 200  # of a mail that is answered, so that a small model's window has room for the answer


def chats_of_plays(speeches: Iterable[Mapping[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield, play by play, a conversation for each answer of the character with the most answers.

    Args:
        speeches: rows with user, text, id and play; the rows of a play are in order.
    """
    by_play: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for speech in speeches:
        by_play[speech["play"]].append(speech)
    for play, its in by_play.items():
        answers = [(heard, said) for heard, said in pairwise(its) if heard["user"] != said["user"]]
        counts = Counter(said["user"] for _, said in answers)
        if not counts:
            continue
        # By name among equals, so that the choice does not depend on the order of the file.
        owner = min(counts, key=lambda user: (-counts[user], user))
        for heard, said in answers:
            if said["user"] == owner:
                yield {"user": owner, "id": said["id"], "play": play, "messages": _pair(heard, said)}


def chats_of_mails(mails: Iterable[Mapping[str, str]], *, least: int = 8) -> Iterator[dict[str, Any]]:
    """Yield, thread by thread, a conversation for each mail in which a user answers another person.

    An answer follows another person's mail in the same thread within a week. To get many users, the function tries
    people with the fewest answers first. A person becomes a user if at least ``least`` of the person's answers are to
    people who are not users, and every earlier user keeps at least ``least``.

    Args:
        mails: rows with user, text, id, date and subject.
        least: minimum number of conversations per user.
    """
    answers = [(thread, asked, said) for thread, own in _threads(mails) for asked, said in _answers(own)]
    by_user: dict[str, Counter[str]] = defaultdict(Counter)
    wrote: dict[str, set[str]] = defaultdict(set)
    for _, asked, said in answers:
        by_user[said["user"]][asked["user"]] += 1
        wrote[asked["text"]].add(asked["user"])
        wrote[said["text"]].add(said["user"])
    kept: dict[str, int] = {}
    for user in sorted(by_user, key=lambda name: (by_user[name].total(), name)):
        left = sum(number for asker, number in by_user[user].items() if asker not in kept)
        if left >= least and all(kept[other] - by_user[other][user] >= least for other in kept):
            for other in kept:
                kept[other] -= by_user[other][user]
            kept[user] = left
    for thread, asked, said in answers:
        # Two people may have written the same words, or one person under two addresses.
        if said["user"] in kept and not wrote[asked["text"]] & kept.keys():
            yield {"user": said["user"], "id": said["id"], "thread": thread, "messages": _pair(asked, said, QUESTION)}


_REPLY = re.compile(r"(\s*(re|fwd?)\s*:)+\s*", re.IGNORECASE)  # what is put before the subject of a thread
_LATEST = timedelta(days=7)


def _threads(mails: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, list[Mapping[str, str]]]]:
    """Yield each subject, without the prefixes of replies, with its mails by date."""
    by_subject: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for mail in mails:
        subject = _REPLY.sub("", mail["subject"] or "", count=1).strip().lower()
        if subject and mail["date"]:
            by_subject[subject].append(mail)
    for subject, own in by_subject.items():
        yield subject, sorted(own, key=lambda mail: (mail["date"], mail["id"]))


def _answers(thread: Sequence[Mapping[str, str]]) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    for asked, said in pairwise(thread):
        waited = datetime.fromisoformat(said["date"]) - datetime.fromisoformat(asked["date"])
        if asked["user"] != said["user"] and _REPLY.match(said["subject"]) and waited <= _LATEST:
            yield asked, said


def _pair(asked: Mapping[str, str], said: Mapping[str, str], most: int = LONGEST) -> list[dict[str, str]]:
    turns = (("user", asked, most), ("assistant", said, LONGEST))
    return [{"role": role, "content": speech["text"][:longest]} for role, speech, longest in turns]


Made = Callable[[Iterable[Mapping[str, str]]], Iterator[dict[str, Any]]]


def write_chats(source: Path, to: Path, made: Made = chats_of_plays) -> tuple[int, int]:
    """Write the conversations of a file of plays or mails (JSON lines, .gz).

    Args:
        source: file with plays or mails.
        to: file to write.
        made: function that makes conversations from the rows of the file.

    Returns:
        The numbers of users and conversations.

    Raises:
        InputError: the file does not have such rows.
    """
    users: set[str] = set()
    written = 0
    try:
        with (
            gzip.open(source, "rt", encoding="utf-8") as lines,
            whole_file(to) as temporary,
            temporary.open("w", encoding="utf-8") as file,
        ):
            for chat in made(map(json.loads, lines)):
                users.add(chat["user"])
                written += 1
                file.write(json.dumps(chat, ensure_ascii=False) + "\n")
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"'{source}' is no .jsonl.gz file of speeches (user, text, id, play) or of mails (user, text, id, date,"
            f" subject): {error}"
        ) from error
    return len(users), written
