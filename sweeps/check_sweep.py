"""Check a sweep before it starts: find mistakes in its cells, and list what the cells would do."""

import contextlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from heldin.audit.shipping import probability_of_passing
from heldin.base.errors import InputError, ResumableError
from heldin.base.wording import counted
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.precision import arithmetic_of, autocast
from heldin.finetune.recipe import Recipe
from heldin.jobs.check.check_run import check_run
from heldin.jobs.check.memory_forecast import shape_of
from heldin.models.attention import use_exact_attention
from heldin.models.devices import default_device
from heldin.models.objective import TokenBatch
from heldin.models.reading import quiet_transformers, text_config
from heldin.record.plan_fit import differences_of
from heldin.stages.run_config import RunConfig
from heldin.stages.train.plan import mechanism_of
from heldin.sweeps.cell_plan import placed_cells, plan_of, require_sweep, tries, tuning_cells, with_choices
from heldin.sweeps.load import hopeless
from heldin.sweeps.sweep_config import Resources, Sweep

RECORDS = 16  # of a batch
SECONDS = 1.0  # of measuring
LARGEST = 5e7  # parameters; a larger model takes minutes on a CPU
_LOGITS = {"cpu": 2**25, "cuda": 2**29}  # of a batch


@dataclass(frozen=True)
class CheckedSweep:
    """The result of a check.

    Attributes:
        problems: one line for each problem that would stop cells before they start; may be empty.
        variants: facts about the cells of each variant; the key is the name of the fact.
    """

    problems: tuple[str, ...]
    variants: list[dict[str, Any]]


def check_sweep(sweep: Sweep, out: Path) -> CheckedSweep:
    """Check every variant as ``heldin run --check`` does. Changes no file."""
    problems = []
    # Once it is tuned, a variant has what was chosen.
    with contextlib.suppress(InputError, ResumableError):
        sweep = with_choices(sweep, tries(sweep, out))
    try:
        require_sweep(plan_of(sweep), out)
    except InputError as error:
        problems.append(str(error))
    for cell in tuning_cells(sweep, out):
        if cell.block == 1:
            checked = check_run(cell.config, cell.folder, costs=False)
            problems += [f"tune: {cell.variant.name}: {problem}" for problem in checked.problems]
    rows = []
    timing = Timing(sweep.config.resources)
    # One cell of each variant: its cells in other blocks differ in seeds and coins alone.
    for cell in placed_cells(sweep, out):
        if cell.block > 1:
            continue
        checked = check_run(cell.config, cell.folder, costs=False)
        problems += [f"variants.{cell.variant.name}: {problem}" for problem in checked.problems]
        if not checked.problems:
            fit = [str(figure) for figure in differences_of(checked.fit)] if checked.fit else []
            gradients = checked.fit.gradients if checked.fit else None
            row = _row(cell.variant.name, cell.variant.group, cell.config, timing, gradients)
            rows.append({**row, "misfit": fit})
    return CheckedSweep(tuple(dict.fromkeys(problems)), rows)


def lines(checked: CheckedSweep, sweep: Sweep) -> list[str]:
    """Return the actions of the sweep, as lines for a terminal."""
    config = sweep.config
    notes = [
        f"{counted(len(checked.variants), 'variant')} in {counted(config.blocks, 'block')}:"
        f" {counted(len(checked.variants) * config.blocks, 'cell')}, {config.resources.workers} at a time"
    ]
    if sweep.tuning is not None:
        count = len(sweep.tried) * sweep.tuning.config.blocks
        notes.append(f"tuned beforehand, by public users' loss: {counted(count, 'cell')} more")
    for row in checked.variants:
        promise = row["promise"]
        notes.append(f"{row['variant']:<24}  {row['gradients']}{_time(row)}; {promise}")
    notes += [
        f"note: the plan of {row['variant']} does not match its data: {figure}"
        for row in checked.variants
        for figure in row["misfit"]
    ]
    counts = {row["gradients"] for row in checked.variants}
    if len(counts) > 1:
        notes.append(
            "note: the variants compute different numbers of gradients: compare their utility with this in mind"
        )
    notes += _chances(sweep)
    if rule := config.decision:
        notes += [
            f"rule: {name} guarantees no epsilon_per_user and cannot pass; as a candidate it makes the others' tests"
            " stricter"
            for name in hopeless(rule, sweep.variants)
        ]
    notes += [
        f"note: {' and '.join(names)} have the same config: they differ only by keys and chance"
        for names in _alike(sweep)
    ]
    notes += _duration(checked, sweep)
    groups = {row["group"] for row in checked.variants}
    if len(groups) > 1:
        notes.append(
            f"note: {len(groups)} groups of variants have different users or set-asides, so heldin does not compare"
            " them"
        )
    return notes


