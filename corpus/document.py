"""A document: a text, and the parts of it that count. A plain text counts whole.

Attacks score, extraction looks for and training counts the loss on the tokens of these parts. What lies between them,
such as a prompt or another person's turn, is read before them and no more.

A document that was a row of turns knows the place of each (``TurnLayout``), so that other turns can be made to count.

A preference pair is one document: the prompt, the chosen answer, and behind it the rejected answer. A model never reads
it whole, but its two ``branches``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

# What ends a turn: blanks, and markers such as <|im_end|>, </s> or [/INST].
_ENDS = re.compile(r"(\s|<[^<>\s]*>|\[/?[A-Z_]+\])+$")
# Between the answers of a pair, so that no word of one joins a word of the other.
_BETWEEN = "\n\n"
Spans = tuple[tuple[int, int], ...]  # parts of a text: first character, and the one after the last


class Counting(StrEnum):
    """What counts of a row of turns: all of it, the turns of one role, or what follows the prompt."""

    ALL = "all"
    USER = "user"
    ASSISTANT = "assistant"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn in a text, from where its role's words begin to where the template ends it: its characters."""

    role: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnLayout:
    """The places of the turns of a document.

    Attributes:
        turns: in order, none overlapping another.
        completion: where what follows the prompt begins; None where there is no prompt.
        framed: whether a chat template wrote the text: it has all the tokens that a model reads, and none is put before
            or behind it.
        second: where the rejected answer of a preference pair begins, behind what separates the two. None: no pair.
    """

    turns: tuple[Turn, ...]
    completion: int | None = None
    framed: bool = True
    second: int | None = None

    def moved(self, move: Callable[[Spans], Spans], at: Callable[[int], int]) -> "TurnLayout":
        """Return the places of the turns in a changed text; a turn that is gone is left out.

        Args:
            move: gives the places of some parts; what is left of none is left out.
            at: gives the place of a character.
        """
        kept = []
        for turn in self.turns:
            kept += [Turn(turn.role, begin, end) for begin, end in move(((turn.begin, turn.end),))]
        completion, second = (None if place is None else at(place) for place in (self.completion, self.second))
        return TurnLayout(tuple(kept), completion, self.framed, second)


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its parts that count.

    Attributes:
        text: all of it, as a model reads it.
        spans: the parts that count, in order, none overlapping another; for a plain text one part, all of it.
        layout: the places of its turns; None for a text that was no row of turns.

    Raises:
        ValueError: a part is outside of the text, or they are not in order.
    """

    text: str
    spans: Spans
    layout: TurnLayout | None = None

    def __post_init__(self) -> None:
        before = 0
        for begin, end in self.spans:
            if not before <= begin <= end:
                raise ValueError(f"part {begin} to {end} of a text overlaps another part, or is not in order")
            before = end
        if before > len(self.text):
            raise ValueError(f"a part ends at character {before}, but the text has {len(self.text)}")

    @classmethod
    def of(cls, text: str) -> "Document":
        """Return a plain text as a document."""
        return cls(text, ((0, len(text)),))

    @property
    def is_plain(self) -> bool:
        """Return whether all of the text counts."""
        return self.spans == ((0, len(self.text)),)

    @property
    def framed(self) -> bool:
        """Return whether the text has its own first and last token (``TurnLayout``)."""
        return self.layout is not None and self.layout.framed

    @property
    def is_pair(self) -> bool:
        """Return whether the document is a preference pair."""
        return self.layout is not None and self.layout.second is not None

    def branches(self) -> tuple["Document", ...]:
        """Return what a model reads: the document, or of a pair the prompt with each answer, the chosen one first."""
        layout = self.layout
        if layout is None or layout.second is None:
            return (self,)
        assert layout.completion is not None
        # De-identification may have taken what separates them into a name.
        apart = len(_BETWEEN) if self.text[: layout.second].endswith(_BETWEEN) else 0
        return self._without(layout.second - apart, len(self.text)), self._without(layout.completion, layout.second)

    def _without(self, begin: int, end: int) -> "Document":
        """The document without a part, and with the places of what is left; it is no pair."""

        def at(place: int) -> int:
            return place - max(0, min(place, end) - begin)

        def left(spans: Spans) -> Spans:
            return tuple((at(first), at(last)) for first, last in spans if at(first) < at(last))

        assert self.layout is not None
        layout = replace(self.layout.moved(left, at), second=None)
        return Document(self.text[:begin] + self.text[end:], left(self.spans), layout)

    @property
    def counted(self) -> str:
        """Return the text of the parts that count, one after the other."""
        return self.text if self.is_plain else "".join(self.text[begin:end] for begin, end in self.spans)

    def said(self) -> list[tuple[str, bool]]:
        """Return what each turn says, without what ends it, and whether any of it counts; nothing of empty turns."""
        turns = () if self.layout is None else self.layout.turns
        return [
            (words, any(begin < turn.end and turn.begin < end for begin, end in self.spans))
            for turn in turns
            if (words := _ENDS.sub("", self.text[turn.begin : turn.end]).strip())
        ]

    def counting(self, wanted: Counting) -> "Document":
        """Return the document of which these turns count, which may be none.

        Raises ValueError for a document without turns, or a completion of one without a prompt.
        """
        if wanted is Counting.ALL:
            return replace(self, spans=((0, len(self.text)),))
        if self.layout is None:
            raise ValueError(f"'{wanted}' needs turns, but the text has none")
        if wanted is not Counting.COMPLETION:
            return replace(self, spans=tuple((t.begin, t.end) for t in self.layout.turns if t.role == wanted))
        if self.layout.completion is None:
            raise ValueError("'completion' needs a prompt, but the text has none")
        return replace(self, spans=((self.layout.completion, len(self.text)),))

    def cut(self, most: int) -> "Document":
        """Return the first ``most`` characters, with what counts of them, which may be nothing; of a pair those of each
        branch."""
        if self.is_pair:
            return forked(*(branch.cut(most) for branch in self.branches()))
        if len(self.text) <= most:
            return self

        def kept(spans: Spans) -> Spans:
            return tuple((begin, min(end, most)) for begin, end in spans if begin < min(end, most))

        layout = None if self.layout is None else self.layout.moved(kept, lambda at: min(at, most))
        return Document(self.text[:most], ((0, most),) if self.is_plain else kept(self.spans), layout)


def forked(chosen: Document, rejected: Document) -> Document:
    """Return a preference pair as one document, from its branches.

    Args:
        chosen: the prompt with the chosen answer, and the place where the answer begins.
        rejected: the prompt with the rejected answer, and the place where that begins.

    Raises:
        ValueError: the two texts differ before their answers begin.
    """
    first, second = chosen.layout, rejected.layout
    assert first is not None
    assert second is not None
    assert first.completion is not None
    assert second.completion is not None
    fork = min(first.completion, second.completion)
    if chosen.text[:fork] != rejected.text[:fork]:
        raise ValueError("the two answers of a pair follow different texts of the prompt")
    text = chosen.text + _BETWEEN
    end = len(text)

    def behind(spans: Spans) -> Spans:
        return tuple((max(begin, fork) - fork + end, last - fork + end) for begin, last in spans if last > fork)

    turns = (*first.turns, *second.moved(behind, lambda place: place).turns)
    spans, others = chosen.spans, behind(rejected.spans)
    # What separates two parts that count counts with them, as it does where all of a text does.
    if spans and others and (spans[-1][1], others[0][0]) == (len(chosen.text), end):
        spans, others = (*spans[:-1], (spans[-1][0], others[0][1])), others[1:]
    return Document(text + rejected.text[fork:], (*spans, *others), TurnLayout(turns, fork, first.framed, end))
