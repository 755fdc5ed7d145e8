"""Renyi DP (Mironov 2017): another accountant, which is looser than ours but by little."""

import contextlib
import logging
import math
from collections.abc import Iterator

import numpy as np
from dp_accounting import rdp
from scipy import special

from heldin.defenses.accounting.events import PoissonGaussian, UnamplifiedGaussian
from heldin.defenses.accounting.loss_pmf import Array
from heldin.defenses.accounting.step_pld import mixture, to_dp_event

# Orders a of the Renyi divergences that are tried. Fewer orders only loosen the bound.
ORDERS = np.concatenate([np.arange(1.05, 11.0, 0.05), np.arange(11.0, 64.0), [80.0, 96.0, 128.0, 192.0, 256.0]])


def rdp_epsilon(event: PoissonGaussian | UnamplifiedGaussian, steps: int, delta: float) -> float:
    """Return epsilon by Renyi DP, with dp-accounting's conversion."""
    # dp-accounting has no Renyi accountant for mixtures of Gaussians: integrate the divergences numerically.
    if isinstance(event, PoissonGaussian) and event.group_size > 1:
        return float(rdp.compute_epsilon(ORDERS, steps * mixture_rdp(event, ORDERS), delta)[0])
    with _quiet_absl():
        accountant = rdp.RdpAccountant()
        accountant.compose(to_dp_event(event, steps))
        return float(accountant.get_epsilon(delta))


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """Keep dp-accounting's warnings off the terminal."""
    # It prints one for each order that does not converge; leaving these orders out only loosens the bound.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def mixture_rdp(event: PoissonGaussian, orders: Array) -> Array:
    """max over directions of R_a(P, Q), R_a(Q, P) of one step, shape of orders; trapezoid rule, spacing s/4."""
    # The tail of atoms below STEP_TAIL is left out: at most steps * STEP_TAIL of delta, which is not charged here.
    parts = mixture(event)
    s, c = parts.deviation, parts.sensitivities
    # At order a the integrand of component c peaks near a c, and falls like a Gaussian of deviation s about it.
    reach = float(orders.max() * c.max()) + 14.0 * s
    x = np.arange(-reach, reach, s / 4.0)
    log_q = -0.5 * (x / s) ** 2 - math.log(s * math.sqrt(2.0 * math.pi)) + math.log(s / 4.0)
    at_zero = np.log(parts.weights) - c**2 / (2.0 * s**2)
    loss = special.logsumexp(np.multiply.outer(x, c / s**2) + at_zero, axis=1)
    # With p = q e^L: the integrals of p^a q^(1 - a) and of q^a p^(1 - a).
    remove = [float(special.logsumexp(log_q + a * loss)) / (a - 1.0) for a in orders]
    add = [float(special.logsumexp(log_q - (a - 1.0) * loss)) / (a - 1.0) for a in orders]
    return np.maximum(0.0, np.maximum(remove, add))  # quadrature may fall below 0 by its last digits
