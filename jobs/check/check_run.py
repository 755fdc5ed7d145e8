"""Check a run before it starts: find mistakes in its config, and list what the run would do."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from heldin.base.errors import InputError
from heldin.base.files import cache_root
from heldin.base.wording import counted
from heldin.canaries.contract import check_enough_users
from heldin.corpus.entities.config import EntitySourceConfig
from heldin.corpus.entities.gold import Gold
from heldin.corpus.entities.spans import Text
from heldin.corpus.names import load_aliases
from heldin.corpus.sources.text_files import first_line
from heldin.corpus.split import Audited, check_pool
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.jobs.check.costs import ON_HUB, RunCost, cost_lines, cost_of_run, sizes_of
from heldin.jobs.check.memory_forecast import does_not_fit, memory_lines, run_memory
from heldin.models.devices import Planned, default_device
from heldin.models.loading import context_length, require_text_alone
from heldin.models.model_names import require_model
from heldin.record.plan_fit import PlanFit, figures_of, warnings_of
from heldin.stages.run_config import RunConfig
from heldin.stages.run_folder import require_folder
from heldin.stages.sides.public import require_unchosen
from heldin.stages.train.models import named_references, require_arithmetic
from heldin.stages.train.plan import mechanism_of
from heldin.stages.train.previous import all_together, read_previous, require_previous
from heldin.stages.train.tracking import require_trackers
from heldin.words.guarantee import GuaranteeText
from heldin.words.people import AUDITED
from heldin.words.statement import joined


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        problems: one line for each problem that would stop the run before it starts; may be empty.
        would: text about each action of the run, by the action's name.
        cost: cost of the run on this machine; None if unknown.
        fit: comparison of the plan with the expected numbers of users and records; None without noise, or if the
            numbers are unknown.
    """

    problems: tuple[str, ...]
    would: dict[str, str]
    cost: RunCost | None = None
    fit: PlanFit | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON."""
        cost = None if self.cost is None else self.cost.as_dict()
        fit = None if self.fit is None else self.fit.model_dump(mode="json")
        return {"ok": not self.problems, "problems": self.problems, "would": self.would, "cost": cost, "fit": fit}


def check_run(
    config: RunConfig,
    out: Path,
    gpu: Planned | None = None,
    say: Callable[[str], None] = lambda _: None,
    *,
    costs: bool = True,
) -> Checked:
    """Check everything that a run of this config in this folder needs. Changes no file of the run.

    The check asks the hub whether it has a model, as the run does, but downloads only the model's config.
    Args:
        gpu: GPU of the run; if given, heldin computes the run's memory, and reports a problem if the run does not fit.
        say: receives a line about each slow step.
        costs: whether to time steps to compute the cost.
    """
    # Each look raises InputError for what is wrong: all are taken, so that all problems are told at once.
    mechanisms: list[Mechanism] = []
    looks: list[Callable[[], object]] = [
        lambda: require_folder(config, out),
        lambda: _require_writable(out, "name another --out"),
        lambda: _require_writable(cache_root(), "let HELDIN_CACHE_DIR name another folder"),
        lambda: config.corpus.aliases and load_aliases(config.corpus.aliases),
        # Stand-ins for what only the data give; the noise is calibrated for real.
        lambda: mechanisms.append(mechanism_of(config, plain_steps=1, clip_norm=1.0)),
        lambda: require_arithmetic(config),
        lambda: require_previous(config, out),
        lambda: require_trackers(config),
        lambda: _require_users(config),
        lambda: _require_context(config),
        *_sources(config),
        *(functools.partial(try_source, where, named) for where, named in config.entity_sources()),
        *(_model(name) for name in named_references(config)),
    ]
    # Before the line below: the looks fill ``mechanisms``.
    problems = [problem for look in looks if (problem := _problem(look))]
    would = _would(config, out, mechanisms[0]) if mechanisms else {}
    cost, fit, unknown = None, None, ""
    if mechanisms and not problems:
        say("cost: counting records and timing steps")
        try:
            sizes = sizes_of(config)
            fit = sizes.fit(config, mechanisms[0]) if sizes else None
            unknown = sizes.unknown if sizes else ON_HUB
            cost = cost_of_run(config, mechanisms[0], sizes) if costs else None
        except InputError as error:
            problems = [" ".join(str(error).split())]
        rows = ["unknown until heldin reads the corpus"] if cost is None else cost.lines()
        would["cost"] = "\n".join([*rows, *cost_lines(config, mechanisms[0])])
        would |= _held_against(mechanisms[0], fit, unknown, would)
        would |= _with_earlier(config, mechanisms[0], out)
    if gpu is not None and not problems:
        try:
            peaks = run_memory(config, gpu, say)
        except InputError as error:
            problems = [str(error)]
        except (RuntimeError, ValueError, TypeError, ImportError) as error:
            # A model whose code asks for numbers, or a torch without what shards are rehearsed with: that says nothing
            # against the run.
            would["memory"] = f"unknown, because heldin cannot rehearse this model's steps ({first_line(error)})"
        else:
            problems = does_not_fit(peaks, gpu)
            would["memory"] = memory_lines(peaks, gpu)
    return Checked(tuple(problems), would, cost, fit)


def _held_against(mechanism: Mechanism, fit: PlanFit | None, unknown: str, would: Mapping[str, str]) -> dict[str, str]:
    """Return the plan's fit to the expected users and records, in numbers, and one warning for each mismatch."""
    if not mechanism.protects:
        return {}
    if fit is None:
        return {"plan": f"not compared with the data here, only in the run's log: {unknown}"}
    warned = would.get("warning")
    promise = mechanism.guarantee()
    delta = promise.delta if isinstance(promise, Guarantee) and warned is None else None
    warnings = [*([warned] if warned else []), *map(str, warnings_of(fit, delta))]
    return {"plan": f"about {joined(figures_of(fit))}", **({"warning": "\n".join(warnings)} if warnings else {})}


