"""Wrong trainers whose noise is too regular as a whole: its numbers are as stated, and a function of many is fixed."""

import math

import torch

from tests.planted_bugs.plain import Dense, Plain, keyed, norm_of, trainable

_RANK = 8


def centred() -> Plain:
    """Each tensor's noise has mean zero, as data that are standardised."""
    return _of(lambda drawn, deviation: drawn - drawn.mean())


def centred_rows() -> Plain:
    """Each row of a matrix, as LayerNorm does it."""
    return _of(lambda drawn, deviation: drawn - drawn.mean(dim=-1, keepdim=True) if drawn.dim() > 1 else drawn)


def centred_columns() -> Plain:
    """Each column of a matrix."""
    return _of(lambda drawn, deviation: drawn - drawn.mean(dim=0, keepdim=True) if drawn.dim() > 1 else drawn)


def sphere() -> Plain:
    """Each tensor's noise has exactly the norm that it has on average."""
    return _of(lambda drawn, deviation: drawn * (deviation * math.sqrt(drawn.numel()) / drawn.norm()))


def sphere_rows() -> Plain:
    """The same of each row of a matrix."""

    def change(drawn, deviation):
        norm = deviation * math.sqrt(drawn.shape[-1])
        return drawn * (norm / drawn.norm(dim=-1, keepdim=True)) if drawn.dim() > 1 else drawn

    return _of(change)


def whole_sphere() -> Plain:
    """The same of all tensors together."""

    def whole(noise, summed, deviation):
        norm = deviation * math.sqrt(sum(z.numel() for z in noise.values()))
        return {name: z * (norm / norm_of(noise.values())) for name, z in noise.items()}

    return Plain(whole=whole)


def off_the_sum() -> Plain:
    """Noise orthogonal to the gradient, which it is not to disturb."""
    return Plain(whole=lambda noise, summed, deviation: _off(noise, summed))


class OffTheWeights(Plain):
    """Noise orthogonal to the weights."""

    def __call__(self, model, training, number, sequences):
        weights = {name: p.detach().clone() for name, p in trainable(model).items()}
        Plain(whole=lambda noise, summed, deviation: _off(noise, weights))(model, training, number, sequences)


def off_the_last() -> Plain:
    """Noise orthogonal to what was drawn for the step before, tensor by tensor."""

    def noise(training, number, name, summed, deviation):
        drawn = keyed(training, number, name, summed, deviation)
        if number == 0:
            return drawn
        last = noise(training, number - 1, name, summed, deviation)
        return _off({name: drawn}, {name: last})[name]

    return Plain(noise=noise)


def low_rank() -> Plain:
    """Noise of a matrix as the product of two factors that stay the same, around noise of rank 8."""

    def noise(training, number, name, summed, deviation):
        drawn = keyed(training, number, name, summed, deviation)
        if drawn.dim() < 2 or min(drawn.shape) <= _RANK:
            return drawn
        fixed = keyed(training, 0, f"basis of {name}", torch.empty(drawn.shape[-1], _RANK), 1.0)
        basis = torch.linalg.qr(fixed).Q
        return drawn @ basis @ basis.T * math.sqrt(drawn.shape[-1] / _RANK)

    return Plain(noise=noise)


def stratified() -> Plain:
    """One number from each of n strata of equal probability, in random order."""

    def change(drawn, deviation):
        flat = torch.special.ndtr(drawn.double().flatten() / deviation)
        order = flat.argsort().argsort()
        inside = torch.frac(flat * 2**20)  # what is left of a uniform number, as good as one of its own
        spread = torch.special.ndtri((order + inside.clamp(1e-6, 1.0 - 1e-6)) / flat.numel())
        return (spread * deviation).float().view(drawn.shape)

    return _of(change)


def _off(noise: Dense, directions: Dense) -> Dense:
    """The noise without what is along the directions, all tensors together."""
    square = norm_of(directions.values()) ** 2
    along = sum(float((z.double() * directions[name].double()).sum()) for name, z in noise.items())
    return {name: z - along / square * directions[name] for name, z in noise.items()} if square > 0.0 else noise


def _of(change) -> Plain:
    def noise(training, number, name, summed, deviation):
        return change(keyed(training, number, name, summed, deviation), deviation)

    return Plain(noise=noise)
