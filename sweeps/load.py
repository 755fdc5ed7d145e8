"""Read the file of a sweep: apply scales, multiply axes, group variants by their users, and collect problems."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heldin.audit.shipping import LEAST_BLOCKS, MOST_CANDIDATES
from heldin.base.config_errors import checked
from heldin.base.errors import InputError
from heldin.base.wording import counted
from heldin.corpus.made_up.chats import MadeUpRows
from heldin.corpus.split import Audited
from heldin.stages.config_files import merged, read_config, with_overrides
from heldin.stages.run_config import RunConfig, parse_config
from heldin.stages.starting.files import changes, contents
from heldin.sweeps.sweep_config import NAME, DecisionRule, Sweep, SweepConfig, Variant

_NAMING = ("include", "exclude", "users", "public_validation", "corpus", "canaries")
_TUNABLE = ("finetune", "defense", "data_defenses")
_DEMO = "the built-in demo"


def load_sweep(
    path: Path, overrides: Sequence[str] = (), scale: str | None = None, of_base: Sequence[str] = ()
) -> Sweep:
    """Read a sweep's file, at the given scale if there is one, and apply ``a.b=value`` overrides.

    Args:
        of_base: overrides for the base config, which all variants share.

    Raises:
        InputError: the file or the scale does not exist, or the file or a variant has errors; the message lists all
            errors.
    """
    content = read_config(path)
    if "corpus" in content and "variants" not in content:
        raise InputError(
            f"{path}: the file is the config of a run. Run it with heldin run {path}, or name it as base in the file"
            " of a sweep"
        )
    if scale is not None:
        scales = content.get("scales") or {}
        if not isinstance(scales, dict) or scale not in scales:
            known = f"choose from {', '.join(map(str, scales))}" if scales else "give a file with scales"
            raise InputError(f"{path}: there is no scale '{scale}'; {known}")
        over = {} if scales[scale] is None else scales[scale]
        if not isinstance(over, dict):
            raise InputError(f"{path}: scales.{scale} is {over!r}. Write the keys that this scale changes")
        # A sweep of another size is another sweep, with a folder of its own.
        name = {"name": f"{content['name']}-{scale}"} if "name" in content else {}
        content = _scaled(content, {**name, **over})
    config = checked(SweepConfig, with_overrides(content, overrides), str(path))
    base = path.parent / config.base
    if not base.is_file():
        raise InputError(f"{path}: there is no config '{base}'. Correct the key base")
    return sweep_of(config, with_overrides(read_config(base), of_base), str(path))


def _scaled(content: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return the content after the changes of a scale, key by key. Keys that the scale sets to null are removed."""
    both = {
        key: _scaled(content[key], over[key])
        for key in over
        if isinstance(content.get(key), dict) and isinstance(over[key], dict)
    }
    return {key: value for key, value in {**content, **over, **both}.items() if over.get(key, 0) is not None}


def sweep_of(config: SweepConfig, base: dict[str, Any], where: str) -> Sweep:
    """Return the sweep of the variants of the config ``base``. ``where`` is the sweep's name in errors.

    Raises:
        InputError: a variant, the axes or the rule have errors; the message lists all errors.
    """
    problems = [f"axes.{name}: no such variant" for name in config.axes if name not in config.variants]
    contents = list(_multiplied(config))
    tuned, tried = _tuned(config, contents)
    variants, wrong = _parsed(tuned, base)
    problems += wrong
    problems += list(_rule_problems(config, variants))
    tuning, wrong = _tuning(config, contents, tried, base)
    problems += wrong
    if problems:
        lines = [line.strip() for problem in problems for line in problem.splitlines()]
        raise InputError("\n".join([f"{where}: {counted(len(problems), 'problem')}", *(f"  {line}" for line in lines)]))
    return Sweep(config, variants, tuning, tried)


# In names of folders, and the file of the run.
_DEMO_ROWS: dict[MadeUpRows, tuple[list[str], str]] = {
    MadeUpRows.MAILS: ([], "small"),
    MadeUpRows.CHATS: (["chat"], "run-chat"),
    MadeUpRows.PAIRS: (["pairs"], "run-preference"),
}


