"""Wrong trainers whose noise is wrong somewhere: in one row, in one kind of tensor, between tensors, between steps."""

import math

import torch

from tests.planted_bugs.plain import Plain, keyed

EMBEDDING = "transformer.wte.weight"  # of GPT-Neo
_TILE, _PERIOD = 256, 3


def bare_row() -> Plain:
    """The last row of the token embedding was added when the vocabulary grew, after the noise was laid out."""

    def noise(training, number, name, summed, deviation):
        drawn = keyed(training, number, name, summed, deviation).clone()
        if name == EMBEDDING:
            drawn[-1] = 0.0
        return drawn

    return Plain(noise=noise)


def tiled() -> Plain:
    """Noise is drawn once as a block and repeated over the tensor, to save time."""

    def noise(training, number, name, summed, deviation):
        block = keyed(training, number, name, torch.empty(_TILE), deviation)
        return block.repeat(-(-summed.numel() // _TILE))[: summed.numel()].view(summed.shape)

    return Plain(noise=noise)


def where_the_gradient_is() -> Plain:
    """Sparse gradients of look-up tables: rows that no text touched are not in the sum, and get no noise."""
    return _masked(lambda summed: (summed != 0).any(dim=-1, keepdim=True) if summed.dim() > 1 else summed == summed)


def none_on_vectors() -> Plain:
    """Noise hangs on the parameter group that has weight decay: biases and LayerNorm are in the other."""
    return _masked(lambda summed: torch.full_like(summed, summed.dim() > 1, dtype=torch.bool))


def one_seed_a_shape() -> Plain:
    """A generator seeded by step and shape: query, key and value matrices get the same noise."""

    def noise(training, number, name, summed, deviation):
        return keyed(training, number, str(tuple(summed.shape)), summed, deviation)

    return Plain(noise=noise)


def half_precision() -> Plain:
    """Noise drawn in bfloat16 and added to a sum in full precision, whose low bits it does not cover."""
    return _of(lambda drawn, deviation: drawn.to(torch.bfloat16).float())


def cut_off() -> Plain:
    """Noise clamped at three deviations, 'for stability': what lies further off has one explanation only."""
    return _of(lambda drawn, deviation: drawn.clamp(-3.0 * deviation, 3.0 * deviation))


def laplace_embedding() -> Plain:
    """Laplace noise of the same variance in the embedding, for which a delta of zero was wanted."""

    def noise(training, number, name, summed, deviation):
        drawn = keyed(training, number, name, summed, 1.0)
        if name == EMBEDDING:
            uniform = torch.special.ndtr(drawn.double()).clamp(1e-12, 1.0 - 1e-12) - 0.5
            drawn = (-uniform.sign() * torch.log1p(-2.0 * uniform.abs()) / math.sqrt(2.0)).float()
        return drawn * deviation

    return Plain(noise=noise)


def noise_of_three_steps() -> Plain:
    """A bank of noise that is made before training and gone through again and again."""

    def noise(training, number, name, summed, deviation):
        return keyed(training, number % _PERIOD, name, summed, deviation)

    return Plain(noise=noise)


def differences() -> Plain:
    """Correlated noise, z_t - z_(t-1), under an accountant for independent noise; scaled to the stated deviation."""

    def noise(training, number, name, summed, deviation):
        now = keyed(training, number, name, summed, deviation)
        last = keyed(training, number - 1, name, summed, deviation) if number else None
        return now if last is None else (now - last) / math.sqrt(2.0)

    return Plain(noise=noise)


def by_the_largest_norm() -> Plain:
    """Noise scaled to the largest value that the sum has, in place of the stated bound."""

    def noise(training, number, name, summed, deviation):
        size = float(summed.norm())
        return keyed(training, number, name, summed, deviation) * (min(1.0, size / 0.01) if size > 0 else 1.0)

    return Plain(noise=noise)


def last_number_zero() -> Plain:
    """Normals made in pairs: in a tensor of odd length the last one is left zero, here every tensor's."""

    def noise(training, number, name, summed, deviation):
        drawn = keyed(training, number, name, summed, deviation).clone()
        drawn.view(-1)[-1] = 0.0
        return drawn

    return Plain(noise=noise)


def _masked(mask) -> Plain:
    def noise(training, number, name, summed, deviation):
        return keyed(training, number, name, summed, deviation) * mask(summed)

    return Plain(noise=noise)


def _of(change) -> Plain:
    def noise(training, number, name, summed, deviation):
        return change(keyed(training, number, name, summed, deviation), deviation)

    return Plain(noise=noise)
