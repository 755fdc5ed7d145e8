"""Chats made of plays: one user a play, whose answers follow what others say."""

import gzip
import json
import os
from pathlib import Path

import pytest

from replication.chats import chats_of_plays, write_chats
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


def test_another_file_is_one_line(tmp_path):
    with gzip.open(tmp_path / "mail.jsonl.gz", "wt") as file:
        file.write('{"user": "ann", "text": "x"}\n')
    with refused("write_chats", "mail.jsonl.gz"):
        write_chats(tmp_path / "mail.jsonl.gz", tmp_path / "chats.jsonl")
    assert not (tmp_path / "chats.jsonl").exists()
