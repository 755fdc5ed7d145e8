"""Token log-probabilities of texts under a causal language model, with little padding.

Every model scores the whole text, without special tokens, in consecutive windows of at most ``context`` tokens. The
start token precedes each window, so the window's first token has a probability too. The end-of-text token is not
scored. Two models thus score the same characters, whatever their tokenizers and contexts. A text that a chat template
wrote has its own first token, which replaces the start token.
"""

import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from heldin.base.errors import InputError
from heldin.models.arithmetic import true_float32
from heldin.models.attention import unpacked
from heldin.models.devices import LOGITS_PER_CHUNK, in_chunks, kind_of, moved
from heldin.models.loading import LanguageModel
from heldin.models.reading import text_config
from heldin.models.token_scores import TokenScores
from heldin.models.tokens import MEMO, Framed, Ids, Parted, as_read, scored_tokens_of, started

MAX_PADDING = 0.05
OPERATIONS_OF_A_PASS = 2**28  # a pass of fewer takes as long, so that the padding of a tiny model costs nothing
# Logits (tokens x vocabulary) of a forward pass: 16 MiB and 4 GiB in float32.
BATCH_SIZE = "HELDIN_BATCH_SIZE"
LOGITS_PER_BATCH = {"cpu": 2**22, "cuda": 2**30}
TOKENS_PER_BATCH = 2**16  # on a GPU: with a small vocabulary the activations take more than the logits

Scored = Callable[[], list[NDArray[np.float32]]]  # waits for the scores of a batch


@dataclass(frozen=True)
class Window:
    """A part of a text for one forward pass: the text's number, the token before the part, and the tokens of the
    part."""

    text: int
    start: int
    tokens: Ids


def score_texts(
    lm: LanguageModel,
    texts: Sequence[str],
    *,
    moments: bool = False,
    ranks: bool = False,
    finite: bool = True,
    advance: Callable[[int], object] | None = None,
    copies: Sequence[PreTrainedModel] = (),
) -> list[TokenScores]:
    """Score every text.

    Args:
        texts: texts to score; any number, any lengths.
        moments: whether to return the mean and standard deviation of log p over the vocabulary at every position (for
            Min-K%++).
        ranks: whether to return, for each token, how many tokens of the vocabulary are likelier.
        finite: whether to refuse a log-probability that is not finite; if false, the caller must check.
        advance: called after every batch with its number of scored tokens.
        copies: copies of the model on other devices; each scores a share of the batches.

    Raises:
        InputError: a text has no tokens (the message gives the text's number), or a log-probability is not finite.
    """
    if not texts:
        return []
    windows = list(cut_into_windows(texts, MEMO.ids(lm.tokenizer, texts), lm.start_token, lm.context))
    # By window: batches go by length, and the texts' own order is restored below.
    rows: dict[int, NDArray[np.float32]] = {}
    lengths = [len(w.tokens) for w in windows]
    free = OPERATIONS_OF_A_PASS // (2 * sum(weights.numel() for weights in lm.model.parameters()))
    batches = batches_by_length(lengths, max_tokens=tokens_per_batch(lm.model), most=stated_batch_size(), free=free)
    taking, wanted = threading.Lock(), (moments, ranks)

    def keep(batch: Sequence[int], scored: Scored) -> None:
        arrays = scored()
        with taking:
            rows.update(zip(batch, arrays, strict=True))
            if advance:
                advance(sum(len(windows[i].tokens) for i in batch))

    def work(model: PreTrainedModel) -> None:
        behind: tuple[list[int], Scored] | None = None
        while True:
            with taking:
                batch = next(batches, None)
            # Before the last batch's scores are waited for, so that a GPU always has something to do.
            scored = batch and _score_batch(model, [windows[i] for i in batch], wanted)
            if behind:
                keep(*behind)
            if not batch or not scored:
                return
            behind = batch, scored

    with true_float32():
        if copies:
            # A thread for each device: what a GPU computes keeps no other thread from working.
            with ThreadPoolExecutor(1 + len(copies)) as threads:
                list(threads.map(work, (lm.model, *copies)))
        else:
            work(lm.model)
    parts: list[list[NDArray[np.float32]]] = [[] for _ in texts]
    for i, window in enumerate(windows):
        parts[window.text].append(rows[i])
    values = [np.concatenate(p, axis=1) for p in parts]
    broken = next((i for i, scored in enumerate(values) if not np.isfinite(scored).all()), None)
    if finite and broken is not None:
        raise InputError(
            f"model '{lm.name}' gives text number {broken + 1} a probability that is not finite: check the model"
        )
    return [_token_scores(scored, moments, ranks) for scored in values]


