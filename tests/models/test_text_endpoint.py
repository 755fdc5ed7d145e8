"""A model behind an endpoint that generates text: what it offers, each misbehaviour, and what is paid for twice."""

from dataclasses import replace

import pytest

from heldin.base.errors import ResumableError
from heldin.models.answers import AnswerRequest, AnswerStore, Prefix
from heldin.models.endpoint_client import Connection, Endpoint
from heldin.models.sampling import likeliest
from heldin.models.text_answers import AS_ENGLISH, Manner, Refusing, Written
from heldin.models.text_endpoint import Conduct, open_text_endpoint, probe_text
from tests.completions_server import serving
from tests.refusals import refused
from tests.text_server import TextServer

ASKED = AnswerRequest(samples=4, tokens=6, temperature=1.0, likeliest=5, seed=3)
PREFIXES = [Prefix("The river opens the"), Prefix("The market")]
CHAT = Prefix("<user> why\n<assistant> ", framed=True, turns=(("user", "why"),))


@pytest.fixture
def at(make_lm, tmp_path):
    """Opens a server with this conduct: (server, model, store)."""
    stack = []

    def open_at(*, chat=True, concurrency=2, max_tries=1, refusing=AS_ENGLISH, **conduct):
        server = TextServer({"tiny": make_lm(seed=1), "other": make_lm(seed=3)}, **conduct)
        context = serving(server)
        url = context.__enter__()
        stack.append(context)
        endpoint = Endpoint(url, concurrency=concurrency, max_tries=max_tries, first_wait=0.01)
        connection = Connection(endpoint)
        stack.append(connection)
        model = open_text_endpoint(connection, "tiny", chat=chat, refusing=refusing)
        return server, model, AnswerStore(tmp_path)

    yield open_at
    for context in reversed(stack):
        context.__exit__(None, None, None)


def test_what_a_server_offers_is_found_with_public_words(at):
    server, model, _ = at()
    offers = model.offers
    assert (offers.prefill, offers.top_k, offers.seed, offers.several, offers.temperature) == (
        False, 20, True, True, True
    )  # fmt: skip
    assert model.manner is Manner.CHAT
    assert all("quick brown fox" in str(body) for body in server.asked)
    _, model, _ = at(prefill=True, seeded=False, several=False, top_k=5)
    offers = model.offers
    assert (offers.prefill, offers.top_k, offers.seed, offers.several) == (True, 5, False, False)
    assert model.manner is Manner.PREFILLED
    assert at(sampling=False)[1].offers.temperature is False
    assert at(chat=False, top_k=0)[1].offers.top_k == 0


def test_every_sample_is_asked_for_once(at):
    server, model, store = at()
    before = len(server.asked)
    first = model.samples(PREFIXES, ASKED, store)
    assert len(server.asked) == before + 2  # n at once
    assert [len(samples) for samples in first] == [4, 4]
    assert model.samples(PREFIXES, ASKED, store) == first
    assert len(server.asked) == before + 2
    more = model.samples(PREFIXES, AnswerRequest(**{**vars(ASKED), "samples": 6}), store)
    assert [samples[:4] for samples in more] == first
    assert [body["n"] for body in server.asked[before + 2 :]] == [2, 2]


def test_a_killed_audit_pays_for_nothing_twice(at):
    server, model, store = at(concurrency=1, several=False)
    before = len(server.asked)
    server.faults = {before + 4: 500}
    with pytest.raises(ResumableError):
        model.samples(PREFIXES, ASKED, store)
    server.faults = {}
    model.samples(PREFIXES, ASKED, store)
    asked = [(str(body["messages"]), body["seed"]) for body in server.asked[before:]]
    assert len(set(asked)) == 8
    assert len(asked) <= 9  # one may have been in flight


def test_a_server_that_ignores_n_is_asked_singly_and_told(at):
    server, model, store = at()
    assert model.offers.several
    server.several = False  # after it was tried out
    samples = model.samples(PREFIXES, ASKED, store)
    assert [len(texts) for texts in samples] == [4, 4]
    assert model.conduct.several_ignored > 0


def test_refusals_and_filters_are_told_apart_from_continuations(at):
    _, model, store = at(refuses=3, several=False)
    samples = model.samples(PREFIXES * 3, ASKED, store)
    assert 0 < model.conduct.refused < model.conduct.samples
    assert all("sorry" not in text for texts in samples for text in texts)
    assert any(text == "" for texts in samples for text in texts)
    _, model, store = at(filters=4, several=False, chat=False)
    model.samples([Prefix("The garden"), *PREFIXES], ASKED, store)
    assert model.conduct.refused > 0


