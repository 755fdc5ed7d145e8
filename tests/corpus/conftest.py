"""What tests of corpora share: a small CoNLL file, stores and word lists made on the spot, the extra `entities`."""

import contextlib
import json
import socket

import pytest

from heldin.corpus.build import build_store
from heldin.corpus.entities.recognisers import WordList
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.rows import Columns

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
call NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- O O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
met VBD I-VP O
EU NNP I-NP I-ORG
"""


class Quiet:
    """A reporter that counts what was searched."""

    def __init__(self):
        self.searched = 0

    def say(self, line):
        raise AssertionError(line)

    def track(self, title, total, unit):
        def advance(done):
            self.searched += done

        return contextlib.nullcontext(advance)

    def follow(self, look):
        raise AssertionError(look().lines)


@pytest.fixture
def corpus(tmp_path):
    """Makes a store of (user, text) pairs."""

    def make(pairs, name="c"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"user": u, "text": t}) + "\n" for u, t in pairs))
        return build_store(Json(path, Columns()), tmp_path)

    return make


@pytest.fixture
def words(tmp_path):
    def make(*lines):
        path = tmp_path / "names.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return WordList(path)

    return make


@pytest.fixture
def no_network(monkeypatch):
    """Nothing in the test may ask for a socket."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("a socket was asked for")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def spacy():
    return pytest.importorskip("spacy", reason="the extra 'entities' is not installed")


@pytest.fixture
def presidio():
    return pytest.importorskip("presidio_analyzer", reason="the extra 'entities' is not installed")
