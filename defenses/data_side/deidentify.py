"""De-identification: the name of the category replaces each mention of an entity.

De-identification is the baseline of Lai et al. (2021). A name that the source of mentions misses stays in the text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from heldin.corpus.document import Document, Spans
from heldin.corpus.entities.config import EntitySourceConfig, entities_named
from heldin.corpus.entities.spans import CATEGORIES, Category, Span, Text
from heldin.defenses.choices import DataStep
from heldin.defenses.data_side.contract import DataSideDefense, StepInput, TrainingRecord
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement


class DeIdentify(DataSideDefense):
    """Replace mentions of people and things with the names of their categories."""

    kind: Literal["deidentify"] = "deidentify"
    entities: EntitySourceConfig
    """Source of entities. This source finds the names to replace. A name that the source misses stays in the text."""
    categories: Annotated[tuple[Category, ...], Field(min_length=1)] = CATEGORIES
    """Categories of entities to replace, from Lai et al. (2021), Table I."""

    rewrites: ClassVar[bool] = True

    def name(self) -> Statement:
        """Return the step's name in a plan and a record."""
        return DataStepText.DEIDENTIFIED(entities=entities_named(self.entities.kind, self.categories))

    def declared(self) -> DataStep:
        """Return the declared step. The step is record-local: the mentions in a text depend on that text only."""
        return DataStep(name=self.name(), user_local=True, record_local=True)

    @property
    def searched_by(self) -> EntitySourceConfig:
        """Return the source that finds mentions."""
        return self.entities

    def apply(self, records: Sequence[TrainingRecord], given: StepInput) -> list[TrainingRecord]:
        """Replace the mentions that the source finds. Raises InputError if the source cannot be used."""
        cleaned = []
        with given.reporter.track("de-identification", len(records), "texts") as advance:
            mentions = self.entities.source().spans([Text(record.id, record.text) for record in records])
            for record, spans in zip(records, mentions, strict=True):
                document = deidentified(record.document, (span for span in spans if span.category in self.categories))
                cleaned.append(replace(record, document=document))
                advance(1)
        return cleaned


def deidentified(document: Document, mentions: Iterable[Span]) -> Document:
    """Replace every mention in the document, as in "[PERSON] called".

    A replacement counts if any part of the mention counted.

    The function replaces overlapping mentions together, with the category of the longest mention, so no part of any
    mention remains. It also searches parts that do not count, because a model reads these parts.
    """
    merged = _merged(mentions)
    pieces, at = [], 0
    for start, end, category in merged:
        pieces += [document.text[at:start], f"[{category.upper()}]"]
        at = end
    text = "".join([*pieces, document.text[at:]])
    spans = ((0, len(text)),) if document.is_plain else _moved(document.spans, merged)
    layout = document.layout
    if layout is not None:
        layout = layout.moved(lambda parts: _moved(parts, merged), lambda at: _moved_begin(at, merged))
    return Document(text, spans, layout)


def _moved(spans: Spans, mentions: Sequence[tuple[int, int, Category]]) -> Spans:
    """Return the parts that count after the replacement of mentions.

    A mention on an edge belongs to the earlier part.
    """
    moved, before = [], 0
    for begin, end in spans:
        first, last = _moved_begin(begin, mentions), end
        for start, stop, category in mentions:
            last += _longer(start, stop, category) + max(0, stop - end) if start < end else 0
        if max(first, before) < last:
            moved.append((max(first, before), last))
            before = last
    return tuple(moved)


def _moved_begin(begin: int, mentions: Sequence[tuple[int, int, Category]]) -> int:
    """Return the first character of a part. A part that begins inside a mention begins before the replacement."""
    moves = (_longer(*mention) if mention[1] <= begin else min(0, mention[0] - begin) for mention in mentions)
    return begin + sum(moves)


def _longer(start: int, stop: int, category: Category) -> int:
    return len(f"[{category.upper()}]") - (stop - start)


def _merged(spans: Iterable[Span]) -> list[tuple[int, int, Category]]:
    """Merge overlapping spans, sorted by start."""
    groups: list[list[Span]] = []
    end = -1
    for span in sorted(spans):
        if span.start < end:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span.end)
    return [
        (
            group[0].start,
            max(span.end for span in group),
            max(group, key=lambda span: (span.end - span.start, -span.start)).category,
        )
        for group in groups
    ]
