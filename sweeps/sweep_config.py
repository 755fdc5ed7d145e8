"""A sweep's config: a base config, variants, axes that multiply the variants, and blocks that repeat everything."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from heldin.audit.requirement import Measure, Requirement, RequirementConfig
from heldin.base.section import FEW, Few, Section
from heldin.stages.run_config import RunConfig

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # a folder of its own
Name = Annotated[str, StringConstraints(pattern=NAME)]


class Resources(Section):
    """Machines and processes for the runs of the sweep (cells)."""

    workers: Few = 1
    """Number of parallel runs. On a Ray cluster, this is the number of parallel runs on the smallest machine, unless
    ``threads`` sets the cores per run."""
    processes: Few = 1
    """Number of processes per training run, started with torchrun. If there are GPUs, each process uses one."""
    threads: Few | None = None
    """Number of threads per process; null: an equal share of the machine's cores."""
    mirror_models: bool = False
    """Whether --mirror also copies the models of the runs."""


class DecisionRule(Section):
    """The rule that chooses the variant to release. It is fixed before any measurement."""

    require: tuple[RequirementConfig, ...] = Field(min_length=1)
    """Requirements that the selected variant must meet."""
    prefer: Measure
    """Quantity that decides among variants that meet all requirements."""
    candidates: tuple[str, ...] = Field(min_length=1)
    """At most three variants that may be released. heldin divides the error probability among these variants."""
    level: float = Field(0.05, gt=0, lt=0.5)
    """Maximum probability that heldin recommends a variant that does not meet a limit."""

    def requirements(self) -> list[Requirement]:
        """Return the limits of the rule."""
        return [limit.requirement() for limit in self.require]


class Tuning(Section):
    """A fixed grid of settings for some variants. heldin judges the settings by public users' loss in separate blocks,
    before it draws the coins of the sweep.
    """

    over: dict[Name, Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]] = Field(
        min_length=1
    )
    """For each variant, by name: config keys and the values to try, in all combinations. If the variant has axes,
    heldin tunes each combination of axis values separately. The config needs corpus.public_validation.
    """
    blocks: Few = 1
    """Number of repetitions of each combination, with new coins and seeds. heldin compares the means over all
    repetitions.
    """


class SweepConfig(Section):
    """A sweep: several variants of one run, and their comparison."""

    name: Name
    """Name of the sweep. heldin writes the results to runs/NAME, or to --out."""
    base: str
    """Path of the run config from which all variants start, relative to this file."""
    variants: dict[Name, dict[str, Any] | None] = Field(min_length=1)
    """Variants by name, each with the config keys that differ. heldin merges sections key by key. heldin compares every
    variant with the first one.
    """
    axes: dict[str, dict[str, Annotated[list[Any], Field(min_length=1)]]] = Field(default_factory=dict)
    """For each variant, by name: config keys with several values. Each combination of values becomes a separate
    variant."""
    blocks: Few = 1
    """Number of repetitions of the sweep, each with new coins, seeds and keys."""
    tune: Tuning | None = None
    """Tuning before the sweep; null: none."""
    decision: DecisionRule | None = None
    """Rule that chooses the variant to release; null: heldin chooses no variant."""
    scales: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Other sizes of this sweep, by name. --scale NAME replaces these keys of this file; null removes a key."""
    resources: Resources = Resources()
    """Machines and processes for the runs. These settings change results only by rounding."""

    @model_validator(mode="after")
    def _few_cells(self) -> "SweepConfig":
        # Before anything is multiplied out: a few axes of a few values are billions of variants.
        made = {name: math.prod(map(len, self.axes.get(name, {}).values())) for name in self.variants}
        over = self.tune.over if self.tune else {}
        tried = [made.get(name, 1) * math.prod(map(len, grid.values())) for name, grid in over.items()]
        counts = {"blocks x variants": self.blocks * sum(made.values())}
        counts["tune.blocks x tries"] = (self.tune.blocks if self.tune else 0) * sum(tried)
        for product, cells in counts.items():
            if cells > FEW:
                raise ValueError(
                    f"{product} give {cells:,} cells, but a sweep runs at most {FEW:,}: remove values from axes"
                )
        return self


@dataclass(frozen=True)
class Variant:
    """A variant of a sweep.

    Attributes:
        group: name of the first variant with the same users and set-asides. Only variants of one group share coins.
        config: config of the variant's cell in the first block.
    """

    name: str
    group: str
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A checked sweep.

    Attributes:
        config: config of the sweep.
        variants: variants after multiplying the axes; tuned variants have the first values of the grid.
        tuning: the sweep for tuning variants; None without tuning.
        tried: for each variant of ``tuning``, the variant that it tunes, and the tried values by key.
    """

    config: SweepConfig
    variants: tuple[Variant, ...]
    tuning: "Sweep | None" = None
    tried: Mapping[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def of_block(self, variant: Variant, block: int) -> RunConfig:
        """Return the config of the variant's cell in a block, starting at 1. Blocks have separate seeds for set-asides
        and training."""
        config, later = variant.config, block - 1
        seed = config.seed if config.split.seed is None else config.split.seed
        return config.model_copy(
            update={
                "name": f"{self.config.name}-{variant.name}-{block}",
                # Users, canary users and base model stay: they are public, and the same for all blocks. So do reference
                # models, but for those that are trained on public users by this recipe.
                "split": config.split.model_copy(update={"seed": seed + later}),
                "finetune": replace(config.finetune, seed=config.finetune.seed + later),
            }
        )

    def cells(self) -> Iterator[tuple[int, Variant]]:
        """Yield every block and variant, block by block."""
        return itertools.product(range(1, self.config.blocks + 1), self.variants)


@dataclass(frozen=True)
class PlacedCell:
    """A cell, with its block and its folder.

    Attributes:
        block: number of the cell's block, starting at 1.
        config: config of the cell's run.
        folder: run folder of the cell.
    """

    block: int
    variant: Variant
    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        """Name of the cell's folder, which consists of block and variant."""
        return f"{self.block}/{self.variant.name}"
