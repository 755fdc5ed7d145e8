"""Slow twins of the composition of losses: in exact integers, and in extended precision."""

import math
from fractions import Fraction

import numpy as np
from scipy import fft

SCALE = 2**400  # masses as integers over this: below 2^-340 a mass of the tests would lose its relative precision


def integer_power(masses, steps: int) -> list[Fraction]:
    """The steps-fold convolution of the masses as exact fractions, by big integers: one digit of `bits` bits a mass."""
    whole = [int(Fraction(float(mass)) * SCALE) for mass in masses]
    bits = steps * (SCALE.bit_length() + len(whole).bit_length()) + 8
    packed = sum(value << (bits * i) for i, value in enumerate(whole))
    power = packed**steps
    count, digit = (len(whole) - 1) * steps + 1, (1 << bits) - 1
    return [Fraction((power >> (bits * i)) & digit, SCALE**steps) for i in range(count)]


def extended_delta(pmf, steps: int, epsilon: float, order: float) -> float:
    """delta(epsilon) of the finite losses of the steps-fold pmf: tilted by `order`, no window, 64-bit mantissas.

    The transform is long enough for all but 1e-30 of the tilted law by its standard deviation, 30 of them each side.
    """
    wide = np.longdouble
    losses = wide(pmf.width) * (pmf.lowest + np.arange(pmf.masses.size)).astype(wide)
    exponents = wide(order) * losses
    top = exponents[pmf.masses > 0].max()
    weights = pmf.masses.astype(wide) * np.exp(exponents - top)
    total = weights.sum()
    weights /= total
    index = np.arange(weights.size).astype(wide)
    mean = (weights @ index) * steps
    spread = np.sqrt((weights @ index**2 - (weights @ index) ** 2) * steps)
    first = max(0, math.floor(mean - 30 * spread))
    last = min((weights.size - 1) * steps, math.ceil(mean + 30 * spread) + 8 * weights.size)
    length = fft.next_fast_len(max(last - first + 1, weights.size), real=True)
    spectrum, power = fft.rfft(weights, length), None
    assert spectrum.dtype == np.clongdouble
    exponent = steps
    while exponent:
        if exponent & 1:
            power = spectrum if power is None else power * spectrum
        spectrum = spectrum * spectrum
        exponent >>= 1
    composed = np.roll(fft.irfft(power, length), -(first % length))[: last - first + 1]
    at = wide(pmf.width) * (pmf.lowest * steps + first + np.arange(composed.size)).astype(wide)
    above = at > epsilon
    log_mgf = wide(steps) * (top + np.log(total))
    terms = composed[above] * np.exp(log_mgf - wide(order) * at[above]) * -np.expm1(epsilon - at[above])
    return float(terms.sum())
