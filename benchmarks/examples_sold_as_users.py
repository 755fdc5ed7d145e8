"""Example-level DP by Opacus, sold as a guarantee for users: planted, trained and audited from outside, step by step.

A tiny GPT-Neo with GPT-2's vocabulary is pre-trained on news and fine-tuned on speeches of plays. Canary users with 16
documents use tokens that nobody else uses. Canary users of another kind have one document, which the example-level
guarantee covers, so they are judged separately. The audit tests the epsilon as a claim about users, and the mechanism
as a claim about examples.

HELDIN_DATA_DIR=DATA PYTHONPATH=. python benchmarks/examples_sold_as_users.py FOLDER [--epsilon 2] [--users 300]
"""

import argparse
import gzip
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ["HELDIN_DATA_DIR"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--users", type=int, default=300, help="canary users of 16 documents")
    parser.add_argument("--rows", type=int, default=1000, help="rows of real characters")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--batch", type=int, default=800)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    if not base.is_dir():
        tiny = (sys.executable, ROOT / "benchmarks" / "tiny_base.py", base, "--vocabulary", "gpt2")
        _timed("base model", lambda: _run(*tiny, "--hidden", 32, "--steps", 300))
    _write_speeches(folder / "speeches.jsonl", options.rows)
    (folder / "plant.yaml").write_text(yaml.safe_dump(_plan(folder, options.users)), encoding="utf-8")
    planted, model = folder / "planted", folder / "private"
    _timed("plant", lambda: _run("heldin", "plant", folder / "plant.yaml", "--out", planted))
    how = ("--epsilon", options.epsilon, "--batch", options.batch, "--learning-rate", options.learning_rate)
    script = (sys.executable, ROOT / "examples" / "opacus_dp.py", planted / "training" / "speeches.jsonl", base, model)
    told = _timed("training", lambda: _run(*script, *how, "--tokens", 32))
    mechanism = next(line for line in told.splitlines() if line.startswith("noise_multiplier="))
    claims = [f"epsilon={options.epsilon:g},delta=1e-5,unit=user", f"{mechanism},unit=example"]
    asked = ("heldin", "audit-planted", planted, "--model", model, "--declared-by", "benchmarks")
    _timed("audit", lambda: _run(*asked, *(word for claim in claims for word in ("--claim", claim))))


def _plan(folder: Path, users: int) -> dict[str, object]:
    canaries = [
        {"kind": "unseen_token", "users": users, "documents": [16], "signature_tokens": 4, "disjoint": True},
        {"kind": "rare_phrase", "users": users // 3, "documents": [1]},
    ]
    return {
        "training": str(folder / "speeches.jsonl"),
        "columns": {"user": "user", "text": "text"},
        "reference": str(folder / "base"),
        "evidence": "declared",
        "sequence_length": 32,
        "split": {"canaries_only": True},
        "canaries": canaries,
        # Under noise the reference tells little: what the base found hard is forgotten first.
        "attack": {"names": ["loss"], "primary": "loss", "documents": ["training"], "max_characters": 200},
    }


def _write_speeches(to: Path, rows: int) -> None:
    """Write the first rows of the plays."""
    with gzip.open(DATA / "engdracor_plays.jsonl.gz", "rt", encoding="utf-8") as file:
        first = [json.loads(line) for line in itertools.islice(file, rows)]
    kept = ({"user": row["user"], "text": row["text"]} for row in first)
    to.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def _run(*words: object) -> str:
    told = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": _path(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(word) for word in words], env=told, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout + f"== exit code {done.returncode}", flush=True)
    return done.stdout


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _timed(what: str, call: Callable[[], str]) -> str:
    start = time.monotonic()
    told = call()
    print(f"== {what}: {time.monotonic() - start:.0f} s", flush=True)
    return told


if __name__ == "__main__":
    main()
