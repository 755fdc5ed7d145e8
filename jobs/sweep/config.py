"""The file of a sweep: a base config, variants of it, axes that multiply them, and blocks that repeat all of them."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from heldin.audit.findings import MARGIN
from heldin.audit.shipping import LEAST_BLOCKS, MOST_CANDIDATES, Requirement
from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.section import Section
from heldin.base.wording import counted
from heldin.canaries.config import SubstringCanaries
from heldin.corpus.split import Audited
from heldin.defenses.config import EntityDefense
from heldin.jobs.config import RunConfig, merged, parse_config, read_config, with_overrides

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # a folder of its own
Name = Annotated[str, StringConstraints(pattern=NAME)]


class Resources(Section):
    """What the cells run on."""

    workers: int = Field(1, ge=1)
    """Cells at a time, each a process of its own."""
    threads: int | None = Field(None, ge=1)
    """Threads of each; null: the cores of this machine shared out."""


_OF_POOLS = {"entities", "categories", "group_size", "entity_cap"}
Measure = Literal["epsilon_per_user", "auroc", "loss", "loss_gain_over_base"]
# Whether more of it is better.
MEASURES: dict[str, bool] = {"epsilon_per_user": False, "auroc": False, "loss": False, "loss_gain_over_base": True}


class RequirementConfig(Section):
    """A limit that a defense must keep to be shipped: at most, or at least."""

    of: Measure
    """epsilon_per_user of the plan; auroc, the largest of all attacks; loss on held-out users' test texts; or
    loss_gain_over_base."""
    at_most: float | None = None
    """Upper limit, held against an upper confidence limit."""
    at_least: float | None = None
    """Lower limit, held against a lower confidence limit."""
    limit: Literal["upper", "lower"] | None = None
    """Which confidence limit is meant, for readers; null: the one that the requirement needs."""

    @model_validator(mode="after")
    def _one_limit(self) -> "RequirementConfig":
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("give one of at_most and at_least")
        if self.limit not in (None, "upper" if self.at_most is not None else "lower"):
            raise ValueError("at_most needs the upper confidence limit, at_least the lower one")
        return self


class DecisionRule(Section):
    """Which variant to ship: a rule that is fixed before anything is measured."""

    require: tuple[RequirementConfig, ...] = Field(min_length=1)
    """What a variant must keep, all of it."""
    prefer: Measure
    """Of those that pass, the one that does best in this is shipped."""
    candidates: tuple[str, ...] = Field(min_length=1)
    """Variants that may be shipped, at most three: each is paid for by all."""
    level: float = Field(0.05, gt=0, lt=0.5)
    """Probability at most that a variant is recommended that breaks a limit."""

    def requirements(self) -> list[Requirement]:
        """The limits."""
        return [Requirement(its.of, its.at_most, its.at_least) for its in self.require]


class Finding(Section):
    """A published finding, tested by the difference of two variants: the test is fixed before anything is measured."""

    finding: str
    """What is said to hold, in a sentence."""
    source: str
    """Paper, and where in it."""
    of: Literal["auroc", "loss", "canaries"]
    """auroc of the leading attack; loss on held-out users' test texts; or canaries, the mean AUROC of their groups."""
    variant: str
    """The variant that is said to differ, or not to."""
    against: str
    """The variant that it is held against."""
    expect: Literal["less", "more", "alike"]
    """Whether the variant is said to have less of it, more, or the same."""
    margin: float = Field(MARGIN, gt=0)
    """Differences within it are no differences."""
    published: str = ""
    """The published figures, shown beside ours."""


