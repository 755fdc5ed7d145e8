"""The tokens of a training on disk. heldin writes them once, and every process reads them through memory maps.

A record of 20 tokens takes 48 bytes and no Python object. If only parts of texts count, each token takes one more byte.
Each preference pair takes 8 more bytes. Unfinished files are made again. Finished files belong to one corpus, choice of
records, tokenizer and length, and heldin refuses them for any other.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from heldin.base.artefacts import State, artefact_folder, state_of
from heldin.base.errors import InputError
from heldin.base.files import read_json
from heldin.models.tokens import Pair, Tokens

_IDS, _COUNTED, _ENDS, _ABOUT, _SECONDS = "ids.bin", "counted.bin", "ends.bin", "about.json", "seconds.bin"
_TYPES = ("uint16", "int32")  # of token ids
_AT_ONCE = 2**20  # tokens


class Cut(NamedTuple):
    """The numbers of records and tokens that truncation affected.

    Attributes:
        records: number of truncated records.
        dropped: number of tokens that were cut off.
        counted: number of cut-off tokens that would have counted in the loss.
    """

    records: int = 0
    dropped: int = 0
    counted: int = 0


@runtime_checkable
class SizedRecords(Protocol):
    """Records with lengths and a hash that are known without reading each record."""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each record, shape (records,)."""
        ...

    @property
    def bearing(self) -> npt.NDArray[np.int64]:
        """Return the number of counted tokens of each record, shape (records,)."""
        ...

    @property
    def digest(self) -> str:
        """Return a hash of all records."""
        ...


class TokenStore(Sequence[Tokens]):
    """The tokens of each record, by record number. A slice is a list of records.

    Attributes:
        lengths: number of tokens of each record, shape (records,).
        bearing: number of counted tokens of each record, shape (records,).
        digest: hash of all records (``sequences_digest``).
        masked: whether there are tokens that do not count.
        paired: whether each record is a preference pair.
        cut: what truncation removed.
    """

    def __init__(self, folder: Path) -> None:
        about = read_json(folder / _ABOUT)
        if not isinstance(about["digest"], str) or about["type"] not in _TYPES:
            raise ValueError("the digest or the type is wrong")
        self.digest: str = about["digest"]
        self._ends = np.memmap(folder / _ENDS, dtype=np.int64, mode="r")
        self._ids = np.memmap(folder / _IDS, dtype=about["type"], mode="r")
        self.lengths: npt.NDArray[np.int64] = np.diff(self._ends, prepend=0)
        self.cut = Cut(*map(int, about["cut"]))
        self.paired = bool(about["paired"])
        self._seconds = np.memmap(folder / _SECONDS, dtype=np.int64, mode="r") if self.paired else None
        self.masked = masked = (folder / _COUNTED).is_file()
        self._counted = np.memmap(folder / _COUNTED, dtype=np.bool_, mode="r") if masked else None
        sizes = {len(self._ids), len(self._ids if self._counted is None else self._counted)}
        if len(self._ends) != about["records"] or sizes != {int(self._ends[-1])} or masked != about["masked"]:
            raise ValueError("the files do not have the stated sizes")
        if self._seconds is not None and len(self._seconds) != len(self._ends):
            raise ValueError("the files do not have the stated sizes")
        self.bearing = self.lengths
        if self._counted is not None:
            totals = np.concatenate([[0], np.cumsum(self._counted, dtype=np.int64)])
            self.bearing = np.diff(totals[self._ends], prepend=0)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> Tokens: ...
    @overload
    def __getitem__(self, number: slice) -> list[Tokens]: ...
    def __getitem__(self, number: int | slice) -> Tokens | list[Tokens]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        begin = int(self._ends[number - 1]) if number else 0
        part = slice(begin, int(self._ends[number]))
        # A plain array of the mapped bytes: slices of a memory map cost ten times as much.
        ids, counted = np.asarray(self._ids[part]), None if self._counted is None else np.asarray(self._counted[part])
        return Tokens(ids, counted) if self._seconds is None else Pair(ids, counted, int(self._seconds[number]))


