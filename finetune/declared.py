"""A private step of another package in heldin's loop: the package clips, sums, adds noise and divides."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from heldin.base.coins import keyed_digest
from heldin.base.errors import InputError
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.mechanisms.declaration import Declared
from heldin.defenses.mechanisms.declared import DeclaredDefense, DrawnUnit, StepGiven
from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.finetune.batches import collate
from heldin.finetune.passes import Passes
from heldin.finetune.ranks import rank
from heldin.finetune.sampled_units import SampledUnit
from heldin.finetune.units import PrivateTraining
from heldin.models.tokens import Tokens


def declared_defense(mechanism: Mechanism) -> DeclaredDefense:
    """Return the declared section with the step that the plan runs.

    Raises InputError if the package is missing, its code has changed since the plan was made, or the installed class
    has no step of its own.
    """
    assert mechanism.declared is not None
    return _section(mechanism.declared.model_dump_json())


@functools.lru_cache(maxsize=8)
def _section(written: str) -> DeclaredDefense:
    """Make the section once per plan, because each time heldin hashes the package's files."""
    declared = Declared.model_validate_json(written)
    MECHANISMS.require_same_code(declared.origin)
    section = MECHANISMS.find(declared.kind).model_validate(declared.settings)
    if not isinstance(section, DeclaredDefense):
        raise InputError(
            f"defense '{declared.kind}' has no step of its own, so its plan is for other code: install the code of"
            " the plan"
        )
    return section


def declared_gradient(
    model: PreTrainedModel,
    training: PrivateTraining,
    step: int,
    sequences: Sequence[Tokens],
    passes: Passes | None = None,
) -> float | None:
    """Let the package put the noised mean gradient of ``step`` into ``.grad``, and return the package's mean loss.

    Every process computes the whole step, with the same noise. A parameter without a gradient counts as a release of
    zeros.

    Args:
        model: the model; its ``.grad`` is set.
        step: number of the step, from 0.
        passes: counts the gradients.

    Raises:
        InputError: the step's package has changed or refuses the model, its code raises, or a gradient is not finite.
    """
    mechanism = training.mechanism
    defense = declared_defense(mechanism)
    defense.require_model(model)
    assert mechanism.divisor.constant is not None
    drawn = (_drawn(training, unit, step, sequences) for unit in training.drawn(step))
    # A unit that gives nothing adds zero.
    units = [unit for unit in drawn if unit.records or unit.gradient is not None]
    if passes is not None and rank() == 0:
        for unit in units:
            passes.count(unit.records)
    parameters = trainable(model)
    for parameter in parameters.values():
        parameter.grad = None
    given = StepGiven(
        step=step,
        units=units,
        clip_norm=mechanism.clip.of_units().norm,
        noise_multiplier=mechanism.noise_multiplier,
        divisor=mechanism.divisor.constant,
        pass_records=training.micro_records if passes is None else passes.most,
        seed=int.from_bytes(keyed_digest(training.key, "declared step", str(step))[:7], "big"),
        losses=lambda model_, records: collate(records, model.device).record_losses(model_),
        source=training.source,
    )
    try:
        loss = defense.step(model, given)
    except InputError:
        raise
    except Exception as error:  # whatever somebody else's code does
        message = " ".join(str(error).split())
        raise InputError(f"defense '{defense.kind}': step {step} raised {type(error).__name__}: {message}") from error
    for name, parameter in parameters.items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif not torch.isfinite(parameter.grad).all():
            raise InputError(
                f"defense '{defense.kind}': step {step} wrote a gradient of '{name}' that is not finite: make a unit"
                " without a finite gradient add zero"
            )
    if training.watch:
        training.watch(step, {name: p.grad for name, p in parameters.items() if p.grad is not None})
    return loss


def _drawn(training: PrivateTraining, unit: SampledUnit, step: int, sequences: Sequence[Tokens]) -> DrawnUnit:
    if unit.canary is None:
        records = training.contribution(unit, step, sequences)
        # As plain numbers, whatever the store has on disk.
        return DrawnUnit(tuple(replace(record, ids=[int(token) for token in record.ids]) for record in records))
    assert training.canaries is not None
    return DrawnUnit((), training.canaries.gradient(unit.canary))
