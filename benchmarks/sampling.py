"""Sampling of units by Poisson coins over a whole run: by gaps, compared with one digest per unit and step.

`PYTHONPATH=. python benchmarks/sampling.py --units 1000000 --steps 1000 --cohort 1000`. Prints seconds and memory.
"""

import argparse
import json
import resource
import time

from heldin.base.coins import keyed_uniform, seed_key
from heldin.defenses.samplers import Draws, PoissonSampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--cohort", type=float, default=1_000)
    its = parser.parse_args()
    names, rate, key = [f"record {i}" for i in range(its.units)], its.cohort / its.units, seed_key(0)
    start = time.perf_counter()
    each = sum(keyed_uniform(key, "sampling 0", name) < rate for name in names)
    asked = time.perf_counter() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    draws = Draws(PoissonSampler(rate=rate), key, names, its.steps)
    start = time.perf_counter()
    drawn = len(draws.at(0))
    first = time.perf_counter() - start
    for step in range(1, its.steps):
        drawn += len(draws.at(step))
    whole = time.perf_counter() - start
    found = {
        "one step by a digest of each unit": round(asked, 3),
        "cohort of it": each,
        "first step by gaps": round(first, 3),
        "mean step by gaps": round(whole / its.steps, 5),
        "drawn": drawn,
        "ratio": round(asked / (whole / its.steps)),
        "bytes a unit": round(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / its.units),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
