"""The attack, the corpus format and the defense that the guide for contributors shows do what their contracts ask."""

import sys
import types

import numpy as np
import pytest

from heldin.attacks.kinds import ATTACKS
from heldin.base.errors import InputError
from heldin.corpus.document import Document
from heldin.corpus.sources.bad_rows import BadRows, OnBadRows
from heldin.corpus.sources.rows import Columns
from heldin.defenses.data_side.apply import apply_defenses
from heldin.defenses.data_side.contract import TrainingRecord
from heldin.models.token_scores import TokenScores
from tests.contracts.guide import example


def _run(containing, monkeypatch):
    module = types.ModuleType("guide_example")
    monkeypatch.setitem(sys.modules, "guide_example", module)  # dataclasses look for the module of a class
    exec(compile(example(containing), "contributing.md", "exec"), module.__dict__)
    return module


def _scores(*logprobs):
    return TokenScores(np.asarray(logprobs, dtype=np.float32))


def test_the_attack_is_that_of_the_least_likely_tokens(monkeypatch):
    attack = _run("class RareTokens", monkeypatch).RareTokens()
    assert attack.name not in ATTACKS.ours
    assert attack.uses.certifiable
    reference = _scores(-1, -9, -1, -1, -1, -1, -1, -1, -1, -8)
    target = _scores(-5, -6, -5, -5, -5, -5, -5, -5, -5, -7)
    assert attack.statistic("a text", target, reference) == pytest.approx((3 + 1) / 2)
    with pytest.raises(InputError, match=r"attack 'rare-tokens' needs a reference"):
        attack.statistic("a text", target, None)


def test_the_format_yields_records_and_reports_bad_rows_by_line(monkeypatch, tmp_path):
    reader = _run("class TabSeparated", monkeypatch).TabSeparated
    path = tmp_path / "mail.tsv"
    path.write_text("who\tbody\nann\tGood morning.\nbob\n", encoding="utf-8")
    source = reader(path, Columns(user="who", text="body"))
    bad = BadRows(OnBadRows.SKIP)
    rows = [row for batch in source.batches(bad) for row in batch.to_pylist()]
    assert [(row["user"], row["text"]) for row in rows] == [("ann", "Good morning.")]
    assert "line 3" in str(bad.first)
    assert source.fingerprint() != reader(path, Columns(user="body", text="who")).fingerprint()


def test_the_defense_leaves_out_short_texts_and_looks_at_one_text_at_a_time(monkeypatch):
    module = _run("class DropShort", monkeypatch)
    records = [TrainingRecord(i, "ann", str(i), Document.of("word " * (i + 1))) for i in range(4)]
    defense = module.DropShort(words=3)
    left, (removal,) = apply_defenses([defense], records, lengths=list, losses=list, seed=0)
    assert [record.row for record in left] == [2, 3]
    assert (removal.removed, removal.changed) == (2, None)
    step = defense.declared()
    assert (step.user_local, step.record_local) == (True, True)
