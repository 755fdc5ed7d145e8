"""Mentions of entities in a text: spans, categories, and one canonical string per entity."""

import bisect
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

import regex

Pattern: TypeAlias = Literal["email", "phone", "credit_card", "iban", "ip_address", "us_ssn", "crypto", "url"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
FAST = tuple(name for name in PATTERNS if name != "phone")  # the phone recogniser alone is slow: 50 texts a second

Category: TypeAlias = Literal[
    "person",
    "loc",
    "org",
    "misc",
    "gpe",
    "pii",
    "date",
    "norp",
    "fac",
    "product",
    "event",
    "law",
    "language",
    "work_of_art",
    "time",
    "percent",
    "money",
    "quantity",
    "ordinal",
    "cardinal",
]
"""The categories of Lai et al. (2021), Table I."""

CATEGORIES: tuple[Category, ...] = get_args(Category)

# Letters with their combining marks, without which "é" written as two characters, or Hindi, would be cut within a word.
_WORD = regex.compile(r"[\w\p{M}]+")

# What data sets and pipelines call them otherwise.
_OTHER_NAMES: dict[str, Category] = {"per": "person", "organization": "org", "location": "loc", "miscellaneous": "misc"}


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """One mention: characters [start, end) of a text.

    Attributes:
        start: index of the first character.
        end: index after the last character.
    """

    start: int
    end: int
    category: Category


@dataclass(frozen=True, slots=True)
class Text:
    """A record in the form for a source of mentions. The source sees one record at a time.

    Attributes:
        id: record id, which identifies the gold annotation.
    """

    id: str
    text: str


class EntitySource(Protocol):
    """Any object that finds mentions. The mentions in a text depend only on that text."""

    def fingerprint(self) -> str:
        """Hash of all inputs that decide which mentions are found."""
        ...

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield the mentions of each text, in order; mentions may overlap.

        Raises InputError if the source cannot be used.
        """
        ...


def category_named(label: str) -> Category | None:
    """Return the category of a label such as "PER", "PERSON" or "Org"; None if Table I has no such category."""
    name = label.strip().lower()
    canonical = _OTHER_NAMES.get(name, name)
    return next((category for category in CATEGORIES if category == canonical), None)


def without_overlaps(spans: Iterable[Span]) -> list[Span]:
    """Return the longest of overlapping spans; of equally long spans, the first by start, then by category."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.start - s.end, s.start, s.category)):
        # Those kept do not overlap each other, so that only the two neighbours can overlap another.
        place = bisect.bisect_left(kept, span.start, key=lambda s: s.start)
        after = kept[place : place + 1]
        before = kept[place - 1 : place] if place else []
        if all(other.end <= span.start for other in before) and all(span.end <= other.start for other in after):
            kept.insert(place, span)
    return kept


def words_of(text: str) -> list[tuple[int, int, str]]:
    """Return the words of a text: start, end, and the word without case in compatibility form."""
    return [(match.start(), match.end(), _folded(match.group())) for match in _WORD.finditer(text)]


def canonical(mention: str) -> str:
    """Return one string for all spellings of an entity: its words without case, in compatibility form.

    Blanks separate the words. Names that differ only in case and in the characters between words are one entity. One
    entity then has more texts, and the protection covers all of these texts together.
    """
    return " ".join(word for _, _, word in words_of(mention))


def _folded(word: str) -> str:
    # Twice, since folding may leave what the compatibility form changes again.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
