"""Watch which sequences a model gets in every training step, under any trainer.

A hook before the model's forward pass sees the inputs of the loss, after sampler, collator, packing and any change of
labels by the trainer. The hook changes no weight and draws no random number. It needs the manifest and the training
set, which anyone who trains has. It never needs the ledger.
"""

import contextlib
import hashlib
import itertools
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from heldin.base.artefacts import OtherSchemaError, unstamped
from heldin.base.errors import InputError
from heldin.base.files import private_directory
from heldin.base.machine import installed_versions
from heldin.models.fingerprints import fingerprint_of_model
from heldin.planting.given_rows import grams_of
from heldin.planting.training_log import (
    READ,
    Checkpoint,
    Header,
    Segment,
    hash_of,
    last_header,
    own_bounds,
    segment_path,
    write_segment,
)
from heldin.record.planted_files import LOG, MANIFEST, TRAINING, content_sha256

PACKAGES = ("transformers", "trl", "peft", "torch")  # their versions are logged
Array = np.ndarray[Any, np.dtype[Any]]
_PENDING = 16  # forward passes whose tokens wait on their device, so that a GPU is waited for once for all of them


@dataclass
class _Pass:
    """A forward pass. Its tensors are copies of shape (rows, tokens), because the trainer may change the originals
    later.

    Attributes:
        labels: labels; None if the hook did not see them.
        mask: attention mask; None if the model may attend to every token, or if ``attention`` is false.
        positions: position ids; None if the hook did not see them.
        attention: whether the hook saw which tokens the model could attend to.
    """

    ids: torch.Tensor
    labels: torch.Tensor | None
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    attention: bool


class Watch:
    """Log every sequence that a model gets in training, and the weights of its checkpoints.

    The log excludes forward passes without gradients (evaluation, generation).

    Args:
        planted: the folder that ``heldin plant`` wrote, or a copy of its ``manifest.json`` and ``training``.
        log: folder of the log; None: ``training-log`` in ``planted``, where the audit searches for the log.

    Raises:
        InputError: the folder has no manifest or training set, or the training set does not match the manifest.
    """

    def __init__(self, planted: str | Path, log: str | Path | None = None) -> None:
        self._planted = Path(planted)
        self._folder = self._planted / LOG if log is None else Path(log)
        self._training_set = _training_set(self._planted)
        self._segment: Segment | None = None
        self._model: torch.nn.Module | None = None
        self._hook: Any = None
        self._pending: list[_Pass] = []
        self._labels: Any = None
        self._reads, self._unreadable, self._digest = 0, 0, hashlib.sha256()

    def start(
        self, model: torch.nn.Module, tokenizer: Any, *, step: int = 0, process: int = 0, processes: int = 1
    ) -> None:
        """Begin a segment of the log.

        Args:
            model: the model whose forward pass training calls, including adapters.
            tokenizer: the tokenizer; a row may have its start, end and padding tokens around it.
            step: number of optimizer steps before this start, if training resumes from a checkpoint.
            process: number of this process among the training processes, starting at 0.
        """
        self.stop()
        private_directory(self._folder)
        earlier = last_header(self._folder, process)
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        ends = {int(token) for name in names if (token := getattr(tokenizer, name, None)) is not None}
        self._tokenizer = tokenizer
        header = Header(
            1 if earlier is None else earlier.number + 1,
            process,
            processes,
            secrets.token_hex(8),
            "" if earlier is None else earlier.digest(),
            self._training_set,
            tuple(sorted(ends)),
            step,
            fingerprint_of_model(model, tokenizer) if process == 0 else None,
            installed_versions(PACKAGES),
        )
        self._segment, self._model = Segment(header), model
        self._reads, self._unreadable, self._digest = 0, 0, hashlib.sha256()
        self._reads_path.write_bytes(b"")
        self._reads_path.chmod(0o600)
        write_segment(self._segment, self._folder)
        self._hook = model.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    def checkpoint(self, step: int, epochs: float | None = None, model: torch.nn.Module | None = None) -> None:
        """Log the current weights, and the number of reads so far.

        Args:
            step: number of optimizer steps so far.
            epochs: number of passes over the examples; None if unknown.
            model: the saved model; None: the watched model.
        """
        if self._segment is None:
            return
        self._drain()
        saved = model if model is not None else self._model
        model_now = None
        if saved is not None and self._segment.header.process == 0:
            model_now = fingerprint_of_model(saved, self._tokenizer)
        kept = self._segment.checkpoints
        # Saved again at one step, or loaded again as the best at the end: logged already.
        if any(logged.step == step or (model_now is not None and logged.model == model_now) for logged in kept):
            return
        now = Checkpoint(step, epochs, self._reads, self._digest.hexdigest(), self._unreadable, model_now)
        self._segment = Segment(self._segment.header, (*kept, now))
        write_segment(self._segment, self._folder)

    @contextlib.contextmanager
    def labels_of_batch(self, labels: Any) -> Iterator[None]:
        """In this block, use these labels for forward passes without labels. The watch reads the labels when a pass
        begins.

        Args:
            labels: tensor of shape (rows, tokens); any other value means that labels are unknown.
        """
        self._labels = labels
        try:
            yield
        finally:
            self._labels = None

    def labels_of_loss(self, labels: Any) -> None:
        """Use these labels for the last forward pass instead of the batch's labels, because the trainer computes the
        loss from them."""
        if self._pending:
            self._pending[-1].labels = _copy(labels, like=self._pending[-1].ids)

    def stop(self) -> None:
        """End the segment; later forward passes are not logged."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._model = self._segment = None
        self._pending.clear()

    @property
    def _reads_path(self) -> Path:
        assert self._segment is not None
        header = self._segment.header
        return segment_path(self._folder, header.number, header.process).with_suffix(".reads")

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
            self._unreadable += 1
            return
        # Not after this pass: the loss may name its labels later.
        if len(self._pending) >= _PENDING:
            self._drain()
        labels, mask, positions = (kwargs.get(name) for name in ("labels", "attention_mask", "position_ids"))
        if isinstance(positions, torch.Tensor) and positions.shape == (1, ids.shape[1]):
            positions = positions.expand(ids.shape)
        kept = _copy(mask, like=ids)
        self._pending.append(
            _Pass(
                ids.detach().clone(),
                _copy(self._labels if labels is None else labels, like=ids),
                kept,
                _copy(positions, like=ids),
                mask is None or kept is not None,
            )
        )

    def _drain(self) -> None:
        """Write the pending sequences to the log."""
        if not self._pending or self._segment is None:
            return
        ends = frozenset(self._segment.header.ends)
        reads = np.array([read for batch in self._pending for read in _reads_of(batch, ends)], dtype=READ).tobytes()
        self._pending.clear()
        with self._reads_path.open("ab") as stream:
            stream.write(reads)
        self._digest.update(reads)
        self._reads += len(reads) // READ.itemsize


class watch_training(contextlib.AbstractContextManager["watch_training"]):
    """Watch a custom training loop, as ``AuditCallback`` watches a Trainer.

    ::

        with heldin.watch_training("planted", model, tokenizer) as watch:
            for step, batch in enumerate(loader, start=1):
                ...
                if step % 100 == 0:
                    model.save_pretrained(f"checkpoint-{step}")
                    watch.checkpoint(step)

    At the end of the block, the weights are logged. If several processes train, each process passes its number.

    Args:
        model: see ``Watch.start``.
        tokenizer: see ``Watch.start``.
        step: see ``Watch.start``.
        process: see ``Watch.start``.
        processes: see ``Watch.start``.

    Raises:
        InputError: see ``Watch``.
    """

    def __init__(
        self,
        planted: str | Path,
        model: torch.nn.Module,
        tokenizer: Any,
        *,
        step: int = 0,
        process: int = 0,
        processes: int = 1,
        log: str | Path | None = None,
    ) -> None:
        self._watch, self._step = Watch(planted, log), step
        self._watch.start(model, tokenizer, step=step, process=process, processes=processes)

    def checkpoint(self, step: int, epochs: float | None = None) -> None:
        """Log the weights saved at a step; see ``Watch.checkpoint``."""
        self._step = max(self._step, step)
        self._watch.checkpoint(step, epochs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Log the weights at the end, unless the block raised an error."""
        if kind is None:
            # A step after the last that was named: nobody said how many there were.
            self._watch.checkpoint(self._step + 1)
        self._watch.stop()