def demo_sweep(*, every: bool = False, rows: MadeUpRows = MadeUpRows.MAILS) -> Sweep:
    """Return the sweep of ``heldin demo``: no defense and two defenses, or no defense and all four.

    Args:
        every: whether to include all defenses.
        rows: type of the training rows.
    """
    kind, file = _DEMO_ROWS[rows]
    name = "-".join(["demo", *kind, *(["all"] if every else [])])
    content = {**contents("sweep-defenses"), "name": name, "base": _DEMO}
    if every:
        of_two = content["variants"]
        further = {"example": changes("example"), "els": changes("els")}
        content["variants"] = {"none": {}, "dedup-cap": of_two["dedup-cap"], **further, "uls": of_two["uls"]}
    base = {**contents(file), "name": "demo"}
    return sweep_of(checked(SweepConfig, content, _DEMO), base, _DEMO)


def _parsed(
    contents: Sequence[tuple[str, dict[str, Any]]], base: dict[str, Any]
) -> tuple[tuple[Variant, ...], list[str]]:
    """Return the variants with these names and contents, each a change to ``base``; and their problems."""
    configs: dict[str, RunConfig] = {}
    problems = []
    for name, content in contents:
        # Folders of names that differ by case alone are one on some disks.
        if name.casefold() in (other.casefold() for other in configs):
            problems.append(
                f"variants: two variants have the name '{name}'. Rename one variant, or change the values of the axes"
            )
            continue
        if not re.match(NAME, name):
            problems.append(f"variants.{name}: a name has at most 100 letters, digits, dots, underscores and hyphens")
            continue
        try:
            # Names are made of sweep, variant and block.
            configs[name] = parse_config({**merged(base, content), "name": name}, f"variants.{name}")
        except InputError as error:
            problems.append(str(error))
    variants = _grouped(configs)
    return variants, [*problems, *_canaries_differ(variants)]


def _tuned(
    config: SweepConfig, contents: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, tuple[str, dict[str, Any]]]]:
    """Return the contents with the first values of the grid, and all combinations to try, by name.

    Raises:
        InputError: two combinations of a variant have the same values.
    """
    changed: list[tuple[str, dict[str, Any]]] = []
    tried: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, content in contents:
        grid = _grid_of(config, name)
        for i, chosen in enumerate(_combinations(grid)):
            if not i:
                changed.append((name, with_values(content, chosen)))
            if grid:
                label = _named(name, chosen, grid)
                label = label if re.match(NAME, label) else f"{name}-try-{i + 1}"
                if label in tried:
                    raise InputError(
                        f"tune.over: two combinations have the name '{label}', because a value is in a grid twice."
                        " Remove one of the values"
                    )
                tried[label] = (name, chosen)
    return changed, tried


def _grid_of(config: SweepConfig, name: str) -> dict[str, list[Any]]:
    """Return the grid of a variant: its own, or the grid of the variant from which axes made it."""
    over = config.tune.over if config.tune else {}
    made_of = {made: origin for origin, made in _origins(config)}
    return over.get(name) or over.get(made_of[name], {})


def _tuning(
    config: SweepConfig,
    contents: Sequence[tuple[str, dict[str, Any]]],
    tried: Mapping[str, tuple[str, dict[str, Any]]],
    base: dict[str, Any],
) -> tuple[Sweep | None, list[str]]:
    """Return the sweep of all combinations to try, and its problems."""
    if config.tune is None:
        return None, []
    known = {name for names in _origins(config) for name in names}
    problems = [f"tune.over.{name}: no such variant" for name in config.tune.over if name not in known]
    for name, grid in config.tune.over.items():
        # Users, canary users and base model are those of the blocks: what is tuned must leave them as they are.
        problems += [
            f"tune.over.{name}: '{key}' cannot be tuned: choose keys of {', '.join(_TUNABLE)}"
            for key in grid
            if key.split(".")[0] not in _TUNABLE
        ]
    by_name = dict(contents)
    trials = [(name, with_values(by_name[variant], values)) for name, (variant, values) in tried.items()]
    variants, wrong = _parsed(trials, base)
    for variant in variants:
        if variant.config.corpus.public_validation is None:
            lacking = "needs corpus.public_validation, because tuning chooses by the loss of these users"
            problems.append(f"tune: variant '{variant.name}' {lacking}")
            break
    own = config.model_copy(
        update={
            "name": f"{config.name}-tuning",
            "blocks": config.tune.blocks,
            "tune": None,
            "decision": None,
        }
    )
    return Sweep(own, variants), [*problems, *wrong]


