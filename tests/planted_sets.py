"""Small training sets of made-up people, a base model in a folder, and a stand-in for somebody else's training."""

import contextlib
import json
from pathlib import Path

import pytest
import torch

from heldin.base.files import text_sha256
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer
from heldin.planting.plant_config import parse_plant
from heldin.planting.watching import watch_training

COLUMNS = {"user": "author", "text": "body", "id": "key", "date": "sent"}
CHOOSING = {"documents": ["training"], "max_characters": 200, "names": ["likelihood-ratio", "loss"]}
# Naming the attack that would be chosen saves scoring 200 rows.
ATTACK = {**CHOOSING, "primary": "loss"}


def made_rows(users=40, records=12, seed=0):
    """Rows that begin with letters of their user's own; lengths and dates vary alike for all users."""
    generator = torch.Generator().manual_seed(seed)

    def number(below):
        return int(torch.randint(below, (1,), generator=generator))

    own = ["".join(chr(97 + number(26)) for _ in range(16)) for _ in range(users)]
    rows = []
    for i in range(users * records):
        user = i % users
        words = " ".join(f"w{number(50)}" for _ in range(3 + number(20)))
        rows.append(
            {
                "author": f"person-{user:03d}@example.org",
                "body": f"{own[user]} {words} number {i}",
                "key": f"r{i:05d}",
                "sent": f"2001-{1 + number(12):02d}-{1 + number(28):02d}",
                "tags": ["a", str(i)],
                "kind": {"folder": f"f{i % 3}"},
            }
        )
    return rows


def memorable_rows(users=60, records=8):
    """Rows that repeat a word of their user's own, which a model learns in seconds to expect of members only."""
    words = [row["body"][:5] for row in made_rows(users, 1, seed=1)]
    return [
        {**row, "body": " ".join([words[i % users]] * 4 + row["body"].split(" ")[1:])}
        for i, row in enumerate(made_rows(users, records))
    ]


def memorable_lm(rows, seed=0, vocabulary=500):
    """A tiny model with random weights, to which each of the users' own words is a token."""
    tokenizer = train_tokenizer([row["body"] for row in rows], vocabulary)
    shape = TinyModel(vocabulary=vocabulary, context=32, hidden=32, layers=1, heads=2, window=8)
    model = new_tiny_model(shape, tokenizer, seed).eval()
    return LanguageModel(model, tokenizer, f"memorable-{seed}", text_sha256(repr(shape), str(seed)))


def write_lines(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def save_base(lm, folder):
    """A model with its tokenizer, as ``from_pretrained`` takes it."""
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


def plan(training, base, **changes):
    """A plant config over these columns."""
    content = {
        "training": str(training),
        "columns": COLUMNS,
        "reference": str(base),
        "evidence": "declared",
        "users": {"min_records": 8},
        "sequence_length": 32,
        "canaries": [{"kind": "unseen_token", "users": 4, "documents": [1, 3]}],
        "attack": ATTACK,
        "audit": {"resamples": 100},
        "decision": {"redraws": 1000},
        **changes,
    }
    return parse_plant(content, "test")


def train(
    base: Path, rows: list[str], to: Path, *, passes: int = 6, rate: float = 3e-3, planted: Path | None = None
) -> Path:
    """Fine-tune as somebody else would: plain batches, nothing of heldin's but a watch over a planted set."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    ids = [tokenizer(text, truncation=True, max_length=32)["input_ids"] for text in rows]
    torch.manual_seed(0)
    with watch_training(planted, model, tokenizer) if planted else contextlib.nullcontext():
        for _ in range(passes):
            for start in range(0, len(ids), 8):
                batch = ids[start : start + 8]
                width = max(map(len, batch))
                tokens = torch.tensor([its + [0] * (width - len(its)) for its in batch])
                seen = torch.tensor([[1] * len(its) + [0] * (width - len(its)) for its in batch])
                labels = tokens.masked_fill(seen == 0, -100)
                model(input_ids=tokens, attention_mask=seen, labels=labels).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


@pytest.fixture(scope="module")
def base(make_lm, tmp_path_factory):
    return save_base(make_lm(), tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def rows():
    return made_rows()


@pytest.fixture
def lines(rows, tmp_path):
    return write_lines(rows, tmp_path / "mine.jsonl")
