"""CoNLL files and sentences as records."""

import gzip
import json

import pytest

from heldin.corpus.build import build_store
from heldin.corpus.chat.opening import TEXTS
from heldin.corpus.config import CorpusConfig
from heldin.corpus.sources.iob import Iob, sentences
from heldin.corpus.sources.json_rows import Json
from heldin.corpus.sources.open import open_source, open_sources
from heldin.corpus.sources.rows import Columns
from heldin.corpus.sources.sentences import Sentences
from tests.corpus.conftest import CONLL
from tests.refusals import refused


def test_documents_are_users_and_sentences_records(tmp_path):
    path = tmp_path / "eng.train.gz"
    path.write_bytes(gzip.compress(CONLL.encode()))
    source = open_source(path, Columns())
    assert source == Iob(path), "a CoNLL file is known by its first line"
    store = build_store(source, tmp_path)
    assert [(r.user, r.id, r.text) for r in map(store.record, range(len(store)))] == [
        ("eng.train document 1", "eng.train 1-1", "EU rejects German call"),
        ("eng.train document 1", "eng.train 1-2", "Peter Blackburn"),
        ("eng.train document 2", "eng.train 2-1", "Peter Blackburn met EU"),
    ]
    named = tmp_path / "a.iob"
    named.write_text("Ann B-PER\n\nBob B-PER\n")
    assert [s.id for s in sentences(named)] == ["a.iob 0-1", "a.iob 0-2"], "a file may lack document lines"
    assert isinstance(open_source(named, Columns()), Iob)


@pytest.mark.parametrize(
    ("content", "naming"),
    [
        ("Ann NNP B-PER\nLee B-PER\n", ("a.conll", "line 2", "2", "3")),
        ("Ann\n", ("a.conll", "line 1", "1", "2")),
        ("Ann NNP PER\n", ("a.conll", "line 1", "IOB")),
        ("Ann NNP X-PER\n", ("a.conll", "line 1", "IOB")),
        ("Ann NNP B-\n", ("a.conll", "line 1", "IOB")),
        ("B-PER NNP Smith\n", ("a.conll", "line 1", "IOB")),
    ],
)
def test_lines_that_do_not_parse_name_file_and_line(tmp_path, content, naming):
    path = tmp_path / "a.conll"
    path.write_text(content)
    with refused(by=sentences, naming=naming) as error:
        list(sentences(path))
    assert "Smith" not in str(error.value), "columns may be exchanged: no name is quoted"


def test_damaged_conll_files_are_one_line(tmp_path):
    path = tmp_path / "a.conll"
    path.write_bytes(b"Ann B-PER\n\xff B-PER\n")
    with refused(by=sentences, naming=("a.conll", "line 2", "UTF-8")):
        list(sentences(path))
    packed = tmp_path / "b.conll.gz"
    packed.write_bytes(gzip.compress(CONLL.encode() * 50)[:-40])
    with refused(by=sentences, naming="gzip"):
        list(sentences(packed))


@pytest.mark.usefixtures("spacy")
def test_sentences_become_records_with_ids_of_their_own(tmp_path):
    path = tmp_path / "c.jsonl"
    rows = [
        {"user": "u", "text": "One here. Two there!\n\nThree without a stop", "id": "a", "date": "2001"},
        {"user": "v", "text": "Four.", "id": "b", "date": "2002"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Json(path, Columns(id="id", date="date"))
    store = build_store(Sentences(source), tmp_path)
    assert [(r.user, r.id, r.text, r.date) for r in map(store.record, range(len(store)))] == [
        ("u", "a#1", "One here.", "2001"),
        ("u", "a#2", "Two there!", "2001"),
        ("u", "a#3", "Three without a stop", "2001"),
        ("v", "b#1", "Four.", "2002"),
    ]
    assert store.fingerprint != build_store(source, tmp_path).fingerprint
    # Without ids of the source they are made from user and text; equal sentences of a user are numbered.
    made = build_store(Sentences(Json(path, Columns())), tmp_path)
    assert len({made.id(row) for row in range(len(made))}) == 4


def test_the_config_chooses_the_unit(tmp_path):
    source = {"kind": "iob", "path": str(tmp_path / "a.conll")}
    assert CorpusConfig(source=source).opened(TEXTS) == Iob(tmp_path / "a.conll")
    assert CorpusConfig(source=source, text_unit="sentence").opened(TEXTS) == Sentences(Iob(tmp_path / "a.conll"))


def test_several_files_are_one_corpus_and_a_byte_order_mark_is_none(tmp_path):
    one, two = tmp_path / "one.conll", tmp_path / "two.conll"
    one.write_text(CONLL)
    two.write_bytes(b"\xef\xbb\xbf" + CONLL.encode())
    store = build_store(open_sources([one, two], Columns()), tmp_path)
    assert (len(store), len(store.users)) == (6, 4)
    bare = tmp_path / "eng.testa"
    bare.write_bytes(two.read_bytes())
    assert isinstance(open_source(bare, Columns()), Iob)


def test_a_damaged_file_of_an_unknown_kind_is_one_line(tmp_path):
    path = tmp_path / "foo.gz"
    path.write_bytes(b"\x1f\x8b broken")
    with refused(by=open_source, naming=("foo.gz", ".jsonl")):
        open_source(path, Columns())
