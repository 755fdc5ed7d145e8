"""Defenses: the mechanism as data, its sampling, clipping, noise and accounting."""
