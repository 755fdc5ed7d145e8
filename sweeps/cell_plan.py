"""A sweep's folder: its cells, and the plan of all cells. heldin hashes the plan before it draws the blocks' coins.

Tuning comes first. It tries a fixed grid in separate blocks, and chooses only by public users' loss.

sweep.json  ledger/coins.json  cells/BLOCK/VARIANT/...  state.json  comparison.json  log.txt
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heldin.audit.coarse import brief
from heldin.audit.utility import DIGITS
from heldin.base.artefacts import INDEX, read_document, require_not_purged, write_document
from heldin.base.coins import new_key
from heldin.base.errors import InputError, ResumableError
from heldin.base.files import private_directory, text_sha256
from heldin.record.document import Record, read_record
from heldin.record.facts import CellFacts
from heldin.record.sweep import TUNING, Tried, read_sweep
from heldin.stages.config_files import first_difference
from heldin.stages.families import KINDS, keep_code
from heldin.stages.run_config import parse_config
from heldin.stages.run_folder import require_folder, take_new_folder, write_config
from heldin.stages.sides.ledger import CELL_FILE, Cell, write_cell
from heldin.stages.train.plan import refuse_copies
from heldin.sweeps.load import with_values
from heldin.sweeps.sweep_config import PlacedCell, Sweep, Variant

PLAN, COINS = "sweep.json", Path("ledger") / "coins.json"
_FIRST = (TUNING, "shared")  # what may be there before the plan: what tuned it, and what a cluster's machines share


def placed_cells(sweep: Sweep, out: Path) -> list[PlacedCell]:
    """Return all cells of a sweep, block by block."""
    return [
        PlacedCell(block, variant, sweep.of_block(variant, block), out / "cells" / str(block) / variant.name)
        for block, variant in sweep.cells()
    ]


def plan_of(sweep: Sweep) -> dict[str, Any]:
    """Return everything that is fixed before any coin is drawn: the config of every cell. The number of workers has no
    effect."""
    cells = [
        {
            "block": block,
            "group": variant.group,
            "variant": variant.name,
            "config": sweep.of_block(variant, block).model_dump(mode="json"),
        }
        for block, variant in sweep.cells()
    ]
    rule = sweep.config.decision
    return {
        "name": sweep.config.name,
        "blocks": sweep.config.blocks,
        "decision": rule.model_dump(mode="json") if rule else None,
        "tune": sweep.config.tune.model_dump(mode="json") if sweep.config.tune else None,
        "cells": cells,
    }


def take_sweep(sweep: Sweep, out: Path) -> None:
    """Create the folder of a sweep, or check that it belongs to an earlier, unfinished call with the same sweep.

    Raises:
        InputError: the folder contains other files, or a config uses a model from inside the folder.
    """
    _refuse_own_models(sweep, out)
    plan = plan_of(sweep)
    if not require_sweep(plan, out):
        # A kill while the plan was written leaves this behind, and nothing that was drawn.
        for leftover in out.glob(f".{PLAN}.*.tmp"):
            leftover.unlink()
        take_new_folder(out, "sweep", besides=_FIRST)
        # Before the coins: what is compared cannot follow from how they fall.
        write_document(out / PLAN, plan)
    coins, hashed = _coins(sweep, out), kept_hash(out)
    for cell in placed_cells(sweep, out):
        # Killed while it was laid out, a cell holds what is written again here.
        if not _half_laid_out(cell.folder) and require_folder(cell.config, cell.folder):
            continue
        content = cell.config.model_dump(mode="json")
        facts = CellFacts(sweep=hashed, block=cell.block, group=cell.variant.group, variant=cell.variant.name)
        key = coins[_drawn_for(cell.block, cell.variant)]
        write_cell(Cell(facts, key, content), cell.folder / "ledger")
        refuse_copies(cell.folder)
        keep_code(cell.config, cell.folder)
        # Last: a folder with a config is a cell that can be run, also by hand.
        write_config(content, cell.folder)


def _half_laid_out(folder: Path) -> bool:
    """Return whether ``folder`` contains nothing but files of a killed ``take_sweep``."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {INDEX, KINDS} != {"ledger"}:
        return False
    return {path.name for path in (folder / "ledger").iterdir() if not path.name.endswith(".tmp")} <= {
        CELL_FILE,
        "origin",
    }


