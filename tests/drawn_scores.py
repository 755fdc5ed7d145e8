"""Scores of members and others whose law is known: unit Gaussians, mu apart."""

import numpy as np

from heldin.bounds.scores import LabelledScores, labelled


def gaussian_scores(mu, n, seed=0):
    rng = np.random.default_rng(seed)
    return labelled(rng.normal(mu, 1, n), rng.normal(0, 1, n))


def coin_scores(mu, m, seed=0):
    rng = np.random.default_rng(seed)
    member = rng.random(m) < 0.5
    return LabelledScores(rng.standard_normal(m) + mu * member, member)
