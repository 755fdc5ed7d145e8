"""Algorithm 1 on every record of a corpus: sample substrings, insert them and write the records to disk.

    .venv/bin/python benchmarks/canary_injection.py [RECORDS]

Every user of a store with RECORDS (a million) short records becomes a canary user, which is the maximum for injection.
The time includes reading the store, but not building it.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from heldin.canaries.planted import load_canaries, save_canaries
from heldin.canaries.substring import canary_of_user
from heldin.corpus.build import build_store
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import SCHEMA, Source
from heldin.models.tiny import train_tokenizer

PER_USER = 100
WORDS = 20
LENGTH = 10


class ShortRecords(Source):
    """Records of about twenty common words, with a hundred records per user."""

    def __init__(self, records: int) -> None:
        generator = np.random.default_rng(0)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        self._words = ["".join(generator.choice(letters, generator.integers(2, 9))) for _ in range(5000)]
        self._records, self._generator = records, generator

    def fingerprint(self) -> str:
        return f"short records {self._records}"

    def batches(self, bad: BadRows) -> Iterator[pa.RecordBatch]:
        for start in range(0, self._records, 50_000):
            rows = range(start, min(start + 50_000, self._records))
            words = (5000 * self._generator.random((len(rows), WORDS)) ** 3).astype(int)
            yield pa.record_batch(
                {
                    "user": [f"user-{row // PER_USER:06d}" for row in rows],
                    "text": [" ".join(self._words[w] for w in its) for its in words],
                    "id": [f"{row:08d}" for row in rows],
                    "date": pa.nulls(len(rows), pa.string()),
                },
                schema=SCHEMA,
            )


def main() -> None:
    """Print the times."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as scratch:
        store = build_store(ShortRecords(records), Path(scratch))
        tokenizer = train_tokenizer((store.text(row) for row in range(min(20_000, len(store)))), 4096)
        print(f"{len(store):,} records of {len(store.users):,} users, {LENGTH} tokens each")
        started = time.monotonic()
        made = [
            canary_of_user(
                tokenizer,
                [store.record(row) for row in store.rows(user)],
                length=LENGTH,
                documents=None,
                visible_tokens=64,
                visible_characters=4000,
                seed=0,
            )
            for user in store.users
        ]
        injected = time.monotonic() - started
        users = [user for user in made if user is not None]
        assert len(users) == len(store.users)
        save_canaries(users, Path(scratch) / "canaries", origin="benchmark")
        planted = load_canaries(store, Path(scratch) / "canaries", origin="benchmark")
        assert planted is not None
        assert len(planted) == len(store)
        total = time.monotonic() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"read and injected in {injected:.1f} s, with writing and opening {total:.1f} s, peak {peak:.1f} GiB")


if __name__ == "__main__":
    main()
