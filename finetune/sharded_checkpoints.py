"""Checkpoints of a model that is spread over processes: every process writes its shards, and may read others'.

The folders are named and kept like those of ``finetune.checkpoints``; a training may go on with another number of
processes.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.base.files import whole_directory
from heldin.finetune.checkpoints import KEPT_STATES, TrainingState
from heldin.finetune.ranks import rank, wait_for_all
from heldin.finetune.sharding import shards
from heldin.models.loading import quiet_transformers

_TENSORS, _STATE = "shards", "state.json"


def save_sharded_state(
    folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> None:
    """Write a resumable state, every process its shards, and remove all but the newest two.

    Args:
        folder: where the states are kept.
        state: of the run.
        model: whose shards are saved.
        optimizer: whose state is saved.
    """
    final = folder / f"step-{state.step:08d}"
    # A name that all processes know; what an earlier, killed call left under it is not kept.
    beside = folder / f".step-{state.step:08d}.tmp"
    if rank() == 0:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True, mode=0o700)
    wait_for_all()
    save({"weights": dict(shards(model)), "optimizer": _flat(optimizer)}, checkpoint_id=beside / _TENSORS)
    wait_for_all()
    if rank() == 0:
        (beside / _STATE).write_text(json.dumps({"state": asdict(state)}), encoding="utf-8")
        shutil.rmtree(final, ignore_errors=True)
        beside.rename(final)
        for old in sorted(folder.glob("step-*"))[:-KEPT_STATES]:
            shutil.rmtree(old)
    wait_for_all()


def load_sharded_state(
    folder: Path, job: str, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> TrainingState | None:
    """Load the newest state into model and optimizer; returns None if there is none.

    Args:
        folder: where the states are kept.
        job: name of this job.
        model: whose shards are overwritten.
        optimizer: whose state is replaced.

    Raises:
        InputError: the state is damaged, belongs to another job, or is of a model that was not spread.
    """
    newest = next(iter(sorted(folder.glob("step-*"), reverse=True)), None)
    if newest is None:
        return None
    if not (newest / _TENSORS).is_dir():
        raise InputError(
            f"'{newest}' was written by processes that each held the whole model: leave finetune.shard out"
        )
    try:
        state = TrainingState.of(json.loads((newest / _STATE).read_text(encoding="utf-8"))["state"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"checkpoint '{newest}' is damaged: remove it, and the run goes on from the one before"
        ) from error
    if state.job != job:
        raise InputError(
            f"'{newest}' is a checkpoint of another job: its corpus, membership, base model or recipe differ from this"
            " run's; use a new run folder"
        )
    parameters = list(shards(model).values())
    kept: dict[str, Any] = {}
    for key, about in FileSystemReader(newest / _TENSORS).read_metadata().state_dict_metadata.items():
        if key.startswith("optimizer.") and isinstance(about, TensorStorageMetadata):
            name = key.removeprefix("optimizer.")
            whole = parameters[int(name.split(".", 1)[0])]
            # A shard beside the parameter's own where it is as large, and else a number for all.
            like = torch.zeros_like(whole) if about.size == whole.shape else torch.zeros(about.size)
            kept[name] = like.to(about.properties.dtype)
    load({"weights": dict(shards(model)), "optimizer": kept}, checkpoint_id=newest / _TENSORS)
    states: dict[int, dict[str, Any]] = {}
    for key, tensor in kept.items():
        number, name = key.split(".", 1)
        states.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    return state


def save_sharded_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model folder from all shards; every process calls it, and the first one writes, from main memory."""
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if rank() == 0:
            whole[name] = gathered.detach().to("cpu", copy=True)
    if rank() == 0:
        with whole_directory(folder) as temporary, quiet_transformers():
            with torch.device("meta"):
                # Its way of attending is not saved, and GPT-Neo's here is none that transformers knows.
                plain = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
            plain.load_state_dict(whole, strict=False, assign=True)
            plain.tie_weights()
            plain.save_pretrained(temporary, safe_serialization=True)
            tokenizer.save_pretrained(temporary)
    wait_for_all()


def all_finite(model: PreTrainedModel) -> bool:
    """Whether all weights of all shards are finite; the same answer on every process."""
    here = all(bool(torch.isfinite(p.to_local()).all()) for p in shards(model).values() if isinstance(p, DTensor))
    bad = torch.tensor([0.0 if here else 1.0], device=model.device)
    dist.all_reduce(bad)
    return not bool(bad)


def weights_checksum(parameters: Iterable[torch.Tensor]) -> int:
    """A sum over the bits of weights: equal for equal weights, whatever the order in which they are summed."""
    # As integers: a sum of numbers would hide differences in its rounding.
    total = 0
    for number, its in enumerate(parameters):
        words = its.detach().contiguous().view(torch.int16 if its.element_size() == 2 else torch.int32)
        total += (2 * number + 1) * int(words.sum(dtype=torch.int64))
    return total % 2**63


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by "number of the parameter.name"."""
    states = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, its in states.items() for name, tensor in its.items()}
