"""The number of bands with the least noise in the optimizer's sums at a given epsilon, chosen from public constants."""

import functools
from dataclasses import dataclass

from heldin.base.errors import InputError
from heldin.defenses.accounting import guarantees as accounting
from heldin.defenses.accounting.events import PoissonGaussian
from heldin.defenses.choices import PREFIX_SUMS, Workload
from heldin.defenses.correlation import banded_square_root, workload_error

MOST_BANDS = 64  # that are tried; each holds a vector of all trained parameters


@dataclass(frozen=True)
class BandsOption:
    """A candidate number of bands.

    Attributes:
        bands: number b of bands.
        noise_multiplier: noise multiplier that meets the target epsilon.
        error: root mean square of the noise in the optimizer's sums over all steps, in sensitivities.
    """

    bands: int
    noise_multiplier: float
    error: float


@functools.lru_cache(maxsize=256)
def bands_option(
    population: int,
    cohort: int,
    steps: int,
    target_epsilon: float,
    delta: float,
    bands: int,
    workload: Workload = PREFIX_SUMS,
) -> BandsOption:
    """Calibrate the noise for ``bands`` bands, and return the option with its error."""
    event = PoissonGaussian(1.0, bands * cohort / population)
    noise = accounting.calibrate(event, -(-steps // bands), delta, target_epsilon)
    return BandsOption(
        bands, noise, noise * workload_error(banded_square_root(bands), steps, workload.momentum, workload.decay)
    )


def best_bands(
    population: int, cohort: int, steps: int, target_epsilon: float, delta: float, workload: Workload = PREFIX_SUMS
) -> BandsOption:
    """Return the option for the power of two with the smallest error. On a tie, return the smallest such power.

    Raises:
        InputError: the cohort is larger than the population.
    """
    most = min(MOST_BANDS, population // cohort, steps)
    if most < 1:
        raise InputError(f"cohort {cohort:,} is larger than the population {population:,}: lower the cohort")
    options = [
        bands_option(population, cohort, steps, target_epsilon, delta, 2**i, workload) for i in range(most.bit_length())
    ]
    return min(options, key=lambda option: option.error)
