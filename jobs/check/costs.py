"""The cost of a run on this machine, computed before it starts: steps, tokens and seconds of each part of the run.

heldin reads a small corpus as the run does, and assumes the size of a larger one. It times a training step on a model
of the run's shape with random weights. If timing would take too long, heldin assumes the duration from the speed of a
matrix product.

All other costs grow with users, records, parameters and processes. heldin computes these costs with constants from
measurements on two cores. benchmarks/RESULTS.md has the commands, and the results for four sizes.
"""

import copy
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from heldin.base.progress import LineReporter
from heldin.base.wording import counted, in_bytes
from heldin.corpus.split import Audited, Part, set_aside_sizes
from heldin.corpus.store import CorpusStore
from heldin.defenses.choices import NoiseGenerator
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.noise import AHEAD_FROM
from heldin.finetune.layer_choice import on_every_layer
from heldin.finetune.memory import Step
from heldin.finetune.passes import Passes
from heldin.finetune.precision import arithmetic_of
from heldin.finetune.preparation import optimizer_of, with_adapters
from heldin.finetune.recipe import Optimizer, Recipe
from heldin.jobs.check.memory_forecast import plain_step, records_of_a_unit, shape_of, step_of
from heldin.models.attention import use_exact_attention
from heldin.models.devices import default_device
from heldin.models.loading import context_length
from heldin.record.plan_fit import PlanFit
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.corpus import CorpusData, read_corpus
from heldin.stages.sides.layout import laid_out
from heldin.stages.train.models import reference_rows, trained_references
from heldin.stages.train.plan import optimizer_lines, plan_fit

MILLION = 1_000_000
FLOAT = 4  # bytes
CHARACTERS = 4  # of a token of English, about
# Tensors like the weights; momentum is one more.
STATES = {Optimizer.SGD: 0, Optimizer.ADAM: 2, Optimizer.ADAMW: 2, Optimizer.ADAFACTOR: 0}


@dataclass(frozen=True)
class Cost:
    """One measured constant.

    Attributes:
        item: name of the item that has this cost.
        size: cost per item, in ``unit``.
    """

    item: str
    size: float
    unit: str


STORE = Cost("store: a character", 0.1e-6, "s")
STORED = Cost("store: a record, on disk, besides its characters", 40, "bytes")
SET_ASIDE = Cost("set-asides, coins and ledger: a record", 3.3e-6, "s")
TOKENIZED = Cost("tokens: one token, on one core", 3.3e-6, "s")
TOKEN = Cost("tokens: one token, on disk (4 in vocabularies beyond 65,536)", 2, "bytes")
SEQUENCE = Cost("tokens: a record, on disk", 8, "bytes")
UNIT = Cost("units and draws: a unit, in the memory of each process", 65, "bytes")
OWNED = Cost("units and draws: a record that is trained on, in the memory of each process", 24, "bytes")
DRAW = Cost("draws: a unit at each start, and in each step that samples it", 6e-6, "s")
CHOICE = Cost("draws: a record that is chosen", 1e-6, "s")
PHILOX = Cost("noise, Philox: a number, on one core", 12e-9, "s")
AES = Cost("noise, AES-256: a number, on one core", 28e-9, "s")


@dataclass(frozen=True)
class CorpusSize:
    """The corpus sizes that determine costs: number of records, and characters and tokens per record."""

    records: int
    characters: int
    tokens: int

    @property
    def disk(self) -> int:
        """Bytes on disk of the store and the tokens."""
        return int(self.records * (STORED.size + self.characters + SEQUENCE.size + self.tokens * TOKEN.size))


@dataclass(frozen=True)
class Cohort:
    """The sampler sizes that determine costs: units, expected units per step, records per unit, and total records."""

    units: int
    drawn: float
    records: int
    records_in_all: int = 0

    @property
    def start_seconds(self) -> float:
        """Seconds at each start, when the sampler draws the first step of every unit."""
        return self.units * DRAW.size

    @property
    def step_seconds(self) -> float:
        """Seconds per step, in which the sampler draws each sampled unit's next step and chooses its records."""
        return self.drawn * (DRAW.size + self.records * CHOICE.size)

    @property
    def memory(self) -> int:
        """Bytes of memory in each process."""
        return int(self.units * UNIT.size + self.records_in_all * OWNED.size)