def _with_earlier(config: RunConfig, mechanism: Mechanism, out: Path) -> dict[str, str]:
    """Return the earlier releases in ``previous``, with the guarantee of all releases together if page one prints
    it."""
    if not config.previous:
        if not isinstance(mechanism.guarantee(), Guarantee):
            return {}
        return {"earlier": "not stated (previous)" if config.previous is None else "none, as previous states"}
    try:
        together = str(all_together(mechanism, read_previous(config, out)).statement)
    except InputError as error:
        together = f"no epsilon for all releases together: {error}"
    return {"earlier": together}


def lines(checked: Checked) -> list[str]:
    """Return the actions of the run, as lines for a terminal."""
    return [f"{name:<12}{meaning}".replace("\n", "\n" + 12 * " ") for name, meaning in checked.would.items()]


def _problem(look: Callable[[], object]) -> str:
    try:
        look()
    except InputError as error:
        # A list of problems has one line for each.
        return " ".join(str(error).split())
    return ""


def _sources(config: RunConfig) -> Iterator[Callable[[], object]]:
    yield from config.corpus.source.looks("corpus.source")
    if config.model.pretrain is not None and config.model.pretrain.source is not None:
        yield from config.model.pretrain.source.looks("model.pretrain.source")
        yield lambda: require_unchosen(config)


def try_source(where: str, named: EntitySourceConfig) -> None:
    """Search for one word. The search loads everything that the run's searches need: the list, the pipeline, the extra.

    Raises InputError, prefixed by ``where``, if something is missing.
    """
    try:
        source = named.source()
        if not isinstance(source, Gold):  # which knows its file's own records only; RunConfig compares the file
            list(source.spans([Text("", "x")]))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _model(name: str) -> Callable[[], object]:
    return lambda: require_model(name)


