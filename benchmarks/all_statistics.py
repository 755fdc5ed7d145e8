"""The time of all statistics, from one pass of each model, compared with the five default statistics, in one process.

    .venv/bin/python benchmarks/all_statistics.py [HOW_MANY [TEXTS.jsonl.gz]]

Each measurement is a scoring stage with an empty cache: target (with moments over the vocabulary) and reference over
every text, then the statistics. The stage for all statistics also computes ranks and token ids. The two stages
alternate on parts of the texts, in either order, with one thread, measured in processor time. The benchmark prints the
quartiles of the ratios.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from heldin.attacks.access import Access
from heldin.attacks.kinds import DEFAULT_ATTACKS, get_attack, names_at
from heldin.attacks.scoring import AttackTexts, score_attacks
from heldin.corpus.made_up.source import Synthetic
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns, Source
from heldin.models.loading import LanguageModel
from heldin.models.model_config import TinyModel
from heldin.models.score_cache import ScoreCache
from heldin.models.tiny import new_tiny_model, train_tokenizer

ATTACKS = names_at(Access.LOG_PROBABILITIES)
PAIRS, PART, VOCABULARY, TEXTS_OF_A_USER = 4, 100, 4096, 5
CUT = 4000  # characters, as ``attack.max_characters``


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    source: Source = (
        open_source(Path(sys.argv[2]), Columns())
        if len(sys.argv) > 2
        else Synthetic(SyntheticCorpus(users=150, mean_records=24, min_records=10))
    )
    every = [row for batch in source.batches(BadRows()) for row in batch.column("text").to_pylist()][:count]
    tokenizer = train_tokenizer(every, VOCABULARY)
    models = [
        LanguageModel(
            new_tiny_model(TinyModel(VOCABULARY), tokenizer, seed).eval(), tokenizer, f"tiny-{seed}", str(seed)
        )
        for seed in (0, 1)
    ]
    print(f"{models[0].parameters() / 1e6:.1f}M parameters, {len(every)} texts")
    ratios = []
    for turn in range(PAIRS * len(every) // PART):
        start = turn * PART % len(every)
        some = every[start : start + PART]
        users = {f"user {i:05d}": some[i : i + TEXTS_OF_A_USER] for i in range(0, len(some), TEXTS_OF_A_USER)}
        texts = AttackTexts.of(users, CUT)
        seconds = {}
        for names in (DEFAULT_ATTACKS, tuple(ATTACKS))[:: 1 if turn % 2 else -1]:
            seconds[len(names)] = _timed(names, texts, models)
        ratios.append(seconds[len(ATTACKS)] / seconds[len(DEFAULT_ATTACKS)])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{len(ATTACKS)} statistics to {len(DEFAULT_ATTACKS)}: median ratio {middle:.3f} of {len(ratios)} pairs,"
        f" quartiles {low:.3f} and {high:.3f}"
    )


def _timed(names: Sequence[str], texts: AttackTexts, models: Sequence[LanguageModel]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        cache = ScoreCache(Path(folder))
        try:
            started = time.process_time()
            score_attacks([get_attack(name) for name in names], texts, *models, cache)
            return time.process_time() - started
        finally:
            cache.close()


if __name__ == "__main__":
    main()