def kept_hash(out: Path) -> str:
    """Return the hash of the plan in the folder. Every cell's record contains this hash."""
    return text_sha256("sweep", (out / PLAN).read_text(encoding="utf-8"))


def require_sweep(plan: dict[str, Any], out: Path) -> bool:
    """Return whether ``out`` contains this sweep. Writes nothing. Raises InputError if ``out`` contains another
    sweep."""
    path = out / PLAN
    require_not_purged(out)
    if not path.is_file():
        return False
    kept = read_document(path, "restore the plan from a backup, or choose another --out")
    differs = first_difference(_by_name(kept), _by_name(json.loads(json.dumps(plan))))
    if differs:
        raise InputError(
            f"'{out}' contains another sweep ('{differs}' differs), and the coins of this sweep are drawn."
            " Additional variants or blocks need separate coins: choose another --out"
        )
    return True


def _by_name(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan with cells by name, so an error can name what differs."""
    return {**plan, "cells": {f"{cell['block']}/{cell['variant']}": cell for cell in plan["cells"]}}


def _refuse_own_models(sweep: Sweep, out: Path) -> None:
    """Raise InputError if a config uses a model of a cell, because such scores support no bound
    (docs/theory.md#keys-and-coins)."""
    inside = (out / "cells").resolve()
    for variant in sweep.variants:
        config = variant.config
        named = [config.model.base, config.attack.reference]
        named += [reference.model_name for reference in config.attack.references]
        for name in filter(None, named):
            if Path(name).resolve().is_relative_to(inside):
                raise InputError(
                    f"variants.{variant.name}: '{name}' is a model of this sweep, and depends on the same coins."
                    " Choose a model from outside this sweep"
                )


def _drawn_for(block: int, variant: Variant) -> str:
    return f"{block}/{variant.group}"


def _coins(sweep: Sweep, out: Path) -> dict[str, bytes]:
    """Return the key of the coins for each block and group. A key is drawn only once."""
    path = out / COINS
    wanted = {_drawn_for(block, variant) for block, variant in sweep.cells()}
    if not path.is_file():
        # Nothing was trained by any of them: cells are laid out after this file.
        drawn = {name: new_key().hex() for name in sorted(wanted)}
        private_directory(path.parent)
        write_document(path, drawn)
    kept = read_document(path, "restore this file from a backup, or choose another --out")
    return {name: bytes.fromhex(kept[name]) for name in wanted}


def tuning_cells(sweep: Sweep, out: Path) -> list[PlacedCell]:
    """Return the cells for tuning a sweep in ``out``; empty without tuning."""
    return placed_cells(sweep.tuning, out / TUNING) if sweep.tuning else []


def tries(sweep: Sweep, out: Path) -> list[Tried]:
    """Return all tried combinations. For each variant, the first combination with the least loss is marked.

    Raises:
        InputError: a record cannot be read.
        ResumableError: a cell has no result, but the choice needs all combinations.
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
            loss = public_loss_of(read_record(path), cell.name)
        else:
            raise ResumableError(
                f"tuning: cell {cell.name} has no result. Run the same command again to retry this cell"
            )
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
    """Return the sweep with the chosen values in its variants. It can then be planned, hashed and run."""
    chosen = {choice.variant: choice.values for choice in tried if choice.chosen}
    return replace(sweep, variants=tuple(_with(variant, chosen.get(variant.name, {})) for variant in sweep.variants))


def _with(variant: Variant, values: Mapping[str, object]) -> Variant:
    if not values:
        return variant
    content = with_values(variant.config.model_dump(mode="json"), values)
    return replace(variant, config=parse_config(content, f"variants.{variant.name}"))


def _stated(loss: float) -> float | None:
    return brief(loss, DIGITS) if math.isfinite(loss) else None


def public_loss_of(record: Record, name: str) -> float:
    """Return the loss of public validation users at the chosen checkpoint, in nats per token."""
    training = record.training
    points = [point for point in training.curve if point.step == training.chosen_step] if training else []
    if not points or points[-1].public_loss is None:
        raise ResumableError(
            f"tuning: cell {name} measured no loss of public users. Set finetune.evaluations to at least 1"
        )
    return points[-1].public_loss
