"""The log of a training on a planted set: every sequence that the model was given, and the resulting weights.

The log is a folder with a *segment* for each start of a training and each of its processes. A segment has two files.
``segment-0001-0.json`` describes the process and its checkpoints. ``segment-0001-0.reads`` has one ``READ`` per
sequence, in order. Each segment contains the digest of the previous segment, so heldin notices a missing segment. The
log is a plain file, so the person who signs is responsible for it (docs/plant.md).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from heldin.base.artefacts import OtherSchemaError, read_document, write_document
from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.models.fingerprints import Fingerprint
from heldin.record.planted_facts import Reason

_SIZE = 16  # bytes of a hash: enough that no two texts meet by chance
# A sequence: hash and number of its own tokens, how many of them bear loss (-1: labels were not seen), how many
# sequences share its row of the batch, whether it was seen which tokens the model could attend to, and hashes of its
# first and last tokens (0 if it has few).
READ = np.dtype(
    [
        ("hash", f"S{_SIZE}"),
        ("tokens", "<u4"),
        ("loss_tokens", "<i4"),
        ("packed", "<u4"),
        ("attention", "?"),
        ("ends", "<u8", 2),
    ]
)
Reads = NDArray[np.void]


class DamagedLogError(InputError):
    """A segment of the log is missing, or somebody changed it after it was written."""


@dataclass(frozen=True)
class Header:
    """Facts that a process knows when a training starts.

    Attributes:
        number: number of the start, starting at 1.
        process: number of the process that wrote the segment.
        processes: number of processes that train together.
        token: random token, so two starts never have the same digest.
        previous: digest of this process's header at the previous start; "" at the first start.
        ends: token ids that may surround a row's own tokens: start, end and padding.
        step: number of optimizer steps before this start.
        model: fingerprint of the model at the start; None if heldin could not hash it.
        versions: versions of the libraries in use.
    """

    number: int
    process: int
    processes: int
    token: str
    previous: str
    training_set: str
    ends: tuple[int, ...]
    step: int
    model: Fingerprint | None
    versions: Mapping[str, str]

    def digest(self) -> str:
        """Return the hash by which the next start refers to this header."""
        return text_sha256(json.dumps(asdict(self), sort_keys=True))


@dataclass(frozen=True)
class Checkpoint:
    """Saved weights, and the number of reads before them.

    Attributes:
        step: number of optimizer steps so far.
        epochs: number of passes over the examples, as the trainer counts; None if it does not count.
        reads: number of reads in this segment so far.
        sha256: hash of the reads so far.
        unreadable: number of forward passes so far whose tokens were not visible.
        model: fingerprint of the saved model; None if heldin could not hash it.
    """

    step: int
    epochs: float | None
    reads: int
    sha256: str
    unreadable: int
    model: Fingerprint | None


@dataclass(frozen=True)
class Segment:
    """The part of the log that one process wrote between one start and the next start.

    Attributes:
        header: facts that were known at the start.
        checkpoints: checkpoints, in the order in which they were saved.
    """

    header: Header
    checkpoints: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True)
class History:
    """The training that led to the audited weights, over all starts and processes.

    Attributes:
        reads: the reads of all sequences.
        places: position of each sequence among those of its process, counted from the first start, shape (reads,).
        ends: see ``Header``.
        training_sets: hashes of the training sets of all starts.
        processes: largest number of processes that trained together.
        epochs: see ``Checkpoint``.
        unreadable: number of forward passes whose tokens were not visible.
    """

    reads: Reads
    places: NDArray[np.float64]
    ends: frozenset[int]
    training_sets: frozenset[str]
    starts: int
    processes: int
    steps: int
    epochs: float | None
    unreadable: int


_SEGMENTS = TypeAdapter(Segment)


def segment_path(folder: Path, number: int, process: int) -> Path:
    """Return the path of a segment's JSON file. The file of its reads has the same name with the ending ``.reads``."""
    return folder / f"segment-{number:04d}-{process}.json"


def write_segment(segment: Segment, folder: Path) -> None:
    """Write the JSON file of a segment. Only its owner can read the file."""
    path = segment_path(folder, segment.header.number, segment.header.process)
    write_document(path, asdict(segment))


def read_segment(path: Path) -> Segment:
    """Read a segment. Raises DamagedLogError if it was changed, OtherSchemaError if its schema version is another."""
    try:
        content = read_document(path)
    except OtherSchemaError:
        raise
    except InputError as error:
        raise DamagedLogError(str(error)) from error
    # Its digest is no secret: the person who trains can write one that fits anything.
    try:
        return _SEGMENTS.validate_python(content)
    except ValidationError as error:
        raise DamagedLogError(f"'{path}' is not a segment of a training log: restore this file") from error


def read_log(folder: Path) -> tuple[tuple[Segment, ...], ...] | None:
    """Read all segments, grouped by start, with one segment per process; None if there is no log.

    Raises:
        DamagedLogError: a segment is missing or damaged, or does not follow the previous segment.
    """
    if not folder.is_dir():
        return None
    starts: dict[int, list[Segment]] = {}
    for path in sorted(folder.glob("segment-*.json")):
        segment = read_segment(path)
        if path != segment_path(folder, segment.header.number, segment.header.process):
            raise DamagedLogError(f"'{path}' contains a segment that does not match the file name: restore this file")
        starts.setdefault(segment.header.number, []).append(segment)
    if not starts:
        raise DamagedLogError(f"'{folder}' contains no segment: restore the folder")
    previous: dict[int, str] = {}
    for number in range(1, max(starts) + 1):
        members = {segment.header.process: segment for segment in starts.get(number, [])}
        expected = members[0].header.processes if 0 in members else 1
        lost = next((process for process in range(expected) if process not in members), None)
        if lost is not None:
            raise DamagedLogError(f"'{segment_path(folder, number, lost)}' is missing: restore this file")
        for process, segment in sorted(members.items()):
            if segment.header.previous != previous.get(process, ""):
                path = segment_path(folder, number, process)
                raise DamagedLogError(
                    f"'{path}' does not follow the previous segment, so a segment was removed or exchanged: restore"
                    " the segment"
                )
            previous[process] = segment.header.digest()
    return tuple(tuple(starts[number]) for number in sorted(starts))


