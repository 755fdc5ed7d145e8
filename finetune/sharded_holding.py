"""The operations of a training on a model that is spread over processes."""

from functools import partial

from transformers import PreTrainedModel

from heldin.base.errors import InputError
from heldin.finetune.checkpoints import weights_checksum
from heldin.finetune.clipping import PlainClipping
from heldin.finetune.holding import Holding, Records
from heldin.finetune.passes import Passes
from heldin.finetune.precision import Arithmetic, autocast
from heldin.finetune.ranks import own_share
from heldin.finetune.sharded_checkpoints import all_finite, load_sharded_state, save_sharded_model, save_sharded_state
from heldin.finetune.sharded_gradients import sharded_batch_gradient, sharded_private_gradient
from heldin.finetune.sharding import Spread, local, shards


def sharded_holding(spread: Spread) -> Holding:
    """Each shard group processes its share of a step's units; every process reads and writes its shards."""

    def of_batch(
        model: PreTrainedModel, batch: Records, clipping: PlainClipping | None, passes: Passes, arithmetic: Arithmetic
    ) -> tuple[float, list[float]]:
        if clipping is not None:
            raise InputError("finetune.shard: clipping without noise needs whole models")
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
