"""The plan of a run: the mechanism in the config. heldin writes the plan before the first step.

A plan also contains the steps on the data before training, and the assumptions of its guarantee.

The plan of a private run does not depend on the private records. The number of steps of a plain run does depend on
them. ``plan_fit`` compares a plan with the records.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.base.errors import InputError
from heldin.base.files import kept_text
from heldin.base.yaml_files import read_yaml
from heldin.corpus.split import Audited, SplitRule
from heldin.defenses.choices import DataStep
from heldin.defenses.guarantee import Guarantee
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.contract import Checkpoint, Given
from heldin.defenses.mechanisms.declared import require_declared
from heldin.defenses.plan_file import read_plan, write_plan
from heldin.finetune.recipe import Optimizer, Select
from heldin.record.plan_fit import PlanFit, figures_of, warnings_of
from heldin.stages.run_config import RunConfig, parse_config
from heldin.words.data_steps import DataStepText
from heldin.words.guarantee import Assumption
from heldin.words.statement import Statement, joined

if TYPE_CHECKING:
    from heldin.stages.sides.data import RunData

LEAST_BANDS = 8  # from which momentum was measured to be better than Adam (docs/users.md); with 2 it was not
_MADE_OF_TEXTS = frozenset({"words", "spacy"})


def settle_plan(config: RunConfig, data: "RunData", out: Path, *, clip_norm: float | None = None) -> Mechanism:
    """Write ``out``/plan.json before the first step, or read the existing plan.

    Args:
        clip_norm: clip norm that was measured in a plain run, for a clipping defense without a clip norm.

    Raises:
        InputError: the existing plan does not match the config, or ``out`` is a copy of a private run.
    """
    plain_steps = config.finetune.steps(len(data.training_rows))
    mechanism = mechanism_of(config, plain_steps=plain_steps, clip_norm=clip_norm)
    path = out / "plan.json"
    if path.is_file():
        kept = read_plan(path)
        # Field by field, so that the message can name what differs.
        changed = [name for name in Mechanism.model_fields if getattr(kept, name) != getattr(mechanism, name)]
        if changed:
            raise InputError(f"'{path}' belongs to another config ({', '.join(changed)} differ): use a new run folder")
    else:
        write_plan(mechanism, path)
    # A plain run has no noise that a second run could cancel; of a cell not even that may be repeated under its coins.
    if mechanism.protects or data.cell is not None:
        refuse_copies(out)
    return mechanism


def mechanism_of(config: RunConfig, *, plain_steps: int, clip_norm: float | None = None) -> Mechanism:
    """Return the run's mechanism. Calibrates its noise if the config has a target epsilon.

    Args:
        plain_steps: number of steps of plain training, which depends on the data; a private run has its number in the
            config.
        clip_norm: clip norm for a clipping defense without a clip norm.
    """
    defense = config.defense
    given = Given(
        plain_steps=plain_steps,
        batch_size=config.finetune.batch_size,
        clip_norm=clip_norm,
        checkpoint=_checkpoint(config),
        data_steps=data_steps(config),
        assumptions=assumptions(config),
    )
    mechanism = Mechanism(**defense.plan(given))
    require_declared(defense, mechanism)
    return mechanism if defense.calibrated_to is None else mechanism.calibrated(defense.calibrated_to)


def plan_fit(
    config: RunConfig,
    mechanism: Mechanism,
    counts: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    present: npt.NDArray[np.float64] | float = 1.0,
    gradients: float | None = None,
) -> PlanFit | None:
    """Return how a plan fits its data; None without noise.

    Args:
        counts: number of each user's records that are available for training, shape (n,).
        present: probability that each user is trained on, shape (n,).
        gradients: mean number of gradients per step; None: use the expected number.
    """
    population = mechanism.sampler.population
    if not mechanism.protects or population is None:
        return None
    by_users, size = mechanism.samples_users, mechanism.group_size
    users = float(np.sum(present * np.ones(counts.size)))
    drawn = float(np.sum(present * _used(config, mechanism, counts)))
    epochs = mechanism.local.epochs if mechanism.local else 1
    planned = None
    if _limits_users(mechanism) or not by_users:
        assert mechanism.divisor.constant is not None
        planned = mechanism.divisor.constant * epochs * (size if by_users else 1)
        share = mechanism.sampler.rate / mechanism.sampler.groups
        gradients = round(share * epochs * drawn, 1) if gradients is None else gradients
    short = _short_users(mechanism, counts, present)
    return PlanFit(
        unit="users" if by_users else "records",
        population=population,
        units=round(users if by_users else drawn),
        planned=planned,
        gradients=gradients,
        group_size=None if short is None else size,
        users=round(users),
        short=short,
        protected=round(drawn if mechanism.level.protects_records else users),
    )


def _limits_users(mechanism: Mechanism) -> bool:
    """Return whether at most ``group_size`` records per user count.

    Two-level sampling uses the records that remain after the entities' coins, and no plan counts these records.
    """
    every = mechanism.samples_users and mechanism.record_selection == "all"
    return mechanism.level.counts_users and not every


def _used(
    config: RunConfig, mechanism: Mechanism, counts: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
    """Return how many records of each user training uses, or one step uses, shape (n,)."""
    # As many as the plan counts on, cut or repeated.
    if mechanism.record_selection == "random_chunk" or config.defense.repeats_records:
        return np.full(counts.size, mechanism.group_size)
    return np.minimum(counts, mechanism.group_size) if _limits_users(mechanism) else counts


def _short_users(
    mechanism: Mechanism,
    counts: npt.NDArray[np.int64] | npt.NDArray[np.float64],
    present: npt.NDArray[np.float64] | float,
) -> int | None:
    """Return how many users have fewer records than the plan assumes. None if the plan assumes no number, or if the
    number of such users is too small to report."""
    if not _limits_users(mechanism) or mechanism.record_selection == "random_chunk":
        return None
    short = round(float(np.sum(present * (counts < mechanism.group_size))))
    return None if 0 < short < LEAST_IN_GROUP else short


def fit_lines(mechanism: Mechanism, fit: PlanFit) -> list[str]:
    """Return log lines that compare a plan with its data."""
    promise = mechanism.guarantee()
    delta = promise.delta if isinstance(promise, Guarantee) and not promise.cautions else None
    return [f"plan and data: {joined(figures_of(fit))}", *(f"warning: {line}" for line in warnings_of(fit, delta))]


def optimizer_lines(config: RunConfig, mechanism: Mechanism) -> list[str]:
    """Return advice if the optimizer can lose what banded noise saves."""
    optimizer = config.finetune.optimizer
    if mechanism.sampler.groups < LEAST_BANDS or optimizer is Optimizer.SGD:
        return []
    return [
        f"banded noise: {optimizer} divides by the size of each step's noisy gradient, and banded noise has more noise"
        " in a step. In our training runs this cost most of the benefit (docs/users.md). Set finetune.optimizer to sgd,"
        " and finetune.momentum to 0.9"
    ]


def require_mechanism(config: RunConfig) -> None:
    """Check that the config defines a valid mechanism, before a corpus is read or a model is pre-trained.

    Raises InputError for an invalid mechanism, for example if the cohort exceeds the population, or the epsilon needs
    no noise.
    """
    mechanism_of(config, plain_steps=1, clip_norm=1.0)


def configured_mechanism(config: RunConfig, plan: Mechanism, plain_steps: int) -> Mechanism:
    """Return the mechanism of a finished run's config, with the clip norm from the plan if the run measured it."""
    plain = plan.clip.plain
    return mechanism_of(config, plain_steps=plain_steps, clip_norm=plain.norm if plain else None)


