"""From a file of many short records to the first private step: seconds and private memory of each stage.

    PYTHONPATH=. python benchmarks/scale.py --records 10000000 --users 342477 [--folder FOLDER] [--again]

The records are sentences of users with very unequal numbers of records, as in Stack Overflow (Charles et al. 2024:
135,818,730 records of 342,477 users), in Parquet. ``--again`` starts once more with the files of an earlier call in
FOLDER, as a resumed run does.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROWS_A_GROUP = 2**18
WORDS = 20_000
COHORT, GROUP_SIZE = 64, 16


def write_corpus(path: Path, records: int, users: int) -> None:
    """Write sentences of 8 to 16 words in row groups, with users in random order."""
    dice = np.random.default_rng(0)
    weights = dice.lognormal(0.0, 1.2, users)
    sizes = np.maximum(4, (weights / weights.sum() * records).astype(np.int64))
    sizes[: max(0, int(sizes.sum()) - records)] = np.maximum(4, sizes[: max(0, int(sizes.sum()) - records)] - 1)
    order = dice.permutation(np.repeat(np.arange(users, dtype=np.int32), sizes))
    words = np.array([f"w{i}" for i in range(WORDS)], dtype=object)
    pool = [" ".join(words[dice.integers(0, WORDS, dice.integers(8, 17))]) for _ in range(50_000)]
    schema = pa.schema({"user": pa.string(), "text": pa.string(), "id": pa.string()})
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, order.size, ROWS_A_GROUP):
            part = order[first : first + ROWS_A_GROUP].tolist()
            numbers = range(first, first + len(part))
            texts = [f"{pool[i % len(pool)]} {i}" for i in numbers]
            columns = [[f"user {user}" for user in part], texts, [f"s{i}" for i in numbers]]
            writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema))


def config_of(folder: Path, users: int) -> dict[str, Any]:
    """Return the config of ULS over all users. Coins decide about a hundred audited users; all others are always
    members."""
    return {
        "name": "scale",
        "corpus": {
            "source": {
                "kind": "parquet",
                "path": str(folder / "corpus.parquet"),
                "columns": {"user": "user", "text": "text", "id": "id"},
            },
            "users": {"min_records": 4},
        },
        "split": {"audit_fraction": min(0.5, 2000 / users)},
        "model": {"base": str(folder / "base")},
        "finetune": {"sequence_length": 32, "select": "last", "evaluations": 1},
        "defense": {
            "kind": "uls",
            "population": users,
            "cohort": COHORT,
            "steps": 1000,
            "delta": 1e-6,
            "noise_multiplier": 1.0,
            "group_size": GROUP_SIZE,
        },
    }


class OwnMemory:
    """Measures the peak of the process's private memory. Mapped files do not count, because they can be dropped any
    time."""

    def __init__(self) -> None:
        self.most = 0.0  # GiB
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text(encoding="ascii")
            own = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            self.most = max(self.most, int(own.split()[1]) / 2**20)
            time.sleep(0.1)


class Stopped(BaseException):
    """The first private step is done."""


def measure(folder: Path) -> dict[str, tuple[float, float]]:
    """Return, for each stage, its seconds and the peak of the process's private memory so far, in GiB."""
    from heldin.base.progress import LineReporter
    from heldin.models.opening import load_language_model
    from heldin.stages.run_config import load_config
    from heldin.stages.run_folder import take_folder
    from heldin.stages.sides.corpus import read_corpus
    from heldin.stages.sides.data import prepare_data
    from heldin.stages.sides.split_facts import split_facts
    from heldin.stages.train import training
    from heldin.stages.train.plan import settle_plan

    memory = OwnMemory()
    reporter, out = LineReporter(lambda line: print(line, file=sys.stderr, flush=True)), folder / "run"
    taken: dict[str, tuple[float, float]] = {}

    def stage(name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        found = work()
        taken[name] = (time.monotonic() - began, memory.most)
        print(f"{name}: {taken[name][0]:,.1f} s, {memory.most:.2f} GiB", file=sys.stderr, flush=True)
        return found

    config = load_config(folder / "run.yaml")
    take_folder(config, out)
    base = load_language_model(config.model.base)
    stage("imports and base model", lambda: None)
    corpus = stage("store", lambda: read_corpus(config, reporter))
    data = stage("set-asides, coins, ledger", lambda: prepare_data(config, out, reporter, corpus, base))
    mechanism = settle_plan(config, data, out)

    def first_step(steps: int) -> None:
        raise Stopped

    def until_the_first_step() -> None:
        # The trainer as it is, stopped by its own report of progress.
        reporter.track = lambda title, *its: _Track(first_step if title == "fine-tuning" else (lambda _: None))
        with contextlib.suppress(Stopped):
            training.finetune(config, data, base, mechanism, out, reporter)

    stage("tokens", lambda: training.training_tokens(data, base, 32, out / training.TOKENS, reporter))
    stage("units, job, curves, first private step", until_the_first_step)
    stage("overlaps of the record", lambda: split_facts(config, data))
    return taken


class _Track:
    """A progress bar that shows nothing."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def __enter__(self) -> Callable[[int], None]:
        return self._advance

    def __exit__(self, *_: object) -> None:
        pass


def prepare(folder: Path, records: int, users: int) -> None:
    """Make corpus, base model and config."""
    from heldin.models.model_config import TinyModel
    from heldin.models.tiny import new_tiny_model, train_tokenizer

    write_corpus(folder / "corpus.parquet", records, users)
    sample = pq.ParquetFile(folder / "corpus.parquet").read_row_group(0).column("text").slice(0, 5000).to_pylist()
    tokenizer = train_tokenizer(sample, 8192)
    new_tiny_model(TinyModel(8192, 32, 64, 2, 2, 16), tokenizer, 0).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    (folder / "run.yaml").write_text(yaml.safe_dump(config_of(folder, users)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--users", type=int, default=34_248)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--one", type=Path)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one)))
        return
    folder = chosen.folder or Path(tempfile.mkdtemp(dir=Path.home()))
    folder.mkdir(exist_ok=True)
    try:
        if not chosen.again:
            prepare(folder, chosen.records, chosen.users)
        # A process of its own: what wrote the corpus is no part of the peak.
        command = [sys.executable, __file__, "--one", str(folder)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for name, (seconds, own) in json.loads(done.stdout.splitlines()[-1]).items():
            print(f"{name:<42}{seconds:>10,.1f} s   {own:6.2f} GiB", flush=True)
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
