"""Read an event that another package declares into a one-step event that heldin's accountant composes.

heldin refuses an event for which its accountant has no theorem, so heldin itself computes every epsilon that it prints.
"""

from dp_accounting import dp_event

from heldin.base.errors import InputError
from heldin.defenses.accounting.events import PoissonGaussian

_READ = "a GaussianDpEvent, a PoissonSampledDpEvent of one, or a SelfComposedDpEvent of these"


def declared_step(event: object, steps: int) -> PoissonGaussian:
    """Return one step of a run with a declared event.

    Args:
        event: the event of the whole run, composed ``steps`` times. For a run of one step, the function also accepts
            the event of the step.

    Raises:
        InputError: the event is not a dp-accounting event, heldin's accountant cannot read it, or it has another number
            of steps.
    """
    if not isinstance(event, dp_event.DpEvent):
        raise InputError(f"dp_event is a {type(event).__name__}, not an event of dp-accounting: give {_READ}")
    single, count = event, 1
    if isinstance(event, dp_event.SelfComposedDpEvent):
        single, count = event.event, event.count
    if count != steps:
        raise InputError(
            f"dp_event composes {count:,} steps, but the run takes {steps:,}: declare one event for all steps"
        )
    rate = 1.0
    if isinstance(single, dp_event.PoissonSampledDpEvent):
        single, rate = single.event, single.sampling_probability
    if isinstance(single, dp_event.NoOpDpEvent):
        raise InputError("dp_event is a NoOpDpEvent, but the steps release gradients: declare the event of the steps")
    # Without noise: the plan is built, and says that there is no guarantee.
    if isinstance(single, dp_event.NonPrivateDpEvent):
        return PoissonGaussian(0.0, rate)
    if not isinstance(single, dp_event.GaussianDpEvent):
        raise InputError(f"heldin's accountant does not read a {type(single).__name__}: declare {_READ}")
    return PoissonGaussian(float(single.noise_multiplier), float(rate))