def token_store(
    folder: Path,
    batches: Iterable[list[Tokens]],
    *,
    origin: str,
    vocabulary: int,
    verify: bool = True,
    advance: Callable[[int], object] = lambda _: None,
    cut: Callable[[], Cut] = Cut,
) -> TokenStore:
    """Return the sequences of ``batches``, stored in ``folder``; write them if the folder does not exist.

    Args:
        folder: owner-only folder, written completely or not at all.
        batches: tokens of each record, batch by batch. They are not read if the folder exists.
        origin: hash of the inputs that determine the sequences.
        vocabulary: number of token ids; each id is below this number.
        verify: whether to read all files in the folder, and compare their content with the hash.
        cut: function that is called at the end, and returns the numbers of tokens that truncation removed.

    Raises:
        InputError: the folder is damaged, or belongs to other texts, another tokenizer or another length, or
            ``batches`` raises an InputError.
    """
    if (folder / _ABOUT).is_file():
        try:
            kept, tokens = read_json(folder / _ABOUT)["of"], TokenStore(folder)
            if verify and state_of(folder) is not State.WHOLE:
                raise ValueError("the files differ from the files that heldin wrote")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(
                f"the tokens in '{folder}' are damaged: remove this folder, and heldin makes the tokens again"
            ) from error
        if kept != origin:
            raise InputError(
                f"'{folder}' has the tokens of other records, of another tokenizer or of another"
                " finetune.sequence_length: use a new run folder"
            )
        return tokens
    kind = np.dtype(_TYPES[vocabulary > 2**16])
    # Under a mechanism's key nothing may change between two starts.
    with artefact_folder(folder) as temporary:
        digest, records, end = _Digest(), 0, 0
        largest = 0
        seconds: list[int] = []
        with (temporary / _IDS).open("wb") as ids, (temporary / _ENDS).open("wb") as ends:
            for sequences in batches:
                lengths, flat, counted = digest.update(sequences)
                largest = max(largest, int(flat.max(initial=0)))
                ids.write(flat.astype(kind).tobytes())
                ends.write((end + np.cumsum(lengths)).tobytes())
                if counted is not None:
                    _append(temporary / _COUNTED, counted, end)
                seconds += [tokens.second for tokens in sequences if isinstance(tokens, Pair)]
                records, end = records + len(sequences), end + int(lengths.sum())
                advance(len(sequences))
        if masked := (temporary / _COUNTED).is_file():
            _append(temporary / _COUNTED, np.ones(0, dtype=np.bool_), end)
        if largest >= vocabulary:
            raise InputError(
                f"the tokenizer has a token {largest}, but the model has only {vocabulary:,} embeddings: use the"
                " model's own tokenizer"
            )
        about: dict[str, Any] = {
            "of": origin,
            "digest": digest.hexdigest(),
            "type": kind.name,
            "records": records,
            "masked": masked,
            "paired": bool(seconds),
        }
        if seconds:
            (temporary / _SECONDS).write_bytes(np.array(seconds, dtype=np.int64).tobytes())
        about["cut"] = list(cut())
        (temporary / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return TokenStore(folder)


def _append(path: Path, counted: npt.NDArray[np.bool_], at: int) -> None:
    """Append the marks of counted tokens, from position ``at`` on.

    All earlier tokens that are not written yet count.
    """
    with path.open("ab") as stream:
        while (missing := at - stream.tell()) > 0:
            stream.write(np.ones(min(missing, _AT_ONCE), dtype=np.bool_).tobytes())
        stream.write(counted.tobytes())


def sequences_digest(sequences: Sequence[Tokens]) -> str:
    """Return a hash of records' tokens, which is the same for lists and for a store on disk."""
    if isinstance(sequences, SizedRecords):
        return sequences.digest
    digest = _Digest()
    digest.update(sequences)
    return digest.hexdigest()


def lengths_of(sequences: Sequence[Tokens]) -> npt.NDArray[np.int64]:
    """Return the number of tokens of each record, shape (records,)."""
    if isinstance(sequences, SizedRecords):
        return sequences.lengths
    return np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))


def bearing_of(sequences: Sequence[Tokens]) -> npt.NDArray[np.int64]:
    """Return the number of counted tokens of each record, shape (records,)."""
    if isinstance(sequences, SizedRecords):
        return sequences.bearing
    return np.fromiter((tokens.bearing for tokens in sequences), dtype=np.int64, count=len(sequences))


class _Digest:
    """Hash of the lengths, ids and counted tokens of a series of records.

    Any division into batches gives the same hash.
    """

    def __init__(self) -> None:
        self._lengths, self._ids, self._masks = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self._pairs = hashlib.sha256()
        self._records, self._masked, self._paired = 0, False, False

    def update(
        self, sequences: Sequence[Tokens]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.bool_] | None]:
        """Add records, and return their lengths, their ids in one array, and the marks of their counted tokens."""
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        flat = np.empty(int(lengths.sum()), dtype=np.int32)
        counted = np.ones(flat.size, dtype=np.bool_)
        begin, masked = 0, False
        for number, tokens in enumerate(sequences, start=self._records):
            part = slice(begin, begin + len(tokens))
            flat[part] = tokens.ids
            if tokens.counted is not None and not tokens.counted.all():
                counted[part], masked = tokens.counted, True
                self._masks.update(number.to_bytes(8, "big") + tokens.counted.tobytes())
            begin = part.stop
            if isinstance(tokens, Pair):
                self._paired = True
                self._pairs.update(repr((number, tokens.second, *tokens.reference, tokens.objective)).encode())
        self._lengths.update(lengths.tobytes())
        self._ids.update(flat.tobytes())
        self._records, self._masked = self._records + len(sequences), self._masked or masked
        return lengths, flat, counted if masked else None

    def hexdigest(self) -> str:
        # Lengths and ids together: the same ids cut elsewhere are other records. Masks and pairs only where there are
        # any.
        masks = self._masks.digest() if self._masked else b""
        pairs = self._pairs.digest() if self._paired else b""
        return hashlib.sha256(self._lengths.digest() + self._ids.digest() + masks + pairs).hexdigest()
