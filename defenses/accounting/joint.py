"""One epsilon for several trainings on the same users: what all of them together let anybody learn about one user.

Different mechanisms are composed by dp-accounting's privacy loss distributions, which round upwards.
"""

from collections.abc import Sequence

from dp_accounting.pld import pld_privacy_accountant

from heldin.defenses.accounting.events import Event
from heldin.defenses.accounting.guarantees import epsilon
from heldin.defenses.accounting.step_pld import to_dp_event
from heldin.defenses.mechanism import Mechanism

MOST = 100.0  # sum of the epsilons: beyond it no number says anything, and the grid would not fit into memory
WIDTH = 1e-3  # of the grid of privacy losses: coarser than one run's own accounting, as a sum of many runs allows


def composed_epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float | None:
    """Epsilon of every user after all of these trainings together, at this delta.

    Args:
        mechanisms: each with a guarantee for users; they may have trained on the same users, each under its own key.

    Returns:
        An upper bound; None if one of them promises users nothing, has no event that dp-accounting composes, or their
        epsilons add up to more than 100.
    """
    total = 0.0
    # Equal steps of several trainings are one long training: composed once, in seconds and not minutes.
    steps: dict[Event, int] = {}
    for mechanism in mechanisms:
        if mechanism.user_event is None or mechanism.reasons():
            return None
        total += epsilon(mechanism.user_event, mechanism.steps, delta)
        if total > MOST:
            return None
        steps[mechanism.user_event] = steps.get(mechanism.user_event, 0) + mechanism.steps
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=WIDTH)
    for event, count in steps.items():
        composed = to_dp_event(event, count)
        if not accountant.supports(composed):
            return None
        accountant.compose(composed)
    return float(accountant.get_epsilon(delta))
