"""A Hugging Face dataset as a source of a corpus."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from heldin.base.section import ExpandedName
from heldin.corpus.sources.contract import ColumnedSource, SourceSize
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.rows import Source


class HubCorpus(ColumnedSource):
    """A Hugging Face dataset, given by hub name or ``save_to_disk`` folder."""

    kind: Literal["huggingface"]
    name: ExpandedName
    """Hub name, or a folder that save_to_disk wrote."""
    split: str | None = None
    """Split of the dataset, such as train; null: the only split."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: the newest commit."""
    streaming: bool = False
    """If true, heldin reads the dataset row by row; if false, heldin downloads the whole dataset first."""

    def source(self) -> Source:
        """Return the source that reads the dataset."""
        return HuggingFace(self.name, self.split, self.revision, self.columns, self.streaming)

    def paths(self) -> tuple[Path, ...]:
        """Return the folder that ``save_to_disk`` wrote; empty for a hub name."""
        return (Path(self.name),) if Path(self.name).is_dir() else ()

    def looks(self, key: str) -> Iterator[Callable[[], object]]:
        """Yield a check of the name, as a folder or on the hub."""
        yield self.source

    def size(self) -> SourceSize | None:
        """Return the size of the folder; None for a hub name."""
        return super().size() if self.paths() else None