def _require_context(config: RunConfig) -> None:
    """Check that the base model in the config exists, and that its context is at least ``finetune.sequence_length``."""
    name = config.model.base
    if name is None:
        return
    require_model(name)
    # An adapter's folder has no config of the whole model: its context is checked when it is loaded.
    if (Path(name) / "adapter_config.json").is_file():
        return
    # The config alone, of some kilobytes: the weights are not downloaded for a check.
    revision = config.model.revision
    try:
        shape = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False)
        require_text_alone(shape, name)
        context = context_length(shape)
    except (OSError, ValueError) as error:
        at = f" at revision '{revision}'" if revision else ""
        raise InputError(
            f"model.base: '{name}'{at} has no readable config ({first_line(error)}). Correct the name, or download"
            " the model again"
        ) from error
    if config.finetune.sequence_length > context:
        raise InputError(
            f"finetune.sequence_length is {config.finetune.sequence_length}, but '{name}' takes at most {context}"
            " tokens: lower finetune.sequence_length"
        )


def _require_users(config: RunConfig) -> None:
    """Check that there are enough users. Only a made-up corpus has a known number of users; for other corpora, the
    check uses the configured maximum."""
    there, most = config.corpus.source.most_users(), config.corpus.users.max_users
    most = most if there is None else min(there, most or there)
    if most is None:
        return
    if config.split.audited is Audited.USERS:
        check_pool(most, config.split.audit_pool)
    # They take the place of real users, of whom enough must be left; other canary users are added.
    check_enough_users(config.canaries, most)


def _require_writable(folder: Path, remedy: str) -> None:
    # The folder itself need not exist yet: what counts is where it would be made.
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise InputError(f"cannot use folder '{folder}', because '{nearest}' is a file: {remedy}")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write in '{nearest}': {remedy}")


def _would(config: RunConfig, out: Path, mechanism: Mechanism) -> dict[str, str]:
    recipe, defense = config.finetune, config.defense
    promise = mechanism.guarantee()
    # A mechanism counts steps; a plain run's number of steps follows from a corpus that was not read.
    private = mechanism.protects
    steps = f"{mechanism.steps:,} steps" if private else f"{recipe.epochs:g} epochs of batches of {recipe.batch_size}"
    unit = "a record is a sentence, " if config.corpus.text_unit == "sentence" else ""
    would = {
        "run": f"{config.name}, {'go on' if (out / 'config.yaml').is_file() else 'begin'} in '{out}'",
        "corpus": f"{config.corpus.source.kind}, {unit}users with {config.corpus.users.min_records} records or more",
        "model": config.model.base or "a GPT-Neo, pre-trained first on public users",
        "training": f"{steps}, {recipe.optimizer}, learning rate {recipe.learning_rate:g} ({recipe.schedule}), on the"
        f" {_device()}",
        "defense": f"{defense.kind}: {promise.label}"
        if not defense.is_plain
        else f"none: {GuaranteeText.NO_PROTECTION()}",
    }
    if private:
        would["noise"] = f"multiplier {mechanism.noise_multiplier:.4g}, delta {mechanism.delta:g}"
    if config.split.audited is not Audited.USERS:
        ((where, source),) = list(config.entity_sources())[-1:]
        would["audited"] = f"{AUDITED[config.split.audited.value].unit} that {where} finds ({source.kind})"
    elif (share := config.split.audit_fraction) is not None:
        would["audited"] = (
            f"each user with probability {share:g}, drawn by a public coin; all other users are always members"
        )
    if isinstance(promise, Guarantee) and promise.cautions:
        would["warning"] = joined(promise.cautions)
    if config.canaries:
        would["canaries"] = ", ".join(spec.kind for spec in config.canaries)
    references = [config.attack.reference or "the base model", *(r.label for r in config.attack.references)]
    would["attacks"] = f"{', '.join(config.attack.names)}; against {', '.join(references)}"
    if config.attack.shadow_models:
        would["shadows"] = f"{counted(config.attack.shadow_models, 'training run')} more, for the ideal attacker"
    return would | {name: options.described() for name, options in config.measures.items()}


def _device() -> str:
    try:
        return "GPU" if default_device().type == "cuda" else "CPU"
    except InputError:  # told as a problem
        return "requested device"
