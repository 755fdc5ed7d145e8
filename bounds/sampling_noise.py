"""The power that an attack loses if it samples texts and cannot read probabilities.

The model: with unlimited samples, users' scores are N(mu, 1) for members and N(0, 1) for others. Each sample at each
cut adds independent noise, so k samples add a variance of ``noise`` / k to a user's score.
"""

import math

from scipy import special

from heldin.base.errors import InputError
from heldin.bounds.one_run import attack_mu

# Of samia on the example of heldin corpus example --models, six texts a user, three cuts each (docs/endpoints.md).
TYPICAL_NOISE = 40.0


def sampled_auroc(auroc: float, samples: int, noise: float = TYPICAL_NOISE) -> float:
    """Return the AUROC, with ``samples`` samples, of an attack that reaches ``auroc`` with unlimited samples.

    Args:
        auroc: AUROC with unlimited samples, in [0.5, 1).
        samples: number of continuations of each cut.
        noise: variance that one sample of each cut adds to a user's score, as a multiple of the variance among
            non-members with unlimited samples.

    Raises:
        InputError: a number is outside its range.
    """
    if samples < 1:
        raise InputError(f"--samples is {samples}: give at least 1")
    if not (noise >= 0 and math.isfinite(noise)):
        raise InputError(f"--sampling-noise is {noise:g}: give 0 or more")
    return float(special.ndtr(attack_mu(auroc) / math.sqrt(2 * (1 + noise / samples))))
