"""Token log-probabilities against the one-token-at-a-time oracle; padding; the cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heldin.models.score_cache
from heldin.base.errors import InputError
from heldin.models.logprobs import MAX_PADDING, batches_by_length, score_texts
from heldin.models.score_cache import ScoreCache
from tests.oracles.token_scores import naive_token_scores

TEXTS = ["a", "The river opens the letter.", "ünïcode 🎉 and\n\nlines", "The market counts the story on day 7. " * 9]


@pytest.mark.parametrize("context", [8, 32])
def test_scores_equal_the_oracle_for_short_and_long_texts(make_lm, context):
    lm = make_lm(context=context)
    for text, scores in zip(TEXTS, score_texts(lm, TEXTS, moments=True), strict=True):
        logprobs, means, deviations = naive_token_scores(lm, text)
        np.testing.assert_allclose(scores.logprobs, logprobs, atol=2e-5)
        np.testing.assert_allclose(scores.means, means, atol=2e-5)
        np.testing.assert_allclose(scores.deviations, deviations, atol=2e-5)
        assert scores.total == pytest.approx(logprobs.sum(), abs=1e-3)


def test_a_texts_score_does_not_depend_on_its_company(make_lm):
    lm = make_lm()
    alone = [score_texts(lm, [text])[0].logprobs for text in TEXTS]
    together = score_texts(lm, TEXTS * 3)
    for i, scores in enumerate(together):
        np.testing.assert_allclose(scores.logprobs, alone[i % len(TEXTS)], atol=2e-5)


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=200), max_tokens=st.integers(1, 5000))
def test_batches_hold_every_text_once_within_the_budget_and_with_next_to_no_padding(lengths, max_tokens):
    batches = list(batches_by_length(lengths, max_tokens=max_tokens))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        padded = len(sizes) * max(sizes)
        assert len(sizes) == 1 or padded <= max_tokens
        assert padded - sum(sizes) <= MAX_PADDING * padded


def test_a_text_without_tokens_and_a_broken_model_are_told(make_lm):
    lm = make_lm()
    with pytest.raises(InputError, match="text number 2 has no tokens"):
        score_texts(lm, ["fine", ""])
    lm.model.transformer.ln_f.weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match="model 'tiny-0' gives text number 1 a probability that is not finite"):
        score_texts(lm, ["fine"])


def test_no_texts_no_scores(make_lm):
    assert score_texts(make_lm(), []) == []


def test_the_cache_returns_what_was_scored_and_runs_no_model_twice(make_lm, tmp_path, monkeypatch):
    lm = make_lm()
    cache = ScoreCache(tmp_path)
    direct = score_texts(lm, TEXTS)
    first = cache.scores(lm, [*TEXTS, TEXTS[0]])
    for scores, expected in zip(first, [*direct, direct[0]], strict=True):
        np.testing.assert_allclose(scores.logprobs, expected.logprobs, atol=2e-5)
    runs = []
    monkeypatch.setattr(heldin.models.score_cache, "score_texts", lambda *a, **k: runs.append(a) or [])
    done = []
    again = cache.scores(lm, TEXTS, advance=done.append)
    assert runs == []
    assert sum(done) == len(TEXTS)
    assert [s.logprobs.tolist() for s in again] == [s.logprobs.tolist() for s in first[: len(TEXTS)]]


def test_the_cache_tells_models_and_kinds_of_scores_apart(make_lm, tmp_path):
    cache = ScoreCache(tmp_path)
    plain = cache.scores(make_lm(seed=0), TEXTS[:2])
    other = cache.scores(make_lm(seed=1), TEXTS[:2])
    rich = cache.scores(make_lm(seed=0), TEXTS[:2], moments=True)
    assert not np.allclose(plain[1].logprobs, other[1].logprobs)
    assert plain[1].means is None
    assert rich[1].means.shape == rich[1].logprobs.shape


def test_the_cache_keeps_what_was_done_before_a_crash(make_lm, tmp_path, monkeypatch):
    monkeypatch.setattr(heldin.models.score_cache, "CHUNK", 1)
    lm = make_lm()
    calls = []

    def crash_at_third(lm_, texts, **options):
        calls.append(texts)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return score_texts(lm_, texts, **options)

    monkeypatch.setattr(heldin.models.score_cache, "score_texts", crash_at_third)
    with pytest.raises(KeyboardInterrupt):
        ScoreCache(tmp_path).scores(lm, TEXTS)
    assert len(ScoreCache(tmp_path).scores(lm, TEXTS)) == len(TEXTS)
    assert len(calls) == 5  # two kept, one crashed, two done after it


def test_a_cache_that_is_no_database_is_told(tmp_path):
    (tmp_path / "scores.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(InputError, match=r"the score cache '.*scores.sqlite' cannot be used"):
        ScoreCache(tmp_path)
