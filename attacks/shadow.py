"""The ideal attacker of Kandpal et al. (2024), Appendix B: shadow models whose training users the attacker knows.

A ceiling against which to compare attacks that need no training. numpy only.
"""

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import InputError


def shadow_likelihood_ratio(
    target: NDArray[np.float64], shadows: NDArray[np.float64], included: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """log N(t; mean in, s) - log N(t; mean out, s) of every user's score t (Carlini et al. 2022, LiRA, section V).

    The means are each user's own, over the shadow models with and without the user. The variance s^2 is pooled over
    users and sides, as they advise for few shadow models.

    Args:
        target: scores of n users under the model under audit, shape (n,).
        shadows: their scores under K shadow models, shape (K, n).
        included: which users each shadow model was trained on, shape (K, n).

    Returns:
        Scores of shape (n,); higher means more likely held in.

    Raises:
        InputError: there are fewer than three shadow models, a user is in all or none of them, or all scores are equal.
    """
    # (K, n) -> (n,): in how many shadow models each user is
    inside = included.sum(axis=0)
    outside = len(included) - inside
    # With two shadow models each user is once in and once out: both means fit exactly, and no degree of freedom is left
    # for the variance.
    if len(included) < 3 or not inside.all() or not outside.all():
        raise InputError("shadow models must be three at least, and every user must be in some and not in others")
    # (K, n) -> (n,)
    with_user = np.where(included, shadows, 0.0).sum(axis=0) / inside
    without = np.where(included, 0.0, shadows).sum(axis=0) / outside
    # Two means per user are estimated, hence the degrees of freedom.
    left = shadows - np.where(included, with_user, without)
    variance = float((left**2).sum() / (shadows.size - 2 * shadows.shape[1]))
    if variance == 0:
        raise InputError("the shadow models give every user the same score: they were not trained")
    # The normalising terms of the two densities are equal, because the variance is shared, and cancel.
    return np.asarray(((target - without) ** 2 - (target - with_user) ** 2) / (2 * variance))
