"""Token log-probabilities against the one-token-at-a-time oracle; padding; the cache."""

import re
import shutil
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heldin.models.score_cache
from heldin.base.errors import ResumableError
from heldin.models.devices import copies_on_other_gpus, copy_on
from heldin.models.logprobs import MAX_PADDING, batch_scores, batches_by_length, score_texts
from heldin.models.score_cache import MOMENTS, ScoreCache
from heldin.models.token_scores import TokenScores
from tests.oracles.token_scores import naive_ranks, naive_token_scores
from tests.refusals import refused

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


@pytest.mark.parametrize("moments", [False, True])
def test_ranks_count_the_likelier_tokens_and_change_no_other_number(make_lm, moments):
    lm = make_lm(context=8)
    without = score_texts(lm, TEXTS, moments=moments)
    for text, plain, scores in zip(TEXTS, without, score_texts(lm, TEXTS, moments=moments, ranks=True), strict=True):
        np.testing.assert_array_equal(scores.ranks, naive_ranks(lm, text))
        assert plain.ranks is None
        for name in ("logprobs", "means", "deviations"):
            np.testing.assert_array_equal(getattr(scores, name), getattr(plain, name))


def test_the_first_choice_has_rank_0_and_equal_logits_share_a_rank(make_lm):
    lm = make_lm()
    lm.model.transformer.ln_f.weight.data.fill_(0.0)  # all logits are equal
    lm.model.transformer.ln_f.bias.data.fill_(0.0)
    assert not score_texts(lm, [TEXTS[1]], ranks=True)[0].ranks.any()


def test_some_tokens_keep_all_that_is_known_of_them():
    whole = TokenScores(*(np.arange(4, dtype=np.float32) + i for i in range(3)), np.arange(4), np.arange(4) + 9)
    some = whole.at(np.array([False, True, False, True]))
    assert [its.tolist() for its in vars(some).values() if its is not None] == [
        [1, 3],
        [2, 4],
        [3, 5],
        [1, 3],
        [10, 12],
    ]
    assert TokenScores(whole.logprobs).at(np.array([2])).ranks is None


def test_a_texts_score_does_not_depend_on_its_company(make_lm):
    lm = make_lm()
    alone = [score_texts(lm, [text])[0].logprobs for text in TEXTS]
    together = score_texts(lm, TEXTS * 3)
    for i, scores in enumerate(together):
        np.testing.assert_allclose(scores.logprobs, alone[i % len(TEXTS)], atol=2e-5)


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=200),
    max_tokens=st.integers(1, 5000),
    free=st.integers(0, 6000),
)
def test_batches_hold_every_text_once_within_the_budget_and_with_next_to_no_padding(lengths, max_tokens, free):
    batches = list(batches_by_length(lengths, max_tokens=max_tokens, free=free))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[i] for i in batch]
        padded = len(sizes) * max(sizes)
        assert len(sizes) == 1 or padded <= max_tokens
        assert padded <= free or padded - sum(sizes) <= MAX_PADDING * padded


def test_short_texts_of_a_tiny_model_take_few_passes(make_lm, monkeypatch):
    lm, passes = make_lm(), []

    def counted(*arguments, **options):
        passes.append(1)
        return batch_scores(*arguments, **options)

    monkeypatch.setattr("heldin.models.logprobs.batch_scores", counted)
    score_texts(lm, [" ".join(["report"] * count) for count in range(1, 24)])
    assert len(passes) == 1


def test_a_text_without_tokens_and_a_broken_model_are_told(make_lm):
    lm = make_lm()
    with refused(by="cut_into_windows", naming="2"):
        score_texts(lm, ["fine", ""])
    lm.model.transformer.ln_f.weight.data.fill_(float("nan"))
    with refused(by=score_texts, naming=("'tiny-0'", "1")):
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
    monkeypatch.setitem(heldin.models.score_cache.CHUNK, "cpu", 1)
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


def test_a_chunk_has_so_many_texts_and_characters_at_most(monkeypatch):
    monkeypatch.setattr(heldin.models.score_cache, "CHARACTERS", 10)
    keys = [b"a", b"b", b"c", b"d", b"e", b"f"]
    cut = list(heldin.models.score_cache.in_chunks(keys, [2, 3, 4, 6, 11, 1], 2))
    assert cut == [[b"a", b"b"], [b"c", b"d"], [b"e"], [b"f"]]
    assert list(heldin.models.score_cache.in_chunks([], [], 2)) == []


def test_the_first_of_large_chunks_are_small():
    """A GPU waits while the first texts are tokenized."""
    keys = [str(i).encode() for i in range(10_000)]
    chunks = list(heldin.models.score_cache.in_chunks(keys, [1] * len(keys), 4096))
    assert [len(chunk) for chunk in chunks] == [256, 512, 1024, 2048, 4096, 2064]
    assert [key for chunk in chunks for key in chunk] == keys
    assert [len(chunk) for chunk in heldin.models.score_cache.in_chunks(keys[:1100], [1] * 1100, 512)] == [512, 512, 76]


