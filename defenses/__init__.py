"""Defenses: the mechanism as data, with its sampling, clipping, noise and accounting."""
