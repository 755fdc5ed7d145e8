"""Slow, obviously right round of ELS or ULS on the mean: one unit at a time. Charles et al., Algorithms 1 and 2."""

import math

import numpy as np


def naive_step(theta, units, noise, clip_norm, learning_rate, divisor):
    """theta (d,); units: of each drawn unit its chosen examples, (d,) each; noise (d,), of deviation sigma."""
    total = np.zeros_like(theta)
    for examples in units:
        gradient = sum((theta - x for x in examples), start=np.zeros_like(theta)) / len(examples)
        norm = math.sqrt(sum(g * g for g in gradient))
        total += gradient if norm <= clip_norm else gradient * (clip_norm / norm)
    return theta - learning_rate * (total + clip_norm * noise) / divisor
