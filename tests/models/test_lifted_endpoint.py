"""Log-probabilities that ``logit_bias`` recovers: those of a local pass, and refused where the server's lists lie."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldin.base.errors import ResumableError
from heldin.models.endpoint import NoPromptLogprobs, probe_now
from heldin.models.endpoint_answers import Style
from heldin.models.endpoint_client import Connection, Endpoint
from heldin.models.lifted_endpoint import BIAS, logprob_beside, open_lifted, open_scoring_model
from heldin.models.logprobs import score_texts
from heldin.models.tiny import train_tokenizer
from heldin.models.tokens import Framed
from tests.completions_server import opened, serving, tiny_server
from tests.refusals import refused
from tests.text_server import TextServer

TEXTS = ["a", "The river opens the letter.", "ünïcode 🎉 and\n\nlines", Framed("The market counts on day 7. " * 2)]


@contextmanager
def at(lm, **conduct):
    server = TextServer({"tiny": lm}, **conduct)
    with serving(server) as url, Connection(Endpoint(url, max_tries=1, first_wait=0.01)) as connection:
        yield server, connection


@pytest.mark.parametrize("top_k", [20, 5, 2])
def test_every_token_has_the_log_probability_of_a_local_pass(make_lm, folder, top_k):
    lm = make_lm()
    with at(lm, top_k=top_k) as (server, connection):
        model = open_scoring_model(connection, "tiny", tokenizer=folder, context=lm.context + 2)
        assert (model.style, model.window) == (Style.LIFTED, lm.context)
        begun = len(server.asked)
        load, found = model.load(TEXTS), model.score(TEXTS)
        paid = server.asked[begun:]
    for scores, local in zip(found, score_texts(lm, TEXTS), strict=True):
        np.testing.assert_allclose(scores.logprobs, local.logprobs, atol=1e-5)
    if top_k > 2:  # of two listed ones often neither is written as no other is, which costs more
        assert len(paid) <= load.requests == load.generated
        assert sum(len(body["prompt"]) for body in paid) <= load.tokens
        assert sum("logit_bias" in body for body in paid) < len(paid) / 2  # a listed token is not asked for twice
    assert any("logit_bias" in body for body in paid)
    with at(make_lm(seed=1)) as (_, connection):  # the comparison can fail
        other = open_lifted(connection, "tiny", tokenizer=folder, context=lm.context + 2).score(TEXTS)
    assert not np.allclose(other[1].logprobs, found[1].logprobs, atol=1e-2)


def test_an_echo_is_preferred(make_lm, folder):
    with opened(tiny_server(make_lm())) as connection:
        assert open_scoring_model(connection, "tiny", tokenizer=folder).style is Style.ECHO


@pytest.mark.parametrize(
    ("conduct", "word"),
    [
        ({"bias": "drawn"}, "do not move"),
        ({"bias": "refused"}, "refuses logit_bias"),
        ({"bias": "next"}, "two that"),
        ({"bias": "unequally"}, "unequally"),
        ({"top_k": 1}, "fewer than two"),
        ({"top_k": 0}, "fewer than two"),
        ({"decimals": 0}, "move"),
    ],
)
def test_a_server_whose_lists_do_not_move_with_the_bias_is_refused(make_lm, folder, conduct, word):
    lm = make_lm()
    with at(lm, **conduct) as (_, connection), refused(by="open_scoring_model", naming=(word, "logit_bias")):
        open_scoring_model(connection, "tiny", tokenizer=folder, context=lm.context + 2)


def test_another_tokenizer_is_refused(make_lm, tmp_path):
    lm = make_lm()
    other = train_tokenizer(["the river opens a letter and the market counts it " * 9], len(lm.tokenizer))
    other.save_pretrained(tmp_path / "other")
    with at(lm) as (_, connection), refused(by="open_lifted", naming=("'tiny'", "other")):
        open_lifted(connection, "tiny", tokenizer=str(tmp_path / "other"), context=lm.context + 2)


def test_without_a_tokenizer_no_bias_can_be_named(make_lm):
    with at(make_lm()) as (_, connection), refused(by="_style_of", naming="'tiny'") as caught:
        open_scoring_model(connection, "tiny")
    assert isinstance(caught.value, NoPromptLogprobs)


def test_lists_that_contradict_each_other_in_an_audit_are_one_line(make_lm, folder):
    lm = make_lm()
    with at(lm, top_k=5) as (server, connection):
        model = open_lifted(connection, "tiny", tokenizer=folder, context=lm.context + 2)
        unchanged = probe_now(model)
        assert probe_now(model) == unchanged
        server.bias = "drawn"
        with refused(by="LiftedEndpoint._logprobs_of", naming=("1", "--access")):
            model.score(TEXTS[1:2])
        server.faults = dict.fromkeys(range(1, 9999), 500)
        with pytest.raises(ResumableError):
            model.score(["b"])


@given(st.lists(st.floats(-40, 0), min_size=3, max_size=12), st.integers(0, 11), st.integers(1, 11))
def test_the_formula_is_that_of_biased_logits(logits, place, ahead):
    """Against the law of a vocabulary, with a bias added to two of its logits."""
    place %= len(logits)
    known = (place + 1 + ahead % (len(logits) - 1)) % len(logits)
    log_law = np.array(logits) - np.logaddexp.reduce(logits)
    biased = log_law + BIAS * np.isin(np.arange(len(logits)), (place, known))
    biased -= np.logaddexp.reduce(biased)
    lifted = {str(i): float(biased[i]) for i in (place, known)}
    assert logprob_beside(str(known), float(log_law[known]), lifted) == pytest.approx(log_law[place], abs=1e-9)


def test_the_formula_refuses_lists_that_it_cannot_explain():
    lifted = {"a": math.log(0.9), "b": math.log(0.1)}
    assert logprob_beside("a", -2.0, lifted) == pytest.approx(-2 + math.log(0.1 / 0.9))
    assert logprob_beside("b", -2.0, lifted) == 0  # rounding alone can lead above it
    for broken, word in (({"a": 0.0}, "other tokens"), ({}, "other tokens"), (lifted | {"b": math.log(0.05)}, "move")):
        with pytest.raises(ValueError, match=word):
            logprob_beside("a", -2.0, broken)
    with pytest.raises(ValueError, match="other tokens"):
        logprob_beside("c", -2.0, lifted)
