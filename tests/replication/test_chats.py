"""Chats made of plays: one user a play, whose answers follow what others say."""

import gzip
import json
import os
from pathlib import Path

import pytest

from replication.chats import QUESTION, chats_of_mails, chats_of_plays, write_chats
from tests.refusals import refused


def speech(play, user, number):
    return {"play": play, "user": f"{play}-{user}", "text": f"{user} says {number}", "id": f"{play}:{number}"}


SPEECHES = [
    speech(play, user, n) for play, users in (("one", "abacbbab"), ("two", "xx")) for n, user in enumerate(users)
]


def test_one_user_of_a_play_answers_others():
    found = list(chats_of_plays(SPEECHES))
    assert {chat["user"] for chat in found} == {"one-b"}  # nobody answers in the second play
    texts = [[message["content"] for message in chat["messages"]] for chat in found]
    assert texts == [["a says 0", "b says 1"], ["c says 3", "b says 4"], ["a says 6", "b says 7"]]


def test_no_user_speaks_in_a_record_of_another(tmp_path):
    path = Path(os.environ.get("HELDIN_DATA_DIR", "")) / "engdracor_plays.jsonl.gz"
    if not path.is_file():
        pytest.skip("HELDIN_DATA_DIR has no engdracor_plays.jsonl.gz")
    users, chats = write_chats(path, tmp_path / "chats.jsonl")
    assert users > 400
    assert chats > 30_000
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        speaker = {(s["play"], s["text"][:1000]): s["user"] for s in map(json.loads, lines)}
    rows = list(map(json.loads, (tmp_path / "chats.jsonl").read_text(encoding="utf-8").splitlines()))
    owners = {row["play"]: row["user"] for row in rows}
    assert len(owners) == users  # one of each play
    for row in rows:
        heard = row["messages"][0]["content"]
        assert speaker[row["play"], heard] not in set(owners.values()) - {row["user"]}


def mail(user, subject, day, text=None):
    text = text or f"{user} on {subject}, day {day}"
    return {"user": user, "text": text, "id": f"{user}-{subject}-{day}", "date": f"2001-03-{day:02}T09:00:00Z"} | {
        "subject": subject
    }


def test_an_answer_follows_another_persons_mail_in_a_thread_within_a_week():
    mails = [
        *(mail("ann", "Gas", 1), mail("bob", "Re: gas", 3), mail("bob", "RE: Gas", 4), mail("ann", "Re: GAS", 20)),
        *(mail("ann", "", 1), mail("bob", "Re: ", 2), mail("ann", "power", 1), mail("bob", "power", 2)),
    ]
    found = list(chats_of_mails(mails, least=1))
    assert [[turn["content"] for turn in chat["messages"]] for chat in found] == [
        ["ann on Gas, day 1", "bob on Re: gas, day 3"]
    ]
    assert [(chat["user"], chat["thread"]) for chat in found] == [("bob", "gas")]


def test_a_user_who_asks_another_user_is_left_out_of_that_conversation():
    mails = [mail("ann", "a", 1), mail("bob", "Re: a", 2), mail("bob", "b", 3), mail("cat", "Re: b", 4)]
    # cat answers bob once and dan once; bob answers ann.
    mails += [mail("dan", "c", 5), mail("cat", "Re: c", 6), mail("eve", "d", 7, "ann on a, day 1")]
    mails += [mail("cat", "Re: d", 8)]
    found = list(chats_of_mails(mails, least=1))
    owners = {chat["user"] for chat in found}
    assert owners == {"bob", "cat"}
    said = {chat["messages"][0]["content"] for chat in found}
    assert "bob on b, day 3" not in said
    assert "dan on c, day 5" in said


def test_no_audited_persons_words_are_in_a_record_of_another(tmp_path):
    path = Path(os.environ.get("HELDIN_DATA_DIR", "")) / "enron_by_sender.jsonl.gz"
    if not path.is_file():
        pytest.skip("HELDIN_DATA_DIR has no enron_by_sender.jsonl.gz")
    users, chats = write_chats(path, tmp_path / "chats.jsonl", chats_of_mails)
    assert users > 150
    assert chats > 2000
    rows = list(map(json.loads, (tmp_path / "chats.jsonl").read_text(encoding="utf-8").splitlines()))
    by_user: dict[str, set[str]] = {}
    for row in rows:
        by_user.setdefault(row["user"], set()).add(row["messages"][1]["content"])
    asked = {row["messages"][0]["content"] for row in rows}
    said = {text[:QUESTION] for texts in by_user.values() for text in texts}
    assert not asked & {text for text in said if len(text) > 30}
    # Also of what they wrote elsewhere in these threads.
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        wrote = [(m["user"], m["text"][:QUESTION]) for m in map(json.loads, lines) if m["user"] in by_user]
    prompts = {row["messages"][0]["content"]: row["user"] for row in rows}
    others = {text for user, text in wrote if len(text) > 100 and prompts.get(text) not in (None, user)}
    assert not others


def test_another_file_is_one_line(tmp_path):
    with gzip.open(tmp_path / "mail.jsonl.gz", "wt") as file:
        file.write('{"user": "ann", "text": "x"}\n')
    with refused("write_chats", "mail.jsonl.gz"):
        write_chats(tmp_path / "mail.jsonl.gz", tmp_path / "chats.jsonl")
    assert not (tmp_path / "chats.jsonl").exists()
