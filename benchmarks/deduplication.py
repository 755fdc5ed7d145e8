"""Remove near-duplicates from many short records, within and across users: `python benchmarks/deduplication.py`."""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from typing import Literal

from heldin.corpus.document import Document
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.defenses.data_side.deduplicate import Deduplicate

WORDS = [f"word{i}" for i in range(20_000)]


def measure(records: int, scope: Literal["user", "corpus"], common: int) -> dict[str, float]:
    """Measure records of 20 distinct words. Each twentieth is a copy plus one word; ``common`` words end every
    record."""
    dice = random.Random(0)
    disclaimer = "".join(f" {word}" for word in dice.choices(WORDS, k=common))
    made: list[TrainingRecord] = []
    for i in range(records):
        copy = i and i % 20 == 0
        text = made[i - 1].text + " ps" if copy else " ".join(dice.choices(WORDS, k=20)) + disclaimer
        made.append(TrainingRecord(i, f"user{i // 50}", str(i), Document.of(text)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    began = time.monotonic()
    _, removals = apply_defenses(
        [Deduplicate(scope=scope, threshold=0.7, ngram=3)], made, lengths=lambda _: [], losses=lambda _: [], seed=0
    )
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "gib_above_the_records": peak - before, "removed": removals[0].removed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--common", type=int, default=0, help="words at the end of every record")
    parser.add_argument("--one")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.records, chosen.one, chosen.common)))
        return
    for scope in ("user", "corpus"):
        command = [sys.executable, __file__, "--records", str(chosen.records), "--common", str(chosen.common)]
        done = subprocess.run([*command, "--one", scope], capture_output=True, text=True, check=True)
        print(scope, {k: round(v, 2) for k, v in json.loads(done.stdout).items()}, f"of {chosen.records}", flush=True)


if __name__ == "__main__":
    main()
