"""The interface of a kind of ``corpus.source``: facts that it reports before reading, and the source that it opens."""

import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldin.base.errors import InputError
from heldin.base.section import Section
from heldin.corpus.sources.rows import Columns, Source

if TYPE_CHECKING:
    from heldin.corpus.presets.catalogue import Preset


@dataclass(frozen=True)
class SourceSize:
    """The size of a source, if it is known without reading the source.

    Attributes:
        bytes: total bytes of its files; 0 for a source without files.
        records: number of records; 0 if the source states no number.
    """

    bytes: int = 0
    records: int = 0


class SourceConfig(Section, ABC):
    """A kind of ``corpus.source``."""

    kind: str
    """Name of the kind, or "package.module:Class"."""

    @abstractmethod
    def source(self) -> Source:
        """Return the source that reads the records."""

    def paths(self) -> tuple[Path, ...]:
        """Return the files and folders that are read."""
        return ()

    def may_be_folder(self, path: Path) -> bool:
        """Return whether a path among ``paths`` may be a folder."""
        return False

    def looks(self, key: str) -> Iterator[Callable[[], object]]:
        """Yield checks to run before anything is read. Each check raises InputError if it finds a fault.

        Args:
            key: key of the section, for messages.
        """
        for path in self.paths():
            yield functools.partial(_require_readable, path, key, folder=self.may_be_folder(path))

    def size(self) -> SourceSize | None:
        """Return the size; None for a source that must be fetched first."""
        return SourceSize(bytes=sum(map(_bytes_in, self.paths())))

    def most_users(self) -> int | None:
        """Return the number of users that the section states; None if heldin must read the source to find the
        number."""
        return None

    def min_records(self) -> int | None:
        """Return the default of ``corpus.users.min_records``; None for the default of every corpus."""
        return None

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row, which shows the format of all rows; None for a kind with only one format."""
        return None

    def named_columns(self) -> Columns:
        """Return the named columns; the usual columns for a kind without this key."""
        return Columns()

    def reading(self, columns: Columns) -> "SourceConfig":
        """Return this source with rows read by these columns. Raises InputError for a kind without columns."""
        raise InputError(f"corpus source '{self.kind}' contains only texts: leave corpus.format out")

    def preset(self) -> "Preset | None":
        """Return the preset that prepares the rows; None if there is none."""
        return None

    def has_gold(self, path: Path) -> bool:
        """Return whether the source is this file and the file annotates the people and things that its records name."""
        return False


class ColumnedSource(SourceConfig):
    """A kind with rows of columns, which may contain turns."""

    columns: Columns = Columns()
    """Names of the columns, such as user and text."""

    def first_row(self) -> Mapping[str, Any] | None:
        """Return the first row; None if no row can be looked at."""
        return self.source().first_row()

    def named_columns(self) -> Columns:
        """Return ``columns``."""
        return self.columns

    def reading(self, columns: Columns) -> SourceConfig:
        """Return this source with rows read by these columns."""
        return self.model_copy(update={"columns": columns})


def _require_readable(path: Path, key: str, *, folder: bool) -> None:
    if not path.exists() or (not folder and not path.is_file()):
        raise InputError(f"{key}.path: no such {'file or folder' if folder else 'file'}: '{path}'. Correct the path")
    if not os.access(path, os.R_OK):
        raise InputError(f"{key}.path: you cannot read '{path}': change the permissions")


def _bytes_in(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