def _alike(sweep: Sweep) -> list[list[str]]:
    """Return groups of variants with equal configs. Equal configs are rarely intended."""
    names: dict[str, list[str]] = {}
    # What is tuned has its values later.
    tuned = {name for name, _ in sweep.tried.values()}
    for variant in (variant for variant in sweep.variants if variant.name not in tuned):
        names.setdefault(variant.config.model_dump_json(exclude={"name"}), []).append(variant.name)
    return [group for group in names.values() if len(group) > 1]


def _duration(checked: CheckedSweep, sweep: Sweep) -> list[str]:
    """Return the duration of training for all cells whose number of gradients is known in advance."""
    known = [row["training_seconds"] for row in checked.variants if row["training_seconds"] is not None]
    if not known:
        return []
    blocks, workers = sweep.config.blocks, sweep.config.resources.workers
    minutes = sum(known) * blocks / min(workers, len(known) * blocks) / 60
    # Shorter texts take less, clipping takes more.
    return [
        f"time: about {counted(max(1, round(minutes)), 'minute')} for the training of"
        f" {counted(len(known) * blocks, 'cell')}, {workers} at a time, by the pace of a few plain batches of full"
        " length on this machine now; other training, shared work, curves and scoring take extra time"
    ]


def _chances(sweep: Sweep) -> list[str]:
    """Return the probabilities, for several numbers of users, that a candidate without leaks passes the limit on
    AUROC."""
    rule, blocks = sweep.config.decision, sweep.config.blocks
    limits = (
        [
            requirement.at_most
            for requirement in rule.require
            if requirement.of == "auroc" and requirement.at_most is not None
        ]
        if rule
        else []
    )
    if rule is None or not limits:
        return []
    chances = []
    for users in (100, 200, 400, 1000):
        # Of one AUROC without a leak, half of the users on each side (Hanley and McNeil 1982).
        spread = math.sqrt((users + 1) / 3) / users
        room = min(limits) - 0.5
        chance = probability_of_passing(room, spread, blocks, rule.level / len(rule.candidates)) if room > 0 else 0.0
        chances.append(f"{'above 0.99' if chance > 0.99 else f'{chance:.2g}'} with {users:,} audited users")
    return [
        f"rule: in {counted(blocks, 'block')} a candidate that does not leak passes auroc at most {min(limits):g}"
        f" against one attack, before other candidates have passed, with probability {', '.join(chances)}; less if"
        " training runs vary or there are several attacks"
    ]


def _time(row: dict[str, Any]) -> str:
    """Return a text about the duration of training a cell."""
    if row["training_seconds"] is not None:
        return f", about {row['training_seconds']:,.0f} s"
    if row["seconds_per_1000_gradients"] is not None:
        return f", about {row['seconds_per_1000_gradients']:,.1f} s for 1,000 of them"
    return ""


