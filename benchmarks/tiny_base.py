"""Pre-train a tiny GPT-Neo on news, as a base model that has not read the plays and mails of other experiments.

HELDIN_DATA_DIR=DATA PYTHONPATH=. python benchmarks/tiny_base.py FOLDER [--vocabulary gpt2] [--hidden 64]
"""

import argparse
import gzip
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import torch
from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer

DATA = Path(os.environ["HELDIN_DATA_DIR"])
BATCH, CONTEXT, RATE = 32, 64, 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocabulary", default="4096", help="tokens that are learned on the news, or gpt2")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    with gzip.open(DATA / "ag_news_subset.jsonl.gz", "rt", encoding="utf-8") as file:
        news = [json.loads(line)["text"] for line in file]
    own = options.vocabulary != "gpt2"
    tokenizer = train_tokenizer(news, int(options.vocabulary)) if own else _of_gpt2()
    loss = _pretrain(options.folder, tokenizer, news, options.hidden, options.steps)
    print(f"loss {loss:.2f} nats a token at the end, {time.monotonic() - start:.0f} s")


def _of_gpt2() -> PreTrainedTokenizerFast:
    with tempfile.TemporaryDirectory() as folder:
        for theirs, ours in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
            shutil.copy(DATA / "gpt2_bpe" / theirs, Path(folder) / ours)
        return GPT2TokenizerFast.from_pretrained(folder)


def _pretrain(to: Path, tokenizer: PreTrainedTokenizerFast, news: list[str], hidden: int, steps: int) -> float:
    shape = TinyModel(len(tokenizer), context=CONTEXT, hidden=hidden, layers=2, heads=2, window=CONTEXT // 2)
    model, dice, smooth = new_tiny_model(shape, tokenizer, seed=0), random.Random(0), 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(steps):
        batch = [ids[:CONTEXT] for ids in tokenizer(dice.sample(news, BATCH))["input_ids"]]
        tokens = torch.zeros(BATCH, max(map(len, batch)), dtype=torch.long)
        labels = torch.full_like(tokens, -100)
        for i, ids in enumerate(batch):
            tokens[i, : len(ids)] = labels[i, : len(ids)] = torch.tensor(ids)
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        smooth = 0.95 * smooth + 0.05 * loss.item() if step else loss.item()
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return smooth


if __name__ == "__main__":
    main()
