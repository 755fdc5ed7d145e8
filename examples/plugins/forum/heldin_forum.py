"""A corpus of forum threads: a folder with one text file per thread. Each line has an author, a bar and a post."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from heldin.base.files import file_sha256, text_sha256
from heldin.base.section import ExpandedPath
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.contract import SourceConfig
from heldin.corpus.sources.rows import Columns, Source, batched


@dataclass(frozen=True)
class Threads(Source):
    """The posts of all threads of a folder."""

    folder: Path

    def fingerprint(self) -> str:
        """Return a hash of all threads, which does not depend on the place of the folder."""
        return text_sha256("forum", *(f"{path.name} {file_sha256(path)}" for path in self._files()))

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        """Yield one record for each post."""
        rows = (row for path in self._files() for row in _posts(path))
        return batched(enumerate(rows, start=1), str(self.folder), "post", Columns(user="author", text="post"), bad)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.txt"))


def _posts(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        author, _, post = line.partition("|")
        yield {"author": author.strip(), "post": post.strip()}


class Forum(SourceConfig):
    """A folder of forum threads."""

    path: ExpandedPath
    """The folder."""

    def source(self) -> Source:
        """Return the source that reads the folder."""
        return Threads(self.path)

    def paths(self) -> tuple[Path, ...]:
        """Return the folder."""
        return (self.path,)

    def may_be_folder(self, path: Path) -> bool:
        """Return True, because the source is a folder."""
        return True

    @classmethod
    def examples(cls, kind: str, folder: Path) -> Sequence["Forum"]:
        """Return two sources, with two threads and with one thread, for ``heldin plugins --check``."""
        for name in ("both", "one"):
            (folder / name).mkdir()
            (folder / name / "one.txt").write_text("ann | Good morning.\nbob | Hello, Ann.\n", encoding="utf-8")
        (folder / "both" / "two.txt").write_text("ann | Any news?\n", encoding="utf-8")
        return [cls(kind=kind, path=folder / name) for name in ("both", "one")]
