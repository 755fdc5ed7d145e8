"""The source of mentions that a person asks for."""

from collections.abc import Sequence
from pathlib import Path

from heldin.base.errors import InputError
from heldin.corpus.entities.gold import Gold
from heldin.corpus.entities.patterns import PATTERNS, Patterns
from heldin.corpus.entities.pipelines import SpacyPipeline
from heldin.corpus.entities.spans import CATEGORIES, Category, EntitySource
from heldin.corpus.entities.word_list import WordList
from heldin.corpus.sources.iob import Iob
from heldin.corpus.sources.rows import Source, existing


def chosen_source(
    corpus: Source,
    *,
    gold: bool = False,
    words: Path | None = None,
    patterns: Sequence[str] = (),
    pipeline: str | None = None,
) -> EntitySource:
    """The one source that was asked for.

    Args:
        corpus: what the records come from.
        gold: the annotation of the corpus itself, a CoNLL file.
        words: file of names.
        patterns: presidio's recognisers by name.
        pipeline: spaCy pipeline by name or folder.

    Raises:
        InputError: none or several were asked for, or one that is not there.
    """
    asked = [gold, words is not None, bool(patterns), pipeline is not None]
    if sum(asked) != 1:
        raise InputError("give one source of entities: --gold, --words FILE, --pattern NAME or --pipeline NAME")
    if words is not None:
        return WordList(existing(words))
    if pipeline is not None:
        return SpacyPipeline(pipeline)
    if gold:
        annotated = gold_of(corpus)
        if annotated is None:
            raise InputError("--gold reads the last column of one CoNLL file, and the corpus is none")
        return annotated
    unknown = [name for name in patterns if name not in PATTERNS]
    if unknown:
        raise InputError(f"--pattern {unknown[0]} is unknown: use {', '.join(PATTERNS)}")
    return Patterns(tuple(name for name in PATTERNS if name in patterns))


def gold_of(corpus: Source) -> Gold | None:
    """The annotation of a corpus that is one CoNLL file; None for any other."""
    return Gold(corpus.path) if isinstance(corpus, Iob) else None


def known_categories(names: Sequence[str]) -> tuple[Category, ...]:
    """The categories named, all of them for none. Raises InputError for a name that is no category."""
    unknown = [name for name in names if name not in CATEGORIES]
    if unknown:
        raise InputError(f"category '{unknown[0]}' is unknown: use one of {', '.join(CATEGORIES)}")
    return tuple(category for category in CATEGORIES if not names or category in names)