def read_run_config(folder: Path) -> RunConfig:
    """Return the config in a run folder. Raises InputError if the config is missing or damaged."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise InputError(f"'{path}' is missing, so heldin cannot check the run: restore this file")
    return parse_config(read_yaml(path), str(path))


def _checkpoint(config: RunConfig) -> Checkpoint:
    """Return the users whose validation loss selects the checkpoint or stops training; "last_step" if no users select
    it."""
    if not config.finetune.looks_at_validation:
        return "last_step"
    return "public_validation" if config.finetune.select is Select.BEST_PUBLIC else "protected_validation"


def refuse_copies(out: Path) -> None:
    """Raise InputError if ``out`` is a copy of a folder that an earlier call accepted.

    If somebody trained the copy on other data with the same key, the two models would differ by un-noised data. A copy
    of a sweep's cell would be a second run with coins that somebody may have read.
    """
    # the file contains its own inode number, which a copy does not share and a moved folder keeps
    path = out / "ledger" / "origin"
    # A call that was killed before it wrote leaves an empty file, which counts as none.
    path.touch(mode=0o600)
    kept = kept_text(path)
    if not kept:
        # In place: ``base.files.write_text`` renames a temporary file, which has another inode.
        path.write_text(str(path.stat().st_ino), encoding="utf-8")
    elif kept != str(path.stat().st_ino):
        raise InputError(
            f"'{out}' is a copy of a private run's folder or of a sweep's cell. Two runs under one key differ by"
            " un-noised data: continue in the original folder, or start a new run"
        )


def assumptions(config: RunConfig) -> tuple[Statement, ...]:
    """Return the guarantee's assumptions about base model, records and names, for printing with epsilon."""
    defense = config.defense
    entities = Assumption.ENTITIES_PUBLIC() if defense.protects_named else None
    if config.model.pretrain is None:
        assumed = [Assumption.BASE_UNSEEN(entities=entities)]
    elif config.model.pretrain.source is not None:
        assumed = [Assumption.PRETRAINING_CORPUS_UNSEEN(entities=entities)]
    else:
        assumed = [Assumption.PUBLIC_USERS(entities=Assumption.MENTIONS_PUBLIC() if defense.protects_named else None)]
    if (saliency := config.model.saliency) is not None:
        of_source = saliency.source is not None
        assumed.append(Assumption.LAYERS_UNSEEN() if of_source else Assumption.LAYERS_OF_PUBLIC_USERS())
    if config.corpus.text_unit == "sentence":
        assumed.append(Assumption.SENTENCES())
    # A list of the users' own names, or a model trained on their texts, would let one user change others' texts.
    if {d.searched_by.kind for d in config.data_defenses if d.searched_by is not None} & _MADE_OF_TEXTS:
        assumed.append(Assumption.DEIDENTIFIER_UNSEEN())
    return (*assumed, *defense.assumptions(_MADE_OF_TEXTS))


