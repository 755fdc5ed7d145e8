"""The token sequences of a training on disk: made once, and read through memory maps by every process.

A record of 20 tokens takes 48 bytes and no Python object. What was not finished is made again; what is there belongs
to one corpus, choice of records, tokenizer and length, and is refused for any other.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast, overload

import numpy as np
import numpy.typing as npt

from heldin.base.artefacts import State, artefact_folder, state_of
from heldin.base.errors import InputError
from heldin.base.files import read_json

_IDS, _ENDS, _ABOUT = "ids.bin", "ends.bin", "about.json"
_TYPES = ("uint16", "int32")  # of token ids
Ids = Sequence[int]  # an array of integers, as loaded


class TokenStore(Sequence[Ids]):
    """Token ids of each record, by number; a slice is a list of records.

    Attributes:
        lengths: tokens of each record, shape (records,).
        digest: hash of all of them (``sequences_digest``).
    """

    def __init__(self, folder: Path) -> None:
        about = read_json(folder / _ABOUT)
        if not isinstance(about["digest"], str) or about["type"] not in _TYPES:
            raise ValueError("its digest or its type is not what heldin writes")
        self.digest: str = about["digest"]
        self._ends = np.memmap(folder / _ENDS, dtype=np.int64, mode="r")
        self._ids = np.memmap(folder / _IDS, dtype=about["type"], mode="r")
        self.lengths: npt.NDArray[np.int64] = np.diff(self._ends, prepend=0)
        if len(self._ends) != about["records"] or len(self._ids) != int(self._ends[-1]):
            raise ValueError("its files are not of the sizes that it states")

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> Ids: ...
    @overload
    def __getitem__(self, number: slice) -> "list[Ids]": ...
    def __getitem__(self, number: int | slice) -> "Ids | list[Ids]":
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        number %= len(self)
        begin = int(self._ends[number - 1]) if number else 0
        # A plain array of the mapped bytes: slices of a memory map cost ten times as much.
        return cast(Ids, np.asarray(self._ids[begin : int(self._ends[number])]))


def token_store(
    folder: Path,
    batches: Iterable[list[list[int]]],
    *,
    origin: str,
    vocabulary: int,
    verify: bool = True,
    advance: Callable[[int], object] = lambda _: None,
) -> TokenStore:
    """The sequences of ``batches`` in ``folder``, written if they are not there.

    Args:
        folder: owner-only, written whole.
        batches: token ids of each text, batch by batch; not asked for if the folder is there.
        origin: hash of what the sequences follow from.
        vocabulary: number of token ids, each below it.
        verify: read all of what is there, and compare it with its hash.

    Raises:
        InputError: the folder is damaged, or of other texts, another tokenizer or another length; or see ``batches``.
    """
    if (folder / _ABOUT).is_file():
        try:
            kept, tokens = read_json(folder / _ABOUT)["of"], TokenStore(folder)
            if verify and state_of(folder) is not State.WHOLE:
                raise ValueError("its files are not those that were written")
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"the tokens in '{folder}' are damaged: remove it, and they are made again") from error
        if kept != origin:
            raise InputError(
                f"'{folder}' holds the tokens of other records, another tokenizer or another finetune.sequence_length:"
                " use a new run folder"
            )
        return tokens
    kind = np.dtype(_TYPES[vocabulary > 2**16])
    # Under a mechanism's key nothing may change between two starts.
    with artefact_folder(folder) as temporary:
        digest, records, end = _Digest(), 0, 0
        largest = 0
        with (temporary / _IDS).open("wb") as ids, (temporary / _ENDS).open("wb") as ends:
            for sequences in batches:
                lengths, flat = digest.update(sequences)
                largest = max(largest, int(flat.max(initial=0)))
                ids.write(flat.astype(kind).tobytes())
                ends.write((end + np.cumsum(lengths)).tobytes())
                records, end = records + len(sequences), end + int(lengths.sum())
                advance(len(sequences))
        if largest >= vocabulary:
            raise InputError(f"the tokenizer has a token {largest}, and the model embeds {vocabulary:,}: use its own")
        about = {"of": origin, "digest": digest.hexdigest(), "type": kind.name, "records": records}
        (temporary / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
    return TokenStore(folder)


def sequences_digest(sequences: Sequence[Sequence[int]]) -> str:
    """Hash of token sequences, the same whether they are lists or on disk."""
    if isinstance(sequences, TokenStore):
        return sequences.digest
    digest = _Digest()
    digest.update(sequences)
    return digest.hexdigest()


def lengths_of(sequences: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Tokens of each sequence, shape (sequences,)."""
    if isinstance(sequences, TokenStore):
        return sequences.lengths
    return np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))


class _Digest:
    """Hash of lengths and ids of a series of sequences, however it is cut into batches."""

    def __init__(self) -> None:
        self._lengths, self._ids = hashlib.sha256(), hashlib.sha256()

    def update(self, sequences: Sequence[Sequence[int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Take in further sequences; returns their lengths, and all their ids one after the other."""
        lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
        flat = np.empty(int(lengths.sum()), dtype=np.int32)
        begin = 0
        for sequence in sequences:
            flat[begin : begin + len(sequence)] = sequence
            begin += len(sequence)
        self._lengths.update(lengths.tobytes())
        self._ids.update(flat.tobytes())
        return lengths, flat

    def hexdigest(self) -> str:
        # Lengths and ids together: the same ids cut elsewhere are other records.
        return hashlib.sha256(self._lengths.digest() + self._ids.digest()).hexdigest()
