"""Ways to spend one budget at one rung of the ladder of users: optimizer, noise, and which layers are trained.

Layers are picked by the messages of the reference's people, which the base model has not read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from transformers import AutoConfig, AutoModelForCausalLM

from heldin.audit.blocks import over_blocks
from heldin.audit.users_ladder import PLAIN
from heldin.base.files import write_text
from heldin.base.progress import Reporter
from heldin.base.section import LARGEST, Count, NotNegative, Positive, Section
from heldin.base.yaml_files import read_yaml
from heldin.finetune.layer_choice import with_layers
from heldin.finetune.preparation import with_adapters
from heldin.stages.run_config import RunConfig
from heldin.sweeps.finished import Finished
from heldin.sweeps.sweep_config import Sweep
from replication.users import PUBLIC_SEED, RECORDS, gain, interval, messages, rung_sweep, whole_variants

FILE = Path(__file__).with_suffix(".yaml")
RUNG = 16_000
PICKED = ("lora-picked-1", "lora-picked-4")
NAMES = {
    PLAIN: "plain",
    "clipped": "clipping of ULS, no noise",
    "uls": "ULS",
    "banded": "banded noise",
    "uls-momentum": "ULS, sgd with momentum 0.9",
    "banded-momentum": "banded noise, sgd with momentum 0.9",
    "lora-plain": "plain, LoRA on query and value",
    "lora-all": "ULS, LoRA on all 12 linear layers",
    "lora-usual": "ULS, LoRA on query and value",
    "lora-picked-1": "ULS, LoRA on 1 picked layer",
    "lora-picked-4": "ULS, LoRA on 4 picked layers",
}


class Way(Section):
    """All trainings of one way to train, with one training for each block."""

    name: str
    """Name of the variant in ``configs/sweeps/users-ways.yaml``."""
    learning_rate: Positive
    trained: Count
    """Number of trained parameters of the model."""
    layers: tuple[str, ...] = ()
    """Names of the trained layers, if public users' gradients picked them."""
    noise_multiplier: NotNegative
    gains: tuple[Annotated[float, Field(ge=-LARGEST, le=LARGEST)], ...]
    """For each block, gain in nats per token (see ``replication.users.gain``)."""
    aurocs: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    """For each block, AUROC of the primary attack on fresh texts."""


def public_file(folder: Path) -> Path:
    """Return the file of messages by which layers are picked."""
    return folder / "public.jsonl"


def write_public(folder: Path, people: int = 300, of: int = 1500) -> None:
    """Write the messages of the reference's people, unless the file is there.

    Args:
        folder: folder of the file.
        people: number of people whose messages the base model has read.
        of: number of people of base model and reference together.
    """
    if not public_file(folder).is_file():
        rows = list(messages(of, PUBLIC_SEED))[people * RECORDS :]
        write_text(public_file(folder), "".join(json.dumps(row) + "\n" for row in rows))


def ways_sweep(folder: Path, rung: int = RUNG, overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep of all ways at a rung. Raises InputError: see ``replication.users.rung_sweep``."""
    source = [f"variants.{way}.model.saliency.source.path={public_file(folder.resolve())}" for way in PICKED]
    return rung_sweep(folder, rung, "users-ways", [*source, *overrides])


def ways_of(sweep: Sweep, folder: Path, reporter: Reporter) -> list[Way]:
    """Return what each way of a finished sweep measured.

    Args:
        sweep: the sweep of ``ways_sweep``.
        folder: folder of the sweep.
        reporter: shows the progress of reading.
    """
    return [_way(cells) for cells in whole_variants(sweep, folder, reporter)]


def _way(cells: Sequence[Finished]) -> Way:
    variant, training = cells[0].cell.variant, cells[0].record.training
    assert training is not None
    layers = tuple(training.picked.layers) if training.picked else ()
    return Way(
        name=variant.name,
        learning_rate=variant.config.finetune.learning_rate,
        trained=trained_numbers(variant.config, layers),
        layers=layers,
        noise_multiplier=round(training.noise_multiplier, 4),
        gains=tuple(round(gain(cell), 4) for cell in cells),
        aurocs=tuple(round(cell.auroc, 4) for cell in cells),
    )


def trained_numbers(config: RunConfig, layers: Sequence[str]) -> int:
    """Return how many numbers of the model a run trains; ``layers`` are those that public users picked, if any."""
    recipe = with_layers(config.finetune, layers) if layers else config.finetune
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(config.model.base)))
        return sum(p.numel() for p in with_adapters(model, recipe).parameters() if p.requires_grad)


def read_ways(file: Path = FILE) -> tuple[Way, ...]:
    """Return the published ways."""
    return TypeAdapter(tuple[Way, ...]).validate_python(read_yaml(file))


def write_ways(ways: Sequence[Way], to: Path) -> None:
    """Write the ways as YAML, a line for each."""
    rows = [f"- {json.dumps(way.model_dump(mode='json'))}\n" for way in ways]
    write_text(to, "# Written by python -m replication users-ways. docs/users.md prints it.\n" + "".join(rows))


def ways_table(ways: Sequence[Way]) -> str:
    """Return the ways as a table in Markdown: means over the blocks, with 95 % intervals."""
    (plain,) = (way.gains for way in ways if way.name == PLAIN)
    columns = ("way", "trained numbers", "learning rate", "gain, nats a token", "share of the plain gain")
    lines = ["| " + " | ".join((*columns, "AUROC on fresh texts")) + " |", "|---" * 6 + "|"]
    for way in ways:
        share = over_blocks([own / most for own, most in zip(way.gains, plain, strict=True)])
        cells = (
            NAMES[way.name],
            f"{way.trained:,}",
            f"{way.learning_rate:g}",
            interval(over_blocks(way.gains)),
            "" if way.name == PLAIN else interval(share, 100, " %"),
            interval(over_blocks(way.aurocs)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
