"""What a trainer was given, as ``AuditCallback`` wrote it down: rows, loss, epochs, and the weights that came of it."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from heldin.base.errors import InputError
from heldin.base.files import write_text

LOG = "training-log.json"
_FORMAT = 1
_SIZE = 16  # bytes of a hash


@dataclass(frozen=True)
class SeenRows:
    """The examples that a trainer was given beside the rows of a training set, by their tokens.

    Attributes:
        examples: number of examples.
        rows: number of rows in the training set.
        missing: rows that no example holds.
        repeated: how often a row stands in examples beyond its first time.
        foreign: examples, or parts of packed ones, that are no row and no beginning of one.
        cut: rows of which examples hold the beginning alone.
        unclear: examples that may be the beginnings of several texts: of rows that begin alike, or once too often.
        packed: examples that hold several rows.
        longest: tokens of the longest example, start and end left out.
    """

    examples: int
    rows: int
    missing: int
    repeated: int
    foreign: int
    cut: int
    unclear: int
    packed: int
    longest: int

    @property
    def all_and_no_other(self) -> bool:
        """Whether every row was there and nothing else."""
        return not (self.missing or self.foreign or self.unclear)

    @property
    def recognised(self) -> bool:
        """Whether any row was found; if not, the trainer's tokens are written otherwise than expected."""
        return self.missing < self.rows


@dataclass(frozen=True)
class Weights:
    """A model's trained parameters at a step.

    Attributes:
        step: optimizer steps so far.
        epochs: how often the trainer had gone through its examples.
        tensors: hashes of the parameters, sorted; empty where they could not be hashed.
    """

    step: int
    epochs: float
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class TrainingLog:
    """What the callback saw of one training.

    Attributes:
        training_set: hash of the training set when the callback was made.
        seen: its rows beside the trainer's examples; None: the examples could not be read.
        unseen: why not; "" where they could.
        loss_tokens: of the first examples, how many tokens bear loss.
        tokens: of how many.
        silent: of the first examples, how many bear no loss at all.
        apart: whether each of the first examples is a sequence of its own.
        ended: whether training came to its end.
        weights: of every checkpoint that was saved, and of the model at the end.
        versions: of the libraries at work.
    """

    training_set: str
    seen: SeenRows | None
    unseen: str
    loss_tokens: int
    tokens: int
    silent: int = 0
    apart: bool = False
    ended: bool = False
    weights: tuple[Weights, ...] = ()
    versions: Mapping[str, str] | None = None

    def of_model(self, tensors: Iterable[str]) -> "TrainingLog | None":
        """The log of the first checkpoint that has these tensors and no others; None: there is none."""
        held = set(tensors)
        # The first: a best model that is loaded at the end is that of an earlier step.
        fitting = [its for its in self.weights if its.tensors and held == set(its.tensors)]
        return replace(self, weights=(fitting[0],)) if fitting else None


def write_log(log: TrainingLog, path: Path) -> None:
    """Write the log, whole or not at all."""
    write_text(path, json.dumps({"heldin_training_log": _FORMAT, **asdict(log)}, indent=1) + "\n")


