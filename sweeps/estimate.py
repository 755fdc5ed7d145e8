"""How long a gradient takes on this machine, measured before anything is read: for ``heldin sweep --check``."""

import json
import os
import time
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from heldin.finetune.batches import record_losses
from heldin.finetune.precision import arithmetic_of, autocast
from heldin.finetune.recipe import Recipe
from heldin.models.attention import use_exact_attention
from heldin.models.devices import default_device
from heldin.models.reading import quiet_transformers
from heldin.models.tiny import tiny_config
from heldin.stages.config import RunConfig
from heldin.sweeps.config import Resources

_RECORDS = 16  # of a batch
_SECONDS = 1.0  # of measuring
_LARGEST = 5e7  # parameters; a larger model takes minutes on a CPU
_LOGITS = {"cpu": 2**25, "cuda": 2**29}  # of a batch


class Timing:
    """Measures each kind of model and text once."""

    def __init__(self, resources: Resources) -> None:
        self._threads = resources.threads or max(1, len(os.sched_getaffinity(0)) // resources.workers)
        self._known: dict[str, float | None] = {}

    def seconds_per_gradient(self, config: RunConfig) -> float | None:
        """Seconds for a record's gradient in plain training, at full sequence length; None for a model not made here.

        The model has random weights; a GPU is used where there is one.
        """
        pretrain = config.model.pretrain
        finetune = config.finetune
        shape = [config.model.base, pretrain and repr(pretrain.shape), finetune.sequence_length, finetune.precision]
        name = json.dumps(shape)
        if name not in self._known:
            self._known[name] = self._measure(config)
        return self._known[name]

    def _measure(self, config: RunConfig) -> float | None:
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with quiet_transformers():
                model = _model(config)
            return None if model is None else _paced(model, config.finetune)
        except torch.OutOfMemoryError:
            return None
        finally:
            torch.set_num_threads(before)


def _model(config: RunConfig) -> PreTrainedModel | None:
    """The model with random weights; None for one that cannot be made here, or only in minutes."""
    try:
        shape: Any = _shape(config)
        with torch.device("meta"):
            parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(shape).parameters())
    # What is wrong with the config is told by the check of the run; each architecture has errors of its own.
    except Exception:
        return None
    device = default_device()
    if device.type == "cpu" and parameters > _LARGEST:
        return None
    state = torch.get_rng_state()
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    torch.set_rng_state(state)
    use_exact_attention(model)
    return model.to(device).train()


def _shape(config: RunConfig) -> Any:
    if config.model.pretrain is not None:
        return tiny_config(config.model.pretrain.shape, config.model.pretrain.shape.vocabulary, 0)
    return AutoConfig.from_pretrained(config.model.base, revision=config.model.revision)


def _paced(model: PreTrainedModel, recipe: Recipe) -> float:
    length, arithmetic = recipe.sequence_length, arithmetic_of(recipe.precision, model.device)
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.config.vocab_size)
    # As few as a batch needs whose logits fit anywhere.
    records = max(1, min(_RECORDS, _LOGITS[model.device.type] // (length * vocabulary)))
    tokens = torch.randint(0, vocabulary, (records, length + 1), generator=generator).to(model.device)

    def step() -> None:
        model.zero_grad()
        with autocast(arithmetic, model.device):
            losses = record_losses(model, tokens[:, :-1], tokens[:, 1:])
        torch.autograd.backward(losses.sum())
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    # Not the first, which sets everything up.
    step()
    started, steps = time.monotonic(), 0
    while steps < 2 or time.monotonic() - started < _SECONDS:
        step()
        steps += 1
    return (time.monotonic() - started) / (steps * records)
