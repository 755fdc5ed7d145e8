"""The places at which an attacker cuts a text that a model must continue.

The place depends only on the text and the config.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heldin.corpus.document import Document, Turn, TurnLayout
from heldin.models.answers import Prefix

LEAST_WORDS = 4  # of a continuation, so that it has two runs of three words
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class TextCut:
    """The beginning of a text, and the words that follow it in the text.

    Attributes:
        prefix: the part that the model gets.
        continuation: the words that follow in the text, with the blanks before them.
    """

    prefix: Prefix
    continuation: str


def cuts_of(document: Document, shares: Sequence[float], words: int, *, inside: bool = False) -> list[TextCut]:
    """Cut a document. The list is empty if the document is too short.

    A chat is cut before each of its first counted turns. Any other text is cut after given shares of its counted words,
    with at least one word before the cut and ``LEAST_WORDS`` after it.

    Args:
        shares: places of the cuts, each between 0 and 1. A chat that is cut only before turns has at most this number
            of cuts.
        words: maximum number of words of a continuation.
        inside: whether to cut a chat inside its turns too, as any other text.
    """
    turns = [] if document.layout is None else [turn for turn in document.layout.turns if _counts(turn, document)]
    if turns and not inside:
        return _before_turns(document, turns[: len(shares)], words)
    placed = [
        (word.start(), end) for begin, end in document.spans for word in _WORD.finditer(document.text, begin, end)
    ]
    cuts = []
    # A part that counts may begin behind a prompt, which is then given without any of its own words.
    first = 1 if not placed or not document.text[: placed[0][0]].strip() else 0
    most = len(placed) - LEAST_WORDS
    for place in sorted({max(first, min(most, round(share * len(placed)))) for share in shares if most >= first}):
        at, end = placed[place]
        behind = list(_WORD.finditer(document.text, at, end))[:words]
        if len(behind) >= LEAST_WORDS:
            # The frame before a turn ends with a blank of its own.
            before = document.text[:at] if any(turn.begin == at for turn in turns) else document.text[:at].rstrip()
            cuts.append(TextCut(_prefix(document, len(before)), document.text[len(before) : behind[-1].end()]))
    return cuts


def _before_turns(document: Document, turns: Sequence[Turn], words: int) -> list[TextCut]:
    cuts = []
    for turn in turns:
        answer = _said(document, turn)
        behind = list(_WORD.finditer(answer))[:words]
        if len(behind) >= LEAST_WORDS and turn.begin > 0:
            cuts.append(TextCut(_prefix(document, turn.begin), answer[: behind[-1].end()]))
    return cuts


def _prefix(document: Document, end: int) -> Prefix:
    text = document.text[:end]
    turns = () if document.layout is None else document.layout.turns
    before = [(turn.role, _said(document, turn)) for turn in turns if turn.end <= end]
    cut = [replace(turn, end=end) for turn in turns if turn.begin < end < turn.end]
    before += [(turn.role, _said(document, turn)) for turn in cut]
    return Prefix(text, document.framed, tuple(before), begun=bool(cut))


def _counts(turn: Turn, document: Document) -> bool:
    return any(begin < turn.end and turn.begin < end for begin, end in document.spans)


def _said(document: Document, turn: Turn) -> str:
    """Return the words of one turn."""
    alone = Document(document.text, ((turn.begin, turn.end),), TurnLayout((turn,)))
    return "".join(words for words, _ in alone.said())
