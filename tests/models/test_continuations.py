"""Probabilities of continuations against enumeration on a tiny vocabulary, and against what transformers samples."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

import heldin.models.devices
from heldin.models.continuations import continuation_logprobs
from heldin.models.loading import LanguageModel
from heldin.models.opening import load_language_model
from tests.oracles.continuations import all_continuations, every
from tests.refusals import refused
from tests.tiny_models import gpt2, gpt_neo, llama

WORDS = 6
MADE = {"gpt-neo": gpt_neo, "gpt2": gpt2}
RARE = 1e-6  # how often the right temperature would be rejected


def tiny(model, words=WORDS):
    """A model of few tokens whose logits differ enough that temperature and top-k matter."""
    tokenizer = SimpleNamespace(bos_token_id=0, eos_token_id=0)
    made = model.eval()
    made.get_input_embeddings().weight.data.mul_(20)
    assert made.config.vocab_size == words
    return LanguageModel(made, tokenizer, "tiny", "tiny")


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (1.0, 2), (0.6, 3), (1.7, 4), (0.8, 1), (1.0, 50)])
def test_probabilities_are_those_of_all_continuations_enumerated(kind, temperature, top_k):
    torch.manual_seed(3)
    lm = tiny(MADE[kind](vocab_size=WORDS))
    prefix = [4, 1, 5]
    enumerated = all_continuations(lm, prefix, 3, temperature=temperature, top_k=top_k)
    windows = np.array([[*prefix, *its] for its in every(WORDS, 3)], dtype=np.int32)
    found = np.exp(continuation_logprobs(lm, windows, 3, temperature=temperature, top_k=top_k))
    assert sum(enumerated.values()) == pytest.approx(1)
    assert found.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found, [enumerated[its] for its in every(WORDS, 3)], atol=1e-6)
    # At top-k 1 a single continuation has all the probability, and the others have none at all.
    assert (found == 0).sum() == sum(its == 0 for its in enumerated.values())
    if top_k == 1:
        assert (found == 0).sum() == WORDS**3 - 1


def test_a_model_without_the_argument_for_fewer_logits_gives_the_same(monkeypatch):
    torch.manual_seed(5)
    lm = tiny(llama_of(WORDS))
    windows = np.array([[1, 2, *its] for its in every(WORDS, 2)], dtype=np.int32)
    asked = {"temperature": 0.9, "top_k": 3}
    fewer = continuation_logprobs(lm, windows, 2, **asked)
    monkeypatch.setattr(heldin.models.continuations, "keeps_logits", lambda lm: False)
    np.testing.assert_allclose(np.exp(continuation_logprobs(lm, windows, 2, **asked)), np.exp(fewer), atol=1e-6)


def llama_of(words):
    model = llama()
    model.resize_token_embeddings(words)
    return model


def test_tokens_that_tie_with_the_last_of_the_top_k_are_drawn_too(make_lm):
    lm = make_lm()
    lm.model.transformer.ln_f.weight.data.fill_(0.0)  # all logits are equal
    lm.model.transformer.ln_f.bias.data.fill_(0.0)
    size = lm.model.config.vocab_size
    found = continuation_logprobs(lm, np.array([[5, 6, 7, 8]], dtype=np.int32), 2, temperature=1.0, top_k=3)
    assert found == pytest.approx(-2 * np.log(size))


def test_a_windows_probability_does_not_depend_on_its_batch(make_lm, monkeypatch):
    lm = make_lm()
    windows = np.random.default_rng(0).integers(2, lm.model.config.vocab_size, (40, 12)).astype(np.int32)
    asked = {"temperature": 1.0, "top_k": lm.model.config.vocab_size * 7 // 8}
    together = continuation_logprobs(lm, windows, 6, **asked)
    alone = [continuation_logprobs(lm, its[None], 6, **asked)[0] for its in windows]
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert 0 < np.isinf(together).sum() < 40
    # One window a batch, and one row of logits a chunk.
    monkeypatch.setitem(heldin.models.logprobs.LOGITS_PER_BATCH, "cpu", 1)
    monkeypatch.setitem(heldin.models.devices.LOGITS_PER_CHUNK, False, 1)
    done = []
    np.testing.assert_allclose(continuation_logprobs(lm, windows, 6, **asked, advance=done.append), together, atol=1e-4)
    assert done == [1] * 40


@pytest.mark.slow
def test_probabilities_are_the_frequencies_of_what_transformers_samples(finished):
    lm = load_language_model(str(finished / "checkpoints" / "final"))
    prefix = lm.tokenizer("Hi, can we talk about the", add_special_tokens=False)["input_ids"]
    given = torch.tensor([[lm.start_token, *prefix]])
    torch.manual_seed(11)
    draws, k, top_k, temperature = 20_000, 3, 8, 0.7
    with torch.no_grad():
        sampled = lm.model.generate(
            given.repeat(draws, 1),
            attention_mask=torch.ones(draws, given.shape[1], dtype=torch.long),
            do_sample=True,
            temperature=temperature,
            top_k=top_k,
            top_p=1.0,
            max_new_tokens=k,
            min_new_tokens=k,
            eos_token_id=None,
            pad_token_id=lm.start_token,
        )[:, given.shape[1] :]
    suffixes, counts = np.unique(sampled.numpy(), axis=0, return_counts=True)
    likeliest = np.argsort(-counts)[:20]
    windows = np.array([[*prefix, *suffixes[i]] for i in likeliest], dtype=np.int32)

    def smallest_p_value(temperature, top_k):
        logprobs = continuation_logprobs(lm, windows, len(prefix), temperature=temperature, top_k=top_k)
        pairs = zip(counts[likeliest].tolist(), np.exp(logprobs), strict=True)
        return min(stats.binomtest(count, draws, min(1.0, p)).pvalue for count, p in pairs)

    # Twenty tests at a twentieth of the level each.
    assert smallest_p_value(temperature, top_k) > RARE / 20
    assert smallest_p_value(1.0, top_k) < RARE / 20
    assert smallest_p_value(temperature, 2) < RARE / 20
    assert smallest_p_value(temperature, None) < RARE / 20


def test_windows_longer_than_the_context_are_one_clear_line(make_lm):
    with refused(by="require_context", naming=("33", "'tiny-0'")):
        continuation_logprobs(make_lm(), np.ones((1, 33), dtype=np.int32), 20, temperature=1.0, top_k=40)
    whole = np.full((1, 32), 5, dtype=np.int32)
    assert continuation_logprobs(make_lm(), whole, 31, temperature=1.0, top_k=None)[0] < 0


def test_a_broken_model_is_refused(make_lm):
    lm = make_lm()
    lm.model.transformer.ln_f.weight.data.fill_(np.nan)
    with refused(by=continuation_logprobs):
        continuation_logprobs(lm, np.ones((1, 8), dtype=np.int32), 4, temperature=1.0, top_k=40)
