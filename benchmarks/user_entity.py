"""User-entity DP without training: epsilon by holders, caps over many records, words searched in mail-like texts.

`PYTHONPATH=. python benchmarks/user_entity.py --records 1000000`. Prints seconds and the peak of memory.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from heldin.base.coins import seed_key
from heldin.corpus.entities.spans import Text
from heldin.corpus.entities.word_list import WordList
from heldin.defenses.accounting.events import TwoLevelGaussian
from heldin.defenses.accounting.guarantees import epsilon
from heldin.defenses.accounting.published_claims import published_claims
from heldin.defenses.texts.caps import kept_under_caps, slot_order

HOLDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 700, 946)


def timed(what: str, work: Callable[[], object]) -> None:
    start = time.perf_counter()
    found = work()
    print(json.dumps({"what": what, "seconds": round(time.perf_counter() - start, 2), "found": found}), flush=True)


def strict(holders: int) -> float:
    """The paper's setting on CoNLL, T = 500."""
    return epsilon(TwoLevelGaussian(102.0, 50 / 946, 0.5, holders), 500, 1e-5)


def caps(records: int) -> int:
    """About two entities a record, named in a few records or in very many."""
    dice = np.random.default_rng(0)
    order = slot_order(seed_key(0), (f"record {i}" for i in range(records)), records)
    counts = dice.integers(0, 5, records)
    starts = np.concatenate([[0], np.cumsum(counts)])
    owner = np.repeat(np.arange(records), counts)
    pairs = np.unique(np.stack([owner, dice.zipf(1.4, counts.sum()) % (records // 2)], axis=1), axis=0)
    starts = np.searchsorted(pairs[:, 0], np.arange(records + 1))
    authors = dice.integers(0, records // 20 + 1, records)
    return int(kept_under_caps(order, authors, starts, pairs[:, 1], group_size=16, entity_cap=16).sum())


def searched(folder: Path, texts: int, names: int) -> int:
    dice = np.random.default_rng(1)
    first, last = ([f"{kind}{i}" for i in range(2_000)] for kind in ("given", "family"))
    path = folder / "names.txt"
    path.write_text("\n".join(f"{dice.choice(first)} {dice.choice(last)}" for _ in range(names)))
    words = np.array([*first, *last, *(f"word{i}" for i in range(20_000))])
    made = (Text(str(i), " ".join(dice.choice(words, 60))) for i in range(texts))
    return sum(map(len, WordList(path).spans(made)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory() as name:
        os.environ["HELDIN_CACHE_DIR"] = name
        timed("epsilon for K = 946, T = 500", lambda: strict(946))
        timed("curve of 12 numbers of holders", lambda: [round(strict(k), 4) for k in HOLDERS])
        timed("the fifteen published epsilons", lambda: len(published_claims().claims))
        timed(f"caps over {records:,} records", lambda: caps(records))
        timed("50,000 texts of 60 words searched for 2,000 names", lambda: searched(Path(name), 50_000, 2_000))
    print(json.dumps({"peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}))


if __name__ == "__main__":
    main()
