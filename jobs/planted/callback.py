"""A callback for transformers' Trainer and TRL that writes down what a training on a planted set was given.

It reads the manifest and the training set, which whoever trains has, and never the ledger.
"""

import contextlib
import copy
import importlib.metadata
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from heldin.base.errors import InputError
from heldin.base.progress import Advance, reporter_for_this_terminal
from heldin.corpus.sources.rows import BadRows
from heldin.jobs.planted.config import PlantColumns
from heldin.jobs.planted.folder import MANIFEST, TRAINING
from heldin.jobs.planted.row_text import row_text
from heldin.jobs.planted.training_log import (
    LOG,
    SeenRows,
    TrainingLog,
    Weights,
    seen_rows,
    tensor_hashes,
    write_log,
)
from heldin.jobs.planted.training_set import TrainingSet, content_sha256

_BLOCK = 1000  # rows that are tokenized, or examples that are read, at once
_LOOKED_AT = 64  # examples whose labels are looked at


class AuditCallback(TrainerCallback):  # type: ignore[misc]
    """Write ``training-log.json``: whether the trainer was given the planted rows and no others, and what came of it.

    ``Trainer(..., callbacks=[heldin.AuditCallback("planted")])``; TRL's trainers likewise. It draws none of the
    trainer's random numbers, and needs of the folder the manifest and the training set alone. ``heldin audit
    --planted`` then says "checked" where whoever signs would have to declare.

    Args:
        planted: the folder that ``heldin plant`` wrote, or a copy of its ``manifest.json`` and ``training``.
        log: where to write; None: ``training-log.json`` in that folder, where the audit looks for it.

    Raises:
        InputError: the folder has no manifest or training set, or the training set is not that of the manifest.
    """

    def __init__(self, planted: str | Path, log: str | Path | None = None) -> None:
        self._planted = Path(planted)
        self._path = self._planted / LOG if log is None else Path(log)
        self._manifest = _manifest(self._planted)
        self._log: TrainingLog | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Compare the trainer's examples with the rows of the training set.

        Args:
            args: of the trainer; not used.
            state: how far training is.
            control: of the trainer; not changed.
            kwargs: the data loader and the tokenizer (``train_dataloader``, ``processing_class``).
        """
        if not state.is_world_process_zero:
            return
        self._log = self._began(state, kwargs.get("train_dataloader"), kwargs.get("processing_class"))
        write_log(self._log, self._path)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note the weights of a checkpoint.

        Args:
            args: of the trainer; not used.
            state: how far training is.
            control: of the trainer; not changed.
            kwargs: the model (``model``).
        """
        self._note(state, kwargs.get("model"), ended=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Note the weights at the end.

        Args:
            args: of the trainer; not used.
            state: how far training is.
            control: of the trainer; not changed.
            kwargs: the model (``model``).
        """
        self._note(state, kwargs.get("model"), ended=True)

    def _note(self, state: TrainerState, model: torch.nn.Module | None, *, ended: bool) -> None:
        if self._log is None or model is None:
            return
        now = Weights(state.global_step, float(state.epoch or 0.0), _parameters(model))
        # Saved again at one step, or loaded again as the best at the end: noted already.
        known = {its.tensors for its in self._log.weights}
        more = () if now.tensors in known else (now,)
        self._log = replace(self._log, weights=(*self._log.weights, *more), ended=ended)
        write_log(self._log, self._path)

    def _began(self, state: TrainerState, data: Any, tokenizer: Any) -> TrainingLog:
        log = TrainingLog(self._manifest["sha256"], None, "", 0, 0, versions=_versions())
        if state.global_step:
            return replace(log, unseen="it went on from a checkpoint, and what came before is not known")
        why = _skips(data)
        if why:
            return replace(log, unseen=why)
        # Watching must not draw from the trainer's random numbers, nor change an example, nor end a training.
        with _left_alone():
            try:
                first = _first(data)
                seen, unseen = self.seen(data.dataset, tokenizer)
            except InputError:
                raise
            except Exception as error:
                return replace(log, unseen=f"its examples cannot be read ({type(error).__name__}: {error})")
        if first is None:
            return replace(log, unseen="its collator makes other sequences of the examples")
        return replace(
            log,
            seen=seen,
            unseen=unseen,
            loss_tokens=first.loss_tokens,
            tokens=first.tokens,
            silent=first.silent,
            apart=first.apart,
        )

    def seen(self, dataset: Any, tokenizer: Any) -> tuple[SeenRows | None, str]:
        """A trainer's examples beside the rows of the training set, or None and why they cannot be compared."""
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            return None, "the trainer was given no tokenizer (processing_class)"
        if dataset is None or not hasattr(dataset, "__len__"):
            return None, "the trainer reads its examples as a stream"
        if not len(dataset) or "input_ids" not in dataset[0]:
            return None, "the trainer's examples have no input_ids: they are tokenized later"
        ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}
        reporter = reporter_for_this_terminal()
        with reporter.track("heldin: comparing the training set", self._manifest["rows"], "rows") as advance:
            return seen_rows(_examples(dataset), self._rows(tokenizer, advance), ends=frozenset(ends)), ""

    def _rows(self, tokenizer: PreTrainedTokenizerBase, advance: Advance) -> Iterator[list[int]]:
        columns = PlantColumns(**self._manifest["columns"])
        path = self._planted / TRAINING / self._manifest["file"]
        source = TrainingSet(path, columns, row_text(columns, tokenizer), self._manifest.get("split"))
        texts: list[str] = []

        def tokenized() -> list[list[int]]:
            advance(len(texts))
            encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
            ids: list[list[int]] = encoded["input_ids"]
            return ids

        for record, _ in source.rows(BadRows(skip=False)):
            texts.append(str(record["text"]))
            if len(texts) == _BLOCK:
                yield from tokenized()
                texts.clear()
        if texts:
            yield from tokenized()


