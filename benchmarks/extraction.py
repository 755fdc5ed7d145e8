"""The time of extraction compared with scoring the same texts, in one process.

    .venv/bin/python benchmarks/extraction.py [HOW_MANY [TEXTS.jsonl.gz]]

Texts have at least 100 tokens: the model is given 50 and asked for 50. Scoring is one pass of the audited model over
the whole texts, with ranks, as for the score cache. Extraction consists of tokenizing, one window per text, and the
window's probability under the same model with top-k 40. The search for the suffixes in as many texts is timed
separately. All measurements alternate; the benchmark prints the ratios of each round, then their medians. Two
vocabulary sizes are measured, because top-k takes longer with a larger vocabulary.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from heldin.attacks.extraction import ExtractionConfig
from heldin.attacks.windows import Windows, found_in_others, windows_of
from heldin.corpus.document import Document
from heldin.corpus.made_up.source import Synthetic
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns, Source
from heldin.models.continuations import continuation_logprobs
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import score_texts, token_ids
from heldin.models.model_config import TinyModel
from heldin.models.tiny import new_tiny_model, train_tokenizer

PAIRS = 3
ASKED = ExtractionConfig()
CUT = 4000  # characters, as ``attack.max_characters``


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    source: Source = (
        open_source(Path(sys.argv[2]), Columns())
        if len(sys.argv) > 2
        else Synthetic(SyntheticCorpus(users=600, mean_records=24, min_records=10))
    )
    every = [row[:CUT] for batch in source.batches(BadRows()) for row in batch.column("text").to_pylist()]
    tokenizer = train_tokenizer(every[:5000], 4096)
    texts = [text for text in every[:20_000] if len(token_ids(tokenizer, [text])[0]) >= ASKED.length][:count]
    mean = sum(len(ids) for ids in token_ids(tokenizer, texts)) / len(texts)
    by_user = {f"user {i}": [text] for i, text in enumerate(texts)}
    for vocabulary in (4096, 50_257):
        model = new_tiny_model(TinyModel(vocabulary), tokenizer, 0).eval()
        if model.config.vocab_size != vocabulary:
            model.resize_token_embeddings(vocabulary)
        lm = LanguageModel(model, tokenizer, "tiny", "")
        print(
            f"{lm.parameters() / 1e6:.1f}M parameters, vocabulary {vocabulary}, {len(texts)} texts of {mean:.0f} tokens"
        )
        _compare(lm, texts, by_user)


def _compare(lm: LanguageModel, texts: list[str], by_user: dict[str, list[str]]) -> None:
    ratios, searches = [], []
    for _ in range(PAIRS):
        scoring = _timed(lambda: score_texts(lm, texts, ranks=True))
        windows: list[Windows] = []
        extracting = _timed(lambda: windows.append(_extract(lm, by_user)))  # noqa: B023
        training = [({user}, text) for user, its in by_user.items() for text in its]
        searching = _timed(lambda: found_in_others(windows[0], training, lm.tokenizer, ASKED))  # noqa: B023
        ratios.append(extracting / scoring)
        searches.append(searching / scoring)
        print(
            f"scoring {scoring:.2f} s, extraction {extracting:.2f} s, ratio {ratios[-1]:.3f}; search {searching:.2f} s"
        )
    print(f"median ratio {statistics.median(ratios):.3f}, of the search {statistics.median(searches):.3f}")


def _extract(lm: LanguageModel, by_user: dict[str, list[str]]) -> Windows:
    documents = {user: [Document.of(text) for text in texts] for user, texts in by_user.items()}
    windows = windows_of(documents, lm.tokenizer, ASKED, bytes(32))
    continuation_logprobs(lm, windows.tokens, ASKED.prefix, temperature=ASKED.temperature, top_k=ASKED.top_k)
    return windows


def _timed(work: Callable[[], object]) -> float:
    # One thread's processor time: other work on the machine takes its share of the clock's.
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