def test_a_cache_that_is_no_database_is_told(tmp_path):
    (tmp_path / "scores.sqlite").write_bytes(b"not a database" * 100)
    with refused(by="ScoreCache._problems_said", naming="scores.sqlite"):
        ScoreCache(tmp_path)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_cache_that_vanishes_under_its_reader_is_told_and_no_disk_is_blamed(make_lm, tmp_path, monkeypatch, replaced):
    cache = ScoreCache(tmp_path / "scores")

    def remove(*_, **__):
        shutil.rmtree(tmp_path / "scores")
        if replaced:  # by a process that came later
            ScoreCache(tmp_path / "scores").close()
        return score_texts(*_, **__)

    with monkeypatch.context() as patch:
        patch.setattr(heldin.models.score_cache, "score_texts", remove)
        with refused(by="ScoreCache._problems_said", naming="scores.sqlite", kind=ResumableError) as caught:
            cache.scores(make_lm(), TEXTS)
    assert "removed" in str(caught.value)
    assert not re.search("readonly|disk", str(caught.value))
    # Whatever is asked next of the file that is gone: never a bug.
    with refused(by="ScoreCache._problems_said", kind=ResumableError):
        cache.scores(make_lm(seed=1), TEXTS)


@pytest.mark.parametrize("moments", [False, True])
def test_ranks_are_filled_in_where_scores_were_kept_without_them(make_lm, tmp_path, monkeypatch, moments):
    lm, cache = make_lm(), ScoreCache(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(heldin.models.score_cache, "score_texts", lambda *a, ranks, **k: score_texts(*a, **k))
        kept = cache.scores(lm, TEXTS, moments=moments)
    scored = []
    monkeypatch.setattr(
        heldin.models.score_cache, "score_texts", lambda *a, **k: scored.append(a[1]) or score_texts(*a, **k)
    )
    read = cache.scores(lm, TEXTS, moments=moments)
    assert scored == []
    assert [s.logprobs.tolist() for s in read] == [s.logprobs.tolist() for s in kept]
    assert read[0].ranks is None
    for text, its in zip(TEXTS, cache.scores(lm, TEXTS, moments=moments, ranks=True), strict=True):
        np.testing.assert_array_equal(its.ranks, naive_ranks(lm, text))
        assert (its.means is None) is not moments
    assert len(scored) == 1
    cache.scores(lm, TEXTS, moments=moments, ranks=True)
    assert len(scored) == 1
    assert cache.missing(lm, TEXTS) == []
    again = cache.scores(lm, TEXTS, moments=moments)
    assert [s.logprobs.tolist() for s in again] == [s.logprobs.tolist() for s in kept], "as before ranks were there"


def test_what_was_scored_before_an_error_is_kept(make_lm, tmp_path, monkeypatch):
    monkeypatch.setitem(heldin.models.score_cache.CHUNK, "cpu", 2)
    lm, cache = make_lm(), ScoreCache(tmp_path)
    with refused(by="cut_into_windows", naming="1"):
        # The empty text is sorted to the front: what follows it is not scored, and what stands before it was.
        cache.scores(lm, [*TEXTS, ""])
    cache.scores(lm, TEXTS[:2])
    with refused(by="cut_into_windows", naming="1"):
        cache.scores(lm, [TEXTS[0], ""])
    assert cache.missing(lm, TEXTS[:2]) == []


def test_copies_of_the_model_share_the_batches_out(make_lm, monkeypatch):
    monkeypatch.setattr(heldin.models.logprobs, "LOGITS_PER_BATCH", {"cpu": 2**13})
    lm = make_lm()
    texts = [f"{text} Then day {day}." for text in TEXTS for day in range(4)]
    copies = [copy_on(lm.model, torch.device("cpu")) for _ in range(2)]
    assert copies[0].get_input_embeddings().weight is copies[0].get_output_embeddings().weight
    worked, done = set(), []
    score_batch = heldin.models.logprobs._score_batch

    def watched(model, *rest):
        worked.add(id(model))
        time.sleep(0.02)  # so that no thread takes all batches before another begins
        return score_batch(model, *rest)

    monkeypatch.setattr(heldin.models.logprobs, "_score_batch", watched)
    alone = score_texts(lm, texts, ranks=True)
    together = score_texts(lm, texts, ranks=True, copies=copies, advance=done.append)
    assert worked == {id(lm.model), *map(id, copies)}
    assert [s.logprobs.tolist() for s in together] == [s.logprobs.tolist() for s in alone]
    assert sum(done) == sum(len(s.logprobs) for s in alone)
    for its in copies:
        its.get_input_embeddings().weight.data.fill_(float("nan"))
    with refused(by=score_texts, naming="'tiny-0'"):
        score_texts(lm, texts, copies=copies)


def test_a_model_on_a_cpu_has_no_copies(make_lm):
    assert copies_on_other_gpus(make_lm().model) == []


def test_ranks_are_kept_with_the_first_pass_also_where_nobody_asks_for_them(make_lm, tmp_path, monkeypatch):
    lm, cache = make_lm(), ScoreCache(tmp_path)
    cache.scores(lm, TEXTS)
    monkeypatch.setattr(heldin.models.score_cache, "score_texts", None)
    assert [s.ranks.dtype for s in cache.scores(lm, TEXTS, ranks=True)] == [np.int32] * len(TEXTS)
    with pytest.raises(TypeError):
        cache.scores(lm, TEXTS, moments=True)
    assert MOMENTS == 1, "the key of rows with moments in every cache there is"