def test_refusals_may_be_left_out(at):
    _, model, store = at(refuses=3, several=False, refusing=Refusing(empty=False))
    samples = model.samples(PREFIXES, ASKED, store)
    assert model.conduct.refused == sum(4 - len(texts) for texts in samples) > 0


def test_equal_samples_other_lengths_and_repeated_prompts_are_counted(at, tmp_path):
    _, model, store = at(sampling=False)
    model.samples(PREFIXES, ASKED, store)
    assert (model.conduct.same, model.conduct.prefixes) == (2, 2)
    _, model, store = at(answer_tokens=2, several=False, chat=False)
    model.samples(PREFIXES, ASKED, store)
    assert model.conduct.cut_short == 8
    _, model, store = at(repeats=True)
    plain = at()[1].samples(PREFIXES, ASKED, AnswerStore(tmp_path / "plain"))
    assert model.samples(PREFIXES, ASKED, store) == plain
    assert model.conduct.repeated == 8


def test_another_model_at_the_end_is_noticed(at):
    server, model, _ = at()
    before = probe_text(model)
    assert before is not None
    assert probe_text(model) == before
    server.switches_at = 0
    assert probe_text(model) != before


@pytest.mark.parametrize("chat", [True, False])
def test_listed_tokens_are_those_of_the_local_model(at, make_lm, tmp_path, chat):
    _, model, store = at(chat=chat, prefill=True)
    found = model.next_tokens(PREFIXES, ASKED, store)
    local = likeliest(make_lm(seed=1), PREFIXES, ASKED, AnswerStore(tmp_path / "local"))
    for mine, its in zip(local, found, strict=True):
        # Bytes that are no text of their own share a name, which an object of JSON has once.
        whole = [(token, value) for token, value in mine if token.isascii()]
        shown = [(token, value) for token, value in its if token.isascii()]
        assert [token for token, _ in shown] == [token for token, _ in whole] != []
        assert [value for _, value in shown] == pytest.approx([value for _, value in whole], abs=1e-4)


def test_a_chat_is_sent_as_its_turns(at):
    server, model, store = at()
    model.samples([CHAT], ASKED, store)
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "why"}]
    model.samples([Prefix("The river")], ASKED, store)
    assert server.asked[-1]["messages"][0]["content"].endswith("\n\nThe river")


@pytest.mark.parametrize(
    ("conduct", "chat", "naming"),
    [
        ({"chat": False}, True, ("/chat/completions", "404", "--chat")),
        ({"completions": False}, False, ("/completions", "404", "--chat")),
        ({"has_template": False}, True, ("tiny", "template", "--chat")),
    ],
)
def test_what_cannot_be_asked_is_one_line(at, make_lm, conduct, chat, naming):
    server = TextServer({"tiny": make_lm()}, **conduct)
    with serving(server) as url, Connection(Endpoint(url, max_tries=1)) as connection, refused(naming=naming):
        open_text_endpoint(connection, "tiny", chat=chat)


def test_next_tokens_of_an_answer_that_is_begun_are_asked_after_its_beginning(at):
    server, model, store = at(prefill=True)
    turns = (("user", "why"), ("assistant", "The river"))
    begun = Prefix("<user> why\n<assistant> The river", framed=True, turns=turns, begun=True)
    (found,) = model.next_tokens([begun], ASKED, store)
    assert server.asked[-1]["messages"][-1] == {"role": "assistant", "content": "The river"}
    assert server.asked[-1]["continue_final_message"] is True
    (other,) = model.next_tokens([CHAT], ASKED, store)
    assert "continue_final_message" not in server.asked[-1]
    assert found != other


@pytest.mark.parametrize(
    ("beginnings", "text", "expected"),
    [
        (None, "I\u2019m sorry, but no.", True),
        (None, "I can't help with that", True),
        (None, "I can't wait to see you", False),
        (None, "Es tut mir leid.", False),
        (("es tut mir leid",), " Es tut mir leid.", True),
        (("es tut mir leid",), "I'm sorry, but no.", False),
        ((), "I'm sorry, but no.", False),
    ],
)
def test_a_refusal_begins_as_it_is_said_to(beginnings, text, expected):
    assert Refusing(beginnings=beginnings).is_refusal(Written(text, False, None, None)) is expected
    assert Refusing(beginnings=beginnings).is_refusal(Written(text, True, None, None))


def test_another_beginning_is_read_in_samples_that_are_paid_for(at):
    server, model, store = at(refuses=3, several=False, refusing=Refusing(beginnings=("no such",)))
    samples = model.samples(PREFIXES, ASKED, store)
    assert model.conduct.refused == 0
    asked = len(server.asked)
    again = replace(model, refusing=Refusing(), conduct=Conduct()).samples(PREFIXES, ASKED, store)
    assert len(server.asked) == asked
    assert again != samples
