"""Part 4 of the GPU benchmark: scoring through the score cache, divided by bare forward passes."""

import random
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_base import Clock, Figure, Shape, share_of_card

from heldin.models.attention import unpacked
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import batches_by_length, tokens_per_batch
from heldin.models.score_cache import ScoreCache
from heldin.models.tiny import train_tokenizer

SCORING_RATIO = 1.25
COPIES = "heldin.models.score_cache.copies_on_other_gpus"


def scoring(shape: Shape, texts: int, words: int, device: torch.device) -> tuple[list[Figure], dict[str, Any]]:
    """Return the time of scoring with an empty cache over bare passes on the same batches, in both precisions, on one
    GPU.

    Scoring includes tokenizing, and the bare passes do not.
    """
    numbers = random.Random(2)
    known = ["".join(numbers.choices("abcdefghijklmnopqrstuvwxyz", k=numbers.randint(2, 9))) for _ in range(2000)]
    made = [" ".join(numbers.choices(known, k=numbers.randint(words // 2, words))) for _ in range(texts)]
    # Its tokens are few of the model's vocabulary, which is what a pass costs.
    tokenizer = train_tokenizer(made[:1000], 2048)
    found: list[Figure] = []
    told: dict[str, Any] = {"texts": texts}
    for precision in ("fp32", "bf16"):
        model = shape.model(device).eval()
        model = model if precision == "fp32" else model.to(torch.bfloat16)
        lm = LanguageModel(model, tokenizer, "random", f"random {precision}")
        clock = Clock(device)
        began = clock()
        windows = _windows(lm, made)
        tokenizing = clock() - began
        _forward(lm, windows[: max(1, len(windows) // 20)])  # compiles and allocates
        began = clock()
        _forward(lm, windows)
        bare = clock() - began
        # The bare passes have one GPU too.
        with tempfile.TemporaryDirectory() as folder, patch(COPIES, return_value=[]):
            cache = ScoreCache(Path(folder))
            began = clock()
            cache.scores(lm, made)
            scored = clock() - began
            cache.close()
        limit = SCORING_RATIO if precision == "bf16" else None
        found.append(
            Figure(f"scoring {texts:,} texts in {precision}, cache included: over bare passes", scored / bare, limit)
        )
        tokens = sum(map(len, windows))
        found += [
            Figure(f"{name} in {precision}: share of the card", share_of_card(shape, tokens, seconds, device, passes=1))
            for name, seconds in (("bare passes", bare), ("scoring", scored))
        ]
        told[precision] = {"bare": bare, "scored": scored, "tokenizing on one core": tokenizing, "tokens": tokens}
    return found, told


def _windows(lm: LanguageModel, texts: list[str]) -> list[list[int]]:
    ids = lm.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [its[start : start + lm.context] for its in ids for start in range(0, len(its), lm.context)]


@torch.inference_mode()
def _forward(lm: LanguageModel, windows: list[list[int]]) -> None:
    """Run bare passes in the same batches as scoring."""
    for batch in batches_by_length([len(its) for its in windows], max_tokens=tokens_per_batch(lm.model)):
        longest = max(len(windows[i]) for i in batch)
        padded = [windows[i] + [0] * (longest - len(windows[i])) for i in batch]
        with unpacked():
            lm.model(input_ids=torch.tensor(padded).to(lm.device), use_cache=False)
