"""Mail: mbox files against the standard library, the Enron tarball's folders, charsets, and what is no mail."""

import mailbox
from email.message import EmailMessage

import pytest

from heldin.corpus.build import build_store
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.hub import HuggingFace
from heldin.corpus.sources.mail import Maildir, Mbox, addresses, body, parse_message
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import Columns
from tests.refusals import names, refused


def _message(sender, body, **headers):
    message = EmailMessage()
    message["From"], message["Subject"] = sender, "about it"
    for name, value in headers.items():
        message[name] = value
    message.set_content(body)
    return message


MESSAGES = [
    _message(
        "Ann <Ann@Example.org>", "Good morning.\n\nFrom here on it is quoted.\n", Date="Mon, 1 Jan 2001 10:00:00 +0000"
    ),
    _message("bob@example.org", "Grüße aus Köln\n"),
    _message("ann@example.org", "Second one.\n"),
]


def _rows(source, bad=None):
    return [row for batch in source.batches(bad or BadRows()) for row in batch.to_pylist()]


def test_an_mbox_that_the_standard_library_wrote(tmp_path):
    path = tmp_path / "mail.mbox"
    box = mailbox.mbox(path)
    for message in MESSAGES:
        box.add(message)
    box.close()
    rows = _rows(open_source(path, Columns()))
    assert [r["user"] for r in rows] == ["ann@example.org", "bob@example.org", "ann@example.org"]
    assert rows[0]["text"] == "Good morning.\n\nFrom here on it is quoted.\n"
    assert rows[1]["text"] == "Grüße aus Köln\n"
    assert "Jan 2001" in rows[0]["date"]
    store = build_store(Mbox(path), tmp_path)
    assert {u: store.count(u) for u in store.users} == {"ann@example.org": 2, "bob@example.org": 1}


def test_the_enron_tarballs_folders(tmp_path):
    for i, (account, folder) in enumerate(
        [("allen-p", "_sent_mail"), ("allen-p", "inbox"), ("zipper-a", "sent_items")]
    ):
        where = tmp_path / "maildir" / account / folder
        where.mkdir(parents=True)
        (where / f"{i + 1}.").write_bytes(MESSAGES[i].as_bytes())
    source = open_source(tmp_path / "maildir", Columns())
    assert isinstance(source, Maildir)
    assert sorted(r["user"] for r in _rows(source)) == ["ann@example.org", "ann@example.org", "bob@example.org"]
    sent = Maildir(tmp_path / "maildir", user="account", folders=("_sent_mail", "sent_items"))
    assert [(r["user"], r["text"]) for r in _rows(sent)] == [
        ("allen-p", MESSAGES[0].get_content()),
        ("zipper-a", "Second one.\n"),
    ]
    before = source.fingerprint()
    (tmp_path / "maildir" / "allen-p" / "inbox" / "9.").write_bytes(MESSAGES[2].as_bytes())
    assert source.fingerprint() != before


def test_html_only_wrong_charsets_and_missing_senders(tmp_path):
    html = EmailMessage()
    html["From"] = "x@y"
    html.set_content("<p>hi</p>", subtype="html")
    wrong = b"From: x@y\nContent-Type: text/plain; charset=no-such\n\nbytes \xff here\n"
    nobody = b"Subject: hm\n\ntext\n"
    folder = tmp_path / "m" / "acc" / "inbox"
    folder.mkdir(parents=True)
    for name, content in (("1", wrong), ("2", html.as_bytes()), ("3", nobody)):
        (folder / name).write_bytes(content)
    bad = BadRows(OnBadRows.SKIP)
    rows = _rows(Maildir(tmp_path / "m"), bad)
    assert [(r["user"], r["text"]) for r in rows] == [("x@y", "bytes \ufffd here\n")]
    assert bad.skipped == 2
    assert names(str(bad.first), "m message 3", "'From'")


@pytest.mark.parametrize(
    ("content", "naming"),
    [
        ("Dear all,\nthis is no mbox\n", ("mail.mbox", "line 1", "mbox", "'From '")),
        ("", ("mail.mbox", "mbox")),
    ],
)
def test_a_broken_mbox_is_one_clear_line(tmp_path, content, naming):
    path = tmp_path / "mail.mbox"
    path.write_text(content, encoding="utf-8")
    with refused(by="_messages_of_mbox", naming=naming):
        _rows(Mbox(path))


GOOD = "From x\nFrom: ann@x.org\nDate: Mon, 1 Jan 2001 10:00:00 +0000\n\nhello there\n\n"
HEADERS = ("From", "To", "Cc", "Date", "Subject", "Content-Type", "Content-Disposition", "Content-Transfer-Encoding")


def deep_parts(levels):
    """Multipart messages within each other."""
    parts = (f'Content-Type: multipart/mixed; boundary="b{i}"\n\n--b{i}\n' for i in range(levels))
    return f"From x\nFrom: bob@x.org\n{''.join(parts)}\nhi\n\n"


@pytest.mark.parametrize(
    "wrong",
    [f"From x\nFrom: bob@x.org\n{name}: {sign * 2000}\n\nhello\n\n" for name in HEADERS for sign in ("(", "a@(", "[")]
    + [deep_parts(1200)],
    ids=[f"{name} {sign}" for name in HEADERS for sign in ("(", "a@(", "[")] + ["parts"],
)
def test_headers_and_parts_within_each_other_are_a_bad_message_at_most(tmp_path, wrong):
    path = tmp_path / "m.mbox"
    path.write_text(GOOD + wrong + GOOD.replace("ann", "cid"), encoding="utf-8")
    bad = BadRows(OnBadRows.SKIP)
    users = [row["user"] for batch in Mbox(path).batches(bad) for row in batch.to_pylist()]
    assert (users[0], users[-1], len(users) + bad.skipped) == ("ann@x.org", "cid@x.org", 3)
    message = parse_message(wrong.split("\n", 1)[1].encode())
    assert isinstance(body(message), str)
    assert isinstance(addresses(message, "From", "To", "Cc"), list)


def test_a_content_type_of_2000_parentheses_is_told_by_its_message(call, tmp_path):
    (tmp_path / "m.mbox").write_text(f"{GOOD}From x\nFrom: b@x.org\nContent-Type: {'(' * 2000}\n\nhello\n")
    code, _, err = call("corpus", "build", tmp_path / "m.mbox", "--strict")
    assert (code, len(err.splitlines()), "m.mbox message 2" in err) == (2, 1, True)
    assert call("corpus", "build", tmp_path / "m.mbox", "--skip-bad-rows")[0] == 0


def test_a_streamed_dataset_gives_the_records_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "data"
    folder.mkdir()
    lines = ['{"who": "ann", "body": "one"}', '{"who": "bob", "body": "two"}']
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = HuggingFace(str(folder), split="train", columns=Columns("who", "body"), streaming=True)
    assert [(r["user"], r["text"]) for r in _rows(source)] == [("ann", "one"), ("bob", "two")]
    before = source.fingerprint()
    (folder / "train.jsonl").write_text("\n".join([*lines, lines[0]]) + "\n", encoding="utf-8")
    assert source.fingerprint() != before


def test_streaming_from_the_hub_needs_a_revision():
    with refused(by="HuggingFace.__post_init__", naming="'some/name'"):
        HuggingFace("some/name", streaming=True)
