"""One step's draw, from the start of a run."""

from heldin.defenses.samplers import Draws


def draw(sampler, key, step, identities):
    """Indices of the units that take part in ``step``."""
    return Draws(sampler, key, identities, step + 1).at(step)
