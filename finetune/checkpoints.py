"""Checkpoints: resumable states, and model folders that ``AutoModelForCausalLM.from_pretrained`` loads.

All files are safetensors or JSON. heldin writes each file under a temporary name, and then renames the file. A
resumable state contains the name of its job, and heldin refuses a state of another job.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.artefacts import OtherSchemaError, State, artefact_folder, stamped, state_of, unstamped
from heldin.base.errors import InputError
from heldin.defenses.gradients.model_parts import trainable
from heldin.finetune.effort import Effort, Memory
from heldin.finetune.preparation import restore
from heldin.models.devices import copy_on
from heldin.models.reading import quiet_transformers

STATE_FILE = "state.json"
ADAPTER = "adapter"
KEPT_STATES = 2  # the older one is for the case that the newer is damaged


@dataclass
class TrainingState:
    """The state of a run between two steps, except weights and optimizer.

    Attributes:
        job: name of the job (``finetune.training``).
        step: number of finished optimizer steps.
        best_step: step of the best evaluation so far.
        best_metric: metric of the best evaluation; None before the first evaluation.
        loss_sum: sum of the training losses since the last evaluation.
        loss_steps: number of losses in ``loss_sum``.
        smallest_norm: smallest gradient norm of a clipping run; None if no norm was measured.
        seconds: training time so far, in seconds.
        gradients: number of computed gradients of records.
        history: one entry per evaluation.
        uncounted: number of records without a counted token, which have loss 0.
        effort: time, devices and memory of the run.
    """

    job: str
    step: int = 0
    best_step: int = 0
    best_metric: float | None = None
    loss_sum: float = 0.0
    loss_steps: int = 0
    smallest_norm: float | None = None
    seconds: float = 0.0
    gradients: int = 0
    uncounted: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)

    @classmethod
    def of(cls, content: dict[str, Any]) -> "TrainingState":
        """Make the state from JSON. Raises KeyError or TypeError if the fields differ."""
        effort = content["effort"]
        memory = effort["memory"] and Memory(**effort["memory"])
        return cls(**{**content, "effort": Effort(**{**effort, "memory": memory})})


def save_state(folder: Path, state: TrainingState, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Write a resumable state, and remove all states except the two newest.

    Args:
        model: the model; its trainable parameters are saved.
    """
    tensors, scalars = _flatten(optimizer.state_dict()["state"])
    with artefact_folder(folder / f"step-{state.step:08d}", made_from=state.job) as temporary:
        save_file({n: p.detach().contiguous() for n, p in trainable(model).items()}, temporary / "weights.safetensors")
        save_file(tensors, temporary / "optimizer.safetensors")
        (temporary / STATE_FILE).write_text(state_text(state, optimizer=scalars), encoding="utf-8")
    drop_old_states(folder)


def drop_old_states(folder: Path) -> None:
    """Remove all states except the newest ones. Call this after a new state is complete."""
    # Names have leading zeros, so that they sort by step.
    for old in sorted(folder.glob("step-*"))[:-KEPT_STATES]:
        shutil.rmtree(old)


def newest_state(folder: Path, say: Callable[[str], object] = lambda _: None) -> Path | None:
    """Return the newest undamaged state; None if there is no state.

    Raises InputError if there are states, but all are damaged.
    """
    states = sorted(folder.glob("step-*"), reverse=True)
    for path in states:
        if state_of(path) is State.WHOLE:
            return path
        say(f"checkpoint '{path}' is damaged or was changed: training continues from the previous checkpoint")
    if states:
        raise InputError(
            f"every checkpoint in '{folder}' is damaged or was changed: restore a checkpoint, or start a new run folder"
        )
    return None


