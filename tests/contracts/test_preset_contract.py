"""What every preset must do on files in its dataset's published format, whatever its steps."""

import pytest

from heldin.base.errors import InputError
from heldin.corpus.build import build_store
from heldin.corpus.presets.catalogue import PRESETS, PresetSource
from heldin.corpus.sources.bad_rows import BadRows
from heldin.corpus.sources.rows import SCHEMA
from tests.published_files import (
    article,
    comment,
    csv_file,
    enron_tarball,
    json_lines,
    mail,
    maildir,
    paper,
    parquet,
    post,
    posts_xml,
    summary,
)

WORDS = [f"word{i}" for i in range(400)]
# Two users' raw records each, in order: (user's raw name, number).
RAW = [("ann", 1), ("bob", 1), ("ann", 2), ("bob", 2), ("ann", 3)]


def _text(user, number):
    return f"{user} wrote number {number}: " + " ".join(WORDS[:260])


def _mails(raw):
    mails = [
        (f"{user}-x", "sent", mail(f"{user}@enron.com", "to@x.org", "hello", _text(user, n) + "\n")) for user, n in raw
    ]
    return sorted(mails, key=lambda m: m[0])


def _comments(raw):
    return [comment(user, _text(user, n), id_=f"{user}{n}") for user, n in raw]


NUMBER_OF = {"ann": 1342, "bob": 84}

WRITERS = {
    ("enron-kandpal", "folder"): lambda path, raw: maildir(path, _mails(raw)),
    ("enron-kandpal", "tarball"): lambda path, raw: enron_tarball(path, _mails(raw)),
    ("enron-chua", "folder"): lambda path, raw: maildir(path, _mails(raw)),
    ("enron-chua", "tarball"): lambda path, raw: enron_tarball(path, _mails(raw)),
    ("booksum", "csv"): lambda path, raw: csv_file(
        path, [summary(NUMBER_OF[u], _text(u, n), n) for u, n in raw], "train.csv"
    ),
    ("reddit", "zst"): lambda path, raw: json_lines(path, _comments(raw), "RC_2015-09.zst"),
    ("reddit", "plain"): lambda path, raw: json_lines(path, _comments(raw), "RC_2015-09"),
    ("reddit", "parquet"): lambda path, raw: parquet(path, _comments(raw), "2015-09.parquet"),
    ("reddit-small", "zst"): lambda path, raw: json_lines(path, _comments(raw), "RC_2015-09.zst"),
    ("cc_news", "parquet"): lambda path, raw: parquet(
        path, [article(f"{u}.org", _text(u, n), n) for u, n in raw], "train-00000-of-00005.parquet"
    ),
    ("arxiv", "json"): lambda path, raw: json_lines(
        path, [paper(f"{NUMBER_OF[u]:04}.{n:04}", u, _text(u, n)) for u, n in raw], "arxiv-metadata-oai-snapshot.json"
    ),
    ("stackoverflow", "xml"): lambda path, raw: posts_xml(
        path, [post(NUMBER_OF[u] * 10 + n, 1 + n % 2, NUMBER_OF[u], f"<p>{_text(u, n)}</p>") for u, n in raw]
    ),
}
every_format = pytest.mark.parametrize(("key", "write"), WRITERS.items(), ids=["-".join(key) for key in WRITERS])


def _rows(source, bad=None):
    return [row for batch in source.batches(bad or BadRows()) for row in batch.to_pylist()]


def _source(key, write, path, raw=RAW):
    path.mkdir(exist_ok=True)
    return PresetSource(PRESETS[key[0]], write(path, raw))


def test_every_preset_is_held_to_the_contract():
    assert {name for name, _ in WRITERS} == set(PRESETS)


@every_format
def test_the_published_format_gives_every_users_records_in_the_schema(key, write, tmp_path):
    source = _source(key, write, tmp_path / "a")
    assert all(batch.schema == SCHEMA for batch in source.batches(BadRows()))
    rows = _rows(source)
    assert len(rows) == len(RAW)
    assert len({row["user"] for row in rows}) == 2
    for user, number in RAW:
        assert sum(f"{user} wrote number {number}:" in row["text"] for row in rows) == 1


@every_format
def test_reading_twice_gives_the_same_and_the_fingerprint_follows_the_content(key, write, tmp_path):
    source = _source(key, write, tmp_path / "a")
    assert _rows(source) == _rows(source)
    assert source.fingerprint() == PresetSource(source.preset, source.path).fingerprint()
    assert source.fingerprint() != _source(key, write, tmp_path / "b", RAW[:-1]).fingerprint()
    others = [p for p in PRESETS.values() if p.name != key[0]]
    assert source.fingerprint() not in {PresetSource(p, source.path).fingerprint() for p in others if _reads(p, source)}


def _reads(preset, source):
    try:
        PresetSource(preset, source.path).fingerprint()
    except InputError:
        return False
    return True


@every_format
def test_records_and_ids_of_a_user_do_not_change_with_another_user(key, write, tmp_path):
    """What a user-local declaration says, on files where no choice between users is to be made."""
    whole = _records(build_store(_source(key, write, tmp_path / "a"), tmp_path))
    rest = _records(build_store(_source(key, write, tmp_path / "b", [r for r in RAW if r[0] != "bob"]), tmp_path))
    assert {(user, id_, text) for user, id_, text in whole if "bob wrote" not in text} == rest
    assert len(rest) == 3


def _records(store):
    return {(record.user, record.id, record.text) for record in map(store.record, range(len(store)))}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    ("write", "found"),
    [
        (lambda path: json_lines(path, [{"who": "ann", "what": "hello"}], "x.jsonl"), "who, what"),
        (lambda path: json_lines(path, [["ann", "hello"]], "x.jsonl"), "a JSON str"),
        (lambda path: _write(path / "x.txt", "Dear all,\nthis is a letter.\n"), "not 2 fields"),
        (lambda path: _write(path / "x.xml", "<users><row Id='1' /></users>"), "broken JSON|begins|<users>"),
        (lambda path: _write(path / "empty.jsonl", ""), "no readable row"),
    ],
    ids=["other columns", "lists", "text", "other XML", "empty"],
)
def test_files_of_another_format_are_one_line_that_says_what_was_found(name, write, found, tmp_path):
    with pytest.raises(
        InputError, match=f"should be .*, but heldin found .*({found}|not XML|not an archive)"
    ) as caught:
        _rows(PresetSource(PRESETS[name], write(tmp_path)))
    assert "\n" not in str(caught.value)
    # A file of another format may hold anybody's texts.
    assert not any(quoted in str(caught.value) for quoted in ("hello", "Dear all", "ann"))


def _write(path, content):
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_a_folder_of_something_else_and_a_missing_file(name, tmp_path):
    (tmp_path / "photos").mkdir()
    _write(tmp_path / "photos" / "cat.jpg", "no picture")
    with pytest.raises(InputError, match=r"photos'.*(found|but has) (cat\.jpg|a folder)"):
        _rows(PresetSource(PRESETS[name], tmp_path / "photos"))
    with pytest.raises(InputError, match="no such file: '.*gone'"):
        PresetSource(PRESETS[name], tmp_path / "gone").fingerprint()
    with pytest.raises(InputError, match="no such file: '.*gone'"):
        _rows(PresetSource(PRESETS[name], tmp_path / "gone"))


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_record_local_steps_are_user_local(preset):
    assert all(step.user_local for step in preset.steps if step.record_local)
