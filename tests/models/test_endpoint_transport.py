"""Requests to an endpoint over real HTTP on loopback: repeated, paced, refused, and their key kept to themselves."""

import threading
import time
from email.utils import formatdate

import numpy as np
import pytest

from heldin.base.errors import InputError, ResumableError
from heldin.models.endpoint import open_endpoint_model
from heldin.models.endpoint_client import Connection, Endpoint, Pace
from heldin.models.logprobs import score_texts
from tests.completions_server import opened, tiny_server
from tests.refusals import refused

TEXTS = ["a", "The river opens the letter.", "ünïcode 🎉 and\n\nlines", "The market counts the story on day 7. " * 9]
SHORT = TEXTS[:3]


@pytest.mark.parametrize("fault", [429, 500, 503, "dropped", "cut off", "slow"])
def test_what_passes_is_tried_again(make_lm, folder, fault):
    lm = make_lm()
    server = tiny_server(lm)
    with opened(server, timeout=0.3 if fault == "slow" else 5.0) as connection:
        model = open_endpoint_model(connection, "tiny", tokenizer=folder)
        server.faults = {len(server.times) + n: fault for n in (1, 2, 4)}
        found = model.score(TEXTS)
    for scores, local in zip(found, score_texts(lm, TEXTS), strict=True):
        np.testing.assert_allclose(scores.logprobs, local.logprobs, atol=1e-5)


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_honoured_by_all_threads(make_lm, as_date):
    server = tiny_server(make_lm(context=64))
    with opened(server, concurrency=3) as connection:
        model = open_endpoint_model(connection, "tiny")
        asked = len(server.times)
        server.faults = {asked + 1: 429}
        server.fault_headers = {"Retry-After": formatdate(time.time() + 3, usegmt=True) if as_date else "1"}
        model.score(SHORT * 10)
    late = [moment - server.times[asked] for moment in server.times[asked + 1 :]]
    assert sum(moment < 0.9 for moment in late) <= 2 * 3  # those that were on their way, and no more
    assert max(late) >= 0.9


def test_a_wait_of_hours_ends_the_work_for_now(make_lm):
    server = tiny_server(make_lm())
    server.faults, server.fault_headers = {1: 429}, {"Retry-After": "7200"}
    with (
        opened(server) as connection,
        refused(by="Connection._honour_retry_after", naming=("120", "HTTP", "429"), kind=ResumableError),
    ):
        open_endpoint_model(connection, "tiny")


def test_what_does_not_pass_can_be_resumed_and_refusals_are_not_repeated(make_lm, monkeypatch):
    server = tiny_server(make_lm(), key="right")
    with opened(server, max_tries=3) as connection:
        with refused(by="Connection._answer", naming=("API", "HTTP", "401")):
            open_endpoint_model(connection, "tiny")
        assert len(server.times) == 1
        server.key = None
        with refused(by="_style_of", naming=("HTTP", "404", "'none'", "'tiny'")):
            open_endpoint_model(connection, "none")
        assert len(server.times) == 2
        monkeypatch.setattr(server, "listed", lambda: ["tiny"])  # no JSON object, at every try
        with refused(by="_style_of", naming=("HTTP", "404")):
            open_endpoint_model(connection, "none")
        server.faults = dict.fromkeys(range(4, 30), 502)
        with refused(by="Connection._ask", naming=("3", "HTTP", "502"), kind=ResumableError):
            open_endpoint_model(connection, "tiny")
        assert len(server.times) == 6


def test_the_key_comes_from_the_environment_and_is_repeated_nowhere(make_lm, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "sk-do-not-tell")
    server = tiny_server(make_lm(), key="sk-do-not-tell")
    with opened(server, key_variable="SECRET_KEY") as connection:
        model = open_endpoint_model(connection, "tiny")
        assert server.headers[0]["Authorization"] == "Bearer sk-do-not-tell"
        assert "sk-do-not-tell" not in repr(connection.endpoint) + repr(model)
        server.complete = lambda body: (422, {"error": {"message": "key sk-do-not-tell is not entitled"}})
        with refused(by="EndpointModel.score", naming=("HTTP 422", "***")):
            model.score(["x"])
    for name in ("sk-do-not-tell", "NOT_SET_ANYWHERE"):
        with pytest.raises(InputError) as caught, Connection(Endpoint("http://127.0.0.1:9/v1", key_variable=name)):
            pass
        assert name not in str(caught.value)


def test_a_server_s_pause_also_holds_threads_that_wait_for_their_turn():
    pace, taken, gap = Pace(per_minute=600), [], 0.1
    pace.take_turn()  # the next one is a gap away
    thread = threading.Thread(target=lambda: (pace.take_turn(), taken.append(time.monotonic())))
    thread.start()
    time.sleep(gap / 4)
    asked = time.monotonic()
    pace.hold(4 * gap)
    thread.join(timeout=10)
    assert taken[0] >= asked + 4 * gap


@pytest.mark.parametrize(
    ("url", "naming"),
    [
        ("not an address", "'not an address'"),
        ("ftp://host/v1", "'ftp://host/v1'"),
        ("https://user:secret@host/v1", ()),
        ("https://host/v1?key=secret", ()),
        ("https://host/v1/completions", "'https://host/v1/completions'"),
    ],
)
def test_addresses_that_are_none_or_hold_a_secret_are_refused(url, naming):
    with refused(by="Endpoint.__post_init__", naming=naming) as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


def test_nothing_at_the_address_is_told_at_once():
    started = time.monotonic()
    with (
        Connection(Endpoint("http://127.0.0.1:9/v1")) as connection,
        refused(by="Connection._ask", naming="'http://127.0.0.1:9/v1'"),
    ):
        open_endpoint_model(connection, "tiny")
    assert time.monotonic() - started < 5


def test_requests_are_paced_and_several_are_in_flight(make_lm):
    server = tiny_server(make_lm(context=64))
    with opened(server, requests_per_minute=1200, concurrency=3) as connection:
        model = open_endpoint_model(connection, "tiny")
        model.score(SHORT * 3)
    gaps = np.diff(server.times)
    assert server.times[-1] - server.times[0] >= 0.05 * (len(gaps) - 1)
    assert np.median(gaps) > 0.04
    server = tiny_server(make_lm(context=64))
    complete = server.complete
    server.complete = lambda body: time.sleep(0.05) or complete(body)
    with opened(server, concurrency=3) as connection:
        open_endpoint_model(connection, "tiny").score(SHORT * 3)
    assert server.busiest == 3
