"""The private step as anyone would write it, in parts that a wrong trainer replaces one at a time.

One backward pass per unit, no engine of heldin's: cohort, contributions, noise, divided by the constant.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from heldin.defenses.choices import ConstantDivisor
from heldin.defenses.noise import gaussian
from heldin.finetune.units import PrivateTraining, SampledUnit
from heldin.models.tokens import Tokens
from heldin.white_box.trainers import PrivateStep, Trainer, stepwise
from tests.documents import ids

Records = Sequence[Sequence[int]]
Dense = dict[str, torch.Tensor]
Sparse = Mapping[str, torch.Tensor]  # tensors that a gradient does not touch may be left out
Cohort = Callable[[PrivateTraining, int], Sequence[SampledUnit]]
# (model, training, drawn units, step, sequences) -> what each contributes to the sum
Contributions = Callable[[PreTrainedModel, PrivateTraining, Sequence[SampledUnit], int, Records], Sequence[Sparse]]
# (training, step, name of a tensor, the sum before noise, standard deviation) -> noise of its shape
Noise = Callable[[PrivateTraining, int, str, torch.Tensor, float], torch.Tensor]
Clip = Callable[[SampledUnit, Sparse, float], Sparse]
# (noise of each tensor as it was drawn, the sums before noise, standard deviation) -> noise that is added
Whole = Callable[[Dense, Dense, float], Dense]


CONFIG_SEED = 42


def as_stated(training: PrivateTraining, number: int) -> Sequence[SampledUnit]:
    return training.drawn(number)


def to_norm(unit: SampledUnit, raw: Sparse, norm: float) -> Sparse:
    """As it should be: scaled down to the norm; zero where it is not finite."""
    return scaled(raw, norm, raw.values()) if math.isfinite(norm_of(raw.values())) else {}


def clipped_by(clip: Clip) -> Contributions:
    def contributions(model, training, drawn, number, sequences):
        norm = training.mechanism.clip.norm
        return [clip(unit, raw_gradient(model, training, unit, number, sequences), norm) for unit in drawn]

    return contributions


def keyed(training: PrivateTraining, number: int, name: str, summed: torch.Tensor, deviation: float) -> torch.Tensor:
    cpu = torch.device("cpu")
    return gaussian(training.noise, training.key, number, name, summed.shape, deviation, cpu)


def as_drawn(noise: Dense, summed: Dense, deviation: float) -> Dense:
    return noise


_CLIPPED = clipped_by(to_norm)


@dataclass(frozen=True)
class Plain:
    """A step; correct as it stands. A step without noise adds none, whatever `noise` is."""

    cohort: Cohort = as_stated
    contributions: Contributions = _CLIPPED
    noise: Noise = keyed
    whole: Whole = as_drawn

    def __call__(self, model: PreTrainedModel, training: PrivateTraining, number: int, sequences: Records) -> None:
        mechanism = training.mechanism
        assert isinstance(mechanism.divisor, ConstantDivisor)
        total = zeros(model)
        drawn = self.cohort(training, number)
        for given in self.contributions(model, training, drawn, number, sequences):
            for name, tensor in given.items():
                total[name] += tensor
        deviation = mechanism.noise_multiplier * mechanism.sensitivity
        if deviation > 0:
            drawn_noise = {name: self.noise(training, number, name, its, deviation) for name, its in total.items()}
            added = self.whole(drawn_noise, total, deviation)
            total = {name: its + added[name] for name, its in total.items()}
        for name, parameter in trainable(model).items():
            parameter.grad = total[name] / mechanism.divisor.value


def stateful(make: Callable[[], PrivateStep]) -> Trainer:
    """A trainer whose step remembers: every run begins with a new one."""

    def run(base, training, sequences):
        stepwise(make())(base, training, sequences)

    return run


def contribution(training: PrivateTraining, unit: SampledUnit, number: int, sequences: Sequence[Tokens]) -> Records:
    """The token ids of the records that a unit contributes."""
    return ids(training.contribution(unit, number, sequences))


def raw_gradient(
    model: PreTrainedModel, training: PrivateTraining, unit: SampledUnit, number: int, sequences: Records
) -> Sparse:
    """Of one unit before clipping."""
    if unit.canary is not None:
        assert training.canaries is not None
        return training.canaries.gradient(unit.canary)
    return text_gradient(model, contribution(training, unit, number, sequences))


@dataclass(frozen=True)
class _Weights:
    """A model, which training changes in place; equal to another if the weights are."""

    digest: bytes
    model: PreTrainedModel = field(compare=False)


def text_gradient(model: PreTrainedModel, records: Records) -> Dense:
    """Return the gradient of the mean over records of the mean token loss; computed once for equal weights and records.

    Where an audit watches who is drawn it restores the weights after each step, and all audits begin with the same
    weights. Do not write to the result.
    """
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    return _text_gradient(_Weights(weights.digest(), model), tuple(map(tuple, records)))


@functools.lru_cache(maxsize=1024)
def _text_gradient(weights: _Weights, records: Records) -> Dense:
    return computed_text_gradient(weights.model, records)


def computed_text_gradient(model: PreTrainedModel, records: Records) -> Dense:
    """Return the same without a look at earlier ones, for a model with hooks."""
    parameters = trainable(model)
    if not records:
        return zeros(model)
    # Padded at the end, where no earlier token looks.
    padded = pad_sequence([torch.tensor(list(tokens)) for tokens in records], batch_first=True)
    lengths = torch.tensor([[len(tokens)] for tokens in records])
    targets = padded[:, 1:].masked_fill(torch.arange(1, padded.shape[1]) >= lengths, -100)
    logits = model(input_ids=padded, use_cache=False).logits[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    of_records = losses.sum(1) / (targets != -100).sum(1)
    found = torch.autograd.grad(of_records.mean(), list(parameters.values()), materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


def taken(model: PreTrainedModel) -> Dense:
    """The gradient that lies in `.grad`, which is left empty."""
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in trainable(model).items()}
    model.zero_grad(set_to_none=True)
    return found


def scaled(gradients: Sparse, norm: float, counted: Iterable[torch.Tensor]) -> Dense:
    """Scaled down so that `counted` have norm at most `norm`."""
    size = norm_of(counted)
    factor = min(1.0, norm / size) if size > 0 else 1.0
    return dict(zip(gradients, torch._foreach_mul(list(gradients.values()), factor), strict=True))


def norm_of(tensors: Iterable[torch.Tensor]) -> float:
    flat = [t.reshape(-1) for t in tensors]
    return float(torch.linalg.vector_norm(torch.cat(flat), dtype=torch.float64)) if flat else 0.0


def trainable(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def zeros(model: PreTrainedModel) -> Dense:
    return {name: torch.zeros_like(p) for name, p in trainable(model).items()}
