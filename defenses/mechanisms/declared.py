"""Mechanisms of other packages. The package's step clips and adds noise. Epsilon follows from the declared event.

heldin draws the units of each step at the rate of the declared event, runs the step in its own loop, and accounts for
the event with its own accountant. Only the package vouches that the step matches the event. Plan, report and model card
name the package, and state whether a white-box audit tested the step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import JsonValue

from heldin.base.errors import InputError
from heldin.base.files import read_json
from heldin.base.section import ExpandedPath, Many
from heldin.defenses.accounting.declared_events import declared_step
from heldin.defenses.choices import Adjacency, ClipNorm, ConstantDivisor, FlatClip
from heldin.defenses.mechanisms.contract import DefenseConfig, Given
from heldin.defenses.mechanisms.declaration import Declared
from heldin.defenses.mechanisms.kinds import MECHANISMS
from heldin.defenses.mechanisms.settings import NoisedDefense
from heldin.defenses.samplers import PoissonSampler
from heldin.words.guarantee import Watched

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent
    from transformers import PreTrainedModel

    from heldin.defenses.mechanism import Mechanism
    from heldin.defenses.noise import NoiseSource
    from heldin.models.tokens import Tokens

OF_PLAN = "of the plan"  # in what a white-box audit prints: it watched the plan's own step
_UNITS = ("user", "example")
_SIZES = ("population", "steps", "delta", "examples", "micro_records", "secure_noise", "base_model_saw_protected")
_OUTCOMES: dict[str, Watched] = {"consistent": "passed", "inconclusive": "inconclusive"}


@dataclass(frozen=True)
class DrawnUnit:
    """A unit that is in a step.

    Attributes:
        records: records to train on; empty for an auditor's canary.
        gradient: an auditor's canary gradient, by parameter name, which the step must clip and sum like a unit's
            gradient; None for records.
    """

    records: Sequence["Tokens"]
    gradient: Mapping[str, "torch.Tensor"] | None = None


@dataclass(frozen=True)
class StepGiven:
    """The inputs of a step other than the model. The step must use these numbers, because an audit changes them.

    Attributes:
        step: number of the step, from 0.
        units: the drawn units. The list may be empty; a step without a unit releases pure noise.
        clip_norm: largest L2 norm of each unit's gradient, over all trainable parameters, after clipping.
        noise_multiplier: standard deviation of the noise on the sum, divided by ``clip_norm``.
        divisor: public constant that divides the noised sum.
        pass_records: maximum number of records in one forward pass.
        seed: secret number of this step, for the package's own generator.
        losses: function from a model (or a wrapper of it) and at least one record to losses, shape (records,). The loss
            of a record is the mean over its counted tokens. A record has one token more than a model reads, because the
            last token is only predicted.
    """

    step: int
    units: Sequence[DrawnUnit]
    clip_norm: float
    noise_multiplier: float
    divisor: float
    pass_records: int
    seed: int
    losses: "Callable[[Any, Sequence[Tokens]], torch.Tensor]"
    source: "NoiseSource"

    def gaussian(self, name: str, parameter: "torch.Tensor") -> "torch.Tensor":
        """Return heldin's noise for the sum of a parameter's gradients, in the parameter's shape.

        A resumed run gets identical noise.

        Args:
            name: name of the parameter; each parameter has separate noise.
        """
        deviation = self.noise_multiplier * self.clip_norm
        return self.source.gaussian(self.step, name, parameter.shape, deviation, parameter.device)


class DeclaredDefense(NoisedDefense, ABC):
    """A mechanism of another package. The epsilon follows from the package's declaration."""

    unit: ClassVar[Literal["user", "example"]]
    """Unit that the mechanism samples, clips and protects: a user with all records, or one record."""
    relation: ClassVar[Adjacency] = "add_remove"
    """Neighbouring relation of the declared event."""

    clip_norm: ClipNorm = 1.0
    """Clip norm: the largest L2 norm that a unit's gradient has after clipping."""
    micro_records: Many = 64
    """Maximum number of records in one backward pass. This number affects only memory use."""
    white_box: ExpandedPath | None = None
    """File with the output of ``heldin white-box --plan PLAN --json`` for this mechanism and the installed code. null:
    the report states that no white-box audit was run.
    """

    @abstractmethod
    def dp_event(self) -> "DpEvent":
        """Return the event of the whole run for one ``unit``, as a dp-accounting event."""

    @abstractmethod
    def step(self, model: "PreTrainedModel", given: StepGiven) -> float | None:
        """Put the noised mean gradient of a step into ``.grad`` of every trainable parameter.

        Returns the units' mean loss, which is not private, or None if no unit was drawn.
        """

    @property
    def promises_users(self) -> bool:
        """Whether users are the unit."""
        return self.protects_users

    @property
    def protects_users(self) -> bool:
        """Whether users, and not records, are the unit."""
        return self.unit == "user"

    @property
    def pass_records(self) -> int:
        """The maximum number of records in one backward pass, from the config."""
        return self.micro_records

    @property
    def records_of_a_unit(self) -> int | None:
        """The number of records of a drawn unit: None for all records of a user, 1 if records are the unit."""
        return None if self.protects_users else 1

    @property
    def worst_case_documents(self) -> int | None:
        """The number of documents that the guarantee covers: 1 if records are the unit, None for users."""
        return None if self.protects_users else 1

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The defense's key, because the package's step needs a whole model."""
        return (f"defense.kind {self.kind}",)

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields, with sampling and noise from the declared event.

        Raises InputError for an event, a unit or a relation that heldin's accountant cannot read.
        """
        if getattr(self, "unit", None) not in _UNITS:
            raise InputError(
                f"defense '{self.kind}' does not set a unit that heldin knows: set unit to 'user' or 'example'"
            )
        try:
            event = declared_step(self.dp_event(), self.steps)
        except InputError as error:
            raise InputError(f"defense '{self.kind}': {error}") from error
        declared = self.declared()
        return {
            **super().plan(given),
            "unit": self.unit,
            "sampled": self.unit,
            "adjacency": self.relation,
            "sampler": PoissonSampler(rate=event.rate, population=self.population),
            "clip": FlatClip(norm=self.clip_norm),
            "noise_multiplier": event.noise_multiplier,
            # Public, and never the cohort that was drawn.
            "divisor": ConstantDivisor(value=event.rate * self.population),
            "record_selection": "all" if self.protects_users else "random",
            "noise_generator": declared.of_package,
            "declared": declared,
        }

    def declared(self) -> Declared:
        """Return the package's declaration.

        Raises InputError if the white-box audit tested another step or other code.
        """
        origin = MECHANISMS.origin(self.kind)
        assert origin is not None  # each of ours has an accountant of its own
        settings = self.model_dump(mode="json", exclude={"white_box"})
        code = {"kind": self.kind, "package": origin.package, "version": origin.version, "sha256": origin.sha256}
        stated = {**code, "settings": _of_step(settings), "unit": self.unit, "step": OF_PLAN}
        outcome: Watched = "not run" if self.white_box is None else _audit_of(self.white_box, stated)
        return Declared(**code, settings=settings, audit=outcome)


