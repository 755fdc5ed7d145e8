"""Mentions by a spaCy pipeline, and by any function."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import tee
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import file_sha256, text_sha256
from heldin.corpus.entities.spans import Span, Text, category_named

_BATCH = 128  # texts that spaCy takes at once


@dataclass(frozen=True)
class SpacyPipeline:
    """The entities of a spaCy pipeline; labels that Table I does not know are left out.

    Attributes:
        name: of an installed pipeline, or a folder.
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
        """Yield the mentions that the pipeline's entity recogniser finds in each text by itself."""
        for document in self._pipeline.pipe(self._short(texts), batch_size=_BATCH):
            named = ((ent.start_char, ent.end_char, category_named(ent.label_)) for ent in document.ents)
            yield [Span(start, end, category) for start, end, category in named if category is not None]

    def _short(self, texts: Iterable[Text]) -> Iterator[str]:
        most = self._pipeline.max_length
        for text in texts:
            if len(text.text) > most:
                raise InputError(
                    f"record {text.id} has {len(text.text):,} characters, and a spaCy pipeline takes {most:,}: leave it"
                    " out, or make sentences the records (text_unit: sentence, --sentences)"
                )
            yield text.text

    @cached_property
    def _pipeline(self) -> Any:
        try:
            import spacy
        except ImportError as error:
            raise InputError("spaCy is not installed: pip install 'heldin[entities]'") from error
        try:
            pipeline = spacy.load(self.name)
        # A damaged folder ends in whatever its parts raise; what ends in a bug of ours shows in tests.
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"no spaCy pipeline '{self.name}' that can be loaded: name a folder that spaCy wrote, or install it"
                f" (python -m spacy download {self.name})"
            ) from error
        if not any(name in pipeline.pipe_names for name in ("ner", "entity_ruler", "span_ruler")):
            raise InputError(
                f"spaCy pipeline '{self.name}' finds no entities: its parts are {', '.join(pipeline.pipe_names) or '-'}"
            )
        return pipeline


@dataclass(frozen=True)
class Function:
    """Mentions by a function of one text, for people who write Python.

    Attributes:
        find: text to its mentions.
        name: what the function does, version included; texts are searched again if it changes.
    """

    find: Callable[[str], Iterable[Span]]
    name: str

    def fingerprint(self) -> str:
        """Hash of the name: the function itself cannot be hashed."""
        return text_sha256("function", self.name)

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield the mentions that the function finds. Raises InputError for a span outside the text."""
        seen, searched = tee(texts)
        for text, spans in zip(seen, (list(self.find(text.text)) for text in searched), strict=True):
            for span in spans:
                if not 0 <= span.start < span.end <= len(text.text):
                    raise InputError(
                        f"{self.name}: span {span.start}..{span.end} lies outside record {text.id}, which has"
                        f" {len(text.text)} characters"
                    )
            yield spans