def with_values(content: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content after setting dotted keys to values."""
    for key, value in values.items():
        content = merged(content, _nested(key, value))
    return content


def _multiplied(config: SweepConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and contents of all variants after multiplying the axes."""
    for name, content in config.variants.items():
        axes = config.axes.get(name, {})
        for values in _combinations(axes):
            yield _named(name, values, axes), with_values(content or {}, values)


def _origins(config: SweepConfig) -> Iterator[tuple[str, str]]:
    """Yield each variant in the file with each name that the axes make from it."""
    for name in config.variants:
        axes = config.axes.get(name, {})
        for values in _combinations(axes):
            yield name, _named(name, values, axes)


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _named(name: str, values: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> str:
    """Return a name from the last parts of keys and values. Rules about users get a number, because they may contain
    names."""
    parts = []
    for key, value in values.items():
        last = key.rsplit(".", 1)[-1]
        parts += [last, str(list(grid[key]).index(value) + 1) if last in _NAMING else _plain(value)]
    return "-".join([name, *parts])


def _nested(key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _plain(value: Any) -> str:
    """Return a value in a form that can be part of a folder's name."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).rstrip("-") or "empty"


def _grouped(configs: Mapping[str, RunConfig]) -> tuple[Variant, ...]:
    first: dict[str, str] = {}
    variants = []
    for name, config in configs.items():
        # Audited entities are chosen among those that the defense finds, from what its caps keep.
        pool = config.defense.pool_settings if config.split.audited is not Audited.USERS else None
        # Whatever decides users, pool and set-asides: others' coins would fall on other people.
        whose = json.dumps(
            [config.seed, *(part.model_dump(mode="json") for part in (config.corpus, config.split)), pool]
        )
        variants.append(Variant(name, first.setdefault(whose, name), config))
    return tuple(variants)


def _canaries_differ(variants: Sequence[Variant]) -> Iterator[str]:
    """Yield a problem for each variant whose canary users differ from those of its group's first variant."""
    by_name = {variant.name: variant for variant in variants}
    for variant in variants:
        first = by_name[variant.group]
        if _canaries(variant.config) != _canaries(first.config):
            yield (
                f"variants.{variant.name}: the canary users differ from the canary users of '{first.name}',"
                " although the two variants have the same users. Give both the same canary users, or give this"
                " variant another split.seed, which makes a separate group"
            )


def _rule_problems(config: SweepConfig, variants: Sequence[Variant]) -> Iterator[str]:
    """Yield the reasons why the rule cannot be applied to these variants."""
    rule = config.decision
    if rule is None:
        return
    by_name = {variant.name: variant for variant in variants}
    missing = [name for name in rule.candidates if name not in by_name]
    if missing:
        yield f"decision.candidates: there is no variant '{missing[0]}'. Choose from {', '.join(map(repr, by_name))}"
        return
    if len(set(rule.candidates)) < len(rule.candidates):
        yield "decision.candidates: the list contains a variant twice. Remove one of the two entries"
    if len(rule.candidates) > MOST_CANDIDATES:
        yield (
            f"decision.candidates has {len(rule.candidates)} variants, but at most {MOST_CANDIDATES} are allowed,"
            " because each candidate makes every test stricter: remove some candidates"
        )
    if len({by_name[name].group for name in rule.candidates}) > 1:
        yield (
            "decision.candidates: the candidates' users or set-asides differ, so heldin cannot compare the"
            " candidates. Choose candidates of one group"
        )
    if config.blocks < LEAST_BLOCKS:
        yield f"decision: the limits need at least {LEAST_BLOCKS} blocks, but there are {config.blocks}. Raise blocks"
    if len(hopeless(rule, variants)) == len(rule.candidates):
        yield (
            "decision.require: no candidate guarantees an epsilon_per_user. Remove this requirement, or choose"
            " another candidate"
        )


def hopeless(rule: DecisionRule, variants: Sequence[Variant]) -> list[str]:
    """Return the candidates that cannot pass, because the rule requires epsilon_per_user and they have none."""
    if all(requirement.of != "epsilon_per_user" for requirement in rule.require):
        return []
    promised = {variant.name for variant in variants if variant.config.defense.promises_users}
    return [name for name in rule.candidates if name not in promised]


def _canaries(config: RunConfig) -> Any:
    """Return all settings that determine the texts of canary users."""
    if not config.canaries:
        return ()
    visible = (config.finetune.sequence_length, config.attack.max_characters)
    substrings = any(spec.longest_mark() for spec in config.canaries)
    return (config.canaries, config.model, visible if substrings else None)
