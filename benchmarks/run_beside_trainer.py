"""The same corpus and base model in ``heldin run`` and in a Trainer on a planted set: do the AUROCs agree?

The corpus has 400 characters of plays, which the base (benchmarks/tiny_base.py) has not read. Differences between the
trainings are separated one at a time: examples/trainer.py as printed, then in steps towards heldin's way
(``VARIANTS``).

HELDIN_DATA_DIR=DATA PYTHONPATH=. python benchmarks/run_beside_trainer.py FOLDER [--seeds 2] [--only run printed ...]
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from heldin.record.document import Record, read_record

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ["HELDIN_DATA_DIR"])
USERS, LEAST, MOST, TOKENS = 400, 20, 60, 64
RECIPE = {"epochs": 6, "batch_size": 16, "learning_rate": 0.002, "warmup_steps": 100, "sequence_length": TOKENS - 1}
# By name what is done as heldin does it; all else as examples/trainer.py does.
VARIANTS: dict[str, frozenset[str]] = {
    "printed": frozenset(),
    "framed": frozenset({"framed"}),
    "unclipped": frozenset({"framed", "unclipped"}),
    "records": frozenset({"framed", "unclipped", "records"}),
    "alike": frozenset({"framed", "unclipped", "records", "warm"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each way, each with coins of its own")
    parser.add_argument("--only", nargs="+", choices=("run", *VARIANTS), default=("run", *VARIANTS))
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    base, corpus = folder / "base", folder / "speeches.jsonl"
    if not base.is_dir():
        _run(sys.executable, ROOT / "benchmarks" / "tiny_base.py", base, "--vocabulary", 2048, "--steps", 600)
    if not corpus.is_file():
        _write_corpus(corpus)
    for seed in range(options.seeds):
        for name in options.only:
            start = time.monotonic()
            record = _by_run(folder, seed) if name == "run" else _by_trainer(folder, name, seed)
            found = {its.setting: its.auroc for its in record.dials if its.dial == "documents"}
            told = "; ".join(
                f"{what} {its.value:.3f} ({its.lower:.3f} to {its.upper:.3f})" for what, its in found.items()
            )
            print(f"{name}, seed {seed}: {told}; {time.monotonic() - start:.0f} s", flush=True)


def _by_run(folder: Path, seed: int) -> Record:
    out = folder / f"run-{seed}"
    columns = {"user": "user", "text": "text", "id": "id"}
    content = {
        "name": "beside",
        "seed": seed,
        "corpus": {"source": {"kind": "jsonl", "path": str(folder / "speeches.jsonl"), "columns": columns}},
        "model": {"base": str(folder / "base")},
        "finetune": {**RECIPE, "evaluations": 1, "select": "last", "seed": seed},
        "attack": _attack(),
    }
    content["corpus"]["users"] = {"min_records": LEAST}  # type: ignore[index]
    (folder / "run.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    _run("heldin", "run", folder / "run.yaml", "--out", out, "--quiet")
    return read_record(out / "record.json")


def _by_trainer(folder: Path, name: str, seed: int) -> Record:
    planted, model = folder / f"planted-{name}-{seed}", folder / f"model-{name}-{seed}"
    content = {
        "training": str(folder / "speeches.jsonl"),
        "evidence": "declared",
        "columns": {"user": "user", "text": "text", "id": "id"},
        "reference": str(folder / "base"),
        "users": {"min_records": LEAST},
        "sequence_length": TOKENS - 1,
        "attack": _attack(),
        "seed": seed,
    }
    (folder / "plant.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    _run("heldin", "plant", folder / "plant.yaml", "--out", planted, "--quiet")
    training = planted / "training" / "speeches.jsonl"
    if name == "printed":
        how = ("--epochs", RECIPE["epochs"], "--learning-rate", RECIPE["learning_rate"], "--tokens", TOKENS)
        _run(sys.executable, ROOT / "examples" / "trainer.py", training, folder / "base", model, *how)
    else:
        _train(training, folder / "base", model, VARIANTS[name], seed)
    _run("heldin", "audit-planted", planted, "--model", model, "--declared-by", "benchmarks", "--quiet")
    return read_record(planted / "audits" / "1" / "record.json")


def _attack() -> dict[str, object]:
    return {
        "names": ["likelihood-ratio-per-token"],
        "primary": "likelihood-ratio-per-token",
        "max_characters": 1000,
        "documents": ["fresh", "training"],
    }


class _MeanOfRecords(Trainer):  # type: ignore[misc]
    """Gives every record the same weight, whatever its length."""

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *_: object, **__: object) -> Any:
        """Return the mean over records of each record's own mean loss."""
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="none")
        counted = labels[:, 1:] != -100
        return ((losses * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def _train(training: Path, base: Path, to: Path, how: frozenset[str], seed: int) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = [json.loads(line)["text"] for line in training.read_text(encoding="utf-8").splitlines()]
    start, end = ([tokenizer.bos_token_id], [tokenizer.eos_token_id]) if "framed" in how else ([], [])
    rows = [(start + tokenizer(text)["input_ids"] + end)[:TOKENS] for text in texts]

    def collate(batch: list[list[int]]) -> dict[str, torch.Tensor]:
        tokens = torch.full((len(batch), max(map(len, batch))), tokenizer.eos_token_id)
        mask, labels = torch.zeros_like(tokens), torch.full_like(tokens, -100)
        for i, ids in enumerate(batch):
            tokens[i, : len(ids)] = labels[i, : len(ids)] = torch.tensor(ids)
            mask[i, : len(ids)] = 1
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}

    steps = int(RECIPE["epochs"] * len(rows) / RECIPE["batch_size"])
    arguments = TrainingArguments(
        str(to),
        num_train_epochs=RECIPE["epochs"],
        learning_rate=RECIPE["learning_rate"],
        per_device_train_batch_size=RECIPE["batch_size"],
        max_grad_norm=0.0 if "unclipped" in how else 1.0,
        warmup_steps=min(int(RECIPE["warmup_steps"]), steps // 10) if "warm" in how else 0,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
    )
    kind = _MeanOfRecords if "records" in how else Trainer
    trainer = kind(AutoModelForCausalLM.from_pretrained(base), arguments, train_dataset=rows, data_collator=collate)
    trainer.train()
    trainer.save_model(str(to))
    tokenizer.save_pretrained(to)


def _write_corpus(to: Path) -> None:
    """Write characters with at least ``LEAST`` speeches, and the first ``MOST`` speeches of each."""
    with gzip.open(DATA / "engdracor_plays.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    counts = Counter(row["user"] for row in rows)
    chosen = set([user for user in counts if counts[user] >= LEAST][:: max(1, 2400 // USERS)][:USERS])
    written: Counter[str] = Counter()
    with to.open("w", encoding="utf-8") as out:
        for row in rows:
            if row["user"] in chosen and written[row["user"]] < MOST:
                written[row["user"]] += 1
                out.write(json.dumps({name: row[name] for name in ("user", "text", "id")}) + "\n")


def _run(*words: object) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(word) for word in words], env=own, check=False, capture_output=True, text=True)
    if done.returncode not in (0, 3, 4):
        raise SystemExit(f"{words[:3]} failed ({done.returncode}):\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
