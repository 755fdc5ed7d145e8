"""De-identification: mentions of entities replaced by the name of their category (the baseline of Lai et al. 2021).

A heuristic: a name that the source of mentions misses stays, and nothing is promised about it.
"""

from collections.abc import Collection, Iterable, Sequence

from heldin.base.progress import Reporter
from heldin.corpus.entities.spans import Category, EntitySource, Span, Text


def deidentified(text: str, spans: Iterable[Span]) -> str:
    """The text with every mention replaced, such as "[PERSON] called".

    Mentions that overlap are replaced as one, by the category of the longest: nothing of either is left.
    """
    pieces, at = [], 0
    for start, end, category in _merged(spans):
        pieces += [text[at:start], f"[{category.upper()}]"]
        at = end
    return "".join([*pieces, text[at:]])


def deidentified_texts(
    texts: Sequence[Text], source: EntitySource, categories: Collection[Category], reporter: Reporter
) -> list[str]:
    """Each text without the mentions that the source finds in it.

    Args:
        texts: what is searched, each by itself.
        categories: those that are replaced.

    Raises:
        InputError: the source cannot be used.
    """
    cleaned = []
    with reporter.track("de-identification", len(texts), "texts") as advance:
        for text, spans in zip(texts, source.spans(texts), strict=True):
            cleaned.append(deidentified(text.text, (span for span in spans if span.category in categories)))
            advance(1)
    return cleaned


def _merged(spans: Iterable[Span]) -> list[tuple[int, int, Category]]:
    """Spans that overlap as one, by start."""
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
