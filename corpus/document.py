"""A document: a text, and the parts of it that count. All of a plain text counts.

Attacks score the tokens of these parts, extraction looks for these parts, and training computes the loss on them. A
model only reads the other text, such as a prompt or another person's turn.

A document from a row of turns stores the place of each turn (``TurnLayout``), so heldin can let other turns count.

A preference pair is one document: the prompt, then the chosen answer, then the rejected answer. A model never reads the
whole document. It reads the two ``branches``.
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
    """The parts of a row of turns that count: everything, the turns of one role, or the text after the prompt."""

    ALL = "all"
    USER = "user"
    ASSISTANT = "assistant"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn in a text, from the first of the role's words to the end of the turn that the template writes."""

    role: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TurnLayout:
    """The places of the turns of a document.

    Attributes:
        turns: the turns in order, without overlap.
        completion: place where the text after the prompt begins; None if there is no prompt.
        framed: whether a chat template wrote the text. The text then has all the tokens that a model reads, so no token
            is added before or after the text.
        second: place where the rejected answer of a preference pair begins, after the separator; None for other
            documents.
    """

    turns: tuple[Turn, ...]
    completion: int | None = None
    framed: bool = True
    second: int | None = None

    def moved(self, move: Callable[[Spans], Spans], at: Callable[[int], int]) -> "TurnLayout":
        """Return the places of the turns in a changed text. The result omits turns that no longer exist.

        Args:
            move: function that returns the new places of parts, without the parts that no longer exist.
            at: function that returns the new place of a character.
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
        text: the whole text, as a model reads it.
        spans: the parts that count, in order, without overlap. A plain text has one part, the whole text.
        layout: the places of the turns; None for a text that is not a row of turns.

    Raises:
        ValueError: a part is outside the text, or the parts are not in order.
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
        """Whether all of the text counts."""
        return self.spans == ((0, len(self.text)),)

    @property
    def framed(self) -> bool:
        """Whether the text has its own first and last token (``TurnLayout``)."""
        return self.layout is not None and self.layout.framed

    @property
    def is_pair(self) -> bool:
        """Whether the document is a preference pair."""
        return self.layout is not None and self.layout.second is not None

    def branches(self) -> tuple["Document", ...]:
        """Return the documents that a model reads: this document, or the chosen and the rejected branch of a pair."""
        layout = self.layout
        if layout is None or layout.second is None:
            return (self,)
        assert layout.completion is not None
        # De-identification may have taken what separates them into a name.
        apart = len(_BETWEEN) if self.text[: layout.second].endswith(_BETWEEN) else 0
        return self._without(layout.second - apart, len(self.text)), self._without(layout.completion, layout.second)

    def _without(self, begin: int, end: int) -> "Document":
        """Return the document without a part, with the places of the remaining parts. The result is not a pair."""

        def at(place: int) -> int:
            return place - max(0, min(place, end) - begin)

        def left(spans: Spans) -> Spans:
            return tuple((at(first), at(last)) for first, last in spans if at(first) < at(last))

        assert self.layout is not None
        layout = replace(self.layout.moved(left, at), second=None)
        return Document(self.text[:begin] + self.text[end:], left(self.spans), layout)

    @property
    def counted(self) -> str:
        """The text of the parts that count, joined."""
        return self.text if self.is_plain else "".join(self.text[begin:end] for begin, end in self.spans)

    def said(self) -> list[tuple[str, bool]]:
        """Return the words of each non-empty turn, without the end of the turn, and whether any of the words count."""
        turns = () if self.layout is None else self.layout.turns
        return [
            (words, any(begin < turn.end and turn.begin < end for begin, end in self.spans))
            for turn in turns
            if (words := _ENDS.sub("", self.text[turn.begin : turn.end]).strip())
        ]

    def counting(self, wanted: Counting) -> "Document":
        """Return the document with the wanted turns as its counted parts. There may be no such turn.

        Raises ValueError for a document without turns, or if the completion is wanted and there is no prompt.
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
        """Return the first ``most`` characters (for a pair, of each branch) with their counted parts. There may be no
        such part."""
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
        chosen: the prompt with the chosen answer; its layout has the place where the answer begins.
        rejected: the prompt with the rejected answer; its layout has the place where the answer begins.

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
