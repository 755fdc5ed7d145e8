"""Plant a training set of a million made-up rows: seconds, rows per second, and peak memory.

Then compare a trainer's examples with the rows, as ``AuditCallback`` does when training begins.

PYTHONPATH=. python benchmarks/planting.py [--rows 1000000] [--users 20000] [--form jsonl|parquet]
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from heldin.base.progress import LineReporter
from heldin.corpus.sources.bad_rows import BadRows
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.planting.callback import AuditCallback
from heldin.planting.plant import plant
from heldin.planting.plant_config import PlantConfig, parse_plant
from heldin.planting.training_set import training_set

BATCH = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--form", choices=("jsonl", "parquet"), default="jsonl")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), options.rows, options.users, options.form)


def _measure(folder: Path, rows: int, users: int, form: str) -> None:
    os.environ["HELDIN_CACHE_DIR"] = str(folder / "cache")
    file = folder / f"mine.{form}"
    _write(file, rows, users)
    tokenizer = train_tokenizer([f"word{i} and some more words" for i in range(500)], 400)
    shape = TinyModel(vocabulary=400, context=64, hidden=32, layers=2, heads=2, window=16)
    model = new_tiny_model(shape, tokenizer, 0)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    config = parse_plant(
        {
            "training": str(file),
            "evidence": "declared",
            "columns": {"user": "author", "text": "body", "id": "key", "date": "sent"},
            "reference": str(folder / "base"),
            "split": {"audit_fraction": 0.1},
            "canaries": [{"kind": "unseen_token", "users": 100, "documents": [1, 4, 16]}],
        },
        "benchmark",
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    manifest = plant(config, folder / "out", LineReporter())
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{rows:,} rows of {users:,} users, {file.stat().st_size / 1e6:.0f} MB of {form}: {seconds:.1f} s,"
        f" {rows / seconds:,.0f} rows a second, {manifest.rows:,} written; memory {before / 2**20:.2f} GiB before,"
        f" {peak / 2**20:.2f} GiB at the peak"
    )
    _compare(folder / "out", config, tokenizer)


def _compare(out: Path, config: PlantConfig, tokenizer: PreTrainedTokenizerFast) -> None:
    callback = AuditCallback(out)
    texts = [str(record["text"]) for record, _ in training_set(config_of(out, config), tokenizer).rows(BadRows())]
    examples = Dataset.from_dict({"input_ids": tokenizer(texts)["input_ids"]})
    started = time.monotonic()
    seen, _ = callback.seen(examples, tokenizer)
    seconds = time.monotonic() - started
    assert seen is not None
    assert seen.all_and_no_other
    print(
        f"compared with a trainer's examples by the callback: {seconds:.1f} s, {seen.rows / seconds:,.0f} rows a second"
    )


def config_of(out: Path, config: PlantConfig) -> PlantConfig:
    """Return the config for the written training set."""
    return config.model_copy(update={"training": out / "training" / config.training.name})


def _write(file: Path, rows: int, users: int) -> None:
    if file.suffix == ".jsonl":
        with file.open("w", encoding="utf-8") as stream:
            for content in _content(rows, users):
                stream.writelines(json.dumps(row) + "\n" for row in content)
        return
    tables = map(pa.Table.from_pylist, _content(rows, users))
    first = next(tables)
    with pq.ParquetWriter(file, first.schema) as writer:
        for table in (first, *tables):
            writer.write_table(table)


def _content(rows: int, users: int) -> Iterator[list[dict[str, str]]]:
    generator = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(5000)])
    for start in range(0, rows, BATCH):
        drawn = words[generator.integers(5000, size=(BATCH, 24))]
        yield [
            {
                "author": f"user{(start + i) % users}",
                "body": f"{' '.join(drawn[i, : 4 + i % 20])} {start + i}",
                "key": f"r{start + i}",
                "sent": f"2001-{1 + i % 12:02d}-{1 + i % 28:02d}",
            }
            for i in range(min(BATCH, rows - start))
        ]


if __name__ == "__main__":
    main()