@dataclass(frozen=True)
class Weights:
    """The model sizes that determine costs: parameters, and optimizer tensors with as many numbers as the model."""

    parameters: int
    states: int

    @property
    def training(self) -> int:
        """Bytes of memory for weights, gradients, sum of clipped gradients and optimizer, over a whole shard group."""
        return self.parameters * FLOAT * (3 + self.states)

    @property
    def checkpoint(self) -> int:
        """Bytes on disk of one checkpoint: weights and optimizer."""
        return self.parameters * FLOAT * (1 + self.states)

    @property
    def replica_step(self) -> int:
        """Bytes per step that each further process sends and receives for the sum of gradients, if it has the whole
        model."""
        return 2 * self.parameters * FLOAT

    @property
    def sharded_pass(self) -> int:
        """Bytes that a shard group sends for one pass over a unit: the weights forward and backward, the gradients
        once."""
        return 3 * self.parameters * FLOAT

    def noise_seconds(self, secure: bool) -> float:
        """Return the seconds of one core per step that noise takes; shards draw their noise at the same time."""
        return self.parameters * (AES if secure else PHILOX).size


def cost_lines(config: RunConfig, mechanism: Mechanism) -> list[str]:
    """Return one line per cost, other than passes of the model, that the config determines."""
    rows: list[str] = []
    if mechanism.sampler.draws_by_gaps:
        rows += filter(None, [_of_draws(mechanism)])
    parameters = parameters_of(config)
    if parameters is not None:
        states = STATES[config.finetune.optimizer] + (config.finetune.momentum > 0)
        rows += _of_weights(config, mechanism, Weights(parameters, states))
    return [*rows, *_of_carried_noise(config, mechanism), *optimizer_lines(config, mechanism)]


def _of_draws(mechanism: Mechanism) -> str | None:
    sampler = mechanism.sampler
    units = sampler.population or 0
    drawn = sampler.rate / sampler.groups * units
    cohort = Cohort(units, drawn, mechanism.group_size if mechanism.samples_users else 1)
    if not units:
        return None  # of records, whose number only the corpus tells
    start = f", after {cohort.start_seconds:.1f} s at each start" if cohort.start_seconds >= 1 else ""
    memory = f"; {in_bytes(cohort.memory)} in memory" if cohort.memory >= 2**20 else ""
    return f"a step: {1000 * cohort.step_seconds:,.1f} ms to draw {cohort.drawn:,.0f} units{start}{memory}"


def _of_weights(config: RunConfig, mechanism: Mechanism, weights: Weights) -> Sequence[str]:
    steps = mechanism.steps if mechanism.protects else None
    written = steps // config.finetune.checkpoint_every + 1 if steps else 1
    kept = f"; {written:,} checkpoints, and heldin keeps two of them" if written > 2 else ""
    rows = [
        f"a checkpoint: {in_bytes(weights.checkpoint)} to write{kept}",
        f"each further process: {in_bytes(weights.replica_step)} to send in a step",
    ]
    if config.finetune.shard:
        rows[-1] += f"; each shard group: {in_bytes(weights.sharded_pass)} in a pass"
    if mechanism.noise_multiplier:
        secure = config.defense.noise_generator() is NoiseGenerator.SECURE
        # Of a shard group each process draws its part, and the rest of the blocks in which that part lies.
        # A filter may halt before a step's noise is needed.
        ahead = (
            secure and not mechanism.clip.filters and weights.parameters // (config.finetune.shard or 1) >= AHEAD_FROM
        )
        least = "at least " if config.finetune.shard else ""
        whose = " over a shard group" if config.finetune.shard else ""
        when = ", drawn a step ahead" if ahead else ""
        rows.append(f"noise: {least}{weights.noise_seconds(secure):.2g} s of a core a step{whose}{when}")
    return rows


def _of_carried_noise(config: RunConfig, mechanism: Mechanism) -> Sequence[str]:
    carried = mechanism.sampler.groups - 1
    shape = shape_of(config) if carried and mechanism.noise_multiplier else None
    if shape is None:
        return []
    with torch.device("meta"):
        model = with_adapters(AutoModelForCausalLM.from_config(shape), on_every_layer(config.finetune))
    numbers = sum(int(p.numel()) for p in model.parameters() if p.requires_grad)
    whose = ", over a shard group" if config.finetune.shard else " of each process"
    lora = config.finetune.lora
    most = "at most " if lora is not None and lora.picks else ""  # the layers are not picked yet
    return [
        f"banded noise: {counted(carried, 'vector')} of {most}{numbers:,} trained parameters carried along,"
        f" {in_bytes(carried * numbers * FLOAT)} in main memory{whose}; a run that goes on draws the noise of all"
        " earlier steps again"
    ]