def _copy(tensor: Any, *, like: torch.Tensor) -> torch.Tensor | None:
    """Return a copy of a tensor with one value per token; None for anything else."""
    fits = isinstance(tensor, torch.Tensor) and tensor.shape == like.shape
    return tensor.detach().clone() if fits else None


def _reads_of(given: _Pass, ends: frozenset[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the reads of a forward pass: one for each sequence in each row of the batch."""
    ids, labels, mask, positions = map(_on_cpu, (given.ids, given.labels, given.mask, given.positions))
    assert ids is not None
    for number, tokens in enumerate(ids):
        # A token bears a loss if it is its own label: transformers' models shift labels themselves.
        bears = None if labels is None else labels[number] == tokens
        bounds = _bounds(len(tokens), None if positions is None else positions[number])
        parts = []
        for begin, end in itertools.pairwise(bounds):
            # Tokens that the model cannot attend to are not given, wherever they are.
            places = np.arange(begin, end) if mask is None else begin + np.flatnonzero(mask[number, begin:end])
            sequence = tokens[places].tolist()
            first, last = own_bounds(sequence, ends)
            if first < last:
                # The first token of a sequence is predicted by nothing.
                loss_tokens = -1 if bears is None else int(bears[places[max(first, 1) : last]].sum())
                grams = grams_of(sequence[first:last])
                edges = (int(grams[0]), int(grams[-1])) if grams.size else (0, 0)
                parts.append((hash_of(sequence[first:last]), last - first, loss_tokens, edges))
        for *part, edges in parts:
            yield (*part, len(parts), given.attention, edges)


def _on_cpu(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else tensor.cpu().numpy()


def _bounds(length: int, positions: Array | None) -> Sequence[int]:
    """Return where the sequences of a row begin, and where the row ends. A sequence begins at position id 0."""
    if positions is None:
        return [0, length]
    return [0, *(np.flatnonzero(positions[1:] == 0) + 1).tolist(), length]


def _training_set(planted: Path) -> str:
    """Return the hash of the training set. Raises InputError if the set does not match the manifest."""
    path = planted / MANIFEST
    try:
        manifest = unstamped(json.loads(path.read_text(encoding="utf-8")), path, "plant again")
        training, stated = planted / TRAINING / manifest["file"], str(manifest["sha256"])
    except OtherSchemaError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is missing or damaged: give the folder that heldin plant wrote") from error
    if not training.exists():
        raise InputError(f"'{training}' is missing: keep the training set next to the manifest")
    if content_sha256(training) != stated:
        raise InputError(f"'{training}' is not the training set of the manifest: restore this file")
    return stated
