"""A step of Asi & Liu's filtered descent (Chua et al., Algorithm 3): all users except outliers; the run may halt.

Every step is a full batch of all N users, and N is public. AboveThreshold on the concentration scores costs half of the
budget, and the Gaussian noise costs the other half. The paper's proof uses replace adjacency, and treats halting as an
output.

A step needs memory for every user's full gradient: users times parameters, in fp32. heldin implements the method for
comparison with user-level sampling.
"""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from heldin.base.coins import keyed_uniform
from heldin.defenses.accounting.events import check_count
from heldin.defenses.choices import ConcentrationFilter
from heldin.defenses.gradients.model_parts import trainable
from heldin.defenses.gradients.per_unit_gradients import clipped_gradient_sum
from heldin.finetune.passes import Passes, whole_units
from heldin.finetune.ranks import rank
from heldin.finetune.units import PrivateTraining
from heldin.models.tokens import Tokens

FLOATS_A_BLOCK = 2**22


class Halted(Exception):
    """The users' gradients were not concentrated enough. The run ends and releases no model."""

    def __init__(self, step: int) -> None:
        super().__init__(f"halted at step {step + 1}")
        self.step = step


def filtered_gradient(
    model: PreTrainedModel,
    training: PrivateTraining,
    step: int,
    sequences: Sequence[Tokens],
    passes: Passes | None = None,
) -> float | None:
    """Put the noised mean gradient of the kept users into ``.grad``, and return the users' mean loss.

    Args:
        model: the model; its ``.grad`` is set.
        training: mechanism, key and users.
        step: number of the step, from 0.
        passes: counts the gradients.

    Raises:
        Halted: AboveThreshold did not pass.
    """
    clip, sampler = training.mechanism.clip.of_filter(), training.mechanism.sampler
    units = training.drawn(step)
    assert sampler.population is not None
    absent = sampler.population - len(units)  # of the public number of users; they count as gradient zero
    parameters = trainable(model)
    size = sum(p.numel() for p in parameters.values())
    # (users, d) in float32. Every process holds all users, since the filter compares every pair.
    gradients = torch.zeros(len(units), size, device=model.device)
    losses = []
    for i, unit in enumerate(units):
        # Unclipped; a user whose gradient is not finite is masked to zero.
        people = [training.contribution(unit, step, sequences)]
        if passes is not None and rank() == 0:  # every process computes all of them
            passes.count(people[0])
        budget = None if passes is None else passes.budget
        user = whole_units(people)
        clipped = clipped_gradient_sum(model, user, clip_norm=float("inf"), memory_budget=budget)
        if passes is not None:
            passes.note(clipped.engine, clipped.notice)
        gradients[i] = torch.cat([clipped.gradients[name].flatten() for name in parameters])
        losses.append(clipped.losses[~clipped.masked])
    kept = kept_users(gradients, [unit.name for unit in units], absent, clip, training.key, step)
    # Absent users who are kept add zero to the sum but count in its divisor.
    weights = torch.tensor(kept[: len(units)], dtype=torch.float32, device=model.device)
    mean = weights @ gradients / max(1, sum(kept))  # (n,) @ (n, d) -> (d,)
    # Of the mean: over the public N, not over the number kept, which is a function of the data (Algorithm 3, line 14).
    deviation = training.mechanism.noise_multiplier * training.mechanism.sensitivity / sampler.population
    parts = torch.split(mean, [p.numel() for p in parameters.values()])
    for (name, parameter), part in zip(parameters.items(), parts, strict=True):
        noise = training.source.gaussian(step, name, parameter.shape, deviation, part.device)
        parameter.grad = (part.view(parameter.shape) + noise).to(parameter.dtype)
    if training.watch:
        training.watch(step, {name: p.grad for name, p in parameters.items() if p.grad is not None})
    finite = torch.cat(losses)
    return float(finite.mean()) if finite.numel() else None