def parameters_of(config: RunConfig) -> int | None:
    """Return the number of trained weights; None with adapters, or if the model's shape is known only after loading."""
    shape = None if config.finetune.lora is not None else shape_of(config)
    if shape is None:
        return None
    with torch.device("meta"):
        return sum(int(p.numel()) for p in AutoModelForCausalLM.from_config(shape).parameters())


READ = 64 * 2**20  # bytes of a corpus that is read for a check
ON_HUB = "the check downloads no data set"
TOO_LARGE = "the corpus is too large for the check to read"
NAMES = "the check finds names only with lists, and this plan or audit depends on names"
_SILENT = LineReporter(lambda _: None)
_SEARCHED = {"words", "gold"}  # sources of names that take no pipeline and no patterns
STEPS, SECONDS = 20, 10.0  # a measurement ends with the first
SHARE = 0.3  # of a matrix product's speed, where a step is not measured


@dataclass(frozen=True)
class CostPart:
    """One training of a run, or the run's scoring.

    Attributes:
        steps: number of optimizer steps; 0 for scoring.
        tokens: number of tokens of all passes.
        seconds: seconds on this machine; None if unknown.
    """

    name: str
    steps: int
    tokens: int
    seconds: float | None


@dataclass(frozen=True)
class RunCost:
    """The cost of a run.

    Attributes:
        records: number of records in the corpus, counted or assumed.
        corpus_read: whether heldin counted the records; if not, the stated cost of every part is an upper limit.
        tokens_per_record: mean number of tokens per record, at most the sequence length of the training.
        steps_measured: number of timed steps; 0 if the seconds are assumed.
        device: device of the run.
        disk: number of bytes of corpus store and tokens.
    """

    parts: tuple[CostPart, ...]
    records: int
    corpus_read: bool
    tokens_per_record: int
    steps_measured: int
    device: str
    disk: int

    @property
    def seconds(self) -> float | None:
        """Seconds of all parts; None if the seconds of a part are unknown."""
        known = [part.seconds for part in self.parts if part.seconds is not None]
        return sum(known) if len(known) == len(self.parts) else None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        return {**asdict(self), "seconds": self.seconds}

    def lines(self) -> list[str]:
        """Return one line for each part of the run, and mark the most expensive part."""
        how = "counted" if self.corpus_read else "assumed from its size, because it is too large for the check to read"
        at_most = "" if self.corpus_read else "at most "
        rows = [f"corpus: {self.records:,} records of about {self.tokens_per_record} tokens, {how}"]
        most = max((part.seconds or 0 for part in self.parts), default=0)
        for part in self.parts:
            took = "time not known" if part.seconds is None else _in_words(part.seconds)
            steps = f"{part.steps:,} steps, " if part.steps else ""
            mark = "  <- most of the time" if self.seconds and most > self.seconds / 2 and part.seconds == most else ""
            rows.append(f"{part.name}: {at_most}{steps}{part.tokens:,} tokens, {took}{mark}")
        known = f"measured over {self.steps_measured} steps" if self.steps_measured else "assumed from a matrix product"
        if self.seconds is not None:
            rows += [
                f"together {at_most or 'about '}{_in_words(self.seconds)} on the {self.device} here ({known})",
                "on top: searches for names, evaluations, statistics and the report; cached results cost nothing",
            ]
        return [*rows, f"disk: {in_bytes(self.disk)} for corpus and tokens"]


