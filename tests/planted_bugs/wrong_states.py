"""Wrong trainers that carry private state from step to step."""

import torch
from transformers import PreTrainedModel

from heldin.white_box.trainers import Trainer
from tests.planted_bugs.plain import (
    Dense,
    Plain,
    clipped_by,
    norm_of,
    raw_gradient,
    stateful,
    to_norm,
    trainable,
)

_KEPT, _CARRIED = 0.9, 0.1


def error_feedback() -> Trainer:
    """What was clipped away of a unit's gradient is added to its next one, as in compressed training."""

    def make() -> Plain:
        left: dict[str, Dense] = {}

        def contributions(model, training, drawn, number, sequences):
            found = []
            for unit in drawn:
                raw = dict(raw_gradient(model, training, unit, number, sequences))
                before = left.get(unit.name, {})
                whole = {name: g + before[name] if name in before else g for name, g in raw.items()}
                kept = to_norm(unit, whole, training.mechanism.clip.norm)
                if kept:
                    left[unit.name] = {name: whole[name] - kept[name] for name in whole}
                    found.append(kept)
            return found

        return Plain(contributions=contributions)

    return stateful(make)


def clean_momentum() -> Trainer:
    """A moving average of the sums before noise is mixed into what is released."""

    def make() -> Plain:
        average: Dense = {}

        def contributions(model, training, drawn, number, sequences):
            found = list(clipped_by(to_norm)(model, training, drawn, number, sequences))
            carried = {name: _CARRIED * a for name, a in average.items()}
            for name in trainable(model):
                total = sum(g[name] for g in found if name in g)
                average[name] = _KEPT * average.get(name, 0.0) + (1.0 - _KEPT) * total
            return [*found, {n: c for n, c in carried.items() if not isinstance(c, float)}]

        return Plain(contributions=contributions)

    return stateful(make)


def adaptive_norm() -> Trainer:
    """The clip norm follows the median norm of who was drawn, without noise; it begins as stated."""

    def make() -> Plain:
        state: list[float] = []

        def contributions(model, training, drawn, number, sequences):
            stated = training.mechanism.clip.norm
            norm = state[-1] if state else stated
            raw = [raw_gradient(model, training, unit, number, sequences) for unit in drawn]
            sizes = sorted(norm_of(g.values()) for u, g in zip(drawn, raw, strict=True) if u.canary is None)
            if sizes:
                state.append(min(stated, _KEPT * norm + (1.0 - _KEPT) * sizes[len(sizes) // 2]))
            return [to_norm(unit, g, norm) for unit, g in zip(drawn, raw, strict=True)]

        return Plain(contributions=contributions)

    return stateful(make)


def last_cohort_again() -> Trainer:
    """A tenth of the last step's sum is left in the buffer: it was not zeroed, only scaled."""

    def make() -> Plain:
        buffer: Dense = {}

        def contributions(model, training, drawn, number, sequences):
            found = list(clipped_by(to_norm)(model, training, drawn, number, sequences))
            old = {name: _CARRIED * tensor for name, tensor in buffer.items()}
            buffer.clear()
            for each in found:
                for name, tensor in each.items():
                    buffer[name] = buffer[name] + tensor if name in buffer else tensor.clone()
            return [*found, old]

        return Plain(contributions=contributions)

    return stateful(make)


def stale_gradients() -> Trainer:
    """An asynchronous worker: what is released is the gradient at the weights of one step before."""

    def make() -> Plain:
        waiting: list[Dense] = []

        def contributions(model, training, drawn, number, sequences):
            now = {name: p.detach().clone() for name, p in trainable(model).items()}
            before = waiting.pop() if waiting else now
            waiting.append(now)
            _put(model, before)
            found = clipped_by(to_norm)(model, training, drawn, number, sequences)
            _put(model, now)
            return found

        return Plain(contributions=contributions)

    return stateful(make)


def quiet_after_a_jump() -> Trainer:
    """A step whose sum is three times the last one's is skipped as a spike."""

    def make() -> Plain:
        sizes: list[float] = []

        def contributions(model, training, drawn, number, sequences):
            found = list(clipped_by(to_norm)(model, training, drawn, number, sequences))
            size = norm_of(t for each in found for t in each.values())
            spike = bool(sizes) and size > 3.0 * sizes[-1] > 0.0
            sizes.append(size)
            return [] if spike else found

        return Plain(contributions=contributions)

    return stateful(make)


def _put(model: PreTrainedModel, weights: Dense) -> None:
    with torch.no_grad():
        for name, parameter in trainable(model).items():
            parameter.copy_(weights[name])