def kept_users(
    gradients: torch.Tensor, names: Sequence[str], absent: int, clip: ConcentrationFilter, key: bytes, step: int
) -> list[bool]:
    """Mark the users whom the step averages: first the n present users, then the absent users.

    Args:
        gradients: gradients of the present users, (n, d).
        clip: thresholds and epsilon of the filter.
        step: number of the step, from 0.

    Raises:
        Halted: AboveThreshold did not pass.
    """
    users = len(names) + absent
    # Ordered pairs, each user with itself included, over N.
    score = float(neighbours(gradients, absent, clip.tau).sum()) / users
    if not above_threshold(score, users, clip.above_epsilon, key, step):
        raise Halted(step)
    # Only after the test has passed: a run that halts says nothing else.
    close = neighbours(gradients, absent, 2.0 * clip.tau).tolist()
    identities = [f"user {name}" for name in names] + [f"absent {i}" for i in range(absent)]
    return [
        keyed_uniform(key, f"kept {step}", identity) < keep_probability(int(count), users)
        for identity, count in zip(identities, close, strict=True)
    ]


def neighbours(gradients: torch.Tensor, absent: int, distance: float) -> torch.Tensor:
    """Return, for each user, the number of users within ``distance``, the user included (equation (1) and line 11).

    Args:
        gradients: gradients of the present users, (n, d).
        distance: Euclidean distance.

    Returns:
        The counts, shape (n + absent,). The absent users are last.
    """
    products = torch.zeros(len(gradients), len(gradients), dtype=torch.float64, device=gradients.device)
    # In blocks of columns: a float64 copy of all gradients would take twice their memory.
    for part in torch.split(gradients, max(1, FLOATS_A_BLOCK // max(1, len(gradients))), dim=1):
        products += part.double() @ part.double().T
    squares = products.diagonal()
    # Rounding may leave a squared distance slightly negative, or a user at a distance from itself.
    between = (squares[:, None] + squares[None, :] - 2.0 * products).clamp_min(0.0).fill_diagonal_(0.0)
    from_zero = squares <= distance**2  # (n,): users near those of gradient zero
    counts = (between <= distance**2).sum(1) + absent * from_zero
    of_absent = torch.full((absent,), absent + int(from_zero.sum()), device=gradients.device)
    return torch.cat([counts, of_absent])


# Replacing one user changes at most 2 (N - 1) ordered pairs, and the score is their number over N
# (docs/theory.md#filtered-descent).
SCORE_SENSITIVITY = 2.0


def concentration_threshold(users: int) -> float:
    """Return 4 N / 5. Training continues while the score is at least this value (Algorithm 3, line 9). N is public."""
    check_count("users", users)
    return 0.8 * users


def above_threshold(score: float, users: int, above_epsilon: float, key: bytes, step: int) -> bool:
    """Return whether training continues: AboveThreshold (sparse vector) over the steps of a run (Algorithm 3, line 9).

    Args:
        score: concentration score of this step.
        users: public number N.
        above_epsilon: epsilon that AboveThreshold may spend over the whole run.
        step: number of the step, from 0.
    """
    # The threshold gets one Laplace number for the run, the score one per step, both functions of the key, so that a
    # resumed run asks again with the same noise. At these scales above_epsilon pays for all steps together.
    threshold = concentration_threshold(users) + _laplace(2.0 * SCORE_SENSITIVITY / above_epsilon, key, "threshold")
    return score + _laplace(4.0 * SCORE_SENSITIVITY / above_epsilon, key, f"score {step}") >= threshold


def keep_probability(near: int, users: int) -> float:
    """Return p for a user with ``near`` users within 2 tau: 0 below N / 2, 1 from 2 N / 3 on, else linear (line 12)."""
    return min(1.0, max(0.0, (near - users / 2.0) / (users / 6.0)))  # 2 N / 3 - N / 2 is N / 6


def _laplace(scale: float, key: bytes, name: str) -> float:
    # Neither 0 nor 1, of which one of the logarithms below does not exist.
    u = min(keyed_uniform(key, "above threshold", name) + 2.0**-54, 1.0 - 2.0**-53)
    return -scale * math.log(2.0 * (1.0 - u)) if u > 0.5 else scale * math.log(2.0 * u)