def score_documents(lm: LanguageModel, documents: Sequence[Parted], *, finite: bool = True) -> list[TokenScores]:
    """Score the counted tokens of every document, each after all tokens before it.

    For a pair, each answer is scored after the prompt. A document without counted tokens has empty scores.

    Args:
        documents: documents to score; any number, any lengths.
        finite: see ``score_texts``.

    Raises:
        InputError: see ``score_texts`` and ``models.tokens.tokens_of``.
    """
    return of_counted(lm.tokenizer, documents, score_texts(lm, texts_read(documents), finite=finite))


def texts_read(documents: Sequence[Parted]) -> list[str]:
    """Return the texts that a model reads to score these documents, in order; two texts for a pair."""
    return [as_read(branch) for document in documents for branch in document.branches()]


def of_counted(
    tokenizer: PreTrainedTokenizerBase | None, documents: Sequence[Parted], scores: Sequence[TokenScores]
) -> list[TokenScores]:
    """Return the scores of each document's counted tokens, taken from the scores of whole texts.

    Args:
        tokenizer: tokenizer of the model that scored the texts; None: unknown, which suffices only for plain texts.
        documents: the scored documents.
        scores: scores of ``texts_read``.

    Raises:
        InputError: only parts of a text count, and the positions of the text's tokens are unknown.
    """
    whole = documents
    documents = [branch for document in whole for branch in document.branches()]
    of_parts = list(scores)
    parted = [i for i, document in enumerate(documents) if not document.is_plain]
    if parted and tokenizer is None:
        raise InputError("a model behind an endpoint does not report the positions of tokens: give --tokenizer")
    if parted and tokenizer is not None:
        for i, tokens in zip(parted, scored_tokens_of(tokenizer, [documents[i] for i in parted]), strict=True):
            assert tokens.counted is not None
            # Another number of tokens would put a mask beside other tokens.
            if len(tokens) != len(scores[i].logprobs):
                raise InputError("the tokenizer's tokens differ from the scored tokens: give the model's own tokenizer")
            of_parts[i] = scores[i].at(tokens.counted)
    left = iter(of_parts)
    return [replace(next(left), rejected=next(left)) if document.is_pair else next(left) for document in whole]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[NDArray[np.int32]]:
    """Return, for each text, the ids of the tokens that ``score_texts`` scores."""
    whole = zip(texts, MEMO.ids(tokenizer, texts), strict=True)
    return [ids[1:] if isinstance(text, Framed) else ids for text, ids in whole]


def batches_by_length(
    lengths: Sequence[int], *, max_tokens: int, most: int | None = None, free: int = 0
) -> Iterator[list[int]]:
    """Group indices into batches of at most ``max_tokens`` tokens, with at most 5 % padding per row.

    ``max_tokens`` includes padding; a longer row is a separate batch. No batch has more than ``most`` rows. Batches of
    at most ``free`` tokens, including padding, may have more padding per row.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])  # longest first: a batch's first row is its longest
    batch: list[int] = []
    for i in order:
        longest = lengths[batch[0]] if batch else lengths[i]
        padded = (len(batch) + 1) * longest
        if batch and (
            (lengths[i] < (1 - MAX_PADDING) * longest and padded > free) or padded > max_tokens or len(batch) == most
        ):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def cut_into_windows(texts: Sequence[str], encoded: Sequence[Ids], start: int, context: int) -> Iterator[Window]:
    """Cut the token ids of texts into windows of at most ``context``. Raises InputError for a text without tokens.

    Args:
        texts: the texts.
        encoded: all tokens of each text.
        start: token that precedes a text.
        context: maximum number of tokens per window.
    """
    for text, whole in enumerate(encoded):
        before, ids = started(texts[text], whole, start)
        if not len(ids):
            raise InputError(
                f"text number {text + 1} has no tokens: remove texts with only blanks or unknown characters"
            )
        # Windows do not overlap: every token is scored once, and the first ones of a window without what stands before
        # it.
        for begin in range(0, len(ids), context):
            yield Window(text, before, ids[begin : begin + context])


@torch.no_grad()  # not inference mode, whose tensors a spread model could not train with afterwards
def _score_batch(model: PreTrainedModel, windows: Sequence[Window], wanted: tuple[bool, bool]) -> Scored:
    """Return, for each window, an array (rows, n) with the rows that ``_score_rows`` computes.

    Args:
        windows: windows of the batch.
        wanted: whether to include mean and deviation, and whether to include ranks.
    """
    longest = max(len(window.tokens) for window in windows)
    # Padding on the right of a causal model's text changes nothing to its left, so no mask is needed.
    tokens = np.empty((len(windows), longest + 1), dtype=np.int64)  # (B, 1 + L)
    for row, window in enumerate(windows):
        tokens[row] = window.start
        tokens[row, 1 : 1 + len(window.tokens)] = window.tokens
    # The input is the window moved by one: with the start token in front, and without its last token, which predicts
    # nothing that is scored. So it is no longer than the context.
    inputs, targets = torch.from_numpy(tokens[:, :-1]), torch.from_numpy(tokens[:, 1:])
    scored = batch_scores(model, inputs, targets, moments=wanted[0], ranks=wanted[1])
    arrive = _on_its_way(scored.view(len(scored), len(windows), longest))

    def arrays() -> list[NDArray[np.float32]]:
        values: NDArray[np.float32] = arrive().numpy()
        return [values[:, i, : len(w.tokens)] for i, w in enumerate(windows)]

    return arrays


def _on_its_way(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start to copy a tensor to the CPU. Return a function that waits for the copy, but not for later work on the
    GPU."""
    if tensor.device.type != "cuda":
        return lambda: tensor
    here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    here.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(tensor.device))

    def arrive() -> torch.Tensor:
        done.synchronize()
        return here

    return arrive


