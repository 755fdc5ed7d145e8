"""A model that is spread over processes (FSDP2): the layout, and sums over shard groups and replicas.

Each shard group holds one copy of the model. ``sharded_gradients`` uses the sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.defenses.gradients.model_parts import trainable
from heldin.finetune.ranks import in_buckets
from heldin.finetune.recipe import Optimizer, Recipe
from heldin.models.attention import use_plain_head
from heldin.models.devices import default_device

_REPLICAS, _SHARDS = "replicas", "shards"
Shard = torch.Tensor  # this process's part of a parameter, or of a sum of its gradients


@dataclass(frozen=True)
class Spread:
    """The layout of a model over the processes of a training.

    Attributes:
        mesh: device mesh with shape (replicas, processes per shard group).
    """

    mesh: DeviceMesh

    @property
    def replica(self) -> int:
        """The number of this process's shard group."""
        return int(self.mesh.get_local_rank(_REPLICAS))

    @property
    def replicas(self) -> int:
        """Number of shard groups."""
        return int(self.mesh[_REPLICAS].size())

    @property
    def member(self) -> int:
        """The number of this process in its shard group."""
        return int(self.mesh.get_local_rank(_SHARDS))

    @property
    def members(self) -> int:
        """Number of processes in a shard group."""
        return int(self.mesh[_SHARDS].size())

    def over_members(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor with its sum over this process's shard group."""
        in_buckets(tensors, self.mesh.get_group(_SHARDS))

    def over_replicas(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor with its sum over the processes that hold the same shard."""
        if self.replicas > 1:
            in_buckets(tensors, self.mesh.get_group(_REPLICAS))

    def checksum_over_members(self, checksum: int, device: torch.device) -> int:
        """Return the sum of a number over this process's shard group. Each number is first reduced modulo 2^40."""
        total = torch.tensor([checksum % 2**40], dtype=torch.int64, device=device)
        dist.all_reduce(total, group=self.mesh.get_group(_SHARDS))
        return int(total)


def spread(model: PreTrainedModel, recipe: Recipe, device: torch.device | None = None) -> Spread | None:
    """Spread a model in place over the processes of each shard group.

    Return None if every process holds the whole model.

    Args:
        model: a model on the CPU; its shards go to each process's device.
        recipe: recipe that sets the number of processes for one copy of the model.
        device: device of this process; None: the device that runs models.

    Raises:
        InputError: there are too few processes, their number is not a multiple of the processes for one copy, or the
            model or recipe cannot be spread.
    """
    if recipe.shard is None:
        return None
    processes = dist.get_world_size() if dist.is_initialized() else 1
    if processes % recipe.shard:
        raise InputError(
            f"finetune.shard is {recipe.shard}, but {processes} process(es) train: start a multiple of {recipe.shard}"
            f" processes with torchrun (--nproc-per-node {recipe.shard} on one machine)"
        )
    if recipe.lora is not None or recipe.optimizer is Optimizer.ADAFACTOR:
        obstacle = (
            "finetune.lora trains few weights" if recipe.lora else "the optimizer Adafactor looks at whole matrices"
        )
        raise InputError(
            f"{obstacle}, but finetune.shard needs a training that updates all weights element by element: leave"
            " finetune.shard out"
        )
    if number := next((name for name, p in model.named_parameters() if p.dim() == 0), None):
        raise InputError(
            f"finetune.shard cuts weights by rows, but '{number}' of this model is a single number: leave"
            " finetune.shard out"
        )
    shape = (processes // recipe.shard, recipe.shard)
    mesh = init_device_mesh((device or default_device()).type, shape, mesh_dim_names=(_REPLICAS, _SHARDS))
    use_plain_head(model)  # FSDP's hooks need logits that are no view of longer rows
    # Layer by layer, and then what is left, tied embeddings among it. Given back after each forward pass, the last too:
    # passes that only score leave shards behind, as a step expects them.
    for module in (*_layers(model), model):
        fully_shard(module, mesh=mesh[_SHARDS], reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The sum over the processes, where FSDP would take their mean; gradients are float32, and stay so.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return Spread(mesh)


def _layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the model's repeated layers: the longest module list in the model."""
    lists = [list(modules) for modules in model.modules() if isinstance(modules, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])


def shards(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name. Each is a DTensor."""
    return trainable(model)


def rows_of(parameter: torch.Tensor, spread: Spread) -> tuple[int, int]:
    """Return the first row of a parameter that this process holds, and the row after the last."""
    rows = parameter.shape[0]
    each = -(-rows // spread.members)
    return min(spread.member * each, rows), min((spread.member + 1) * each, rows)


def local(tensor: torch.Tensor) -> Shard:
    """Return this process's shard."""
    assert isinstance(tensor, DTensor)
    part: Shard = tensor.to_local()
    return part