def cost_of_run(config: RunConfig, mechanism: Mechanism, sizes: "Sizes | None") -> RunCost | None:
    """Return the cost of a run; None if the model's shape or the corpus's size is known only after loading."""
    shape = shape_of(config)
    if shape is None or sizes is None:
        return None
    recipe = on_every_layer(config.finetune)
    length = min(sizes.tokens, recipe.sequence_length, context_length(shape))
    shorter = config.model_copy(update={"finetune": replace(recipe, sequence_length=length)})
    step = step_of(shorter)
    own = plain_step(shorter.finetune) if step is None else step
    per_token, measured = _seconds_per_token(shape, shorter.finetune, own)
    plain = per_token
    if not config.defense.is_plain:
        plain, _ = _seconds_per_token(shape, shorter.finetune, plain_step(shorter.finetune))
    parts: list[CostPart] = []

    def add(name: str, steps: int, records: float, seconds: float | None) -> None:
        tokens = int(records * length)
        parts.append(CostPart(name, steps, tokens, None if seconds is None else tokens * seconds))

    if config.model.pretrain is not None:
        settings = config.model.pretrain.recipe
        add("pre-training", settings.steps(sizes.public), settings.steps(sizes.public) * settings.batch_size, plain)
    for spec in trained_references(config):
        pretraining = config.model.pretrain if spec.fresh_seed is not None else None
        settings = pretraining.recipe if pretraining else recipe
        steps = settings.steps(sizes.references.get(spec.label, sizes.public))
        add(f"reference {spec.label}", steps, steps * settings.batch_size, plain)
    steps, drawn = _own_steps(config, mechanism, sizes)
    add("fine-tuning", steps, steps * drawn, per_token)
    if config.attack.shadow_models:
        add(
            "shadow models", config.attack.shadow_models * steps, config.attack.shadow_models * steps * drawn, per_token
        )
    # A forward pass is a third of a step; target, reference and all others score every text.
    models = 2 + len(config.attack.references)
    add("scoring", 0, models * sizes.scored, None if plain is None else plain / 3)
    disk = CorpusSize(sizes.records, CHARACTERS * sizes.tokens, sizes.tokens).disk
    return RunCost(
        tuple(parts),
        sizes.records,
        sizes.read,
        length,
        measured,
        "GPU" if default_device().type == "cuda" else "CPU",
        disk,
    )


@dataclass(frozen=True)
class Sizes:
    """Numbers of records: all, per user, public, for each reference, and scored. Also the mean tokens per record.

    Attributes:
        counts: expected number of records of each user if the user is in training. Includes caps, but no other
            data-side defense.
        present: probability that each user is in training; canary users come last.
        unknown: reason why ``counts`` may differ from the trained records; "" if there is no such reason.
    """

    records: int
    counts: npt.NDArray[np.float64]
    present: npt.NDArray[np.float64]
    public: int
    references: dict[str, int]
    scored: int
    tokens: int
    read: bool
    unknown: str = ""

    @property
    def users(self) -> float:
        """The expected number of users in training."""
        return float(self.present.sum())

    @property
    def training(self) -> int:
        """The expected number of records in training."""
        return int(self.present @ self.counts)

    def fit(self, config: RunConfig, mechanism: Mechanism) -> PlanFit | None:
        """Return the plan compared with these sizes; None without noise, or if the trained records are unknown."""
        return None if self.unknown else plan_fit(config, mechanism, self.counts, self.present)


def _assumed(records: int, length: int) -> Sizes:
    counts = np.array([float(records)])
    return Sizes(records, counts, np.ones(1), records, {}, records, length, read=False, unknown=TOO_LARGE)


