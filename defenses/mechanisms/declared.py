"""Mechanisms of other packages: the package's step clips and adds noise, and epsilon is that of the event it declares.

heldin draws the units of each step, by the rate of the declared event, runs the step in its own loop, and accounts for
the event with its own accountant. That the step does what the event says is the package's word: plan, report and model
card say whose, and whether a white-box audit looked at it.
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
    """A unit that takes part in a step.

    Attributes:
        records: what it is trained on; none for an auditor's canary.
        gradient: of an auditor's canary by parameter name, to be clipped and summed like that of records; None for
            records.
    """

    records: Sequence["Tokens"]
    gradient: Mapping[str, "torch.Tensor"] | None = None


@dataclass(frozen=True)
class StepGiven:
    """What a step gets besides the model. It takes its numbers from here: an audit changes them.

    Attributes:
        step: its number, from 0.
        units: those that were drawn, possibly none: a step without a unit releases pure noise.
        clip_norm: L2 norm to which each unit's gradient is clipped, all trainable parameters together.
        noise_multiplier: standard deviation of the noise on the sum, over ``clip_norm``.
        divisor: public constant by which the noised sum is divided.
        pass_records: most records in one forward pass.
        seed: secret number of this step, for a generator of the package's own.
        losses: from a model (or one that wraps it) and records, at least one, to the mean loss of each record's tokens
            that count, shape (records,). A record has a token more than a model reads: the last one is only asked for.
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
        """Return heldin's noise for the sum of a parameter's gradients, in its shape; the same on resume.

        Args:
            name: of the parameter; each has noise of its own.
        """
        deviation = self.noise_multiplier * self.clip_norm
        return self.source.gaussian(self.step, name, parameter.shape, deviation, parameter.device)


class DeclaredDefense(NoisedDefense, ABC):
    """A mechanism of another package, whose epsilon is as the package declares."""

    unit: ClassVar[Literal["user", "example"]]
    """What is sampled, clipped and protected: a user with all records, or a single record."""
    relation: ClassVar[Adjacency] = "add_remove"
    """Neighbouring relation of the declared event."""

    clip_norm: ClipNorm = 1.0
    """L2 norm to which each unit's gradient is clipped."""
    micro_records: Many = 64
    """Maximum number of records in one backward pass; it affects only memory."""
    white_box: ExpandedPath | None = None
    """Output of ``heldin white-box --plan PLAN --json`` for this mechanism with the installed code; null: the report
    states that no white-box audit was run."""

    @abstractmethod
    def dp_event(self) -> "DpEvent":
        """Return the event of the whole run, as dp-accounting describes it, for one ``unit``."""

    @abstractmethod
    def step(self, model: "PreTrainedModel", given: StepGiven) -> float | None:
        """Leave the noised mean gradient of a step in ``.grad`` of every trainable parameter.

        Return the units' mean loss, which is not private; None without a unit.
        """

    @property
    def promises_users(self) -> bool:
        """Where users are the unit."""
        return self.protects_users

    @property
    def protects_users(self) -> bool:
        """Whether users are the unit, not records."""
        return self.unit == "user"

    @property
    def pass_records(self) -> int:
        """As the config says."""
        return self.micro_records

    @property
    def records_of_a_unit(self) -> int | None:
        """All of a user's records, or one."""
        return None if self.protects_users else 1

    @property
    def worst_case_documents(self) -> int | None:
        """One where records are protected."""
        return None if self.protects_users else 1

    @property
    def needs_whole_models(self) -> tuple[str, ...]:
        """The package's step sees whole models."""
        return (f"defense.kind {self.kind}",)

    def plan(self, given: Given) -> dict[str, Any]:
        """What the declared event says of sampling and noise.

        Raises InputError for an event, a unit or a relation that heldin's accountant does not read.
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
        """Return whose word the plan rests on. Raises InputError for a white-box audit of something else."""
        origin = MECHANISMS.origin(self.kind)
        assert origin is not None  # each of ours has an accountant of its own
        settings = self.model_dump(mode="json", exclude={"white_box"})
        code = {"kind": self.kind, "package": origin.package, "version": origin.version, "sha256": origin.sha256}
        stated = {**code, "settings": _of_step(settings), "unit": self.unit, "step": OF_PLAN}
        outcome: Watched = "not run" if self.white_box is None else _audit_of(self.white_box, stated)
        return Declared(**code, settings=settings, audit=outcome)


def require_declared(defense: DefenseConfig, mechanism: "Mechanism") -> None:
    """Check that the plan of a package's mechanism says whose it is, whatever the package's own code says.

    Raises InputError for a plan that protects somebody and names no package, or another than the one that made it.
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
            f"defense '{defense.kind}' states a package, version, settings or audit that are not its own: correct"
            " DeclaredDefense.declared"
        )


def _of_step(settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the settings that decide what a step does, not how many steps there are, on how many people."""
    return {name: value for name, value in settings.items() if name not in _SIZES}


def _audit_of(path: Path, stated: Mapping[str, object]) -> Watched:
    """Return what a white-box audit found. Raises InputError unless it is one of this step, by this code."""
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
            " mechanism. Run that command again"
        ) from error
    differing = ", ".join(name for name in stated if audited.get(name) != stated[name])
    if differing:
        raise InputError(
            f"defense.white_box: '{path}' audited another mechanism ({differing} differ). Run the audit again with"
            " the installed code"
        )
    return _OUTCOMES.get(outcome, "failed")
