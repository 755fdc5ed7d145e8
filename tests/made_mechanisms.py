"""Mechanisms of each kind, as tests vary them."""

from heldin.defenses.choices import ConstantDivisor, FlatClip
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler, ShuffledSampler


def uls(**changes):
    fields = {
        "unit": "user",
        "sampled": "user",
        "sampler": PoissonSampler.of(population=1024, cohort=16),
        "group_size": 8,
        "clip": FlatClip(norm=0.5),
        "noise_multiplier": 0.92826,
        "steps": 1000,
        "delta": 1e-6,
        "divisor": ConstantDivisor(value=16),
    }
    return Mechanism(**{**fields, **changes})


def els(**changes):
    return uls(
        **{
            "sampled": "example",
            "sampler": PoissonSampler(rate=64 / (32 * 1024)),
            "group_size": 32,
            "noise_multiplier": 2.52795,
        }
        | changes
    )


def example(**changes):
    return uls(**{"unit": "example", "sampled": "example", "group_size": 1} | changes)


def shuffled(**changes):
    return uls(**{"sampler": ShuffledSampler(population=1024, cohort=16), "adjacency": "zero_out"} | changes)
