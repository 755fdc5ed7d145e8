"""The sections of a config that name a source of mentions. heldin imports a source's module only when it opens the
source."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from heldin.base.files import existing
from heldin.base.section import ExpandedName, ExpandedPath, Section
from heldin.corpus.entities.spans import CATEGORIES, FAST, Category, EntitySource, Pattern


class WordsConfig(Section):
    """A list of names."""

    kind: Literal["words"]
    path: ExpandedPath
    """File with one name on each line, optionally followed by a tab and a category."""
    category: Category = "person"
    """Category for names without a category in the file."""

    def source(self) -> EntitySource:
        """Return the source. Raises InputError if the file does not exist."""
        from heldin.corpus.entities.recognisers import WordList

        return WordList(existing(self.path), self.category)


class PatternsConfig(Section):
    """Presidio's patterns for mail addresses, card numbers and the like. They need no language model, and find no
    names.
    """

    kind: Literal["patterns"]
    which: tuple[Pattern, ...] = Field(FAST, min_length=1)
    """Patterns to search for. The pattern "phone" is slow (50 texts per second)."""

    def source(self) -> EntitySource:
        """Return the source."""
        from heldin.corpus.entities.recognisers import Patterns

        return Patterns(self.which)


class SpacyConfig(Section):
    """A spaCy pipeline."""

    kind: Literal["spacy"]
    pipeline: ExpandedName
    """Name or folder of an installed pipeline."""

    def source(self) -> EntitySource:
        """Return the source."""
        from heldin.corpus.entities.recognisers import SpacyPipeline

        return SpacyPipeline(self.pipeline)


class GoldConfig(Section):
    """The entities in the last column of the CoNLL file of the corpus."""

    kind: Literal["gold"]
    path: ExpandedPath
    """The CoNLL file in ``corpus.source``."""

    def source(self) -> EntitySource:
        """Return the source. Raises InputError if the file does not exist."""
        from heldin.corpus.entities.gold import Gold

        return Gold(existing(self.path))


EntitySourceConfig: TypeAlias = Annotated[
    WordsConfig | PatternsConfig | SpacyConfig | GoldConfig, Field(discriminator="kind")
]


def entities_named(kind: str, categories: Sequence[Category]) -> str:
    """Return the source's kind, and the categories unless all categories are used."""
    return kind if set(categories) == set(CATEGORIES) else f"{kind}: {', '.join(categories)}"
