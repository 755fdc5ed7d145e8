"""Runs side by side: the numbers of their records, and what keeps them from being compared."""

import json

import pytest

from audit.compare import compare, table
from audit.record import read_record, write_record
from corpus.errors import InputError


def test_rows_hold_the_records_numbers(finished, tmp_path):
    record = read_record(finished / "record.json")
    other = record.model_copy(
        update={
            "reference": record.reference.model_copy(update={"fingerprint": "another"}),
            "training": record.training.model_copy(update={"epsilon": 2.0, "unit": "user", "selection": "last"}),
        }
    )
    write_record(other, tmp_path / "record.json")
    compared = compare([finished, tmp_path])
    rows, notes = compared.rows, compared.notes
    assert rows[0].auroc == record.primary().auroc.value
    assert rows[0].held_out_loss == record.training.curve[-1].held_out_loss
    assert rows[1].epsilon == 2.0
    assert [f for f, _ in rows[0].tpr_at] == [t.fpr for t in record.primary().tpr_at]
    assert notes[0] == "the runs have different reference models: their numbers do not compare"
    assert "some runs keep the best checkpoint" in notes[1]
    printed = table(compared)
    assert "2 per user" in printed
    assert f"{rows[0].auroc:.3f} ({rows[0].auroc_low:.3f} to {rows[0].auroc_high:.3f})" in printed


def test_runs_that_are_alike_compare(finished):
    notes = compare([finished, finished]).notes
    assert notes == ("every run drew its own coins: rows differ by chance too, as their intervals say",)


def test_the_command_prints_a_table_or_json(call, finished, tmp_path):
    code, out, _ = call("compare", finished, finished)
    assert code == 0
    assert out.splitlines()[0].startswith("run    defense")
    code, out, _ = call("compare", finished, finished, "--json")
    assert json.loads(out)["runs"][0]["defense"] == "none"
    code, _, err = call("compare", finished, tmp_path)
    assert code == 2
    assert "no record at" in err


def test_one_run_is_no_comparison(finished):
    with pytest.raises(InputError, match="at least two finished runs"):
        compare([finished])
