"""User-entity DP: epsilon by holders, caps over many records, search for words in mail-like texts, and paired steps.

`PYTHONPATH=. python benchmarks/user_entity.py --records 1000000`. Prints seconds and the peak of memory.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from uls_step import VOCABULARY, new_model

from heldin.base.coins import seed_key
from heldin.corpus.entities.incidence import Incidence
from heldin.corpus.entities.recognisers import WordList
from heldin.corpus.entities.spans import Text
from heldin.defenses.accounting.events import TwoLevelGaussian
from heldin.defenses.accounting.guarantees import epsilon
from heldin.defenses.choices import ConstantDivisor, FlatClip, NoiseGenerator, TwoLevel
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.samplers import PoissonSampler
from heldin.defenses.texts.caps import kept_under_caps, slot_order
from heldin.finetune.private import private_gradient
from heldin.finetune.units import PrivateRecords, plan_private_training
from replication.published_claims import published_claims

HOLDERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 700, 946)


def timed(what: str, work: Callable[[], object]) -> None:
    start = time.perf_counter()
    found = work()
    print(json.dumps({"what": what, "seconds": round(time.perf_counter() - start, 2), "found": found}), flush=True)


def strict(holders: int) -> float:
    """Return epsilon in the paper's setting on CoNLL, with T = 500."""
    return epsilon(TwoLevelGaussian(102.0, 50 / 946, 0.5, holders), 500, 1e-5)


def caps(records: int) -> int:
    """Apply caps with about two entities per record; an entity is named in a few records or in very many."""
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


def steps(rounds: int) -> dict[str, float]:
    """Take whole private steps on the same tokens in turn. Return the median time ratio of second to first, processor
    time."""
    ids = torch.randint(0, VOCABULARY, (128, 65), generator=torch.Generator().manual_seed(0)).tolist()
    model = new_model()
    users = [f"user {i // 8}" for i in range(len(ids))]
    dice = np.random.default_rng(2)
    starts = np.arange(0, 2 * len(ids) + 1, 2)
    named = Incidence(starts, dice.integers(0, 300, 2 * len(ids)), 300, [f"entity {i}" for i in range(300)])
    records = PrivateRecords([f"record {i}" for i in range(len(ids))], users, [65] * len(ids), named=named)

    def step(**fields: Any) -> Callable[[int], object]:
        mechanism = Mechanism(
            **{
                "sampler": PoissonSampler(rate=1.0),
                "clip": FlatClip(norm=1.0),
                "noise_multiplier": 1.0,
                "steps": rounds + 1,
                "delta": 1e-5,
                "divisor": ConstantDivisor(value=16),
                "record_selection": "all",
                **fields,
            }
        )
        training = plan_private_training(mechanism, seed_key(0), records, NoiseGenerator.PHILOX)
        return lambda number: private_gradient(model, training, number, ids)

    # Every coin falls, so that both steps of a pair are on the same tokens.
    every = TwoLevel(entity_rate=1.0, extended_rate=1.0, rule="all", holders=15)
    pairs = {
        "text sampling / example DP": (
            step(unit="example", sampled="example"),
            step(unit="user-entity", sampled="example", exposed=1),
        ),
        "two-level sampling / ULS": (
            step(unit="user", sampled="user", group_size=8),
            step(unit="user-entity", sampled="user", two_level=every),
        ),
    }
    found = {}
    for name, (first, second) in pairs.items():
        ratios = []
        for number in range(rounds + 1):
            began = time.process_time()
            first(number)
            between = time.process_time()
            second(number)
            ratios.append((time.process_time() - between) / (between - began))
        found[name] = round(statistics.median(ratios[1:]), 3)  # the first round chooses engines
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        os.environ["HELDIN_CACHE_DIR"] = name
        timed("epsilon for K = 946, T = 500", lambda: strict(946))
        timed("curve of 12 numbers of holders", lambda: [round(strict(k), 4) for k in HOLDERS])
        timed("the fifteen published epsilons", lambda: len(published_claims().claims))
        timed(f"caps over {records:,} records", lambda: caps(records))
        timed("steps in pairs", lambda: steps(15))
        timed("50,000 texts of 60 words searched for 2,000 names", lambda: searched(Path(name), 50_000, 2_000))
    print(json.dumps({"peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}))


if __name__ == "__main__":
    main()
