"""Slow, obviously right divergences of mixtures of Markov chains: every sequence, every probability a product."""

import itertools
import math


def naive_probability(chain, tokens):
    probability = chain.initial[tokens[0]]
    for last, following in itertools.pairwise(tokens):
        probability *= chain.transitions[last][following]
    return probability


def naive_divergences(pair, alpha):
    """KL(P || Q), chi2(P || Q) and T at alpha_u, from their definitions (Kandpal et al., appendix A)."""
    kl = squares = statistic = 0.0
    for tokens in itertools.product(range(pair.chains[0].initial.size), repeat=pair.length):
        each = [naive_probability(chain, tokens) for chain in pair.chains]
        p = sum(weight * its for weight, its in zip(pair.p, each, strict=True))
        q = sum(weight * its for weight, its in zip(pair.q, each, strict=True))
        kl += p * math.log(p / q)
        squares += p * p / q
        statistic += p * math.log((alpha * p + (1 - alpha) * q) / q)
    return kl, squares - 1, statistic


def chain_rule_kl(one, other, length):
    """KL(D_u || D_v) of two chains: that of the first token, and of each next one given the last."""
    present, total = list(one.initial), 0.0
    for t in range(length):
        if t == 0:
            total += sum(a * math.log(a / b) for a, b in zip(one.initial, other.initial, strict=True))
            continue
        for state, chance in enumerate(present):
            rows = zip(one.transitions[state], other.transitions[state], strict=True)
            total += chance * sum(a * math.log(a / b) for a, b in rows)
        present = [
            sum(c * row[i] for c, row in zip(present, one.transitions, strict=True)) for i in range(len(present))
        ]
    return total