class SweepConfig(Section):
    """A sweep."""

    name: Name
    """Name of the sweep; its folder is runs/NAME unless --out names one."""
    base: str
    """Config of a run, named relative to this file, that all variants change."""
    variants: dict[Name, dict[str, Any] | None] = Field(min_length=1)
    """By name, the part of the config that differs; sections are merged key by key. Others are compared with the
    first."""
    axes: dict[str, dict[str, Annotated[list[Any], Field(min_length=1)]]] = Field(default_factory=dict)
    """By name of a variant, config keys and the values that each takes: one variant for each combination."""
    blocks: int = Field(1, ge=1)
    """How often everything is repeated, each time with coins, seeds and keys of its own."""
    decision: DecisionRule | None = None
    """The rule that names the variant to ship; null: none is named."""
    findings: tuple[Finding, ...] = ()
    """Published findings that these variants test."""
    scales: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """By name, other sizes of the same sweep: what --scale NAME changes of this file, section by section; null takes a
    key out."""
    resources: Resources = Resources()
    """What the cells run on; it changes numbers by the rounding of sums only."""


@dataclass(frozen=True)
class Variant:
    """A variant of a sweep.

    Attributes:
        name: its name.
        group: the name of the first variant with the same users and set-asides; only these share coins.
        config: config of its cell in the first block.
    """

    name: str
    group: str
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A checked sweep.

    Attributes:
        config: its file.
        variants: its variants, axes multiplied out.
    """

    config: SweepConfig
    variants: tuple[Variant, ...]

    def of_block(self, variant: Variant, block: int) -> RunConfig:
        """The config of the variant's cell in a block, from 1: set-asides and training have seeds of their own."""
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
        """Every block and variant, block by block."""
        return itertools.product(range(1, self.config.blocks + 1), self.variants)


def load_sweep(path: Path, overrides: Sequence[str] = (), scale: str | None = None) -> Sweep:
    """Read a sweep's file, at another scale if one is named, and apply ``a.b=value`` overrides.

    Raises:
        InputError: no such file or scale, or errors of the file or of any variant; the message lists all of them.
    """
    content = read_config(path)
    if scale is not None:
        scales = content.get("scales") or {}
        if not isinstance(scales, dict) or scale not in scales:
            known = f"it has {', '.join(map(str, scales))}" if scales else "it has none"
            raise InputError(f"{path}: no scale '{scale}'; {known}")
        # A sweep of another size is another sweep, with a folder of its own.
        content = _scaled(content, {"name": f"{content.get('name')}-{scale}", **(scales[scale] or {})})
    config = checked(SweepConfig, with_overrides(content, overrides), str(path))
    return sweep_of(config, read_config(path.parent / config.base), str(path))