def _manifest(planted: Path) -> dict[str, Any]:
    path = planted / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        training = planted / TRAINING / manifest["file"]
        _ = manifest["sha256"], manifest["columns"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' is missing or damaged: name the folder that heldin plant wrote") from error
    if not training.exists():
        raise InputError(f"'{training}' is missing: keep the training set beside its manifest")
    if content_sha256(training) != manifest["sha256"]:
        raise InputError(f"'{training}' is not the training set of the manifest: restore it")
    return manifest


def _examples(dataset: Any) -> Iterator[list[Sequence[int]]]:
    """Of each example its parts: several where a packing says how long each is."""
    from datasets import Dataset

    for first in range(0, len(dataset), _BLOCK):
        numbers = range(first, min(first + _BLOCK, len(dataset)))
        if isinstance(dataset, Dataset):  # a slice is one read
            block = dataset[first : first + _BLOCK]
            ids, lengths = block["input_ids"], block.get("seq_lengths")
        else:
            its = [dataset[i] for i in numbers]
            ids, lengths = [one["input_ids"] for one in its], [one.get("seq_lengths") for one in its]
        for i, its_ids in enumerate(ids):
            tokens = _listed(its_ids)
            ends = [len(tokens)] if lengths is None or lengths[i] is None else _sums(lengths[i])
            yield [tokens[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def _listed(tokens: Any) -> list[int]:
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)


def _sums(lengths: Sequence[int]) -> list[int]:
    total, found = 0, []
    for its in lengths:
        total += int(its)
        found.append(total)
    return found


@dataclass(frozen=True)
class _First:
    """Of the first examples as they are collated: tokens, those that bear loss, and how they stand in sequences."""

    loss_tokens: int
    tokens: int
    silent: int
    apart: bool


def _first(data: Any) -> _First | None:
    """What the collator makes of the first examples; None if it makes other sequences of them."""
    dataset = data.dataset
    if not hasattr(dataset, "__len__") or not len(dataset) or "input_ids" not in dataset[0]:
        return _First(0, 0, 0, apart=False)
    first = [dataset[i] for i in range(min(_LOOKED_AT, len(dataset)))]
    wanted = [_listed(its["input_ids"]) for its in first]
    batch = data.collate_fn(copy.deepcopy(first))
    if not {"labels", "input_ids"} <= set(batch):
        return None
    rows = batch["input_ids"].tolist()
    apart = len(rows) == len(wanted)
    if apart:  # padded on the right or on the left
        pairs = zip(rows, wanted, strict=True)
        same = all(own in (its[: len(own)], its[len(its) - len(own) :]) for its, own in pairs)
    else:
        flat, all_own = [token for its in rows for token in its], [token for its in wanted for token in its]
        same = flat[: len(all_own)] == all_own
    if not same:
        return None
    bears = batch["labels"] != -100
    return _First(int(bears.sum()), sum(map(len, wanted)), int((~bears.any(-1)).sum()) if apart else 0, apart)


_KNOWN_SAMPLERS = ("RandomSampler", "SequentialSampler", "SeedableRandomSampler", "LengthGroupedSampler")


def _skips(data: Any) -> str:
    """Why not every example of the data loader is known to be read once an epoch; "" if it is."""
    if data is None or getattr(data, "dataset", None) is None or not hasattr(data.dataset, "__len__"):
        return "it reads its examples as a stream"
    batches: Any = getattr(data, "batch_sampler", None)
    while hasattr(batches, "batch_sampler"):  # of several processes
        batches = batches.batch_sampler
    sampler: Any = getattr(batches, "sampler", None)
    if type(batches).__name__ != "BatchSampler" or type(sampler).__name__ not in _KNOWN_SAMPLERS:
        return "it draws its examples in a way of its own"
    if getattr(sampler, "replacement", False) or len(sampler) != len(data.dataset):
        return "it does not draw every example once an epoch"
    if batches.drop_last and len(sampler) % batches.batch_size:
        return "it drops the last examples of an epoch (dataloader_drop_last)"
    return ""


@contextlib.contextmanager
def _left_alone() -> Iterator[None]:
    """A block after which all random numbers go on as if it had not been."""
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002 - whoever draws from it
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002


def _parameters(model: torch.nn.Module) -> tuple[str, ...]:
    """Hashes of what will be saved: an adapter's tensors, or all parameters; none where they lie on several devices."""
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        tensors = list(get_peft_model_state_dict(model).values())
    else:
        tensors = [its.data for its in model.parameters()]
    if any(type(its) is not torch.Tensor or not its.numel() for its in tensors):
        return ()
    return tensor_hashes(tensors)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("transformers", "trl", "peft", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