def last_header(folder: Path, process: int) -> Header | None:
    """Return the header of the latest start that this process logged; None if it logged no start."""
    paths = sorted(folder.glob(f"segment-*-{process}.json"))
    return read_segment(paths[-1]).header if paths else None


def history_of(
    starts: Sequence[Sequence[Segment]], model: Fingerprint, tokens: str | None, folder: Path
) -> History | Reason:
    """Collect the training that led to this model, over every start that the training continued from.

    Args:
        starts: see ``read_log``.
        model: the audited model.
        tokens: fingerprint of the tokenizer for comparing rows; used if the training had no tokenizer (``tokens_of``).

    Returns:
        The history, or the reason why the log does not belong to this model: no checkpoint has its tensors, or the
            checkpoints with its tensors have another config or tokenizer.

    Raises:
        DamagedLogError: reads are missing or damaged, or a training resumed from a checkpoint that no segment has.
    """
    saved = _with_tensors(starts, model, len(starts))
    same_config = [kept for kept in saved if kept[2].config == model.config]
    place = next((kept[:2] for kept in same_config if (kept[2].tokenizer or tokens) == model.tokenizer), None)
    if place is None:
        wrong = Reason.LOG_OF_OTHER_TOKENIZER if same_config else Reason.LOG_OF_OTHER_CONFIG
        return wrong if saved else Reason.LOG_OF_OTHER_MODEL
    lineage = [place]
    while True:
        first = starts[lineage[-1][0]][0].header
        earlier = [] if first.model is None else _with_tensors(starts, first.model, lineage[-1][0])
        if not earlier:
            break
        lineage.append(earlier[0][:2])
    if first.step:
        raise DamagedLogError(
            f"'{folder}': start {first.number} continued from step {first.step}, but no segment has that checkpoint."
            " Restore the missing segment"
        )
    reads: list[Reads] = []
    places: list[NDArray[np.float64]] = []
    unreadable, training_sets, ends, before = 0, set[str](), set[int](), 0
    for start, step in reversed(lineage):
        longest = 0
        for segment in starts[start]:
            kept = _at(segment, step, folder)
            reads.append(_reads(segment, kept, folder))
            places.append(np.arange(before, before + kept.reads, dtype=np.float64))
            longest = max(longest, kept.reads)
            unreadable += kept.unreadable
            training_sets.add(segment.header.training_set)
            ends.update(segment.header.ends)
        before += longest
    last = _at(starts[place[0]][0], place[1], folder)
    # A training that began again from the weights of another counts its epochs anew.
    one_count = all(starts[start][0].header.step for start, _ in lineage[:-1])
    return History(
        np.concatenate(reads),
        np.concatenate(places),
        frozenset(ends),
        frozenset(training_sets),
        len(lineage),
        max(segment.header.processes for start, _ in lineage for segment in starts[start]),
        last.step,
        last.epochs if one_count else None,
        unreadable,
    )


def _with_tensors(
    starts: Sequence[Sequence[Segment]], model: Fingerprint, before: int
) -> list[tuple[int, int, Fingerprint]]:
    """Return every checkpoint with these tensors as start, step and fingerprint. Later starts, all before ``before``,
    come first.

    Within a start, earlier steps come first, because a best model that is loaded at the end has the weights of an
    earlier step.
    """
    return [
        (number, kept.step, kept.model)
        for number in reversed(range(before))
        for kept in starts[number][0].checkpoints
        if kept.model is not None and kept.model.has_tensors_of(model)
    ]


def _at(segment: Segment, step: int, folder: Path) -> Checkpoint:
    kept = next((kept for kept in segment.checkpoints if kept.step == step), None)
    if kept is None:
        path = segment_path(folder, segment.header.number, segment.header.process)
        raise DamagedLogError(
            f"'{path}' lacks the checkpoint of step {step}, although another process saved this checkpoint: restore"
            " this file"
        )
    return kept


def _reads(segment: Segment, kept: Checkpoint, folder: Path) -> Reads:
    path = segment_path(folder, segment.header.number, segment.header.process).with_suffix(".reads")
    try:
        with path.open("rb") as stream:
            content = stream.read(kept.reads * READ.itemsize)
    except OSError as error:
        raise DamagedLogError(f"'{path}' cannot be read: restore this file") from error
    if hashlib.sha256(content).hexdigest() != kept.sha256:
        raise DamagedLogError(f"'{path}' is damaged or was changed: restore this file")
    return np.frombuffer(content, dtype=READ)


def own_bounds(tokens: Sequence[int], ends: frozenset[int]) -> tuple[int, int]:
    """Return the bounds of a row's own tokens, without the tokens that a trainer adds around these tokens."""
    first, last = 0, len(tokens)
    while first < last and tokens[first] in ends:
        first += 1
    while last > first and tokens[last - 1] in ends:
        last -= 1
    return first, last


def hash_of(tokens: Sequence[int]) -> bytes:
    """Return a hash of token ids. Trailing zeros are dropped, because numpy's byte arrays drop trailing zeros too."""
    return hashlib.blake2b(np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=_SIZE).digest().rstrip(b"\0")
