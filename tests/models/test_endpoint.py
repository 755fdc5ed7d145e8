"""Models behind an endpoint, over real HTTP on loopback: equal to local scores, and told apart when they cannot be."""

import contextlib

import numpy as np
import pytest

from heldin.base.errors import ResumableError
from heldin.models.endpoint import EndpointModel, open_endpoint_model, probe_now
from heldin.models.endpoint_answers import Style
from heldin.models.logprobs import score_texts
from heldin.models.score_cache import ScoreCache
from heldin.models.tokens import Framed
from tests.completions_server import CompletionsServer, opened, tiny_server
from tests.refusals import names, raised_apart, refused

TEXTS = ["a", "The river opens the letter.", "ünïcode 🎉 and\n\nlines", "The market counts the story on day 7. " * 9]
SHORT = TEXTS[:3]


@pytest.mark.parametrize("style", [Style.ECHO, Style.PROMPT_LOGPROBS])
def test_with_the_tokenizer_scores_equal_local_ones_in_either_style_and_over_windows(make_lm, folder, style):
    lm = make_lm()
    with opened(tiny_server(lm, echo=style is Style.ECHO)) as connection:
        model = open_endpoint_model(connection, "tiny", tokenizer=folder)
        assert (model.style, model.window) == (style, lm.context)
        found = model.score(TEXTS)
    for scores, local in zip(found, score_texts(lm, TEXTS), strict=True):
        np.testing.assert_allclose(scores.logprobs, local.logprobs, atol=1e-5)
    assert len(found[3].logprobs) > 2 * lm.context
    with opened(tiny_server(make_lm(seed=1))) as connection:  # the comparison can fail
        other = open_endpoint_model(connection, "tiny", tokenizer=folder).score(TEXTS)
    assert not np.allclose(other[1].logprobs, found[1].logprobs, atol=1e-2)


def test_a_server_that_will_not_generate_nothing_is_asked_for_one_token_which_is_not_scored(make_lm, folder):
    server = tiny_server(make_lm(), prompt_logprobs=False)
    complete = server.complete
    server.complete = lambda body: complete(body) if body["max_tokens"] else (400, {"error": "max_tokens is below 1"})
    with opened(server) as connection:
        for model in (
            open_endpoint_model(connection, "tiny", tokenizer=folder),
            open_endpoint_model(connection, "tiny"),
        ):
            assert model.style is Style.ECHO_AND_ONE
            found = model.score(TEXTS[:2])
            assert len(found[1].logprobs) == len(make_lm().tokenizer(TEXTS[1])["input_ids"])


@pytest.mark.parametrize("own_start", [False, True])
def test_without_a_tokenizer_all_of_a_texts_tokens_are_scored_after_a_newline(make_lm, own_start):
    lm = make_lm(context=64)
    with opened(tiny_server(lm, own_start=own_start)) as connection:
        model = open_endpoint_model(connection, "tiny")
        found = model.score([*SHORT, " \n spaced"])
    start = [lm.start_token] * own_start
    for text, scores in zip([*SHORT, " \n spaced"], found, strict=True):
        lead, ids = (lm.tokenizer(part)["input_ids"] for part in ("A" if text[0] == " " else "\n", text))
        expected = _after(lm, start + lead, ids)
        np.testing.assert_allclose(scores.logprobs, expected, atol=1e-5)


@pytest.mark.parametrize("text", [TEXTS[1], TEXTS[3]])
def test_a_chat_is_sent_as_its_own_tokens_without_a_start_token(make_lm, folder, text):
    lm = make_lm()
    framed = Framed(text)
    with opened(tiny_server(lm)) as connection:
        (found,) = open_endpoint_model(connection, "tiny", tokenizer=folder).score([framed])
        with refused("prompts_of", ("'tiny'", "--tokenizer")):
            open_endpoint_model(connection, "tiny").score([framed])
    (local,) = score_texts(lm, [framed])
    np.testing.assert_allclose(found.logprobs, local.logprobs, atol=1e-5)
    ids = lm.tokenizer(text)["input_ids"]
    assert len(local.logprobs) == len(ids) - 1
    first = ids[1 : lm.context]  # all of which the model takes at once
    np.testing.assert_allclose(local.logprobs[: len(first)], _after(lm, ids[:1], first), atol=1e-5)


