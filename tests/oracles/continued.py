"""Slow, obviously right sampling and statistics of continuations: one pass for each token, loops over words."""

import itertools
import zlib

import torch

from tests.oracles.continuations import next_token


def sample(lm, ids, uniform, temperature):
    """Token ids drawn after ``ids``, one for each uniform number, up to the end-of-text token."""
    drawn = []
    for number in uniform:
        below = itertools.accumulate(next_token(lm, [*ids, *drawn], temperature, None))
        token = next(i for i, mass in enumerate(below) if mass > number)
        if token == lm.tokenizer.eos_token_id:
            break
        drawn.append(token)
    return drawn


def uniform_numbers(seed, samples, tokens):
    return torch.rand(samples, tokens, generator=torch.Generator().manual_seed(seed)).tolist()


def coverage(true, sample, n=3):
    """Share of the runs of n words of ``true`` that are in ``sample``; of fewer words they are one run."""
    n = max(1, min(n, len(true)))
    runs = [true[i : i + n] for i in range(len(true) - n + 1)]
    return sum(_contains(sample, run) for run in runs) / len(runs)


def longest_run(true, sample):
    runs = [true[i:j] for i in range(len(true)) for j in range(i + 1, len(true) + 1)]
    return max((len(run) for run in runs if _contains(sample, run)), default=0)


def recall(true, sample):
    left, shared = list(sample), 0
    for word in true:
        if word in left:
            left.remove(word)
            shared += 1
    return shared / len(true)


def statistic(name, true, samples, continuation):
    """One statistic of one cut, by the name of its attack."""
    if name == "coverage":
        return max(coverage(true, sample) for sample in samples)
    if name == "coverage-mean":
        return sum(coverage(true, sample) for sample in samples) / len(samples)
    if name == "longest-run":
        return max(longest_run(true, sample) for sample in samples)
    return sum(recall(true, sample) for sample in samples) / len(samples) * len(zlib.compress(continuation.encode()))


def _contains(sample, run):
    return any(sample[i : i + len(run)] == run for i in range(len(sample) - len(run) + 1))
