"""Tuning: a fixed grid, judged by public users' loss alone, in blocks of its own before any other coin is drawn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from heldin.audit.coarse import brief
from heldin.audit.utility import DIGITS
from heldin.base.errors import ResumableError
from heldin.record.document import Record, read_record
from heldin.record.sweep import TUNING, Tried, read_sweep
from heldin.stages.config import parse_config
from heldin.sweeps.config import Sweep, Variant
from heldin.sweeps.load import with_values
from heldin.sweeps.plan import PlacedCell, placed_cells


def tuning_cells(sweep: Sweep, out: Path) -> list[PlacedCell]:
    """The cells that tune a sweep in ``out``; none where nothing is tuned."""
    return placed_cells(sweep.tuning, out / TUNING) if sweep.tuning else []


def tries(sweep: Sweep, out: Path) -> list[Tried]:
    """Every combination that was tried, and for each variant the one with the least loss, of equals the first.

    Raises:
        InputError: a record that cannot be read.
        ResumableError: a cell has no result: all combinations, or none, decide.
    """
    if sweep.tuning is None:
        return []
    states = {f"{cell.block}/{cell.variant}": cell.state for cell in read_sweep(out / TUNING).cells}
    losses: dict[str, list[float]] = {}
    for cell in tuning_cells(sweep, out):
        path = cell.folder / "record.json"
        # A filter that ended training without a model is a result: nobody could ship it.
        if states.get(cell.name) == "halted":
            loss = math.inf
        elif path.is_file():
            loss = _public_loss(read_record(path), cell.name)
        else:
            raise ResumableError(f"tuning: cell {cell.name} has no result: the same command tries it again")
        losses.setdefault(cell.variant.name, []).append(loss)
    means = {name: float(np.mean(by_block)) for name, by_block in losses.items()}
    best: dict[str, str] = {}
    for name, (variant, _) in sweep.tried.items():
        if variant not in best or means[name] < means[best[variant]]:
            best[variant] = name
    return [
        Tried(variant=variant, values=values, public_loss=_stated(means[name]), chosen=best[variant] == name)
        for name, (variant, values) in sweep.tried.items()
    ]


def with_choices(sweep: Sweep, tried: Sequence[Tried]) -> Sweep:
    """The sweep with the chosen values in its variants: what is planned, hashed and run."""
    chosen = {choice.variant: choice.values for choice in tried if choice.chosen}
    return replace(sweep, variants=tuple(_with(variant, chosen.get(variant.name, {})) for variant in sweep.variants))


def _with(variant: Variant, values: Mapping[str, object]) -> Variant:
    if not values:
        return variant
    content = with_values(variant.config.model_dump(mode="json"), values)
    return replace(variant, config=parse_config(content, f"variants.{variant.name}"))


def _stated(loss: float) -> float | None:
    return brief(loss, DIGITS) if math.isfinite(loss) else None


def _public_loss(record: Record, name: str) -> float:
    """Loss of public validation users at the chosen checkpoint, nats per token."""
    training = record.training
    points = [point for point in training.curve if point.step == training.chosen_step] if training else []
    if not points or points[-1].public_loss is None:
        raise ResumableError(
            f"tuning: cell {name} measured no public users' loss: set finetune.evaluations to 1 at least"
        )
    return points[-1].public_loss
