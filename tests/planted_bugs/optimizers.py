"""Whole trainers with an optimizer of their own: correct ones, and ones whose weights depend on more than the releases.

Each takes the real private step, shows what it leaves in `.grad`, and moves the weights. A mistake changes gradients or
rates after they were shown, or the weights at the end.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedModel

from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateTraining
from heldin.models.loading import LanguageModel
from heldin.white_box.trainers import StatedOptimizer
from tests.planted_bugs.plain import Dense, Records, contribution, trainable, zeros
from tests.planted_bugs.trainers import changed
from tests.planted_bugs.wrong_data_noise import mean_loss

Parameters = Mapping[str, torch.nn.Parameter]
Made = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]

_RATE, _SHARE = 1e-3, 0.1


def adam(parameters: Parameters, steps: int) -> Made:
    return torch.optim.Adam(parameters.values(), _RATE), None


def foreach_adam(parameters: Parameters, steps: int) -> Made:
    return torch.optim.Adam(parameters.values(), _RATE, foreach=True), None


def fused_adam(parameters: Parameters, steps: int) -> Made:
    return torch.optim.Adam(parameters.values(), _RATE, fused=True), None


def momentum(parameters: Parameters, steps: int) -> Made:
    return torch.optim.SGD(parameters.values(), 1.0, momentum=0.9, nesterov=True), None


def decayed(parameters: Parameters, steps: int) -> Made:
    """AdamW without decay of vectors, at a rate that warms up and falls."""
    matrices, vectors = ([p for p in parameters.values() if (p.ndim > 1) == many] for many in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, _RATE)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps + 1)


@dataclass
class Step:
    """One step of a training, after its gradients were shown."""

    base: LanguageModel
    training: PrivateTraining
    number: int
    sequences: Records
    optimizer: torch.optim.Optimizer
    kept: dict[str, object] = field(default_factory=dict)  # by the mistake, from step to step

    @property
    def model(self) -> PreTrainedModel:
        return self.base.model

    def loss(self) -> float:
        """Of whoever was drawn, at the present weights."""
        units = [unit for unit in self.training.drawn(self.number) if unit.canary is None]
        texts = [text for unit in units for text in contribution(self.training, unit, self.number, self.sequences)]
        return mean_loss(self.model, texts)

    def clean(self) -> Dense:
        """The step's gradients without noise, those with noise left where they are."""
        shown = {name: p.grad for name, p in trainable(self.model).items()}
        quiet = replace(self.training, mechanism=changed(self.training.mechanism, noise_multiplier=0.0), watch=None)
        private_gradient(self.model, quiet, self.number, self.sequences)
        found = {name: p.grad for name, p in trainable(self.model).items()}
        for name, parameter in trainable(self.model).items():
            parameter.grad = shown[name]
        return found


@dataclass(frozen=True)
class WholeTrainer:
    """A trainer; correct as it stands.

    Attributes:
        make: its optimizer.
        mistake: called after a step's gradients were shown; whether the optimizer is to take the step.
        at_end: called after the last step.
        copies: shows copies of its gradients.
    """

    make: StatedOptimizer = adam
    mistake: Callable[[Step], bool] = lambda step: True
    at_end: Callable[[Step], None] = lambda step: None
    copies: bool = False

    def __call__(self, base: LanguageModel, training: PrivateTraining, sequences: Records) -> None:
        model, unwatched = base.model.train(), replace(training, watch=None)
        optimizer, schedule = self.make(trainable(model), training.mechanism.steps)
        step = Step(base, unwatched, 0, sequences, optimizer)
        for number in range(training.mechanism.steps):
            step.number = number
            optimizer.zero_grad(set_to_none=True)
            private_gradient(model, unwatched, number, sequences)
            if training.watch:
                shown = {name: p.grad for name, p in trainable(model).items()}
                training.watch(number, {n: g.clone() for n, g in shown.items()} if self.copies else shown)
            if self.mistake(step):
                optimizer.step()
            if schedule is not None:
                schedule.step()
        self.at_end(step)


@dataclass(frozen=True)
class Stating(WholeTrainer):
    """A trainer that states its optimizer, or another one.

    Attributes:
        stated: the optimizer that it states; None: the one that it uses.
    """

    stated: StatedOptimizer | None = None

    def optimizer(self, parameters: Parameters, steps: int) -> Made:
        return (self.stated or self.make)(parameters, steps)


