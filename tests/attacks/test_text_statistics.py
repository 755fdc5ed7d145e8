"""Statistics of sampled continuations against a slow twin, and against exact probabilities of a tiny vocabulary."""

import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from heldin.attacks.kinds import get_attack
from heldin.models.answers import AnswerRequest, AnswerStore, Prefix, next_logprob
from heldin.models.loading import LanguageModel
from heldin.models.sampling import likeliest, sampled
from heldin.models.token_scores import CutAnswers, TokenScores
from tests.oracles.continuations import all_continuations, next_token
from tests.oracles.continued import coverage, statistic

WORDS = ["the", "river", "opens", "a", "letter"]
OF_TEXT = ("coverage", "coverage-mean", "longest-run", "samia")


@pytest.fixture(scope="module")
def lm():
    """A model of five words and an end, which it likes unequally."""
    vocabulary = {word: i for i, word in enumerate(["<end>", *WORDS])}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="<end>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", bos_token="<end>")
    torch.manual_seed(5)
    shape = {"vocab_size": len(vocabulary), "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).eval()
    for parameter in model.parameters():
        parameter.data *= 4
    return LanguageModel(model, tokenizer, "five words", "five words")


def _answers(continuation, samples=(), next_logprob=None):
    return TokenScores(np.empty(0, np.float32), answers=(CutAnswers(continuation, tuple(samples), next_logprob),))


@pytest.mark.parametrize("name", OF_TEXT)
def test_a_statistic_is_that_of_the_slow_twin_minus_the_references(name):
    rng = np.random.default_rng(3)
    for _ in range(30):
        true = rng.choice(WORDS, int(rng.integers(1, 9))).tolist()
        samples = [[rng.choice(WORDS, int(rng.integers(0, 9))).tolist() for _ in range(3)] for _ in range(2)]
        text = "  " + ", ".join(true).upper() + "."
        target, reference = (_answers(text, map(" ".join, of_model)) for of_model in samples)
        expected = statistic(name, true, samples[0], text) - statistic(name, true, samples[1], text)
        assert get_attack(name).statistic("", target, reference) == pytest.approx(expected)


@pytest.mark.parametrize("name", OF_TEXT)
def test_without_a_word_of_the_continuation_it_is_zero(name):
    attack = get_attack(name)
    assert attack.under(_answers("the river opens", ["", "letter"])) == 0
    assert attack.under(_answers("...", ["", "letter"])) == 0
    assert attack.under(_answers("the river opens", ["the river opens"])) > 0


def test_scores_converge_to_what_exact_probabilities_give(lm, tmp_path):
    """The mean coverage of k samples is a mean of k draws: its error falls as the root of k."""
    prefix, true = Prefix("the river"), ["opens", "a", "letter"]
    law = all_continuations(lm, lm.tokenizer("the river")["input_ids"], 3, temperature=1.0, top_k=None)
    assert sum(law.values()) == pytest.approx(1.0)

    def words(ids):
        ids = ids[: ids.index(0)] if 0 in ids else ids
        return lm.tokenizer.decode(list(ids)).split()

    values = {ids: coverage(true, words(ids), 1) for ids in law}
    exact = math.fsum(law[ids] * values[ids] for ids in law)
    deviation = math.sqrt(math.fsum(law[ids] * (values[ids] - exact) ** 2 for ids in law))
    assert 0.05 < exact < 0.95
    store = AnswerStore(tmp_path)
    for k in (16, 256, 4096):
        (drawn,) = sampled(lm, [prefix], AnswerRequest(k, 3, 1.0, 1, seed=1), store)
        mean = np.mean([coverage(true, sample.split(), 1) for sample in drawn])
        assert abs(mean - exact) < 4 * deviation / math.sqrt(k)
    # Another temperature has another mean, which so many samples tell from this one.
    (drawn,) = sampled(lm, [prefix], AnswerRequest(4096, 3, 0.3, 1, seed=1), store)
    cold = np.mean([coverage(true, sample.split(), 1) for sample in drawn])
    assert abs(cold - exact) > 8 * deviation / math.sqrt(4096)


def test_next_words_are_exact_where_listed_and_bounded_where_not(lm, tmp_path):
    prefix = Prefix("the river")
    law = next_token(lm, lm.tokenizer("the river")["input_ids"], 1.0, None)
    (listed,) = likeliest(lm, [prefix], AnswerRequest(1, 4, 1.0, 3, seed=0), AnswerStore(tmp_path))
    order = np.argsort(-law)
    assert [value for _, value in listed] == pytest.approx(np.log(law[order[:3]]).tolist(), abs=1e-5)
    names = ["<end>", *WORDS]
    for place, token in enumerate(order.tolist()):
        exact = float(np.log(law[token]))
        if token == 0:  # the end is no word
            continue
        value = next_logprob(listed, f" {names[token]} and more")
        assert value == pytest.approx(exact, abs=1e-5) if place < 3 else value >= exact


def test_a_token_that_is_not_listed_has_no_more_than_what_is_left():
    assert next_logprob([(" a", math.log(0.5)), (" b", math.log(0.4))], " c") == pytest.approx(math.log(0.1))
    assert next_logprob([(" a", math.log(0.3)), (" b", math.log(0.2))], " c") == pytest.approx(math.log(0.2))
    # Tokens of one beginning are added up.
    assert next_logprob([(" le", math.log(0.3)), (" letter", math.log(0.2))], " letter.") == pytest.approx(
        math.log(0.5)
    )