def require_declared(defense: DefenseConfig, mechanism: "Mechanism") -> None:
    """Check that the plan of a package's mechanism names the package, because the package's code returns the plan.

    Raises InputError for a plan that protects somebody but does not name the package that made the plan.
    """
    if not mechanism.protects or defense.kind in MECHANISMS.ours:
        return
    if not isinstance(defense, DeclaredDefense):
        raise InputError(
            f"defense '{defense.kind}' is not one of heldin's defenses, but its plan does not declare this: derive"
            " the defense from heldin.defenses.mechanisms.declared:DeclaredDefense"
        )
    # By the base class, which a package may have overridden.
    if mechanism.declared != DeclaredDefense.declared(defense):
        raise InputError(
            f"defense '{defense.kind}' states the package, version, settings or audit of another defense: do not"
            " override the method declared"
        )


def _of_step(settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the settings that affect a step, without the numbers of steps and people."""
    return {name: value for name, value in settings.items() if name not in _SIZES}


def _audit_of(path: Path, stated: Mapping[str, object]) -> Watched:
    """Return the result of a white-box audit. Raises InputError unless the audit tested this step with this code."""
    try:
        document = read_json(path)
        plan = document["mechanism"]
        audited = {
            **plan["declared"],
            "settings": _of_step(plan["declared"]["settings"]),
            "unit": plan["unit"],
            "step": document["step"],
        }
        outcome = str(document["outcome"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"defense.white_box: '{path}' is not the output of heldin white-box --plan PLAN --json for a package's"
            " mechanism. Run this command again"
        ) from error
    differing = ", ".join(name for name in stated if audited.get(name) != stated[name])
    if differing:
        raise InputError(
            f"defense.white_box: '{path}' is the audit of another mechanism ({differing} differ). Run the white-box"
            " audit again with the installed code"
        )
    return _OUTCOMES.get(outcome, "failed")
