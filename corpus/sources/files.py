"""Files of records as a source of a corpus."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from heldin.base.section import ExpandedPath
from heldin.corpus.chat.columns import columns_to_look_for
from heldin.corpus.sources.contract import ColumnedSource, SourceConfig
from heldin.corpus.sources.open import Several, format_named
from heldin.corpus.sources.rows import Columns, Source
from heldin.corpus.sources.text_files import TextFormat

_TABLES = ("jsonl", "csv", "parquet")


def _how_many(value: object) -> str:
    return "several" if isinstance(value, list | tuple) else "one"


# The tag is found from the value, so that an error is one line and not one per alternative.
OneOrSeveral = Annotated[
    Annotated[ExpandedPath, Tag("one")] | Annotated[tuple[ExpandedPath, ...], Field(min_length=1), Tag("several")],
    Discriminator(_how_many),
]


class FileCorpus(ColumnedSource):
    """One or more files of records. heldin can append files later, and then reads only the new files."""

    kind: Literal["jsonl", "csv", "parquet", "mbox", "iob"]
    path: OneOrSeveral
    """File, or a list of files. JSON and CSV files may be compressed (.gz, .zst). heldin replaces $NAME and ${NAME}
    with the value of the environment variable."""
    columns: Columns = Columns()
    """Names of the columns, such as user and text. Omit this key for mbox and iob, which have no column names."""
    format: TextFormat = TextFormat()
    """Encoding and layout of JSON-lines and CSV files."""

    def source(self) -> Source:
        """Return the source that reads the files."""
        opened = format_named(self.kind).opened
        sources = [opened(path, self.columns, self.format) for path in self.paths()]
        return sources[0] if len(sources) == 1 else Several(tuple(sources))

    def paths(self) -> tuple[Path, ...]:
        """Return the files."""
        return (self.path,) if isinstance(self.path, Path) else self.path

    def looks(self, key: str) -> Iterator[Callable[[], object]]:
        """Yield a check for each file, and one check for all headers."""
        yield from super().looks(key)
        if all(path.is_file() for path in self.paths()):
            yield self._look

    def _look(self) -> None:
        # For what is missing no template is needed, and none is loaded.
        columns = columns_to_look_for(self.first_row(), self.columns)
        self.model_copy(update={"columns": columns}).source().look()

    def reading(self, columns: Columns) -> SourceConfig:
        """Return these files with rows read by these columns. Raises InputError for a format without columns."""
        return super().reading(columns) if self.kind in _TABLES else SourceConfig.reading(self, columns)

    def has_gold(self, path: Path) -> bool:
        """Return whether the source is this IOB file, whose tags annotate the people and things in its records."""
        return self.kind == "iob" and self.path == path