def _after(lm, context, ids):
    import torch

    with torch.no_grad():
        logits = lm.model(input_ids=torch.tensor([[*context, *ids]])).logits[0].double().log_softmax(-1)
    return [logits[len(context) + i - 1, token].item() for i, token in enumerate(ids)]


def test_a_text_that_the_server_joins_with_the_newline_is_refused(make_lm):
    server = tiny_server(make_lm(context=64))

    def joining(answer):
        its = answer["choices"][0]["logprobs"]
        if len(its["tokens"]) > 2:
            its["tokens"][:2] = ["".join(its["tokens"][:2])]
            its["token_logprobs"].pop(1)
            answer["usage"]["prompt_tokens"] -= 1
        return answer

    with opened(server) as connection:
        model = open_endpoint_model(connection, "tiny")
        server.tamper = joining
        with refused(by="_after_lead", naming=("1", "'\\n'", "--tokenizer")):
            model.score(["fine"])


def test_a_text_longer_than_the_model_takes_is_refused_without_a_tokenizer(make_lm):
    with opened(tiny_server(make_lm())) as connection:
        model = open_endpoint_model(connection, "tiny")
        with refused(by="EndpointModel.score", naming=("34", "--tokenizer")):
            model.score(TEXTS)
        with refused(by="token_scores", naming="1"):
            model.score([""])


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_an_endpoint_without_prompt_logprobs_gets_one_line_that_names_what_it_returns(make_lm, folder, with_tokenizer):
    def of_generated_only(answer):
        its = answer["choices"][0]["logprobs"]
        if its:
            its.update({key: values[-1:] for key, values in its.items()})
        return answer

    server = tiny_server(make_lm(), prompt_logprobs=False)
    server.tamper = of_generated_only
    with opened(server) as connection, refused(by="_style_of", naming="'tiny'") as caught:
        open_endpoint_model(connection, "tiny", tokenizer=folder if with_tokenizer else None)
    line = str(caught.value)
    assert names(line, "'tiny'", "echo", "1 token_logprobs")
    assert ("finish_reason" in line) == with_tokenizer
    assert not with_tokenizer or names(line, "prompt_logprobs", "finish_reason, index, text")
    assert "\n" not in line


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_server_of_chats_alone_is_said_to_have_no_completions(make_lm, folder, with_tokenizer):
    """It lists the model, so that neither the address nor the name is wrong."""
    server = tiny_server(make_lm())
    server.faults = dict.fromkeys(range(1, 9), 404)
    server.length = 20
    tokenizer = folder if with_tokenizer else None
    with opened(server) as connection, refused(by="_style_of", naming=("'tiny'", "/completions", 404)) as caught:
        open_endpoint_model(connection, "tiny", tokenizer=tokenizer)
    assert names(str(caught.value), "--chat")
    # A name that the server does not list is another fault, with another remedy.
    with opened(tiny_server(make_lm())) as connection, refused(by="_style_of", naming=("'tiny'", "'other'")) as other:
        open_endpoint_model(connection, "other")
    assert raised_apart(caught, other)


def _no_logprobs(choice):
    choice["logprobs"] = None


def _one_too_many(choice):
    choice["logprobs"]["tokens"].append("x")
    choice["logprobs"]["token_logprobs"] += [-1.0, -1.0]


def _minus_infinity(choice):
    choice["logprobs"]["token_logprobs"][2] = float("-inf")


def _not_a_number(choice):
    choice["logprobs"]["token_logprobs"][2] = float("nan")


