"""Mentions from the annotation in the last column of a CoNLL file."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heldin.base.errors import InputError
from heldin.base.files import existing, file_sha256, text_sha256
from heldin.corpus.entities.spans import CATEGORIES, Span, Text, category_named
from heldin.corpus.sources.iob import Sentence, sentences


@dataclass(frozen=True)
class Gold:
    """The annotation of a CoNLL file, for the corpus that ``corpus.sources.iob`` made from the file."""

    path: Path

    def fingerprint(self) -> str:
        """Hash of the file's bytes."""
        return text_sha256("gold", file_sha256(existing(self.path)))

    def spans(self, texts: Iterable[Text]) -> Iterator[list[Span]]:
        """Yield the annotated mentions. Raises InputError for a record that is not in the file."""
        for number, text in enumerate(texts, start=1):
            sentence = self._sentences.get(text.id)
            if sentence is None or sentence.text != text.text:
                raise InputError(
                    f"record number {number} is not a sentence of '{self.path}': read the corpus from this file,"
                    " or choose another source of entities"
                )
            yield tagged_spans(sentence)

    @cached_property
    def _sentences(self) -> dict[str, Sentence]:
        return {sentence.id: sentence for sentence in sentences(self.path)}


def tagged_spans(sentence: Sentence) -> list[Span]:
    """Return the mentions in a sentence's tags, as spans of its text. Raises InputError for an unknown label."""
    spans: list[Span] = []
    before, at = "O", 0
    for token, tag in zip(sentence.tokens, sentence.tags, strict=True):
        if tag != "O":
            category = category_named(tag[2:])
            if category is None:
                # Without the label: where columns are others than taken for, it may be a name.
                raise InputError(
                    f"{sentence.file}: the sentence that starts at line {sentence.line} has an unknown label. Use one"
                    f" of {', '.join(CATEGORIES)}"
                )
            # B, S and U begin a mention; so does a label that the token before did not have (IOB1 writes I for it).
            begins = tag[0] in "BSU" or before == "O" or before[2:] != tag[2:] or before[0] in "ESL"
            if begins:
                spans.append(Span(at, at + len(token), category))
            else:
                spans[-1] = Span(spans[-1].start, at + len(token), category)
        before, at = tag, at + len(token) + 1
    return spans
