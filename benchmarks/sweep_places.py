"""The overhead of a batch over its cells, and the gain from more workers and from a Ray cluster.

    PYTHONPATH=. python benchmarks/sweep_places.py [--cells 4] [--steps 150]

All runs use the built-in corpus, one thread per cell, and a new folder. With a filled cache, the cells first run one
after another by ``heldin run``, then as sweeps with one worker and with two. A machine of a Ray cluster starts with its
own empty cache. So two workers on Ray (if it is installed) are compared with two local workers and an empty cache.
Nothing else should run on the machine.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4, help="cells of the sweep")
    parser.add_argument("--steps", type=int, default=150, help="private steps of each cell")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), options.cells, options.steps)


def _measure(folder: Path, cells: int, steps: int) -> None:
    os.environ["HELDIN_CACHE_DIR"] = str(folder / "cache")
    os.environ["OMP_NUM_THREADS"] = "1"
    base = yaml.safe_load((ROOT / "configs/sweeps/built-in.yaml").read_text(encoding="utf-8"))["base"]
    defense = {"kind": "uls", "population": 120, "cohort": 24, "delta": 1.0e-4, "steps": steps, "noise_multiplier": 1.0}
    variants = {f"uls{i}": {"defense": defense, "finetune": {"seed": i, "select": "last"}} for i in range(cells)}
    content = {"base": str((ROOT / "configs/sweeps" / base).resolve()), "variants": variants}

    def swept(name: str, workers: int, *more: str) -> float:
        file = folder / f"{name}.yaml"
        its = {"name": name, **content, "resources": {"workers": workers, "threads": 1}}
        file.write_text(yaml.safe_dump(its, sort_keys=False), encoding="utf-8")
        return _timed("sweep", str(file), "--out", str(folder / name), *more)

    swept("warm", 2)  # fills the cache
    one = swept("one", 1)
    configs = sorted((folder / "one" / "cells").glob("*/*/config.yaml"))
    lone = 0.0
    for number, config in enumerate(configs):
        lone += _timed("run", str(config), "--out", str(folder / "lone" / str(number)))
    two = swept("two", 2)
    # Within one call, since the same cell may take a tenth longer a minute later.
    states = json.loads((folder / "one" / "state.json").read_text(encoding="utf-8"))
    own = sum(its["seconds"] for its in states.values())
    print(f"sweep with one worker: {one:.1f} s, of which its {cells} cells {own:.1f} s: {one / own - 1:+.1%}")
    print(f"the same cells by heldin run: {lone:.1f} s")
    print(f"sweep with two workers: {two:.1f} s, {one / two:.2f} times as fast as one")
    if importlib.util.find_spec("ray") is not None:
        from ray.cluster_utils import Cluster

        os.environ["HELDIN_CACHE_DIR"] = str(folder / "empty")
        empty = swept("empty", 2)
        machine = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
        try:
            on_ray = swept("ray", 2, "--ray-address", machine.address)
        finally:
            machine.shutdown()
        print(f"two workers, empty cache: {empty:.1f} s; on Ray: {on_ray:.1f} s, {on_ray / empty - 1:+.1%}")


def _timed(*words: str) -> float:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "heldin", "--quiet", *words], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"heldin {' '.join(words)}: {done.stderr}")
    return time.monotonic() - started


if __name__ == "__main__":
    main()