def _stands_for_infinity(choice):
    choice["logprobs"]["token_logprobs"][2] = -9999.0


def _null_inside(choice):
    choice["logprobs"]["token_logprobs"][2] = None


def _above_certainty(choice):
    choice["logprobs"]["token_logprobs"][2] = 0.5


def _first_left_out(choice):
    for values in choice["logprobs"].values():
        del values[:1]


@pytest.mark.parametrize(
    ("spoil", "by", "naming"),
    [
        (_no_logprobs, "EndpointModel.score", ("1", "finish_reason")),
        (_one_too_many, "EndpointModel.score", ("text_offset", "token_logprobs")),
        (_first_left_out, "EndpointModel.score", ("6 token_logprobs", "7")),
        (_minus_infinity, "token_scores", "1"),
        (_not_a_number, "token_scores", "1"),
        (_stands_for_infinity, "token_scores", "1"),
        (_null_inside, "token_scores", "1"),
        (_above_certainty, "token_scores", "1"),
    ],
)
def test_a_spoilt_answer_is_an_error_and_never_a_score(make_lm, folder, spoil, by, naming):
    server = tiny_server(make_lm())

    def tamper(answer):
        spoil(answer["choices"][0])
        return answer

    with opened(server) as connection:
        model = open_endpoint_model(connection, "tiny", tokenizer=folder)
        server.tamper = tamper
        with refused(by=by, naming=naming):
            model.score([TEXTS[1]])


def test_a_value_in_place_of_the_first_null_is_not_mistaken_for_the_texts_first(make_lm, folder):
    lm = make_lm()
    server = tiny_server(lm)

    def tamper(answer):
        answer["choices"][0]["logprobs"]["token_logprobs"][0] = -3.0
        return answer

    server.tamper = tamper
    with opened(server) as connection:
        found = open_endpoint_model(connection, "tiny", tokenizer=folder).score(SHORT)
    np.testing.assert_allclose(found[1].logprobs, score_texts(lm, SHORT)[1].logprobs, atol=1e-5)


@pytest.mark.parametrize("told", [True, False])
def test_a_server_that_puts_its_own_start_token_before_ids_is_refused(make_lm, folder, told):
    server = tiny_server(make_lm())
    complete = server.complete

    def with_start(body):
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else make_lm().tokenizer(prompt)["input_ids"]
        status, answer = complete({**body, "prompt": [make_lm().start_token, *ids]})
        if not told:
            answer.pop("usage", None)
        return status, answer

    server.complete = with_start
    with opened(server) as connection, refused(by="_style_of" if told else open_endpoint_model, naming="'tiny'"):
        open_endpoint_model(connection, "tiny", tokenizer=folder)


def test_another_models_tokenizer_is_refused_in_either_style(make_lm, english, tmp_path):
    from heldin.models.tiny import train_tokenizer

    train_tokenizer(english, 300).save_pretrained(tmp_path / "other")
    for echo in (True, False):
        with (
            opened(tiny_server(make_lm(), echo=echo)) as connection,
            refused(by=open_endpoint_model, naming="'tiny'"),
        ):
            open_endpoint_model(connection, "tiny", tokenizer=str(tmp_path / "other"))


def test_a_context_is_read_from_the_server_or_asked_for(make_lm, folder):
    server = CompletionsServer({"tiny": make_lm()}, length=None)
    with opened(server) as connection:
        with refused(by="_stated_context", naming=("'tiny'", "--context")):
            open_endpoint_model(connection, "tiny", tokenizer=folder)
        with refused(by="_stated_context", naming=("'tinny'", "'tiny'", "--context")):
            open_endpoint_model(connection, "tinny", tokenizer=folder)
        with refused(by="require_hub_name", naming=("tokenizer", "'./nowhere'")):
            open_endpoint_model(connection, "tiny", tokenizer="./nowhere")
        assert open_endpoint_model(connection, "tiny", tokenizer=folder, context=24).window == 22
        with refused(by="window_at", naming="2"):
            open_endpoint_model(connection, "tiny", tokenizer=folder, context=2)


