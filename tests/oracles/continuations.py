"""Slow, obviously right extraction: every continuation enumerated token by token; counts of people in plain loops."""

import itertools
from fractions import Fraction

import numpy as np
import torch


def all_continuations(lm, prefix, k, *, temperature, top_k):
    """Tokens of a continuation -> its probability, of all continuations of k tokens, float64."""
    found = {(): 1.0}
    for _ in range(k):
        longer = {}
        for done, probability in found.items():
            for token, its in enumerate(next_token(lm, [*prefix, *done], temperature, top_k)):
                longer[(*done, token)] = probability * its
        found = longer
    return found


def next_token(lm, tokens, temperature, top_k):
    """The probability of each token of the vocabulary after the start token and ``tokens``."""
    with torch.no_grad():
        logits = lm.model(input_ids=torch.tensor([[lm.start_token, *tokens]])).logits[0, -1].double().numpy()
    least = -np.inf if top_k is None else sorted(logits)[-min(top_k, len(logits))]
    weights = [np.exp((its - logits.max()) / temperature) if its >= least else 0.0 for its in logits]
    return np.array(weights) / sum(weights)


def emits(probability, queries, least):
    """1 - (1 - p_z)^n >= p, in fractions."""
    return 1 - (1 - Fraction(probability)) ** queries >= Fraction(least)


def stands_in_others(windows, prefix, training):
    """For (user, tokens) windows whether the suffix is part of an (owners, tokens) text that is not the user's."""
    return [
        any(user not in owners and contains(text, its[prefix:]) for owners, text in training) for user, its in windows
    ]


def contains(text, part):
    """Whether ``part`` is a run of ``text``."""
    return any(list(text[i : i + len(part)]) == list(part) for i in range(len(text) - len(part) + 1))


def people(rows, users, queries, least):
    """Users with a (user, probability) row that so many queries emit; None for a text that is too short."""
    emitted = {user for user, its in rows if its is not None and emits(its, queries, least)}
    return len(emitted.intersection(users))


def every(vocabulary, k):
    """All runs of k tokens."""
    return list(itertools.product(range(vocabulary), repeat=k))
