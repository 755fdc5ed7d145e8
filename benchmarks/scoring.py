"""Scoring a corpus's texts compared with bare forward passes over the same tokens without padding, in one run.

    .venv/bin/python benchmarks/scoring.py [MODEL_FOLDER] [TEXTS.jsonl.gz]

The bare passes batch windows of equal length, so they need no padding, and discard the logits. Scoring with ranks is
compared with scoring without ranks. All measurements alternate; the benchmark prints the ratios of each round, then
their medians.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from heldin.corpus.made_up.source import Synthetic
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns, Source
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import LOGITS_PER_BATCH, score_texts
from heldin.models.model_config import TinyModel
from heldin.models.opening import load_language_model
from heldin.models.tiny import new_tiny_model, train_tokenizer

PAIRS = 7
TEXTS = 3000


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(2)
    source: Source = (
        open_source(Path(sys.argv[2]), Columns())
        if len(sys.argv) > 2
        else Synthetic(SyntheticCorpus(users=150, mean_records=24, min_records=10))
    )
    texts = [row for batch in source.batches(BadRows()) for row in batch.column("text").to_pylist()][:TEXTS]
    if len(sys.argv) > 1:
        lm = load_language_model(sys.argv[1])
    else:
        tokenizer = train_tokenizer(texts, 4096)
        lm = LanguageModel(new_tiny_model(TinyModel(4096), tokenizer, 0).eval(), tokenizer, "tiny", "")
    bare, windows = _bare_batches(lm, texts)
    print(f"{lm.parameters() / 1e6:.1f}M parameters, {len(texts)} texts, {windows} windows")
    ratios, of_ranks = [], []
    for _ in range(PAIRS):
        bare_seconds = _timed(lambda: _forward(lm, bare))
        score_seconds = _timed(lambda: score_texts(lm, texts))
        rank_seconds = _timed(lambda: score_texts(lm, texts, ranks=True))
        ratios.append(score_seconds / bare_seconds)
        of_ranks.append(rank_seconds / score_seconds)
        print(f"scoring {score_seconds:.2f} s, bare forward passes {bare_seconds:.2f} s, ratio {ratios[-1]:.3f}")
        print(f"with ranks {rank_seconds:.2f} s, ratio to without {of_ranks[-1]:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f}, of ranks {statistics.median(of_ranks):.3f}")


def _bare_batches(lm: LanguageModel, texts: list[str]) -> tuple[list[torch.Tensor], int]:
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for ids in lm.tokenizer(texts, add_special_tokens=False)["input_ids"]:
        for start in range(0, len(ids), lm.context):
            window = ids[start : start + lm.context]
            by_length[len(window)].append(window)
    budget = LOGITS_PER_BATCH["cuda" if lm.device.type == "cuda" else "cpu"] // lm.model.config.vocab_size
    batches = []
    for length, rows in by_length.items():
        size = max(1, budget // length)
        batches += [torch.tensor(rows[i : i + size], device=lm.device) for i in range(0, len(rows), size)]
    return batches, sum(map(len, by_length.values()))


@torch.inference_mode()
def _forward(lm: LanguageModel, batches: list[torch.Tensor]) -> None:
    for batch in batches:
        lm.model(input_ids=batch, use_cache=False)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
