"""Distance of a user's texts from the reference model: a lower bound on KL(D_u || p_ref), in nats per token.

The user's own words are mixed into the reference, q_u(w | context) = (n_w + kappa p_ref(w | context)) / (n + kappa),
where n_w counts token w in the user's other documents (Dirichlet smoothing towards p_ref; MacKay and Peto 1995). For
every q_u that has not seen the text, E[log q_u / p_ref] = KL(D_u || p_ref) - KL(D_u || q_u). The mean over texts
therefore estimates a lower bound of KL(D_u || p_ref). The bound grows with the difference between the user's words and
other people's, and ignores word order. With p_ref in place of D_-u, it is the distance of Kandpal et al. (2024),
section 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.protocol import REFERENCE_DIVERGENCE, TextStatistic
from heldin.attacks.scoring import AttackTexts
from heldin.corpus.document import Document
from heldin.models.loading import LanguageModel
from heldin.models.logprobs import of_counted
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import as_read, scored_tokens_of

KAPPAS = np.geomspace(1e1, 1e7, 13)  # in tokens: how many of the reference's are mixed into the user's own


@dataclass(frozen=True)
class OwnWords:
    """A text's n tokens, and how often the user writes each token in other documents.

    Attributes:
        logprobs: log p_ref of each token, shape (n,), nats.
        counts: occurrences of each token in the user's other documents, shape (n,).
        total: number of tokens in the user's other documents.
    """

    logprobs: NDArray[np.float32]
    counts: NDArray[np.int64]
    total: int


def reference_divergences(
    texts: AttackTexts, documents: Mapping[str, Sequence[Document]], reference: LanguageModel, cache: ScoreCache
) -> list[TextStatistic]:
    """Return log q_u / p_ref per token for every text whose user has another document.

    Args:
        texts: texts whose divergence is estimated.
        documents: each user's own documents; the function ignores copies of the measured text.
        reference: model that represents all other people.
    """
    # Of a pair, the chosen answer is compared.
    texts = texts.of_answer(0)
    documents = {user: [document.branches()[0] for document in own] for user, own in documents.items()}
    items = [item for item in texts.flat() if item[0] in documents]
    plain = [document for _, _, document in items]
    whole = cache.scores(reference, list(map(as_read, plain)))
    scores = of_counted(reference.tokenizer, plain, whole)
    # Documents are cut like the attacker's texts, so that a copy of the text at hand is equal to it and can be left
    # out.
    words_of = {
        user: _words(reference, [each.cut(texts.max_characters) for each in documents[user]]) for user in documents
    }
    own_words: list[tuple[str, int, OwnWords]] = []
    for (user, number, document), scored in zip(items, scores, strict=True):
        # With the text itself among the documents q_u would have seen it, and the mean would bound nothing.
        others = [ids for own, ids in words_of[user] if own != document.counted]
        if others and len(scored.logprobs):
            ((_, ids),) = _words(reference, [document])
            # Long enough for every token of the text, also for one that the user writes nowhere else.
            counts = np.bincount(np.concatenate(others), minlength=int(ids.max()) + 1)
            own_words.append((user, number, OwnWords(scored.logprobs, counts[ids], int(counts.sum()))))
    values = divergences([words for _, _, words in own_words])
    return [
        TextStatistic(user, number, REFERENCE_DIVERGENCE, value)
        for (user, number, _), value in zip(own_words, values, strict=True)
    ]


def divergences(texts: Sequence[OwnWords]) -> list[float]:
    """Return log q_u / p_ref of every text, in nats per token, with the kappa that has the largest mean over all texts.

    This kappa is the best of 13 on these texts, so the mean is biased upwards. With more texts, the bias is smaller.

    If no kappa gives a positive mean, the user's own words carry no evidence and every value is 0 (kappa infinite).
    """
    if not texts:
        return []
    rows = np.array([_gains(text) for text in texts]).T  # (kappas, texts)
    # One kappa for all texts: chosen text by text, the maximum alone would make every value positive.
    best = rows[int(rows.mean(axis=1).argmax())]
    return [float(v) for v in best] if best.mean() > 0 else [0.0] * len(texts)


def _gains(text: OwnWords) -> NDArray[np.float64]:
    """Return, for each kappa, the mean over the text's tokens of log q_u / p_ref.

    The formula is log(n_w / p_ref + kappa) - log(n + kappa).
    """
    # In logarithms, because p_ref of a rare token underflows. For a token the user writes nowhere else n_w is 0, whose
    # logarithm leaves log kappa alone.
    with np.errstate(divide="ignore"):
        own = np.log(text.counts) - text.logprobs.astype(np.float64)
    kappas = KAPPAS[:, None]
    gains = np.logaddexp(own, np.log(kappas)) - np.log(text.total + kappas)  # (kappas, tokens)
    return np.asarray(gains.mean(axis=1))


def _words(reference: LanguageModel, documents: Sequence[Document]) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the counted part of each document, and its tokens."""
    # As ``models.logprobs`` tokenizes, so that counts and log-probabilities are of the same tokens.
    return [
        (document.counted, np.asarray(tokens.counted_ids, dtype=np.int64))
        for document, tokens in zip(documents, scored_tokens_of(reference.tokenizer, documents), strict=True)
    ]
