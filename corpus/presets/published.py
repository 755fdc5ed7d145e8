"""The common parts of presets: tables in a dataset's published format, token counts, errors for other formats."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.base.errors import InputError
from heldin.base.files import existing
from heldin.corpus.sources.bad_rows import BadRowError, BadRows
from heldin.corpus.sources.open import rows_of_file
from heldin.corpus.sources.rows import BATCH_ROWS, whole_rows
from heldin.corpus.sources.text_files import first_line

TABLE_ENDINGS = (".parquet", ".csv", ".jsonl", ".json", ".ndjson", ".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class PresetTokens:
    """The unit of a preset's lengths and n-grams.

    ``split`` cuts a text, and ``name`` is part of the store's fingerprint.
    """

    name: str
    split: Callable[[str], Sequence[Hashable]]


WORDS = PresetTokens("words", str.split)


@dataclass(frozen=True)
class Published:
    """A published table: its description in error messages (``words``), and its required columns."""

    words: str
    columns: tuple[str, ...]

    def rows(self, path: Path, bad: BadRows) -> Iterator[tuple[int, Any]]:
        """Yield (line number, row) of every file at ``path``, a file or a folder.

        Only first rows are certainly mappings.

        Raises InputError for files in another format, with the contents that were found.
        """
        for file in table_files(path):
            rows = _saved_rows(file) if file.is_dir() else rows_of_file(file, self.columns, bad)
            yield from self._checked(file, rows)

    def _checked(self, file: Path, rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        try:
            # Only the first row is checked for columns: a wrong file is one error, a wrong row in the right file is one
            # bad row.
            first = next(rows, None)
        except InputError as error:
            fault = str(error.fault) if isinstance(error, BadRowError) else str(error)
            raise another_format(file, self.words, fault) from error
        if first is None:
            raise another_format(file, self.words, "no readable row")
        if not isinstance(first[1], dict):
            raise another_format(file, self.words, f"a JSON {type(first[1]).__name__}")
        if missing := [name for name in self.columns if name not in first[1]]:
            contents = f"the columns {', '.join(map(str, first[1]))}, and no {', '.join(missing)}"
            raise another_format(file, self.words, contents)
        yield first
        yield from rows


def another_format(path: Path, expected: str, contents: str) -> InputError:
    """Return the error for files in another format, with the expected format and the contents that were found."""
    return InputError(f"'{path}' should be {expected}, but heldin found {contents}. Name another file or folder")


def table_files(path: Path) -> list[Path]:
    """Return the data files at ``path``, sorted by name. A ``save_to_disk`` folder counts as one file.

    Raises InputError if there are no data files.
    """
    if not path.is_dir():
        return [existing(path)]
    # What ``save_to_disk`` writes is many files that only the library puts together.
    if (path / "state.json").is_file():
        return [path]
    if (path / "dataset_dict.json").is_file():
        splits = ", ".join(sorted(p.name for p in path.iterdir() if p.is_dir()))
        raise InputError(f"'{path}' contains several splits: name the folder of one split, out of {splits}")
    # In the order of their names, so that every machine reads the same records in the same order.
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(TABLE_ENDINGS))
    if not files:
        names = sorted(p.name for p in path.iterdir())[:3]
        raise InputError(
            f"'{path}' has no data file ({', '.join(TABLE_ENDINGS)}), but has {', '.join(names) or 'nothing'}: name"
            " another folder"
        )
    return files


def _saved_rows(folder: Path) -> Iterator[tuple[int, Any]]:
    import datasets  # slow to import, and most copies are files

    try:
        data = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises exceptions of many classes
        raise InputError(f"cannot load dataset '{folder}' ({first_line(error)}): save the dataset again") from error
    yield from whole_rows(data.with_format("arrow").iter(BATCH_ROWS), folder.name)
