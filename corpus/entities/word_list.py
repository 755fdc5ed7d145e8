"""Mentions by a list of names: whole words, in any case."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import regex

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256
from heldin.corpus.entities.spans import CATEGORIES, Category, Span, Text, category_named, words_of
from heldin.corpus.sources.rows import existing
from heldin.corpus.sources.text_files import BROKEN, corrupt, open_binary

_BETWEEN = regex.compile(r"[^\w\p{M}]{1,3}")  # between two words of a name: a blank, a hyphen, "J. Doe", "a@b"


@dataclass(frozen=True)
class WordList:
    """Names from a file: one a line, optionally a tab and a category (default: ``category``).

    Attributes:
        path: the file, plain, .gz or .zst, UTF-8.
        category: of names without one of their own.
    """

    path: Path
    category: Category = "person"

    def fingerprint(self) -> str:
        """Hash of the file and the default category."""
        return text_sha256("words", file_sha256(existing(self.path)), self.category)

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """All occurrences of listed names as whole words; case and up to three marks between words do not matter."""
        names = self._names
        for text in texts:
            words = words_of(text.text)
            spans = []
            for at, (start, _, word) in enumerate(words):
                for rest, category in names.get(word, ()):
                    end = _end(text.text, words, at, rest)
                    if end is not None:
                        spans.append(Span(start, end, category))
            yield spans

    @cached_property
    def _names(self) -> dict[str, list[tuple[tuple[str, ...], Category]]]:
        """First word to the further words and the category of each name that begins with it."""
        names: dict[str, list[tuple[tuple[str, ...], Category]]] = {}
        number = 0
        try:
            with open_binary(self.path) as lines:
                for number, line in enumerate(lines, start=1):
                    words, category = self._name(line, f"{self.path.name} line {number}")
                    if words:
                        names.setdefault(words[0], []).append((words[1:], category))
        except BROKEN as error:
            raise corrupt(self.path, f"line {number}", error) from error
        if not names:
            raise InputError(f"'{self.path}' holds no name: write one a line")
        return names

    def _name(self, line: bytes, where: str) -> tuple[tuple[str, ...], Category]:
        """The words of a listed name and its category. Errors quote nothing of the line: it names somebody."""
        try:
            name, _, label = line.decode("utf-8-sig").rstrip("\r\n").partition("\t")
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: invalid UTF-8 at byte {error.start}") from error
        category = category_named(label) if label.strip() else self.category
        if category is None:
            raise InputError(f"{where}: what follows the tab is no category: use one of {', '.join(CATEGORIES)}")
        return tuple(word for _, _, word in words_of(name)), category


def _end(text: str, words: list[tuple[int, int, str]], at: int, rest: tuple[str, ...]) -> int | None:
    """Return the end of a name whose first word is ``words[at]``; None if the further words do not follow."""
    end = words[at][1]
    following = words[at + 1 : at + 1 + len(rest)]
    if len(following) < len(rest):
        return None
    for (start, stop, word), wanted in zip(following, rest, strict=True):
        if word != wanted or not _BETWEEN.fullmatch(text, end, start):
            return None
        end = stop
    return end
