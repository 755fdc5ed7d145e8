"""The highest ROC curve of any attacker, as data: its area, its points, and the curve of (epsilon, delta)-DP.

The module does not use the accountant, because an audit of a stated (epsilon, delta) needs no privacy-loss
distribution.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from heldin.base.errors import InputError

Array = npt.NDArray[np.float64]

_PASSES = 40  # of whole arrays; the point-by-point scan finishes what they leave


@dataclass(frozen=True)
class RocCeiling:
    """A concave, piecewise linear ROC curve.

    Its vertices ``fpr`` and ``tpr``, shape (n,), ascend from FPR 0 to (1, 1).
    """

    fpr: Array
    tpr: Array

    def tpr_at(self, fpr: float) -> float:
        """Return the highest TPR that any attacker reaches at this FPR in [0, 1]."""
        if not 0.0 <= fpr <= 1.0:
            raise InputError(f"false positive rate {fpr} is outside [0, 1]: give a number from 0 to 1")
        return float(np.interp(fpr, self.fpr, self.tpr))

    def fpr_at(self, tpr: float) -> float:
        """Return the smallest FPR at which an attacker can reach this TPR in [0, 1]."""
        if not 0.0 <= tpr <= 1.0:
            raise InputError(f"true positive rate {tpr} is outside [0, 1]: give a number from 0 to 1")
        first = int(np.searchsorted(self.tpr, tpr))  # first vertex at or above tpr
        if first == 0:
            return float(self.fpr[0])
        rise = self.tpr[first] - self.tpr[first - 1]
        return float(self.fpr[first] - (self.fpr[first] - self.fpr[first - 1]) * (self.tpr[first] - tpr) / rise)

    @property
    def auroc(self) -> float:
        """Return the area under the curve. No attacker's expected AUROC is above this area."""
        return float(np.trapezoid(self.tpr, self.fpr))


def epsilon_delta_ceiling(epsilon: float, delta: float) -> RocCeiling:
    """Return the ceiling of (epsilon, delta)-DP: (0, delta), the anti-diagonal bend, (1 - delta, 1), (1, 1).

    The source is Kairouz, Oh, Viswanath 2015, Theorem 2.1.
    """
    if not 0.0 <= delta < 1.0:
        raise InputError(f"delta {delta} is outside [0, 1): give a number of at least 0 and below 1")
    bend = (1.0 - delta) * float(special.expit(-epsilon))  # (1 - delta) / (1 + e^epsilon), without overflow
    return RocCeiling(np.array([0.0, bend, 1.0 - delta, 1.0]), np.array([delta, 1.0 - bend, 1.0, 1.0]))


def symmetrised(ceiling: RocCeiling) -> RocCeiling:
    """Return the concave hull of the curve and its reflection (x, y) -> (1 - y, 1 - x), which is never below the curve.

    A one-run f-DP test needs such a symmetric curve (docs/theory.md#one-run-curve-test).
    """
    x = np.concatenate([ceiling.fpr, 1.0 - ceiling.tpr])
    y = np.concatenate([ceiling.tpr, 1.0 - ceiling.fpr])
    order = np.lexsort((-y, x))  # by x, the highest y of each first
    x, y = x[order], y[order]
    highest = np.append(True, x[1:] > x[:-1])  # of each x
    x, y = x[highest], y[highest]
    for _ in range(_PASSES):  # a point on or below the line between its neighbours is no corner of the hull
        above = (y[1:-1] - y[:-2]) * (x[2:] - x[1:-1]) > (y[2:] - y[1:-1]) * (x[1:-1] - x[:-2])
        if above.all():
            return RocCeiling(x, np.maximum.accumulate(y))
        kept = np.concatenate([[True], above, [True]])
        x, y = x[kept], y[kept]
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(hull) > 1 and _turn(hull[-2], hull[-1], point) >= 0.0:
            hull.pop()
        hull.append(point)
    fpr, tpr = np.array(hull).T
    return RocCeiling(fpr, np.maximum.accumulate(tpr))


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
