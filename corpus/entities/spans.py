"""Mentions of entities in a text: spans, categories, and one canonical string for one entity."""

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
        start: first character.
        end: behind the last character.
    """

    start: int
    end: int
    category: Category


@dataclass(frozen=True, slots=True)
class Text:
    """The view of a record that a source of mentions gets: nothing of any other record.

    Attributes:
        id: record id, by which gold annotation is found.
    """

    id: str
    text: str


class EntitySource(Protocol):
    """Anything that finds mentions. What it finds in a text depends on that text alone."""

    def fingerprint(self) -> str:
        """Hash of everything that decides what is found."""
        ...

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """The mentions of each text, in order; they may overlap.

        Raises InputError if the source cannot be used.
        """
        ...


def category_named(label: str) -> Category | None:
    """The category of a label such as "PER", "PERSON" or "Org"; None if Table I has none for it."""
    name = label.strip().lower()
    canonical = _OTHER_NAMES.get(name, name)
    return next((category for category in CATEGORIES if category == canonical), None)


def without_overlaps(spans: Iterable[Span]) -> list[Span]:
    """Of spans that overlap the longest, by start; of equally long ones the first, then by category."""
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
    """The words of a text: start, end, and the word without case in compatibility form."""
    return [(match.start(), match.end(), _folded(match.group())) for match in _WORD.finditer(text)]


def canonical(mention: str) -> str:
    """One string for the ways to write an entity: its words, without case, in compatibility form, between blanks.

    Names that differ in case and in what stands between words are one entity: more texts then name it, which protects
    them as one.
    """
    return " ".join(word for _, _, word in words_of(mention))


def _folded(word: str) -> str:
    # Twice, since folding may leave what the compatibility form changes again.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