def read_log(path: Path) -> TrainingLog | None:
    """The log in a file; None where there is none. Raises InputError if it is damaged."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("heldin_training_log") != _FORMAT:
            raise InputError(f"'{path}' is of another heldin: audit with the one whose callback wrote it")
        seen, weights = content.pop("seen"), content.pop("weights")
        return TrainingLog(
            seen=None if seen is None else SeenRows(**seen),
            weights=tuple(Weights(its["step"], its["epochs"], tuple(its["tensors"])) for its in weights),
            **content,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"'{path}' is damaged: restore it, or remove it and declare what it showed") from error


def seen_rows(
    examples: Iterable[Sequence[Sequence[int]]], rows: Iterable[Sequence[int]], *, ends: frozenset[int]
) -> SeenRows:
    """Compare the examples of a trainer with the rows of the training set.

    A row counts as found if an example holds all its tokens, or as many of its first ones as the longest example has.

    Args:
        examples: of each its parts, of which each is one row in a packing that says where rows end.
        rows: tokens of every row of the training set, without special tokens.
        ends: tokens that stand before or after a row's own: start, end, padding.
    """
    total = packed = longest = 0
    found: list[bytes] = []
    for parts in examples:
        total += 1
        packed += len(parts) > 1
        for part in parts:
            tokens = _own(part, ends)
            longest = max(longest, len(tokens))
            found.append(_hash_of(tokens))
    wanted, begun_as = list[bytes](), list[bytes]()
    for row in rows:
        tokens = _own(row, ends)
        # Where a row is cut another end may come to stand.
        wanted.append(_hash_of(_own(tokens[:longest], ends)))
        if len(tokens) > longest:
            begun_as.append(wanted[-1] + _hash_of(tokens))
    # Sorted hashes with their counts: a set of a million rows is 16 MB.
    of_rows, rows_each = np.unique(np.array(wanted, dtype=f"S{_SIZE}"), return_counts=True)
    # Of rows that are cut, the beginnings, each as often as rows go on from it otherwise.
    beginnings = np.array([its[:_SIZE] for its in set(begun_as)], dtype=f"S{_SIZE}")
    begun, ways = np.unique(beginnings, return_counts=True)
    cut_here = np.isin(of_rows, begun)
    of_parts, parts_each = np.unique(np.array(found, dtype=f"S{_SIZE}"), return_counts=True)
    _, at_rows, at_parts = np.intersect1d(of_rows, of_parts, assume_unique=True, return_indices=True)
    both_rows, both_parts = rows_each[at_rows], parts_each[at_parts]
    surplus = np.maximum(both_parts - both_rows, 0)
    return SeenRows(
        examples=total,
        rows=len(wanted),
        missing=len(wanted) - int(np.minimum(both_rows, both_parts).sum()),
        repeated=int(surplus[~cut_here[at_rows]].sum()),
        foreign=len(found) - int(both_parts.sum()),
        cut=len(begun_as),
        # A beginning once too often may be another text that begins alike.
        unclear=int(rows_each[np.isin(of_rows, begun[ways > 1])].sum() + surplus[cut_here[at_rows]].sum()),
        packed=packed,
        longest=longest,
    )


def tensor_hashes(tensors: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """Hashes of tensors by shape and values, whatever their precision: a smaller one is exact in float32."""
    return tuple(sorted(_tensor_hash(its) for its in tensors if its.is_floating_point()))


def hashes_in_folder(folder: Path) -> tuple[str, ...]:
    """Hashes of the tensors that a model's or adapter's folder is loaded from. Raises InputError for damaged files."""

    def tensors() -> Iterator[torch.Tensor]:
        for path in _loaded(folder):
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - no mapping
                        yield file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise InputError(f"'{path}' cannot be read: {error}") from error

    return tensor_hashes(tensors())


def _loaded(folder: Path) -> list[Path]:
    """The files that a model is loaded from; others may lie beside them."""
    adapter, whole, index = (
        folder / name for name in ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json")
    )
    if (folder / "adapter_config.json").is_file():
        return [adapter] if adapter.is_file() else []
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"'{index}' is damaged: save the model again") from error
    return [folder / name for name in sorted(names)]


def _own(tokens: Sequence[int], ends: frozenset[int]) -> Sequence[int]:
    first, last = 0, len(tokens)
    while first < last and tokens[first] in ends:
        first += 1
    while last > first and tokens[last - 1] in ends:
        last -= 1
    return tokens[first:last]


def _hash_of(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=_SIZE).digest()


def _tensor_hash(tensor: torch.Tensor) -> str:
    values = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()
    digest = hashlib.blake2b(repr(tuple(values.shape)).encode(), digest_size=_SIZE)
    digest.update(values.numpy().tobytes())
    return digest.hexdigest()