def load_state(
    folder: Path,
    job: str,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    say: Callable[[str], object] = lambda _: None,
) -> TrainingState | None:
    """Load the newest undamaged state into model and optimizer, and return the state; None if there is no state.

    Args:
        model: the model; its trainable parameters are overwritten.

    Raises:
        InputError: all states are damaged, or the state belongs to another job (another corpus, membership, base model
            or recipe).
    """
    newest = newest_state(folder, say)
    if newest is None:
        return None
    if any(newest.glob("shard-*.safetensors")):
        raise InputError(f"'{newest}' was written by processes that each held a part of the model: set finetune.shard")
    state, content = read_state(newest)
    try:
        weights, tensors = load_file(newest / "weights.safetensors"), load_file(newest / "optimizer.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise damaged(newest) from error
    # Before any weight is copied: a refused state leaves the model as it was.
    if state.job != job:
        raise of_another_job(newest)
    # Into the tensors that the optimizer already holds: new ones would be trained by nobody.
    parameters = trainable(model)
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
    # The parameter groups are the new optimizer's own: the recipe, not the checkpoint, sets the hyperparameters.
    optimizer.load_state_dict(
        {"state": _unflatten(tensors, content["optimizer"]), "param_groups": optimizer.state_dict()["param_groups"]}
    )
    return state


def state_text(state: TrainingState, **more: Any) -> str:
    """Return the content of a state's JSON file: the state, and the fields in ``more``."""
    return json.dumps(stamped({"state": asdict(state), **more}))


def read_state(folder: Path) -> tuple[TrainingState, dict[str, Any]]:
    """Return the state in a checkpoint folder, and the whole content that ``state_text`` wrote.

    Raises InputError if the file is damaged or has another schema version.
    """
    path = folder / STATE_FILE
    try:
        content = unstamped(json.loads(path.read_text(encoding="utf-8")), path, "start a new run folder")
        return TrainingState.of(content["state"]), content
    except OtherSchemaError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(folder) from error


def damaged(state: Path) -> InputError:
    """Return the error for an unreadable state."""
    return InputError(
        f"checkpoint '{state}' is damaged: remove this checkpoint, and the run continues from the previous checkpoint"
    )


def of_another_job(state: Path) -> InputError:
    """Return the error for a state of another job."""
    return InputError(
        f"'{state}' is a checkpoint of another job (other corpus, membership, base model or recipe) or of another"
        " version of heldin: use a new run folder"
    )


def finished_state(folder: Path) -> TrainingState:
    """Return the newest state below ``folder``, without its tensors.

    Raises InputError if there is no state, or if the state is damaged.
    """
    newest = newest_state(folder)
    if newest is None:
        raise InputError(
            f"'{folder}' has no undamaged checkpoint of a finished run: restore a checkpoint from a backup, or"
            " repeat the run"
        )
    return read_state(newest)[0]


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a model folder with the tokenizer, completely or not at all.

    Adapters are merged into the weights. PEFT also saves the adapters in the subfolder ``adapter``.

    Raises:
        InputError: the saved adapters differ from the adapters in memory, or do not change the weights.
    """
    # Merging changes the model, which training still needs with its adapters apart.
    whole = model
    if hasattr(model, "merge_and_unload"):
        # On the CPU: on a GPU a second model may not fit.
        copied = copy_on(model, torch.device("cpu"))
        restore(copied, model)
        whole = copied.merge_and_unload()
    with artefact_folder(folder) as temporary, quiet_transformers():
        whole.save_pretrained(temporary, safe_serialization=True)
        tokenizer.save_pretrained(temporary)
        if whole is not model:
            _save_adapter(temporary / ADAPTER, model, tokenizer)


def _save_adapter(folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    from peft import get_peft_model_state_dict

    trained = get_peft_model_state_dict(model, save_embedding_layers=False)
    model.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False)
    tokenizer.save_pretrained(folder)
    saved = load_file(folder / "adapter_model.safetensors")
    same = saved.keys() == trained.keys() and all(torch.equal(saved[n], t.cpu()) for n, t in trained.items())
    # An adapter with every B zero is its base. Layers that are trained whole have no B.
    changes = any(bool(tensor.any()) for name, tensor in saved.items() if "lora_B" in name)
    if not same or not changes:
        fault = (
            "change nothing, because every matrix B is zero" if same else "differ from the trained ones after saving"
        )
        raise InputError(f"the adapters for '{folder.parent}' {fault}: check finetune.lora and finetune.learning_rate")


def _flatten(state: dict[int, dict[str, Any]]) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
    """Return the optimizer's state: tensors by "index.name" for safetensors, other values by index for JSON."""
    tensors = {
        f"{i}.{name}": value.contiguous()
        for i, values in state.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    scalars = {
        str(i): {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        for i, values in state.items()
    }
    return tensors, scalars


def _unflatten(tensors: dict[str, torch.Tensor], scalars: dict[str, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    # JSON has no integer keys.
    state: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in scalars.items()}
    for key, tensor in tensors.items():
        i, name = key.split(".", 1)
        state[int(i)][name] = tensor
    return state


def weights_checksum(parameters: Iterable[torch.Tensor]) -> int:
    """Return a sum over the bits of the weights. Equal weights give equal sums, in any order of summation."""
    # As integers: a sum of numbers would hide differences in its rounding.
    total = 0
    for number, weight in enumerate(parameters):
        words = weight.detach().contiguous().view(torch.int16 if weight.element_size() == 2 else torch.int32)
        total += (2 * number + 1) * int(words.sum(dtype=torch.int64))
    return total % 2**63
