"""Build a store of many short records, open it and sample from it: peak memory and cost per record.

`python benchmarks/corpus_build.py --records 1000000 10000000`. Each size runs in its own process. Records come from a
generated JSON-lines file, so reading and checking are included.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from heldin.corpus.build import build_store
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns

WORDS = [f"word{i}" for i in range(200)]


def measure(records: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        folder = Path(name)
        dice = random.Random(0)
        with (folder / "mail.jsonl").open("w", encoding="utf-8") as stream:
            for i in range(records):
                user = f"user{dice.randrange(records // 20)}"
                stream.write(json.dumps({"user": user, "text": " ".join(dice.choices(WORDS, k=12)), "id": i}) + "\n")
        began = time.monotonic()
        store = build_store(Json(folder / "mail.jsonl", Columns(id="id")), folder)
        built = time.monotonic() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        began = time.monotonic()
        store = build_store(Json(folder / "mail.jsonl", Columns(id="id")), folder)
        reopened = time.monotonic() - began
        began = time.monotonic()
        store = type(store)(store.folder)
        opened = time.monotonic() - began
        began = time.monotonic()
        sampled = sum(map(len, store.sample(5_000, 10, np.random.default_rng(0))))
        rate = sampled / (time.monotonic() - began)
        return {
            "records": records,
            "build_s": built,
            "us_per_record": 1e6 * built / records,
            "peak_gib": peak,
            "open_s": opened,
            "open_with_hash_s": reopened,
            "sampled_per_s": rate,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--one", type=int)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one)))
        return
    for records in chosen.records:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(records)], capture_output=True, text=True, check=True
        )
        print({k: round(v, 3) for k, v in json.loads(done.stdout.splitlines()[-1]).items()}, flush=True)


if __name__ == "__main__":
    main()