class AdamByHand:
    """Adam as a paper prints it, which states torch's."""

    optimizer = staticmethod(adam)

    def __call__(self, base: LanguageModel, training: PrivateTraining, sequences: Records) -> None:
        model, first, second = base.model.train(), 0.9, 0.999
        m, v = zeros(model), zeros(model)
        for number in range(training.mechanism.steps):
            private_gradient(model, training, number, sequences)
            with torch.no_grad():
                for name, p in trainable(model).items():
                    m[name] = first * m[name] + (1 - first) * p.grad
                    v[name] = second * v[name] + (1 - second) * p.grad**2
                    unbiased = m[name] / (1 - first ** (number + 1)), v[name] / (1 - second ** (number + 1))
                    p -= _RATE * unbiased[0] / (unbiased[1].sqrt() + 1e-8)


def clean_momentum(step: Step) -> bool:
    """A tenth of a moving average of gradients without noise is added to what the optimizer reads."""
    average = step.kept.setdefault("average", zeros(step.model))
    for name, gradient in step.clean().items():
        average[name] = 0.9 * average[name] + _SHARE * gradient
        trainable(step.model)[name].grad.add_(_SHARE * average[name])
    return True


def clean_weights(step: Step) -> bool:
    """A second copy of the weights is trained without noise, for the end."""
    twin = step.kept.setdefault("twin", {name: p.detach().clone() for name, p in trainable(step.model).items()})
    for name, gradient in step.clean().items():
        twin[name] = twin[name] - _RATE * gradient.sign()
    return True


def mixed_in(step: Step) -> None:
    with torch.no_grad():
        for name, parameter in trainable(step.model).items():
            parameter.lerp_(step.kept["twin"][name], _SHARE)


def _rose(step: Step) -> bool:
    """Whether the loss is higher than in the step before."""
    loss, before = step.loss(), step.kept.get("loss", math.nan)
    step.kept["loss"] = loss
    return loss > before


def slower_when_the_loss_rises(step: Step) -> bool:
    if _rose(step):
        for group in step.optimizer.param_groups:
            group["lr"] /= 2.0
    return True


def stops_when_the_loss_rises(step: Step) -> bool:
    """It goes on to show releases, and keeps the weights of the best step."""
    step.kept["stopped"] = step.kept.get("stopped", False) or _rose(step)
    return not step.kept["stopped"]


def decay_by_the_loss(step: Step) -> bool:
    loss = step.loss()
    for group in step.optimizer.param_groups:
        group["weight_decay"] = 0.0 if math.isnan(loss) else 0.01 * loss
    return True


def trained_before(step: Step) -> bool:
    """The batch of each step is trained on without noise first, as a look ahead."""
    with torch.no_grad():
        for name, gradient in step.clean().items():
            trainable(step.model)[name].sub_(1e-2 * gradient)
    return True


WRONG: dict[str, tuple[Callable[[Step], bool], Callable[[Step], None]]] = {
    "momentum before the noise": (clean_momentum, lambda step: None),
    "weights without noise mixed in": (clean_weights, mixed_in),
    "slower when the loss rises": (slower_when_the_loss_rises, lambda step: None),
    "stopped when the loss rises": (stops_when_the_loss_rises, lambda step: None),
    "weight decay by the loss": (decay_by_the_loss, lambda step: None),
    "a step without noise first": (trained_before, lambda step: None),
}
CORRECT = {
    "adam": Stating(adam),
    "foreach adam": Stating(foreach_adam, stated=adam),
    "fused adam": Stating(fused_adam, stated=adam),
    "momentum": Stating(momentum),
    "decay and a schedule": Stating(decayed),
    "adam by hand": AdamByHand(),
    "adam, not stated": WholeTrainer(adam),
    "decay and a schedule, not stated": WholeTrainer(decayed),
    "copies, stated": Stating(adam, copies=True),
}


def wrong(name: str, *, stated: bool = False, copies: bool = False) -> WholeTrainer:
    """The wrong trainer of that name; it states Adam, or nothing."""
    mistake, at_end = WRONG[name]
    return (Stating if stated else WholeTrainer)(mistake=mistake, at_end=at_end, copies=copies)