def _scaled(content: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """The content changed by a scale, sections key by key; what the scale sets to null is left out."""
    both = {
        key: _scaled(content[key], over[key])
        for key in over
        if isinstance(content.get(key), dict) and isinstance(over[key], dict)
    }
    return {key: value for key, value in {**content, **over, **both}.items() if over.get(key, 0) is not None}


def sweep_of(config: SweepConfig, base: dict[str, Any], where: str) -> Sweep:
    """A sweep of variants of the config ``base``; ``where`` names it in errors.

    Raises:
        InputError: errors of any variant, of axes or of the rule; the message lists all of them.
    """
    found: dict[str, RunConfig] = {}
    problems = [f"axes.{name}: no such variant" for name in config.axes if name not in config.variants]
    for name, content in _multiplied(config):
        # Folders of names that differ by case alone are one on some disks.
        if name.casefold() in (other.casefold() for other in found):
            problems.append(f"variants: two are called '{name}': rename one, or the values of its axes")
            continue
        if not re.match(NAME, name):
            problems.append(f"variants.{name}: a name has at most 100 letters, digits, dots, underscores and hyphens")
            continue
        try:
            # Names are made of sweep, variant and block.
            found[name] = parse_config({**merged(base, content), "name": name}, f"variants.{name}")
        except InputError as error:
            problems.append(str(error))
    variants = _grouped(found)
    problems += list(_canaries_differ(variants))
    problems += list(_rule_problems(config, variants))
    names = {variant.name for variant in variants}
    for i, its in enumerate(config.findings):
        missing = [name for name in (its.variant, its.against) if name not in names]
        if missing:
            problems.append(f"findings[{i}]: no variant '{missing[0]}'; there are {', '.join(sorted(names))}")
    if problems:
        lines = [line.strip() for problem in problems for line in problem.splitlines()]
        raise InputError("\n".join([f"{where}: {counted(len(problems), 'problem')}", *(f"  {line}" for line in lines)]))
    return Sweep(config, variants)


def _multiplied(config: SweepConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and contents of all variants, axes multiplied out."""
    for name, content in config.variants.items():
        axes = config.axes.get(name, {})
        for values in itertools.product(*axes.values()):
            changed, parts = dict(content or {}), [name]
            for key, value in zip(axes, values, strict=True):
                changed = merged(changed, _nested(key, value))
                parts += [key.rsplit(".", 1)[-1], _plain(value)]
            yield "-".join(parts), changed


def _nested(key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _plain(value: Any) -> str:
    """A value as a part of a folder's name."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).rstrip("-") or "empty"


def _grouped(configs: Mapping[str, RunConfig]) -> tuple[Variant, ...]:
    first: dict[str, str] = {}
    variants = []
    for name, config in configs.items():
        # Audited entities are chosen among those that the defense finds, from what its caps keep.
        audits_entities = config.split.audited is not Audited.USERS and isinstance(config.defense, EntityDefense)
        pool = config.defense.model_dump(mode="json", include=_OF_POOLS) if audits_entities else None
        # Whatever decides users, pool and set-asides: others' coins would fall on other people.
        whose = json.dumps(
            [config.seed, *(part.model_dump(mode="json") for part in (config.corpus, config.split)), pool]
        )
        variants.append(Variant(name, first.setdefault(whose, name), config))
    return tuple(variants)


def _canaries_differ(variants: Sequence[Variant]) -> Iterator[str]:
    """Variants whose canary users differ from those of their group's first."""
    by_name = {variant.name: variant for variant in variants}
    for variant in variants:
        first = by_name[variant.group]
        if _canaries(variant.config) != _canaries(first.config):
            yield (
                f"variants.{variant.name}: its canary users are not those of '{first.name}', which has the same users:"
                " within a block they must be the same; give it another split.seed, and it is a group of its own"
            )


def _rule_problems(config: SweepConfig, variants: Sequence[Variant]) -> Iterator[str]:
    """Why the rule cannot be applied to these variants."""
    rule = config.decision
    if rule is None:
        return
    by_name = {variant.name: variant for variant in variants}
    missing = [name for name in rule.candidates if name not in by_name]
    if missing:
        yield f"decision.candidates: no variant '{missing[0]}'; there are {', '.join(by_name)}"
        return
    if len(set(rule.candidates)) < len(rule.candidates):
        yield "decision.candidates: a variant stands there twice"
    if len(rule.candidates) > MOST_CANDIDATES:
        yield (
            f"decision.candidates: {len(rule.candidates)} variants, of which at most {MOST_CANDIDATES} are tested for"
            " shipping: each is paid for by all"
        )
    if len({by_name[name].group for name in rule.candidates}) > 1:
        yield "decision.candidates: they have different users or set-asides, and cannot be held against each other"
    if config.blocks < LEAST_BLOCKS:
        yield f"decision: its limits are over {counted(config.blocks, 'block')}: give {LEAST_BLOCKS} blocks or more"
    promised = {"uls", "els", "group", "user_entity", "uedp", "filter"}
    kinds = {by_name[name].config.defense.kind for name in rule.candidates}
    if any(its.of == "epsilon_per_user" for its in rule.require) and not kinds & promised:
        yield "decision.require: no candidate promises an epsilon_per_user: take the requirement out, or name another"


def _canaries(config: RunConfig) -> Any:
    """Whatever decides the texts of canary users."""
    if not config.canaries:
        return ()
    visible = (config.finetune.sequence_length, config.attack.max_characters)
    substrings = any(isinstance(spec, SubstringCanaries) for spec in config.canaries)
    return (config.canaries, config.model, visible if substrings else None)
