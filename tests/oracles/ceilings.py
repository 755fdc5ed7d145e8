"""The highest true-positive rate and AUROC of two guarantees in closed form."""

import math

from scipy import special


def gaussian_tpr(mu: float, fpr: float) -> float:
    """Phi(Phi^{-1}(fpr) + mu): the highest TPR under mu-GDP."""
    return float(special.ndtr(special.ndtri(fpr) + mu))


def gaussian_auroc(mu: float) -> float:
    """Phi(mu / sqrt 2): the area under the mu-GDP ROC curve."""
    return float(special.ndtr(mu / math.sqrt(2.0)))


def epsilon_delta_tpr(epsilon: float, delta: float, fpr: float) -> float:
    """min(e^eps x + delta, 1 - e^-eps (1 - delta - x), 1): the highest TPR at FPR x under (epsilon, delta) alone.

    Kairouz, Oh, Viswanath 2015, Theorem 2.1.
    """
    rising = math.exp(min(epsilon, 700.0)) * fpr + delta  # e^710 is no double
    return min(rising, 1.0 - math.exp(-epsilon) * (1.0 - delta - fpr), 1.0)


def epsilon_delta_auroc(epsilon: float, delta: float) -> float:
    """1 - (1 - delta)^2 / (1 + e^eps): the area under that curve."""
    return 1.0 - (1.0 - delta) ** 2 / (1.0 + math.exp(min(epsilon, 700.0)))
