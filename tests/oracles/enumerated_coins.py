"""One step of a mechanism on a tiny corpus, every coin enumerated: the exact law of the sum, and its divergences.

Gradients are numbers, the clip norm is 1 and the noise has deviation z. Nothing here knows an accountant.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Text:
    """A text: its author, the entities that it names, its gradient."""

    author: int
    entities: frozenset
    gradient: float


def clipped(value):
    return max(-1.0, min(1.0, value))


def law(rates, total):
    """Probability of each value of ``total(coins)``, coins being a tuple of independent bits of these rates."""
    found = {}
    for coins in itertools.product((False, True), repeat=len(rates)):
        chance = float(np.prod([rate if bit else 1.0 - rate for rate, bit in zip(rates, coins, strict=True)]))
        value = total(coins)
        found[value] = found.get(value, 0.0) + chance
    return found


def text_sampling(texts, rate):
    """Every text is drawn by a coin of its own and clipped alone."""
    return law(
        [rate] * len(texts),
        lambda coins: sum(clipped(t.gradient) for t, drawn in zip(texts, coins, strict=True) if drawn),
    )


def two_level(texts, user_rate, entity_rate, extended_rate, usable=all):
    """Users and entities have coins, a text without entity one of its own; a drawn user's sum is clipped."""
    users = sorted({t.author for t in texts})
    entities = sorted({e for t in texts for e in t.entities})
    plain = [i for i, t in enumerate(texts) if not t.entities]
    rates = [user_rate] * len(users) + [entity_rate] * len(entities) + [extended_rate] * len(plain)

    def total(coins):
        drawn = dict(zip([*(("u", u) for u in users), *entities, *plain], coins, strict=True))
        value = 0.0
        for user in users:
            if drawn["u", user]:
                own = [(i, t) for i, t in enumerate(texts) if t.author == user]
                used = [t for i, t in own if (usable(drawn[e] for e in t.entities) if t.entities else drawn[i])]
                value += clipped(sum(t.gradient for t in used))
        return value

    return law(rates, total)


def divergence(upper, lower, z, epsilon):
    """H_{e^epsilon} of the two noised laws, by the trapezoid rule."""
    values = [*upper, *lower]
    x = np.linspace(min(values) - 9.0 * z, max(values) + 9.0 * z, 6_001)
    p, q = (sum(chance * stats.norm.pdf(x, value, z) for value, chance in side.items()) for side in (upper, lower))
    return float(np.trapezoid(np.maximum(p - np.exp(epsilon) * q, 0.0), x))