def sizes_of(config: RunConfig) -> Sizes | None:
    """Return the sizes of a run's corpus, counted or assumed; None for a data set on the hub.

    Raises:
        InputError: the corpus was read, and is unusable.
    """
    size, split, length = config.corpus.source.size(), config.split, config.finetune.sequence_length
    if size is None:
        return None
    if size.bytes > READ:
        return _assumed(size.bytes // (CHARACTERS * length), length)
    if size.records > MILLION / 10:
        return _assumed(size.records, length)
    corpus = read_corpus(config, _SILENT)
    held = [corpus.store.count(user) for user in corpus.audited.users]
    aside = {"attacker_fraction": split.attacker_fraction, "evaluation_fraction": split.evaluation_fraction}
    own = [count - sum(set_aside_sizes(count, **aside)) for count in held]
    # Of those whose coins decide one half is left out; where entities are audited, every user is trained on.
    users = len(own)
    decided = split.audit_fraction or min(1.0, (split.audit_pool or users) / max(1, users))
    decided = 0.0 if split.audited is Audited.ENTITIES else decided
    made_up = [documents for spec in config.canaries for documents in spec.written()]
    counts, present, unknown = np.array(own, dtype=np.float64), np.full(users, 1 - decided / 2), ""
    # What they leave depends on whom each record names.
    if config.defense.caps or split.audited is not Audited.USERS:
        unknown = NAMES
        if {source.kind for _, source in config.entity_sources()} <= _SEARCHED:
            counts, present = _by_names(config, corpus)
            unknown = ""
    counts, present = np.append(counts, made_up), np.append(present, np.full(len(made_up), 0.5))
    for most in _caps(config):
        counts = np.minimum(counts, most)
    rows_of = {spec.label: reference_rows(spec, config, corpus) for spec in config.attack.references}
    references = {label: len(rows) for label, rows in rows_of.items() if rows}
    return Sizes(
        len(corpus.store),
        counts,
        present,
        len(corpus.public.rows),
        references,
        int(sum(held) * decided * split.attacker_fraction),
        _tokens_of(corpus.store),
        read=True,
        unknown=unknown,
    )


def _by_names(config: RunConfig, corpus: CorpusData) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return two arrays over the users who have records after caps: expected records, and probability of training."""
    layout, slots = laid_out(config, corpus, corpus.store, {}, _SILENT)
    stays = np.ones(len(corpus.store)) if slots is None else slots.kept.astype(np.float64)
    for parts in layout.pool.entities.values():  # no two of which share a record
        stays[list(parts[Part.TRAIN])] /= 2
    counts = np.array([stays[list(layout.parts[user][Part.TRAIN])].sum() for user in layout.users])
    coins = set(layout.pool.names)
    present = np.array([0.5 if user in coins else 1.0 for user in layout.users])
    return counts[counts > 0], present[counts > 0]


def _caps(config: RunConfig) -> list[int]:
    """Return the maximum records per user that each cap of the defense and each data-side defense sets, in order."""
    caps = config.defense.caps
    return [*(caps[:1] if caps else ()), *(step.most_records for step in config.data_defenses if step.most_records)]


def _tokens_of(store: CorpusStore) -> int:
    texts = store.texts_at(np.arange(min(len(store), 1000)))
    return max(2, sum(map(len, texts)) // (CHARACTERS * max(1, len(texts))))


def _own_steps(config: RunConfig, mechanism: Mechanism, sizes: Sizes) -> tuple[int, float]:
    """Return the number of steps of fine-tuning, and the number of records per step."""
    if not mechanism.protects:
        return config.finetune.steps(sizes.training), config.finetune.batch_size
    if (fit := sizes.fit(config, mechanism)) and fit.gradients is not None:
        return mechanism.steps, fit.gradients
    own = sizes.training / max(1.0, sizes.users)  # of a user, on average
    units = config.defense.cohort_size
    if units is not None:
        return mechanism.steps, units * min(own, records_of_a_unit(config.defense, None))
    # Of the filter, in whose steps all users take part.
    return mechanism.steps, sizes.users * min(own, mechanism.group_size or own)


def _seconds_per_token(shape: PretrainedConfig, recipe: Recipe, step: Step) -> tuple[float | None, int]:
    """Return the seconds per token of a training step on this machine, and the number of timed steps; 0 if assumed."""
    if recipe.shard is not None:
        return None, 0
    device = default_device()
    with torch.device("meta"):
        weights = sum(p.numel() for p in AutoModelForCausalLM.from_config(copy.deepcopy(shape)).parameters())
    assumed = 6 * weights / (SHARE * _flops(device))
    if assumed * recipe.sequence_length * 2 * max(step.most, step.unit) > SECONDS:
        return assumed, 0
    try:
        return _measured(shape, recipe, step, device)
    except RuntimeError:  # most of all memory: a run takes fewer records in a pass
        return assumed, 0


def _measured(shape: PretrainedConfig, recipe: Recipe, step: Step, device: torch.device) -> tuple[float, int]:
    """Return the measured seconds per token of a model with random weights, and the number of timed steps."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(shape), dtype=torch.float32).to(device)
    use_exact_attention(model)
    model = with_adapters(model, recipe).train()
    tokens = 0

    def count(_: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal tokens
        tokens += kwargs["input_ids"].numel() if "input_ids" in kwargs else args[0].numel()

    model.register_forward_pre_hook(count, with_kwargs=True)
    passes, optimizer = Passes(step.most, splits=step.splits), optimizer_of(model, recipe)
    arithmetic = arithmetic_of(recipe.precision, device)

    def take() -> None:
        step.compute(model, passes, arithmetic, None)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    take()
    tokens, taken, seconds = 0, 0, 0.0
    while taken < STEPS and seconds < SECONDS:
        seconds += _timed(take, device)
        taken += 1
    return seconds / max(1, tokens), taken


@functools.cache
def _flops(device: torch.device) -> float:
    """Return the operations per second of a matrix product on this device, measured once per process."""
    a = torch.randn(1024, 1024, device=device)
    a @ a
    return 2 * 1024**3 * 4 / _timed(lambda: [a @ a for _ in range(4)], device)


def _timed(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 3 * 86400 else f"{seconds / 86400:,.0f} days"