def keeps_logits(lm: LanguageModel) -> bool:
    """Return whether the model can compute the logits of the last tokens only."""
    return "logits_to_keep" in inspect.signature(lm.model.forward).parameters


def stated_batch_size() -> int | None:
    """Return the maximum number of texts per scoring pass from HELDIN_BATCH_SIZE; None: as many as memory allows."""
    stated = os.environ.get(BATCH_SIZE)
    if stated is None:
        return None
    if not stated.isdecimal() or not int(stated):
        raise InputError(f"{BATCH_SIZE}={stated} is not a number of texts: give a whole number of at least 1")
    return int(stated)


def bytes_of_a_pass(kind: str) -> int:
    """Return the bytes that a batch's logits and their float32 intermediates may take on this kind of device."""
    return 4 * (LOGITS_PER_BATCH[kind] + 3 * LOGITS_PER_CHUNK[kind == "cuda"])


def tokens_per_batch(model: PreTrainedModel) -> int:
    """Return the maximum tokens per scoring batch, including padding, given one logit per token and vocabulary
    entry."""
    on_gpu = kind_of(model.device) == "cuda"
    tokens = LOGITS_PER_BATCH["cuda" if on_gpu else "cpu"] // int(text_config(model.config).vocab_size)
    return min(tokens, TOKENS_PER_BATCH) if on_gpu else tokens


def batch_scores(
    model: PreTrainedModel, inputs: torch.Tensor, targets: torch.Tensor, *, moments: bool, ranks: bool
) -> torch.Tensor:
    """Return the scores of a batch's tokens, (1 to 4, B L), on the model's device. Disable gradients before the call.

    Args:
        inputs: token ids, (B, L).
        targets: token ids, (B, L).
        moments: whether the rows include mean and deviation.
        ranks: whether the rows include ranks.
    """
    with unpacked():
        logits = model(input_ids=moved(inputs, model.device), use_cache=False).logits.flatten(0, 1)  # (B*L, V)
    chunks = in_chunks(logits, moved(targets, model.device).flatten())
    return torch.cat([_score_rows(part, wanted, moments, ranks) for part, wanted in chunks], dim=1)


def _score_rows(logits: torch.Tensor, targets: torch.Tensor, moments: bool, ranks: bool) -> torch.Tensor:
    """Return scores, (1 to 4, N), float32, from logits (N, V); with ``ranks``, the logits may be overwritten.

    Args:
        logits: logits of N tokens.
        targets: the tokens, shape (N,).
        moments: whether mean and deviation over the vocabulary follow the targets' log-probability.
        ranks: whether the last row has the number of greater logits.
    """
    # Of bfloat16 logits torch makes a float32 copy first, and so of no more than a chunk at a time.
    logprobs = logits.log_softmax(-1, dtype=torch.float32)
    columns = [logprobs.gather(1, targets[:, None]).squeeze(1)]
    if moments:
        probabilities = logprobs.exp()
        # A logit of minus infinity gives 0 times infinity here: not a number, which ``_token_scores`` refuses.
        mean = torch.einsum("nv,nv->n", probabilities, logprobs)
        # Around the mean, and not E[x^2] - E[x]^2, which cancels where the model is nearly certain. In place, to save
        # memory: the log-probabilities are not used again.
        squares = logprobs.sub_(mean[:, None]).square_()
        columns += [mean, torch.einsum("nv,nv->n", probabilities, squares).sqrt()]
    if ranks:
        target = logits.gather(1, targets[:, None])
        # On a CPU in place, while the chunk is still in the cache: a comparison of its own takes as long as the
        # cross-entropy. On a GPU a byte for each logit is less to write and to read.
        greater = logits > target if kind_of(logits.device) == "cuda" else logits.gt_(target)
        # float32 counts exactly up to 2^24, which no vocabulary reaches.
        columns.append(greater.sum(dim=1, dtype=torch.float32))
    return torch.stack(columns)


def _token_scores(rows: NDArray[np.float32], moments: bool, ranks: bool) -> TokenScores:
    means, deviations = (rows[1], rows[2]) if moments else (None, None)
    return TokenScores(rows[0], means, deviations, rows[-1].astype(np.int32) if ranks else None)
