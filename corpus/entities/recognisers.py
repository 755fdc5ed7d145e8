"""Recognisers of mentions: presidio's patterns, a list of names, a spaCy pipeline, and any Python function.

Presidio's patterns find addresses and numbers without a language model or network. A list finds whole words in upper or
lower case.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import tee
from pathlib import Path
from typing import Any

import regex

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.entities.spans import CATEGORIES, FAST, Category, Pattern, Span, Text, category_named, words_of
from heldin.corpus.sources.text_files import BROKEN, corrupt, open_binary

_BETWEEN = regex.compile(r"[^\w\p{M}]{1,3}")  # between two words of a name: a blank, a hyphen, "J. Doe", "a@b"
_CLASSES: dict[Pattern, str] = {
    "email": "EmailRecognizer",
    "phone": "PhoneRecognizer",
    "credit_card": "CreditCardRecognizer",
    "iban": "IbanRecognizer",
    "ip_address": "IpRecognizer",
    "us_ssn": "UsSsnRecognizer",
    "crypto": "CryptoRecognizer",
    "url": "UrlRecognizer",
}
_BATCH = 128  # texts that spaCy takes at once


@dataclass(frozen=True)
class WordList:
    """Names from a file: one per line, with an optional tab and category (default: ``category``).

    Attributes:
        path: the file, plain, .gz or .zst, UTF-8.
        category: category of names without a category in the file.
    """

    path: Path
    category: Category = "person"

    def fingerprint(self) -> str:
        """Hash of the file and the default category."""
        return text_sha256("words", file_sha256(existing(self.path)), self.category)

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield all mentions of listed names as whole words.

        Case, and up to three marks between words, do not matter.
        """
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
        """Return, for each first word, the further words and the category of each name."""
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
            raise InputError(f"'{self.path}' contains no name: write one name per line")
        return names

    def _name(self, line: bytes, where: str) -> tuple[tuple[str, ...], Category]:
        """Return the words and category of a listed name. Errors do not quote the line, which names somebody."""
        try:
            name, _, label = line.decode("utf-8-sig").rstrip("\r\n").partition("\t")
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: invalid UTF-8 at byte {error.start}. Save the file as UTF-8") from error
        category = category_named(label) if label.strip() else self.category
        if category is None:
            raise InputError(f"{where}: the text after the tab is not a category. Use one of {', '.join(CATEGORIES)}")
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


@dataclass(frozen=True)
class Patterns:
    """Presidio's recognisers that need no language model. All their matches have the category "pii"."""

    which: tuple[Pattern, ...] = FAST

    def fingerprint(self) -> str:
        """Hash of presidio's version and the recognisers' names."""
        from importlib.metadata import version

        assert self._recognisers  # says what is missing, before its version is asked for
        return text_sha256("patterns", version("presidio-analyzer"), *sorted(self.which))

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield all matches of the patterns that pass their checks."""
        for text in texts:
            results = [
                result
                for recogniser in self._recognisers
                for result in recogniser.analyze(text.text, recogniser.supported_entities, None)
            ]
            yield [Span(result.start, result.end, "pii") for result in results if result.score > 0.0]

    @cached_property
    def _recognisers(self) -> list[Any]:
        try:
            import presidio_analyzer.predefined_recognizers as presidio
            import tldextract
        except ImportError as error:
            raise InputError("presidio is not installed: pip install '.[entities]' in a clone of heldin") from error
        # Presidio asks the network for the list of domain endings; this one is the copy that tldextract brings.
        offline = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        recognisers = []
        for name in self.which:
            recogniser = getattr(presidio, _CLASSES[name])()
            if name in ("email", "url"):
                recogniser.validate_result = lambda text: offline(text).fqdn != ""
            recognisers.append(recogniser)
        return recognisers


@dataclass(frozen=True)
class SpacyPipeline:
    """The entities of a spaCy pipeline. Labels outside Table I are left out.

    Attributes:
        name: name of an installed pipeline, or a folder.
    """

    name: str

    def fingerprint(self) -> str:
        """Hash of a folder's files, or of a pipeline's name and version."""
        folder = Path(self.name)
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            return text_sha256("spacy", *(f"{path.relative_to(folder)} {file_sha256(path)}" for path in files))
        meta = self._pipeline.meta
        return text_sha256("spacy", str(meta.get("lang")), str(meta.get("name")), str(meta.get("version")))

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield the mentions that the pipeline's entity recogniser finds in each separate text."""
        for document in self._pipeline.pipe(self._short(texts), batch_size=_BATCH):
            named = ((ent.start_char, ent.end_char, category_named(ent.label_)) for ent in document.ents)
            yield [Span(start, end, category) for start, end, category in named if category is not None]

    def _short(self, texts: Iterable[Text]) -> Iterator[str]:
        most = self._pipeline.max_length
        for number, text in enumerate(texts, start=1):
            if len(text.text) > most:
                raise InputError(
                    f"record number {number} has {len(text.text):,} characters, but a spaCy pipeline takes at most"
                    f" {most:,}. Leave this record out, or make every sentence a record (text_unit: sentence,"
                    " --sentences)"
                )
            yield text.text

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import spacy
        except ImportError as error:
            raise InputError("spaCy is not installed: pip install '.[entities]' in a clone of heldin") from error
        try:
            pipeline = spacy.load(self.name)
        # A damaged folder ends in whatever its parts raise; what ends in a bug of ours shows in tests.
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"spaCy pipeline '{self.name}' cannot be loaded: name a folder that spaCy wrote, or install the"
                f" pipeline (python -m spacy download {self.name})"
            ) from error
        if not any(name in pipeline.pipe_names for name in ("ner", "entity_ruler", "span_ruler")):
            raise InputError(
                f"spaCy pipeline '{self.name}' finds no entities (its parts:"
                f" {', '.join(pipeline.pipe_names) or '-'}): choose a pipeline with an entity recogniser"
            )
        return pipeline


@dataclass(frozen=True)
class Function:
    """Mentions from a Python function of one text.

    Attributes:
        find: function from a text to its mentions.
        name: name and version of the function. heldin searches the texts again if the name changes.
    """

    find: Callable[[str], Iterable[Span]]
    name: str

    def fingerprint(self) -> str:
        """Hash of the name, because the function itself cannot be hashed."""
        return text_sha256("function", self.name)

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield the mentions that the function finds. Raises InputError for a span outside the text."""
        seen, searched = tee(texts)
        mentions = (list(self.find(text.text)) for text in searched)
        for number, (text, spans) in enumerate(zip(seen, mentions, strict=True), start=1):
            for span in spans:
                if not 0 <= span.start < span.end <= len(text.text):
                    raise InputError(
                        f"{self.name}: span {span.start}..{span.end} is outside the {len(text.text)} characters of"
                        f" record number {number}. Correct the recogniser"
                    )
            yield spans
