"""The cost of a run without the passes of its model, as users, records, parameters and processes grow.

The constants were measured on two cores (benchmarks/RESULTS.md names the commands); docs/scale.md lists them and what
follows from them for five sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM

from heldin.base.wording import in_bytes
from heldin.defenses.choices import CappedPoissonSampler, NoiseGenerator, PoissonSampler
from heldin.defenses.config import PrivateDefense, SampledDefense
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.noise import AHEAD_FROM
from heldin.finetune.recipe import Optimizer
from heldin.jobs.memory_forecast import shape_of
from heldin.stages.run_config import RunConfig

MILLION = 1_000_000
FLOAT = 4  # bytes
CHARACTERS = 4  # of a token of English, about
STATES = {Optimizer.SGD: 1, Optimizer.ADAM: 2, Optimizer.ADAMW: 2, Optimizer.ADAFACTOR: 0}  # tensors like the weights


@dataclass(frozen=True)
class Cost:
    """One constant.

    Attributes:
        item: as docs/scale.md names it.
        size: per item.
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
DRAW = Cost("draws: a unit at each start, and each time that it takes part", 6e-6, "s")
CHOICE = Cost("draws: a record that is chosen", 1e-6, "s")
PHILOX = Cost("noise, Philox: a number, on one core", 12e-9, "s")
SHAKE = Cost("noise, SHAKE-256: a number, on one core", 52e-9, "s")
CACHED = Cost("score cache: a text of 200 tokens, on disk", 2500, "bytes")
COSTS = (STORE, STORED, SET_ASIDE, TOKENIZED, TOKEN, SEQUENCE, UNIT, OWNED, DRAW, CHOICE, PHILOX, SHAKE, CACHED)


@dataclass(frozen=True)
class CorpusSize:
    """The size of a corpus that decides costs: records, and characters and tokens of each."""

    records: int
    characters: int
    tokens: int

    @property
    def store_seconds(self) -> float:
        """To read the source once."""
        return self.records * self.characters * STORE.size

    @property
    def set_aside_seconds(self) -> float:
        """To say which records of whom are trained on; not again when a run goes on."""
        return self.records * SET_ASIDE.size

    @property
    def token_seconds(self) -> float:
        """Of a core, to tokenize once."""
        return self.records * self.tokens * TOKENIZED.size

    @property
    def disk(self) -> int:
        """Return bytes of store and tokens."""
        return int(self.records * (STORED.size + self.characters + SEQUENCE.size + self.tokens * TOKEN.size))


@dataclass(frozen=True)
class Cohort:
    """The size of a sampler that decides costs: units, expected number drawn in a step, records of each and of all."""

    units: int
    drawn: float
    records: int
    records_in_all: int = 0

    @property
    def start_seconds(self) -> float:
        """At each start: every unit's first step."""
        return self.units * DRAW.size

    @property
    def step_seconds(self) -> float:
        """Return the seconds of a step: units that take part are drawn for a later one, and their records chosen."""
        return self.drawn * (DRAW.size + self.records * CHOICE.size)

    @property
    def memory(self) -> int:
        """Return bytes in each process."""
        return int(self.units * UNIT.size + self.records_in_all * OWNED.size)


@dataclass(frozen=True)
class Weights:
    """The size of a model that decides costs: parameters, and tensors of the optimizer like each."""

    parameters: int
    states: int

    @property
    def training(self) -> int:
        """Return bytes of weights, gradients, sum of clipped gradients and optimizer, over a whole shard group."""
        return self.parameters * FLOAT * (3 + self.states)

    @property
    def checkpoint(self) -> int:
        """Return bytes of weights and optimizer."""
        return self.parameters * FLOAT * (1 + self.states)

    @property
    def replica_step(self) -> int:
        """Return bytes that a further process holding all of the model sends in a step: the sum, there and back."""
        return 2 * self.parameters * FLOAT

    @property
    def sharded_pass(self) -> int:
        """Return bytes that a shard group moves in a pass over a unit: weights forward and backward, gradients once."""
        return 3 * self.parameters * FLOAT

    def noise_seconds(self, secure: bool) -> float:
        """Return the seconds of a core, for a step; shards draw theirs at the same time."""
        return self.parameters * (SHAKE if secure else PHILOX).size


def cost_lines(config: RunConfig, mechanism: Mechanism) -> list[str]:
    """Return what a run would cost next to the passes of the model, as far as the config tells."""
    rows: list[str] = []
    if isinstance(mechanism.sampler, PoissonSampler | CappedPoissonSampler):
        rows += filter(None, [_of_draws(config, mechanism)])
    parameters = _parameters(config)
    if parameters is not None:
        rows += _of_weights(config, mechanism, Weights(parameters, STATES[config.finetune.optimizer]))
    return rows


def _of_draws(config: RunConfig, mechanism: Mechanism) -> str | None:
    sampler, defense = mechanism.sampler, config.defense
    assert isinstance(sampler, PoissonSampler | CappedPoissonSampler)
    units = sampler.population or 0
    chosen = mechanism.group_size if isinstance(defense, PrivateDefense) and defense.kind == "uls" else 1
    cohort = Cohort(units, sampler.rate * units, chosen)
    if not units:
        return None  # of records, whose number only the corpus tells
    start = f", after {cohort.start_seconds:.1f} s at each start" if cohort.start_seconds >= 1 else ""
    memory = f"; {in_bytes(cohort.memory)} in memory" if cohort.memory >= 2**20 else ""
    return f"a step: {1000 * cohort.step_seconds:,.1f} ms to draw {cohort.drawn:,.0f} units{start}{memory}"


def _of_weights(config: RunConfig, mechanism: Mechanism, weights: Weights) -> Sequence[str]:
    steps = mechanism.steps if mechanism.unit != "none" else None
    written = steps // config.finetune.checkpoint_every + 1 if steps else 1
    kept = f"; {written:,} of them, of which two are kept" if written > 2 else ""
    rows = [
        f"a checkpoint: {in_bytes(weights.checkpoint)} to write{kept}",
        f"each further process: {in_bytes(weights.replica_step)} to send in a step",
    ]
    if config.finetune.shard:
        rows[-1] += f"; each shard group: {in_bytes(weights.sharded_pass)} in a pass"
    if mechanism.noise_multiplier and isinstance(config.defense, SampledDefense):
        secure = config.defense.noise() is NoiseGenerator.SECURE
        # Of a shard group each process draws its part, and the rest of the blocks in which that part lies.
        ahead = secure and weights.parameters // (config.finetune.shard or 1) >= AHEAD_FROM
        least = "at least " if config.finetune.shard else ""
        whose = " over a shard group" if config.finetune.shard else ""
        when = ", drawn a step ahead" if ahead else ""
        rows.append(f"noise: {least}{weights.noise_seconds(secure):.2g} s of a core a step{whose}{when}")
    return rows


def _parameters(config: RunConfig) -> int | None:
    """Return trained weights; None with adapters, and where a model's shape is not known before it is loaded."""
    shape = None if config.finetune.lora is not None else shape_of(config)
    if shape is None:
        return None
    with torch.device("meta"):
        return sum(int(p.numel()) for p in AutoModelForCausalLM.from_config(shape).parameters())
