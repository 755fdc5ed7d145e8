"""Continuations of a model that is loaded here: against one pass for each token, in batches, and from the store."""

import pytest
import torch

from heldin.models.answers import AnswerRequest, AnswerStore, Prefix
from heldin.models.loading import LanguageModel
from heldin.models.sampling import likeliest, sampled, seed_of
from tests.oracles.continued import sample, uniform_numbers
from tests.refusals import refused
from tests.tiny_models import new_model

ASKED = AnswerRequest(samples=3, tokens=6, temperature=0.9, likeliest=4, seed=7)
PREFIXES = [Prefix("The river"), Prefix("The market opens the letter on day 7. The engine"), Prefix("a")]


@pytest.mark.parametrize("kind", ["gpt-neo", "gpt2", "opt", "pythia", "llama"])
def test_samples_are_those_of_one_pass_for_each_token(kind, make_lm, tmp_path):
    tokenizer = make_lm().tokenizer
    model = new_model(kind).eval()
    model.resize_token_embeddings(400)
    lm = LanguageModel(model, tokenizer, kind, kind)
    found = sampled(lm, PREFIXES, ASKED, AnswerStore(tmp_path))
    for prefix, samples in zip(PREFIXES, found, strict=True):
        ids = tokenizer(prefix.text, add_special_tokens=False)["input_ids"]
        numbers = uniform_numbers(seed_of(ASKED, prefix), ASKED.samples, ASKED.tokens)
        slow = [tokenizer.decode(sample(lm, ids, row, ASKED.temperature), skip_special_tokens=True) for row in numbers]
        assert list(samples) == slow


def test_a_sample_depends_on_seed_and_prefix_alone(make_lm, tmp_path):
    lm = make_lm()
    together = sampled(lm, PREFIXES, ASKED, AnswerStore(tmp_path / "a"))
    alone = [sampled(lm, [prefix], ASKED, AnswerStore(tmp_path / "b"))[0] for prefix in reversed(PREFIXES)][::-1]
    assert together == alone
    other = AnswerRequest(**{**vars(ASKED), "seed": 8})
    assert sampled(lm, PREFIXES, other, AnswerStore(tmp_path / "c")) != together


def test_what_was_generated_is_not_generated_again(make_lm, tmp_path, monkeypatch):
    lm, store, done = make_lm(), AnswerStore(tmp_path), []
    first = sampled(lm, PREFIXES[:2], ASKED, store, done.append)
    calls = []
    monkeypatch.setattr(type(lm.model), "forward", lambda *_, **__: calls.append(1))
    assert sampled(lm, [PREFIXES[0], PREFIXES[0], PREFIXES[1]], ASKED, store, done.append) == [first[0], *first]
    assert not calls
    assert sum(done) == 5


def test_a_long_prefix_keeps_its_end(make_lm, tmp_path):
    lm = make_lm(context=16)
    words = " ".join(["river"] * 40)
    (one,) = sampled(lm, [Prefix(f"The market {words}")], ASKED, AnswerStore(tmp_path))
    assert len(one) == ASKED.samples
    with refused(by="sampled", naming=("attack.sampling.tokens", "15", "tiny-0", "16")):
        sampled(lm, PREFIXES, AnswerRequest(**{**vars(ASKED), "tokens": 15}), AnswerStore(tmp_path))


def test_the_likeliest_tokens_are_written_with_their_blanks(make_lm, tmp_path):
    lm = make_lm()
    (listed,) = likeliest(lm, PREFIXES[:1], ASKED, AnswerStore(tmp_path))
    ids = [lm.start_token, *lm.tokenizer(PREFIXES[0].text, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        logprobs = lm.model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    values, tokens = logprobs.topk(4)
    assert [value for _, value in listed] == pytest.approx(values.tolist(), abs=1e-5)
    assert [text for text, _ in listed] == [lm.tokenizer.decode([token]) for token in tokens.tolist()]


def test_a_damaged_store_is_one_line(tmp_path):
    (tmp_path / "answers.sqlite").write_bytes(b"no database at all, but longer than a header" * 99)
    with refused(naming=("answers.sqlite",)):
        AnswerStore(tmp_path)
