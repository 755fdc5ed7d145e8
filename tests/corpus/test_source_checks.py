"""``heldin.testing.check_source`` passes our sources, and finds what is wrong with others."""

import json

import pyarrow as pa
import pytest

from heldin.corpus.made_up.source import SyntheticCorpusConfig
from heldin.corpus.made_up.synthetic import SyntheticCorpus
from heldin.corpus.sources.contract import SourceConfig
from heldin.corpus.sources.files import FileCorpus
from heldin.corpus.sources.rows import SCHEMA, Columns, Source, batched
from heldin.testing.sources import check_source

ROWS = [{"user": user, "text": f"text {i}", "id": str(i)} for i, user in enumerate("abca")]


class Lists(SourceConfig):
    """Rows that a test gives."""

    rows: tuple[dict[str, str | None], ...]
    flaw: str = ""

    def source(self):
        return _Lists(self)


class _Lists(Source):
    def __init__(self, config):
        self.config, self.times = config, 0

    def fingerprint(self):
        self.times += 1
        return {"constant": "x", "restless": str(self.times)}.get(self.config.flaw, str(self.config.rows))

    def batches(self, bad):
        self.times += 1
        rows = self.config.rows[: -1 if self.config.flaw == "shrinking" and self.times > 1 else None]
        match self.config.flaw:
            case "columns":
                return iter([pa.RecordBatch.from_pylist([dict(row) for row in rows])])
            case "unchecked":
                return iter([pa.RecordBatch.from_pylist([{"date": None, **row} for row in rows], SCHEMA)])
            case "raising":
                raise OSError("disk")
            case _:
                return batched(enumerate(rows, 1), "lists", "row", Columns(id="id"), bad)


def lists(rows=ROWS, flaw=""):
    return Lists(kind="tests:Lists", rows=tuple(rows), flaw=flaw)


def test_ours_pass(tmp_path):
    made = [SyntheticCorpusConfig(kind="synthetic", parameters=SyntheticCorpus(users=4, seed=seed)) for seed in (1, 2)]
    check_source(*made)
    for name, rows in (("a", ROWS), ("b", ROWS[:2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = [FileCorpus(kind="jsonl", path=tmp_path / f"{name}.jsonl", columns=Columns(id="id")) for name in "ab"]
    check_source(*files)
    check_source(lists(), lists(ROWS[:3]))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lists(flaw="columns"), "columns"),
        (lists(flaw="raising"), "read"),
        (lists(flaw="shrinking"), "again"),
        (lists(flaw="restless"), "fingerprint"),
        (lists(flaw="constant"), "content"),
        (lists([{**ROWS[0], "text": " "}], "unchecked"), "whole"),
        (lists([ROWS[0], ROWS[0]]), "ids"),
        (lists([ROWS[0], {**ROWS[1], "id": None}], "unchecked"), "ids"),
        (lists([], "unchecked"), "empty"),
        (FileCorpus(kind="jsonl", path="/nowhere.jsonl"), "paths"),
    ],
)
def test_a_wrong_source_is_found(config, said):
    with pytest.raises(AssertionError, match=f"- {said}: "):
        check_source(config, lists(ROWS[:1], "constant" if getattr(config, "flaw", "") == "constant" else ""))
