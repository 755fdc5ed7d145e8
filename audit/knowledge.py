"""How much of a user the attacker knows: AUROC over the number of the user's texts (Kandpal et al. 2024, Figure 10).

From cached statistics; no model is run. numpy only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.scoring import TextStatistic
from audit.roc import auroc

DRAWS = 100
_REDUCTIONS: Mapping[str, Callable[..., NDArray[np.float64]]] = {
    "mean": np.nanmean,
    "min": np.nanmin,
    "max": np.nanmax,
}


@dataclass(frozen=True)
class Knowledge:
    """AUROC of attackers with at most ``texts`` random texts of every user: mean, deviation and quantiles over draws.

    Not an interval for the AUROC: users stay the same, only the attacker's texts are drawn.
    """

    texts: int
    mean: float
    deviation: float
    low: float
    high: float


def attacker_knowledge(
    statistics: Sequence[TextStatistic],
    member: Mapping[str, bool],
    *,
    attack: str,
    aggregation: str = "mean",
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Knowledge]:
    """AUROC for m = 1, 2, 4, ... texts and for all.

    Args:
        statistics: of every text of the users in ``member``.
        member: user to whether held in.
        attack: whose statistics.
        aggregation: "mean", "min" or "max" over the texts that are known.
        draws: random choices of texts; the choices of one draw are nested over m.
        seed: of the choices; public.
    """
    table, held_in = _table(statistics, member, attack)
    most = table.shape[1]
    counts = sorted({*(2**i for i in range(most.bit_length()) if 2**i < most), most})
    generator = np.random.default_rng(seed)
    areas = np.empty((draws, len(counts)))
    for draw in range(draws):
        order = np.argsort(np.where(np.isnan(table), 2.0, generator.random(table.shape)), axis=1)
        shuffled = np.take_along_axis(table, order, axis=1)
        for j, count in enumerate(counts):
            scores = _REDUCTIONS[aggregation](shuffled[:, :count], axis=1)
            areas[draw, j] = auroc(scores[held_in], scores[~held_in])
    return [
        Knowledge(m, float(a.mean()), float(a.std()), *map(float, np.quantile(a, [0.025, 0.975])))
        for m, a in zip(counts, areas.T, strict=True)
    ]


def _table(
    statistics: Sequence[TextStatistic], member: Mapping[str, bool], attack: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Statistics (users, most texts of a user), NaN where a user has fewer; and who is held in."""
    by_user: dict[str, list[float]] = {user: [] for user in member}
    for s in statistics:
        if s.attack == attack and s.user in by_user:
            by_user[s.user].append(s.value)
    table = np.full((len(by_user), max(map(len, by_user.values()), default=0)), np.nan)
    for row, values in zip(table, by_user.values(), strict=True):
        row[: len(values)] = values
    return table, np.array(list(member.values()), dtype=np.bool_)
