"""Texts that are in both groups, by exact match, and skipped rows.

A count is a number if heldin checked it, and unknown otherwise.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from heldin.base.files import text_key
from heldin.record.facts import Count, SkippedRows
from heldin.words.answer import ComparisonFlaw
from heldin.words.statement import Statement

# shares of users by name, or of held-out texts, beyond which a comparison of the two sides is void
MOST_HELD_OUT_TRAINED_ON = 0.05
LEAST_HELD_IN_TRAINED_ON = 0.5


@dataclass(frozen=True)
class Seen:
    """Counts of users' texts that are in the training records.

    Attributes:
        own: number of texts in training records of the same user.
        others: number of texts in training records of another user.
        anywhere: number of texts in any training record.
        users: users whose names are in the training records.
    """

    own: int
    others: int
    anywhere: int
    users: frozenset[str]


Parts = Sequence[str]  # of a text, which is found by any of them: its turns, or all of it as one


def seen_in_training(texts: Mapping[str, Sequence[Parts]], training: Iterable[tuple[str, str]]) -> Seen:
    """Search training records for users and their texts. Memory use depends only on the texts that are searched for.

    An empty part never matches, for example the part of a document without counted text.

    Args:
        texts: texts to search for, by user.
        training: user and text of every training record, or of each turn of every record.
    """
    # Digests of 16 bytes in place of texts, and the training records are read once, as
    # a stream. One text may be of several users.
    wanted: dict[bytes, set[str]] = {}
    for user, own_texts in texts.items():
        for part in filter(None, itertools.chain.from_iterable(own_texts)):
            wanted.setdefault(text_key(part), set()).add(user)
    own: set[tuple[str, bytes]] = set()
    others: set[tuple[str, bytes]] = set()
    named: set[str] = set()
    for user, text in training:
        if user in texts:
            named.add(user)
        digest = text_key(text)
        # Another user's text counts as seen too: a model that was trained on it knows it, whoever wrote it.
        for writer in wanted.get(digest, ()):
            (own if writer == user else others).add((writer, digest))
    # By scored text, not by digest: a text that a user has twice is scored twice, and counts twice.
    scored = [[(user, text_key(part)) for part in parts] for user, own_texts in texts.items() for parts in own_texts]
    by_own, by_others = ([any(pair in there for pair in pairs) for pairs in scored] for there in (own, others))
    return Seen(
        own=sum(by_own),
        others=sum(by_others),
        anywhere=sum(map(max, by_own, by_others)),
        users=frozenset(named),
    )


def texts_in(texts: Iterable[Parts], among: Iterable[str]) -> int:
    """Return how many of the texts have a part that equals one of the texts in ``among``."""
    there = {text_key(text) for text in filter(None, among)}
    return sum(any(text_key(part) in there for part in filter(None, parts)) for parts in texts)


def measured(count: int) -> Count:
    """Return a number that heldin counted."""
    return Count(count=count, known_by="measured")


# Not the same as measured(0), which would say that somebody looked and found none.
NOT_KNOWN = Count(count=None, known_by="not known")


def training_flaws(member: Mapping[str, bool], seen: Mapping[bool, Seen], held_out_texts: int) -> list[Statement]:
    """Return reasons why the training file invalidates the comparison of members with non-members; empty if none.

    Args:
        seen: matches of members (True) and non-members (False) with the training file.
        held_out_texts: number of scored texts by non-members.
    """
    trained_on = seen[True].users | seen[False].users
    sides = {side: [user for user, held_in in member.items() if held_in is side] for side in (True, False)}
    # By name and by text: held-out users can be in the training file under another
    # name, and held-in ones absent from it.
    wrong = [user for user in sides[False] if user in trained_on]
    absent = [user for user in sides[True] if user not in trained_on]
    flaws = []
    if len(wrong) > MOST_HELD_OUT_TRAINED_ON * len(sides[False]):
        flaws.append(ComparisonFlaw.HELD_OUT_USERS_TRAINED_ON(count=len(wrong), users=len(sides[False])))
    if seen[False].anywhere > MOST_HELD_OUT_TRAINED_ON * held_out_texts:
        flaws.append(ComparisonFlaw.HELD_OUT_TEXTS_TRAINED_ON(count=seen[False].anywhere, texts=held_out_texts))
    # A training file may be a part of what was trained on, so that many may be absent before this voids the comparison.
    if len(absent) > (1 - LEAST_HELD_IN_TRAINED_ON) * len(sides[True]):
        flaws.append(ComparisonFlaw.HELD_IN_USERS_ABSENT(count=len(absent), users=len(sides[True])))
    return flaws


def skipped_alike(members: SkippedRows, others: SkippedRows) -> float:
    """Return the p-value of the hypothesis that rows are skipped, and users lose all rows, equally often in both
    groups.

    The p-value combines two Fisher exact tests, one for each part of the hypothesis, with a correction for two tests.
    """
    # Of users and not of rows: the rows of one user come from one place.
    groups = (members, others)
    tables = (
        [[group.users_with, group.users - group.users_with] for group in groups],
        [[group.users_lost, group.users - group.users_lost] for group in groups],
    )
    return min(1.0, 2 * min(float(stats.fisher_exact(np.array(table)).pvalue) for table in tables))