def data_steps(config: RunConfig) -> tuple[DataStep, ...]:
    """Return the steps on records before training, and what each step reads (docs/theory.md#rules-of-the-data)."""
    # a step that is not user-local lets one user's data change another's, which voids a user-level epsilon
    users = config.corpus.users
    steps = _preset_steps(config)
    steps += [
        # Both look at all of a user's records, and at nobody else's.
        _of_slots(DataStepText.MINIMUM()),
        _of_slots(DataStepText.SET_ASIDES()),
    ]
    if users.max_records is not None:
        steps.append(_of_slots(DataStepText.MAXIMUM()))
    if config.split.audited is not Audited.USERS:
        # Chosen so that no two share a record: another record makes it another pool.
        steps.append(_of_slots(DataStepText.ENTITY_POOL(), user_local=False))
    elif config.split.audit_pool is not None:
        # One more user pushes another out of the pool, who is then always in.
        steps.append(_of_slots(DataStepText.USER_POOL(), user_local=False))
    elif config.split.audit_fraction is not None:
        steps.append(_of_slots(DataStepText.PUBLIC_COINS()))
    if config.split.assignment is SplitRule.EXACT_HALF:
        # One user's side depends on the others': removing a user moves somebody else's.
        steps.append(_of_slots(DataStepText.EXACT_HALF(), user_local=False))
    steps += _canary_steps(config)
    if config.defense.capped_as is not None:
        steps.append(_of_slots(config.defense.capped_as, user_local=False))
    steps += [defense.declared() for defense in config.data_defenses]
    if users.max_users is not None:
        steps.append(_of_slots(DataStepText.MOST_USERS(), user_local=False))
    return tuple(steps)


def _of_slots(name: Statement, *, user_local: bool = True) -> DataStep:
    """Return a step that counts and selects records by user, id and position. The step does not read text."""
    return DataStep(name=name, user_local=user_local, record_local=False, slots_only=True)


def _preset_steps(config: RunConfig) -> list[DataStep]:
    """Return the steps of a corpus preset. These steps change rows before the rows become records."""
    preset = config.corpus.source.preset()
    if preset is None:
        return []
    return [
        DataStep(
            name=DataStepText.OF_PRESET(preset=preset.name, step=step.text()),
            user_local=step.user_local,
            record_local=step.record_local,
            slots_only=step.slots_only,
        )
        for step in preset.steps
    ]


def _canary_steps(config: RunConfig) -> list[DataStep]:
    """Return the steps in which canary users change real users' records; made-up canary users change none."""
    declared = [step for spec in config.canaries for step in spec.record_steps()]
    steps = [DataStep(name=step.name, user_local=step.user_local, record_local=False) for step in declared]
    # Sections of one kind declare the same step: it is told once.
    return list(dict.fromkeys(steps))