def test_cost_is_what_is_then_sent(make_lm, folder):
    server = tiny_server(make_lm())
    with opened(server) as connection:
        model = open_endpoint_model(connection, "tiny", tokenizer=folder)
        before = len(server.asked)
        load = model.load(TEXTS)
        model.score(TEXTS)
        sent = server.asked[before:]
        assert (load.requests, load.tokens, load.counted) == (len(sent), sum(len(b["prompt"]) for b in sent), True)
        rough = open_endpoint_model(connection, "tiny").load(["word " * 100])
        assert (rough.requests, rough.tokens, rough.counted) == (1, 126, False)


def test_the_cache_goes_on_where_an_endpoint_failed(make_lm, tmp_path):
    server = tiny_server(make_lm(context=64))
    texts = [f"The letter {i}." for i in range(40)]
    with opened(server, concurrency=1, max_tries=2) as connection, contextlib.closing(ScoreCache(tmp_path)) as cache:
        model = open_endpoint_model(connection, "tiny")
        probed = len(server.asked)
        server.faults = dict.fromkeys(range(len(server.times) + 20, 999), 500)
        with pytest.raises(ResumableError):
            cache.scores(model, texts)
        assert len(cache.missing(model, texts)) == 40 - 2 * model.chunk
        server.faults = {}
    with opened_again(server, model) as again, contextlib.closing(ScoreCache(tmp_path)) as cache:
        assert len(cache.scores(again, texts)) == 40
        assert cache.missing(again, [*texts, "new", "new"]) == ["new"]
    assert len(server.asked) - probed == 40 + 3  # three of the chunk that failed were asked for again
    with refused(by="_scored", naming=("'tiny'", "min-k++")):
        ScoreCache(tmp_path).scores(model, ["some"], moments=True)
    with refused(by="_scored", naming=("'tiny'", "ez")):
        ScoreCache(tmp_path).scores(model, ["some"], ranks=True)


@contextlib.contextmanager
def opened_again(server, model: EndpointModel):
    """The same model over a new connection; the server keeps its address in a real resumption."""
    with opened(server) as connection:
        yield EndpointModel(
            model.name, connection, model.style, model.tokenizer, model.window, model.leads, model.fingerprint
        )


def test_fingerprints_tell_models_tokenizers_and_windows_apart(make_lm, folder):
    server = CompletionsServer({"tiny": make_lm(), "other": make_lm(seed=1)}, length=34)
    with opened(server) as connection:
        found = [
            open_endpoint_model(connection, "tiny"),
            open_endpoint_model(connection, "other"),
            open_endpoint_model(connection, "tiny", tokenizer=folder),
            open_endpoint_model(connection, "tiny", tokenizer=folder, context=30),
        ]
        assert len({model.fingerprint for model in found}) == len(found)
        assert found[2].fingerprint == open_endpoint_model(connection, "tiny", tokenizer=folder).fingerprint
        unchanged = probe_now(found[2])
        assert probe_now(found[2]) == unchanged
        server.models["tiny"] = make_lm(seed=2)
        assert abs(probe_now(found[2]) - unchanged) > 1e-3


def test_a_text_that_is_too_long_is_told_before_the_others_are_paid_for(make_lm, tmp_path):
    server = tiny_server(make_lm())
    with opened(server, concurrency=1) as connection, contextlib.closing(ScoreCache(tmp_path)) as cache:
        model = open_endpoint_model(connection, "tiny")
        probed = len(server.asked)
        with refused(by="EndpointModel.score", naming=("HTTP 400", "--tokenizer", "attack.max_characters")):
            cache.scores(model, [*(f"The letter {i}." for i in range(99)), TEXTS[3]])
    assert len(server.asked) - probed <= 2
