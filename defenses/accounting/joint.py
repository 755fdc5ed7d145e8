"""One epsilon for several trainings on the same users: what all of them together let anybody learn about one user.

Different mechanisms are composed by dp-accounting's privacy loss distributions, which round upwards.
"""

from collections.abc import Sequence

from dp_accounting.pld import pld_privacy_accountant

from heldin.defenses.accounting.events import to_dp_event
from heldin.defenses.mechanism import Mechanism

WIDTH = 1e-3  # of the grid of privacy losses: coarser than one run's own accounting, as a sum of many runs allows


def composed_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float | None:
    """Epsilon of every user after all of these trainings together, at this delta.

    Args:
        mechanisms: each with a guarantee for users; they may have trained on the same users, each under its own key.
        delta: of the statement.

    Returns:
        An upper bound; None if one of them promises users nothing, or has no event that dp-accounting composes.
    """
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=WIDTH)
    for its in mechanisms:
        event = its.user_event
        if event is None or its.reasons():
            return None
        composed = to_dp_event(event, its.steps)
        if not accountant.supports(composed):
            return None
        accountant.compose(composed)
    return float(accountant.get_epsilon(delta))
