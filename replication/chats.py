"""Plays as chats: a speech that a character hears, and the answer.

Of each play one character is a user: the one with the most answers. What others say stands in a user's prompts alone,
and no user's words stand in a record of another: an audit of these users has no person on both sides.
"""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import whole_file

LONGEST = 1000  # characters of a speech that are kept, from its beginning


def chats_of_plays(speeches: Iterable[Mapping[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield a conversation for each answer of the character of a play who answers most, play by play.

    Args:
        speeches: with user, text, id and play, those of a play in order.
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
                messages = [
                    {"role": "user", "content": heard["text"][:LONGEST]},
                    {"role": "assistant", "content": said["text"][:LONGEST]},
                ]
                yield {"user": owner, "id": said["id"], "play": play, "messages": messages}


def write_chats(plays: Path, to: Path) -> tuple[int, int]:
    """Write the conversations of a file of plays (JSON lines, .gz); return the numbers of users and conversations.

    Raises InputError for a file that is no such file.
    """
    users: set[str] = set()
    written = 0
    try:
        with (
            gzip.open(plays, "rt", encoding="utf-8") as lines,
            whole_file(to) as temporary,
            temporary.open("w", encoding="utf-8") as file,
        ):
            for chat in chats_of_plays(map(json.loads, lines)):
                users.add(chat["user"])
                written += 1
                file.write(json.dumps(chat, ensure_ascii=False) + "\n")
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"'{plays}' is no .jsonl.gz file of speeches with user, text, id and play ({error})"
        ) from error
    return len(users), written
