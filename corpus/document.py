"""A document: a text, and the parts of it that count. A plain text counts whole.

Attacks score, extraction looks for and training counts the loss on the tokens of these parts. What lies between them,
such as a prompt or another person's turn, is read before them and no more.
"""

from dataclasses import dataclass

Spans = tuple[tuple[int, int], ...]  # parts of a text: first character, and the one after the last


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its parts that count.

    Attributes:
        text: all of it, as a model reads it.
        spans: the parts that count, in order, none overlapping another; for a plain text one part, all of it.

    Raises:
        ValueError: a part is outside of the text, or they are not in order.
    """

    text: str
    spans: Spans

    def __post_init__(self) -> None:
        before = 0
        for begin, end in self.spans:
            if not before <= begin <= end:
                raise ValueError(f"part {begin} to {end} of a text overlaps another, or is not in order")
            before = end
        if before > len(self.text):
            raise ValueError(f"a part ends at character {before} of a text of {len(self.text)}")

    @classmethod
    def of(cls, text: str) -> "Document":
        """Return a plain text as a document."""
        return cls(text, ((0, len(text)),))

    @property
    def is_plain(self) -> bool:
        """Return whether all of the text counts."""
        return self.spans == ((0, len(self.text)),)

    @property
    def counted(self) -> str:
        """Return the text of the parts that count, one after the other."""
        return self.text if self.is_plain else "".join(self.text[begin:end] for begin, end in self.spans)

    def cut(self, most: int) -> "Document":
        """Return the first ``most`` characters, with what counts of them, which may be nothing."""
        if len(self.text) <= most:
            return self
        text = self.text[:most]
        if self.is_plain:
            return Document.of(text)
        return Document(text, tuple((begin, min(end, most)) for begin, end in self.spans if begin < min(end, most)))
