"""The attacker's gain from more texts of a user: AUROC by number of texts (Kandpal et al. 2024, Figure 10).

Computed from cached statistics; no model is run. numpy only.
"""

from dataclasses import dataclass

import numpy as np

from heldin.attacks.protocol import AGGREGATIONS
from heldin.audit.coarse import brief
from heldin.audit.scored_users import ScoredUsers
from heldin.bounds.roc import auroc

DRAWS = 100  # random choices of each user's texts


@dataclass(frozen=True)
class Knowledge:
    """AUROC of attackers with at most ``texts`` random texts of every user: mean, deviation and quantiles over draws.

    Not an interval for the AUROC: users stay the same, only the attacker's texts are drawn.

    Attributes:
        texts: maximum number of texts known per user.
        mean: mean over the draws.
        deviation: standard deviation over the draws.
        low: 2.5 % quantile.
        high: 97.5 % quantile.
    """

    texts: int
    mean: float
    deviation: float
    low: float
    high: float


def attacker_knowledge(
    table: ScoredUsers,
    *,
    attack: str,
    aggregation: str = "mean",
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Knowledge]:
    """AUROC for m = 1, 2, 4, ... texts and for all.

    Args:
        attack: the attack whose statistics are used.
        aggregation: "mean", "min" or "max" over the known texts.
        draws: number of random choices of texts; the choices of one draw are nested over m.
        seed: seed of the choices; public.
    """
    of_user, values = table.texts[attack, None]
    counts = np.bincount(of_user, minlength=len(table.users))
    most = int(counts.max())
    # Powers of two below the largest number of texts, and that number, at which every draw has all texts.
    known = sorted({*(2**i for i in range(most.bit_length()) if 2**i < most), most})
    place = np.arange(of_user.size) - np.repeat(np.cumsum(counts) - counts, counts)  # of a text among its user's
    generator = np.random.default_rng(seed)
    areas = np.empty((draws, len(known)))
    for draw in range(draws):
        # Sorted by user, in random order within each. One order serves all m, so that more texts include the fewer.
        shuffled = values[np.lexsort((generator.random(values.size), of_user))]
        for j, m in enumerate(known):
            # (texts,) -> (users,); a user with fewer than m texts gives all of them.
            starts = np.cumsum(np.append(0, np.minimum(counts, m)))[:-1]
            areas[draw, j] = auroc(*table.split(AGGREGATIONS[aggregation](shuffled[place < m], starts)))
    return [
        Knowledge(m, *(brief(float(v)) for v in (a.mean(), a.std(), *np.quantile(a, [0.025, 0.975]))))
        for m, a in zip(known, areas.T, strict=True)
    ]
