"""The operations and checkpoints of a training whose model is spread over processes.

Every process writes its own shards, and may read the shards of other processes. Folders have the same names and rules
as in ``finetune.checkpoints``, and all files are safetensors or JSON. A training may resume with another number of
processes.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.artefacts import artefact_folder, seal
from heldin.base.errors import InputError
from heldin.base.files import sync
from heldin.finetune.checkpoints import (
    STATE_FILE,
    TrainingState,
    damaged,
    drop_old_states,
    newest_state,
    of_another_job,
    read_state,
    state_text,
    weights_checksum,
)
from heldin.finetune.holding import Holding, PlainClipping, Records
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.ranks import own_share, rank, wait_for_all
from heldin.finetune.sharded_gradients import sharded_batch_gradient, sharded_private_gradient
from heldin.finetune.sharding import Spread, local, rows_of, shards
from heldin.models.reading import quiet_transformers


def save_sharded_state(
    folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer, spread: Spread
) -> None:
    """Write a resumable state, and remove all states except the two newest.

    Each process of the first shard group writes its shards.

    Args:
        model: the model; its shards are saved.
    """
    final = folder / f"step-{state.step:08d}"
    # A name that all processes know; what an earlier, killed call left under it is not kept.
    beside = folder / f".step-{state.step:08d}.tmp"
    if rank() == 0:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True, mode=0o700)
    wait_for_all()
    if spread.replica == 0:
        tensors = {**{f"weights.{name}": p for name, p in shards(model).items()}, **_flat(optimizer)}
        save_file({name: _own(tensor) for name, tensor in tensors.items()}, beside / _file(spread.member))
        sync(beside / _file(spread.member))  # before the rename, as ``whole_directory`` does
    wait_for_all()
    if rank() == 0:
        (beside / STATE_FILE).write_text(state_text(state, members=spread.members), encoding="utf-8")
        sync(beside / STATE_FILE)
        seal(beside, made_from=state.job)
        shutil.rmtree(final, ignore_errors=True)
        beside.rename(final)
        drop_old_states(folder)
    wait_for_all()


def load_sharded_state(
    folder: Path,
    job: str,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    spread: Spread,
    say: Callable[[str], object] = lambda _: None,
) -> TrainingState | None:
    """Load the newest undamaged state into model and optimizer, and return it; None if there is no state.

    Args:
        model: the model; its shards are overwritten.

    Raises:
        InputError: all states are damaged, the state belongs to another job, or its model was not spread.
    """
    newest = newest_state(folder, say)
    if newest is None:
        return None
    if (newest / "weights.safetensors").is_file():
        raise InputError(
            f"'{newest}' was written by processes that each held the whole model: leave finetune.shard out"
        )
    state, content = read_state(newest)
    # Before any weight is copied: a refused state leaves the model as it was.
    if state.job != job:
        raise of_another_job(newest)
    try:
        members = int(content["members"])
        with ExitStack() as opened:
            files = [opened.enter_context(safe_open(newest / _file(m), "pt")) for m in range(members)]
            states = _read(files, shards(model), spread)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise damaged(newest) from error
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    return state


def _read(files: list[Any], parameters: Mapping[str, torch.nn.Parameter], spread: Spread) -> dict[int, dict[str, Any]]:
    """Overwrite the shards of the weights, and return the optimizer's state by parameter number."""
    states: dict[int, dict[str, Any]] = {}
    with torch.no_grad():
        for name, parameter in parameters.items():
            _fill(parameter, files, f"weights.{name}", spread)
        whole = list(parameters.values())
        for key in list(files[0].keys()):
            if key.startswith("weights."):
                continue
            number, _, name = key.partition(".")
            if files[0].get_slice(key).get_shape():
                tensor = torch.zeros_like(whole[int(number)], requires_grad=False)
                _fill(tensor, files, key, spread)
            else:  # a number for all shards, as the count of steps
                tensor = files[0].get_tensor(key)
            states.setdefault(int(number), {})[name] = tensor
    return states


def _fill(tensor: torch.Tensor, files: list[Any], key: str, spread: Spread) -> None:
    """Overwrite this process's shard of a tensor with rows from the shards in the files.

    Any number of files is allowed.
    """
    first, last = rows_of(tensor, spread)
    each = -(-tensor.shape[0] // len(files))
    for number, file in enumerate(files):
        begin = number * each
        low, high = max(first, begin), min(last, begin + each)
        if low < high:
            part = file.get_slice(key)[low - begin : high - begin]
            if part.shape[0] != high - low:
                raise ValueError(f"{key} has too few rows")
            local(tensor)[low - first : high - first].copy_(part)


def _file(member: int) -> str:
    return f"shard-{member:05d}.safetensors"


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard (the whole tensor for a tensor that is not spread), in main memory."""
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach().to("cpu").contiguous()


def save_sharded_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model folder from all shards.

    Every process must call this; the first process writes, from main memory.
    """
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if rank() == 0:
            whole[name] = gathered.detach().to("cpu", copy=True)
    if rank() == 0:
        with artefact_folder(folder) as temporary, quiet_transformers():
            with torch.device("meta"):
                # Its way of attending is not saved, and GPT-Neo's here is none that transformers knows.
                plain = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
            plain.load_state_dict(whole, strict=False, assign=True)
            plain.tie_weights()
            plain.save_pretrained(temporary, safe_serialization=True)
            tokenizer.save_pretrained(temporary)
    wait_for_all()


def all_finite(model: PreTrainedModel) -> bool:
    """Return whether all weights of all shards are finite. Every process gets the same answer."""
    here = all(bool(torch.isfinite(p.to_local()).all()) for p in shards(model).values() if isinstance(p, DTensor))
    bad = torch.tensor([0.0 if here else 1.0], device=model.device)
    dist.all_reduce(bad)
    return not bool(bad)


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's state with keys "NUMBER.NAME". NUMBER is the number of the parameter."""
    states = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, entries in states.items() for name, tensor in entries.items()}


def sharded_holding(spread: Spread) -> Holding:
    """Return a holding of a spread model.

    Each shard group computes its share of a step's units, and each process has its shards.
    """

    def of_batch(
        model: PreTrainedModel, batch: Records, clipping: PlainClipping | None, passes: Passes, arithmetic: Arithmetic
    ) -> tuple[float, list[float]]:
        if clipping is not None:
            raise InputError("finetune.shard: clipping without noise needs whole models. Leave finetune.shard out")
        passes.count(own_share(batch))
        # As ``keeps_casts`` says.
        with autocast(arithmetic, model.device, keeps_casts=False):
            return sharded_batch_gradient(model, batch, passes.most, spread), []

    def checksum(model: PreTrainedModel) -> int:
        here = weights_checksum(local(p) for p in shards(model).values())
        return spread.checksum_over_members(here, model.device)

    return Holding(
        partial(sharded_private_gradient, spread=spread),
        of_batch,
        partial(load_sharded_state, spread=spread),
        partial(save_sharded_state, spread=spread),
        save_sharded_model,
        all_finite,
        checksum,
        False,  # a process holds a part of the weights, and no copy of all of them
    )
