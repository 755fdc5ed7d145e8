"""The reference divergence: below a known KL divergence, equal to its slow twin, blind to the text at hand."""

import math
from collections import Counter

import numpy as np
import pytest

from heldin.attacks.reference_divergence import KAPPAS, OwnWords, divergences, reference_divergences
from heldin.attacks.scoring import AttackTexts
from heldin.models.score_cache import ScoreCache
from tests.documents import by_user
from tests.oracles.token_scores import naive_token_scores

WORDS, LENGTH = 40, 50


def _texts(source, reference, others, *, leak=False, users=60, seed=0):
    """Each user's one text of LENGTH tokens, and counts over ``others`` more of the same source."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(users):
        text = rng.choice(WORDS, LENGTH, p=source)
        seen = np.concatenate([rng.choice(WORDS, LENGTH * others, p=source), text if leak else text[:0]])
        counts = np.bincount(seen, minlength=WORDS)
        found.append(OwnWords(np.log(reference[text]).astype(np.float32), counts[text], int(counts.sum())))
    return found


def test_it_is_below_the_true_divergence_and_reaches_it_with_many_documents():
    source = np.random.default_rng(1).dirichlet(np.full(WORDS, 0.3))
    uniform = np.full(WORDS, 1 / WORDS)
    kl = float(np.sum(source * np.log(source / uniform, where=source > 0, out=np.zeros(WORDS))))
    log_ratios = np.log(np.maximum(source, 1e-300) / uniform)
    error = 5 * math.sqrt(float(source @ (log_ratios - kl) ** 2) / (60 * LENGTH))
    few, many = (float(np.mean(divergences(_texts(source, uniform, others)))) for others in (1, 200))
    assert 0.2 * kl < few < kl + error
    assert kl - error - 0.01 < many < kl + error
    assert few < many - 0.05


def test_a_user_like_everybody_is_at_no_distance_unless_the_text_itself_is_counted():
    reference = np.random.default_rng(2).dirichlet(np.full(WORDS, 0.5))
    assert 0 <= np.mean(divergences(_texts(reference, reference, 2))) < 0.01
    assert np.mean(divergences(_texts(reference, reference, 2, leak=True))) > 0.05
    assert divergences([]) == []


def test_it_equals_its_slow_twin_and_leaves_out_copies_of_the_text(make_lm, tmp_path):
    lm, cut = make_lm(), 60
    of = {
        "ann": [
            "The river opens the letter and the letter opens the river. Nobody reads this end of it.",
            "The market",
        ],
        "bob": ["The market counts the story on day 7."],
        "cid": ["only this"],
    }
    documents = {
        "ann": [of["ann"][0], "The letter opens the river.", "A river, a letter, a river."],
        "bob": ["The story on day 8.", "The market counts."],
        "cid": ["only this"],
    }
    cache = ScoreCache(tmp_path)
    found = reference_divergences(AttackTexts.of(of, cut), by_user(documents), lm, cache)
    cache.close()
    assert [(s.user, s.text) for s in found] == [("ann", 0), ("ann", 1), ("bob", 0)]

    def slow(user, text, kappa):
        own = Counter()
        for document in documents[user]:
            if document[:cut] != text[:cut]:
                own.update(lm.tokenizer(document[:cut], add_special_tokens=False)["input_ids"])
        ids = lm.tokenizer(text[:cut], add_special_tokens=False)["input_ids"]
        gains = []
        for token, logprob in zip(ids, naive_token_scores(lm, text[:cut])[0], strict=True):
            p = math.exp(logprob)
            gains.append(math.log((own[token] + kappa * p) / (sum(own.values()) + kappa) / p))
        return sum(gains) / len(gains)

    table = [[slow(user, of[user][i], kappa) for user, i in (("ann", 0), ("ann", 1), ("bob", 0))] for kappa in KAPPAS]
    expected = max(table, key=sum)
    assert [s.value for s in found] == pytest.approx(expected if sum(expected) > 0 else [0.0] * 3, abs=1e-4)
    assert sum(expected) > 0