def _row(name: str, group: str, config: RunConfig, timing: "Timing", gradients: float | None) -> dict[str, Any]:
    mechanism = mechanism_of(config, plain_steps=1, clip_norm=1.0)
    promise = mechanism.guarantee()
    words, count = _gradients(config, mechanism)
    # The time is of the users who are there; what is stated above, and compared, is the plan.
    count = count if gradients is None else round(mechanism.steps * gradients)
    seconds = timing.seconds_per_gradient(config)
    return {
        "variant": name,
        "group": group,
        "gradients": words,
        "promise": promise.label,
        "epsilon": promise.epsilon if isinstance(promise, Guarantee) else None,
        "delta": mechanism.delta,
        "seconds_per_1000_gradients": None if seconds is None else 1000 * seconds,
        "training_seconds": None if seconds is None or count is None else count * seconds,
    }


def _gradients(config: RunConfig, mechanism: Mechanism) -> tuple[str, int | None]:
    """Return a text about the number of records' gradients in training, and the number if it does not depend on the
    data."""
    if not mechanism.protects:
        return f"{config.finetune.epochs:g} gradients of every training record", None
    assert mechanism.divisor.constant is not None
    units = round(mechanism.divisor.constant)  # expected in a step; the filter's are all users
    if mechanism.samples_users and mechanism.record_selection == "all":
        return f"{mechanism.steps:,} steps with all records of {units:,} users", None
    records = mechanism.group_size if mechanism.samples_users else 1
    records *= mechanism.local.epochs if mechanism.local else 1
    count = mechanism.steps * units * records
    return f"{count:,} gradients{'' if mechanism.clip.filters else ', expected'} at most", count


class Timing:
    """Measures, once for each kind of model and text, how fast gradients are computed."""

    def __init__(self, resources: Resources) -> None:
        self._threads = resources.threads or max(1, len(os.sched_getaffinity(0)) // resources.workers)
        self._known: dict[str, float | None] = {}

    def seconds_per_gradient(self, config: RunConfig) -> float | None:
        """Return the seconds per record's gradient in plain training at full length; None for a model that is not made
        here.

        The model has random weights. It runs on a GPU if there is one.
        """
        model, recipe = config.model, config.finetune
        shape = [model.base, model.pretrain and repr(model.pretrain.shape), recipe.sequence_length, recipe.precision]
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
            return None if model is None else seconds_per_record(model, config.finetune)
        except torch.OutOfMemoryError:
            return None
        finally:
            torch.set_num_threads(before)


def _model(config: RunConfig) -> PreTrainedModel | None:
    """Return the model with random weights; None if this machine cannot make it within seconds."""
    try:
        shape: Any = shape_of(config)
        with torch.device("meta"):
            parameters = sum(p.numel() for p in AutoModelForCausalLM.from_config(shape).parameters())
    # What is wrong with the config is told by the check of the run; each architecture has errors of its own.
    except Exception:
        return None
    device = default_device()
    if device.type == "cpu" and parameters > LARGEST:
        return None
    state = torch.get_rng_state()
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape)
    torch.set_rng_state(state)
    use_exact_attention(model)
    return model.to(device).train()


def seconds_per_record(model: PreTrainedModel, recipe: Recipe) -> float:
    """Time some training steps of this model. Return the seconds per record."""
    length, arithmetic = recipe.sequence_length, arithmetic_of(recipe.precision, model.device)
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(text_config(model.config).vocab_size)
    # As few as a batch needs whose logits fit anywhere.
    records = max(1, min(RECORDS, _LOGITS[model.device.type] // (length * vocabulary)))
    tokens = torch.randint(0, vocabulary, (records, length + 1), generator=generator).to(model.device)

    def step() -> None:
        model.zero_grad()
        with autocast(arithmetic, model.device):
            losses = TokenBatch.of(tokens[:, :-1], tokens[:, 1:]).losses(model)
        torch.autograd.backward(losses.sum())
        if model.device.type == "cuda":
            torch.cuda.synchronize()

    # Not the first, which sets everything up.
    step()
    started, steps = time.monotonic(), 0
    while steps < 2 or time.monotonic() - started < SECONDS:
        step()
        steps += 1
    return (time.monotonic() - started) / (steps * records)
