"""Open a source by its path: one small class per format, all with the protocol ``corpus.sources.rows.Source``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.corpus.sources.rows import BadRows, Columns, Source
from heldin.corpus.sources.text_files import Csv, JsonLines, Parquet


@dataclass(frozen=True)
class Several:
    """Several sources in sequence, such as last year's records and this year's."""

    sources: tuple[Source, ...]

    def fingerprint(self) -> str:
        """Hash of the sources' fingerprints, in order."""
        return text_sha256("several", *(source.fingerprint() for source in self.sources))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield the records of each source in turn."""
        # One after the other with one count of bad rows: ``first`` is the first of all sources.
        for source in self.sources:
            yield from source.batches(bad)


def require_named_once(source: Source) -> None:
    """Raises InputError if two of several sources have the same records."""
    by_content: dict[str, Source] = {}
    for part in parts_of(source):
        fingerprint = part.fingerprint()
        other = by_content.get(fingerprint)
        by_content[fingerprint] = part
        # Parts without a record, as some programs write them, are alike too.
        if other is not None and any(batch.num_rows for batch in part.batches(BadRows(skip=True))):
            # Ids that are made from user and text would number its records anew, as texts that were written twice.
            raise InputError(
                f"{source_name(other)} and {source_name(part)} have the same content: name it once, or each of its"
                " records counts twice"
            )


def parts_of(source: Source) -> tuple[Source, ...]:
    """The sources that stand behind one, in order; itself if it is not made of several."""
    # Sentences are cut from another source.
    read = getattr(source, "source", source)
    return read.sources if isinstance(read, Several) else (read,)


def source_name(source: Source) -> str:
    """Name the files of a source, in quotes, for errors."""
    # A dataset of a hub has a name and no path.
    where = getattr(source, "name", None) or getattr(source, "path", type(source).__name__)
    return f"'{where}'"


# Readers of formats that few files have are imported for the file that needs them.
def _iob(path: Path, _columns: Columns) -> Source:
    from heldin.corpus.sources.iob import Iob

    return Iob(path)


def _mbox(path: Path, _columns: Columns) -> Source:
    from heldin.corpus.sources.mail import Mbox

    # Messages say themselves who wrote them and when.
    return Mbox(path)


FORMATS: Mapping[str, Callable[[Path, Columns], Source]] = {
    **{f"{ending}{packed}": JsonLines for ending in (".jsonl", ".json", ".ndjson") for packed in ("", ".gz", ".zst")},
    **{f".csv{packed}": Csv for packed in ("", ".gz", ".zst")},
    ".parquet": Parquet,
    ".mbox": _mbox,
    **{f"{end}{packed}": _iob for end in (".conll", ".iob") for packed in ("", ".gz", ".zst")},
}


_SAVED = ("dataset_info.json", "state.json", "dataset_dict.json")  # save_to_disk writes at least one of them


def open_source(path: Path, columns: Columns) -> Source:
    """The source for a file, by its ending, or a folder. Raises InputError if no source reads it."""
    if path.is_dir():
        return _open_folder(path, columns)
    for ending, source in FORMATS.items():
        if path.name.endswith(ending):
            return source(path, columns)
    if path.is_file() and _is_iob(path):  # CoNLL files have names such as eng.train
        return _iob(path, columns)
    raise InputError(f"'{path}': cannot tell the format by its name; known endings are {', '.join(FORMATS)}")


def _open_folder(path: Path, columns: Columns) -> Source:
    from heldin.corpus.sources.hub import HuggingFace
    from heldin.corpus.sources.mail import Maildir, is_maildir

    if is_maildir(path):
        return Maildir(path)
    if not any((path / name).is_file() for name in _SAVED):
        raise InputError(
            f"'{path}' is a folder without data that can be read: name a file in it ({', '.join(FORMATS)}), a maildir,"
            " or a folder that a Hugging Face dataset's save_to_disk wrote"
        )
    return HuggingFace(str(path), columns=columns)


def _is_iob(path: Path) -> bool:
    from heldin.corpus.sources.iob import is_iob

    return is_iob(path)


def open_sources(paths: Sequence[Path], columns: Columns) -> Source:
    """One source for one or more paths. Raises InputError like ``open_source``."""
    sources = [open_source(path, columns) for path in paths]
    return sources[0] if len(sources) == 1 else Several(tuple(sources))
