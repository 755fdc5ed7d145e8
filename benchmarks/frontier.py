"""Time and peak memory of a clipped step, divided by plain training's, for each engine, cohort and group size.

`python benchmarks/frontier.py`. Each cell runs in its own process. Memory is the peak resident set minus the memory
before the first step (model, tokens, libraries). Time is the median of a few steps after one warm-up step. The last
part fits time = a + b * records; its residual shows how linear the cost is.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ENGINES = ("plain", "auto", "materialise", "ghost", "loop")


def measure(engine: str, units: int, records: int, positions: int, hidden: int, rounds: int) -> dict[str, float]:
    """Return the seconds and bytes of one step in this process."""
    import torch
    from uls_step import new_model, new_units, plain_step

    from heldin.defenses.gradients.per_unit_gradients import UnitBatch, clipped_gradient_sum

    torch.set_num_threads(1)
    model, batch = new_model(hidden=hidden), new_units(units, records, positions)

    def step(batch: UnitBatch) -> None:
        if engine == "plain":
            plain_step(model, batch)
        else:
            clipped_gradient_sum(model, batch, clip_norm=1.0, engine=engine)

    step(new_units(1, 1, 8))  # libraries load their code at the first step
    model.zero_grad(set_to_none=True)
    before = _held()
    times = []
    for _ in range(rounds + 1):
        began = time.process_time()
        step(batch)
        times.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(times[1:]), "bytes": peak - before}


def _held() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def in_process(*arguments: object) -> dict[str, float]:
    """Return the result of ``measure`` in a new process."""
    command = [sys.executable, __file__, "--cell", json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.cell:
        print(json.dumps(measure(*json.loads(chosen.cell))))
        return
    shape = (chosen.positions, chosen.hidden, chosen.rounds)
    print(f"{'cohort':>7}{'group':>7}  " + "".join(f"{e + ' time':>18}{'memory':>9}" for e in ENGINES[1:]))
    autos = []
    for units, records in ((4, 4), (8, 4), (16, 4), (32, 4), (64, 4), (16, 1), (16, 2), (16, 8), (16, 16)):
        cells = {e: in_process(e, units, records, *shape) for e in ENGINES}
        plain = cells["plain"]
        ratios = [(c["seconds"] / plain["seconds"], c["bytes"] / plain["bytes"]) for c in list(cells.values())[1:]]
        print(f"{units:>7}{records:>7}  " + "".join(f"{t:>18.2f}{m:>9.2f}" for t, m in ratios), flush=True)
        autos.append((units * records, cells["auto"]["seconds"]))
    counts, seconds = np.array(autos).T
    slope, intercept = np.polyfit(counts, seconds, 1)
    rest = np.abs(seconds - (intercept + slope * counts)) / seconds
    print(f"auto: {1e3 * intercept:.1f} ms + {1e3 * slope:.3f} ms a record; off the line by at most {rest.max():.0%}")


if __name__ == "__main__":
    main()
