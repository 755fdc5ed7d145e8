"""The ceiling of every attacker under a privacy-loss distribution: the highest ROC curve, its area, its points.

An attacker who decides between "in" and "out" has TPR <= ceiling(FPR) (docs/theory.md#attacker-ceilings), where the
ceiling is the ROC of the dominating pair, the pointwise minimum over both add/remove directions. It bounds each user's
attacker; it bounds the ROC pooled over users only if in or out was assigned at random.
"""

import math

import numpy as np
import numpy.typing as npt

from heldin.defenses.accounting.events import Event, FilteredGaussian
from heldin.defenses.accounting.guarantees import attack_distribution, epsilon
from heldin.defenses.accounting.loss_pmf import LossPair, LossPmf
from heldin.defenses.accounting.roc_ceiling import RocCeiling, epsilon_delta_ceiling

Array = npt.NDArray[np.float64]

_LOWEST_LOSS = -12.0  # below it, FFT noise times e^{-loss} would matter; the other direction covers that end


def ceiling_of(event: Event, steps: int, delta: float) -> RocCeiling:
    """The ceiling of a run: its area is at most about 5e-4 above the exact ceiling's, never below it.

    delta only sets how fine the loss grid is at least. Without noise any TPR can be reached.
    """
    if event.noise_multiplier == 0.0:
        return RocCeiling(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    if isinstance(event, FilteredGaussian):
        return epsilon_delta_ceiling(epsilon(event, steps, delta), delta)
    return pld_ceiling(attack_distribution(event, steps, delta, _area))


def pld_ceiling(pair: LossPair) -> RocCeiling:
    """Pointwise minimum of the two directions' ROC curves, exact between the vertices: never below the true ceiling."""
    remove, add = _remove_roc(pair.remove), _add_roc(pair.add)
    fpr = np.union1d(remove[0], add[0])
    gap = np.interp(fpr, *remove) - np.interp(fpr, *add)
    # The curves cross between vertices too: without these points the minimum would be cut short, below the ceiling.
    crossing = np.flatnonzero(gap[:-1] * gap[1:] < 0.0)
    share = gap[crossing] / (gap[crossing] - gap[crossing + 1])
    fpr = np.union1d(fpr, fpr[crossing] + share * np.diff(fpr)[crossing])
    return RocCeiling(fpr, np.minimum(np.interp(fpr, *remove), np.interp(fpr, *add)))


def _area(pair: LossPair) -> float:
    return pld_ceiling(pair).auroc


def _remove_roc(pmf: LossPmf) -> tuple[Array, Array]:
    """(FPR, TPR) vertices of calling "in" on the largest losses first; upper = in, lower = out."""
    # Beyond the last loss kept, l, the curve is below its tangent of slope e^l, which reaches TPR 1 at
    # FPR + (1 - TPR) e^-l.
    losses, masses = _descending(pmf)
    tpr = np.append(pmf.infinity, pmf.infinity + np.cumsum(masses))
    fpr = np.append(0.0, np.cumsum(masses * np.exp(-losses)))
    full = fpr[-1] + max(0.0, 1.0 - tpr[-1]) * math.exp(-float(losses[-1]))
    return _ascending(np.append(fpr, full), np.append(tpr, 1.0))


def _add_roc(pmf: LossPmf) -> tuple[Array, Array]:
    """(FPR, TPR) vertices from the other end; upper = out.

    Calling "out" on the largest losses, of masses U under out and L under in, leaves FPR = 1 - U and TPR = 1 - L.
    Before the first vertex the curve is at most that vertex's TPR.
    """
    # 1 - U and 1 - L lose digits where they are small and the curve is steep, so every vertex moves up and to the left
    # by the most that n additions may have rounded.
    losses, masses = _descending(pmf)
    rounding = (masses.size + 1) * 2.0**-52
    upper = np.append(pmf.infinity, pmf.infinity + np.cumsum(masses))
    lower = np.append(0.0, np.cumsum(masses * np.exp(-losses)))
    fpr, tpr = 1.0 - upper[::-1] - rounding, 1.0 - lower[::-1] + rounding
    return _ascending(np.append(fpr, 1.0), np.append(tpr, 1.0))


def _descending(pmf: LossPmf) -> tuple[Array, Array]:
    losses, masses = pmf.losses[::-1], pmf.masses[::-1]
    kept = losses >= _LOWEST_LOSS
    return losses[kept], masses[kept]


def _ascending(fpr: Array, tpr: Array) -> tuple[Array, Array]:
    """The vertices inside the unit square, from FPR 0 (at the first vertex's TPR) to (1, 1)."""
    inside = (fpr >= 0.0) & (fpr <= 1.0)
    fpr, tpr = fpr[inside], np.maximum.accumulate(np.clip(tpr[inside], 0.0, 1.0))
    return np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([tpr[:1], tpr, [1.0]])
