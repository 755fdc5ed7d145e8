"""Scores per user as a file: whose, how private, and that `heldin bound` says of it what the record says."""

import csv
import json
import shutil

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from heldin.base.tabular import csv_text
from heldin.record.document import read_record
from heldin.stages.sides.ledger import load_ledger
from tests.refusals import names


def _rows(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_the_scores_are_those_of_the_leading_attack_and_yours_alone(call, finished, tmp_path):
    path = tmp_path / "scores.csv"
    code, out, _ = call("report", finished, "--scores", path)
    assert code == 0
    assert names(out, path, len(_rows(path)))
    assert path.stat().st_mode & 0o777 == 0o600
    rows, record = _rows(path), read_record(finished / "record.json")
    ledger = load_ledger(finished / "ledger")
    assert {row["user"]: row["member"] == "1" for row in rows} == {
        user: ledger.roles[user] == "held_in" for user in ledger.scored_users()
    }
    member, scores = [row["member"] == "1" for row in rows], [float(row["score"]) for row in rows]
    leading = next(result for result in record.attacks if result.attack == record.primary_attack)
    assert roc_auc_score(member, scores) == pytest.approx(leading.auroc.value, abs=5e-4)  # rounded


def test_the_people_of_page_one_are_those_above_one_threshold_of_the_attack(call, finished, tmp_path):
    """Counted again from the file of scores, by sorting."""
    path = tmp_path / "scores.csv"
    call("report", finished, "--scores", path)
    rows, record = _rows(path), read_record(finished / "record.json")
    people = record.flagged().model_dump(mode="json")
    assert (people["choice"], people["attack"]) == ("primary", record.primary_attack)
    ordered = sorted(rows, key=lambda row: -float(row["score"]))
    above = ordered[: people["members"] + people["others"]]
    assert len(above) >= 10
    assert sum(row["member"] == "1" for row in above) == people["members"]
    assert (people["of_members"], people["of_others"]) == (record.split.held_in, record.split.held_out)
    lower, upper = proportion_confint(people["members"], people["of_members"], alpha=0.05)
    assert people["members_limits"] == pytest.approx([lower, upper], abs=1e-4)
    # Of all ends of groups of ten or more, the one nearest to 5 % of the non-members.
    shares = np.abs(np.array(record.curve().fpr[1:-1]) - record.decision.by.fpr)
    assert people["others"] / people["of_others"] == pytest.approx(record.curve().fpr[1 + int(shares.argmin())])


def proportion_confint(count, total, alpha):
    """Clopper and Pearson's limits by searching for the rates whose tails have the level."""

    def tail(rate, upper):
        return binom.cdf(count, total, rate) if upper else binom.sf(count - 1, total, rate)

    return [brentq(lambda rate, upper=upper: tail(rate, upper) - alpha / 2, 1e-9, 1 - 1e-9) for upper in (False, True)]


def test_bound_reads_the_file_and_says_what_the_record_says(call, finished, tmp_path):
    path = tmp_path / "scores.csv"
    call("report", finished, "--scores", path)
    judgement = read_record(finished / "record.json").judgement
    code, out, err = call("bound", path, "--assignment", "coin", "--delta", judgement.delta, "--json")
    assert code == 0, err
    found = {bound["name"]: bound["epsilon_lower"] for bound in json.loads(out)["bounds"]}
    stated = {bound.name: bound.epsilon_lower for bound in judgement.bounds}
    shared = set(found) & set(stated)
    assert shared
    assert all(np.isclose(found[name], stated[name]) for name in shared)


def test_a_record_of_something_else_and_a_damaged_file_are_refused(call, finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    for name, by, naming in (
        ("scores.parquet", "read_scores", "scores.parquet'"),
        ("ledger/ledger.json", "_membership", "run"),
    ):
        (run / name).unlink()
        code, out, err = call("report", run, "--scores", tmp_path / "s.csv")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert call.refused(by=by, naming=naming)
        assert not (tmp_path / "s.csv").exists()
        shutil.copy(finished / name, run / name)
    code, _, err = call("report", run, "--scores", tmp_path / "s.csv", "--people")
    assert (code, call.refused(naming=("--people", "--scores"))) == (2, True)


def test_tables_are_csv_with_a_cell_for_every_number(call, finished, tmp_path):
    corpus = tmp_path / "m.jsonl"
    corpus.write_text('{"user": "a", "text": "b"}\n{"user": "a", "text": "c"}\n', encoding="utf-8")
    account = ["choose", "--users", 100, "--budget", 8, "--steps", 10, "--target-epsilon", 4]
    rates = [f"tpr_at_{fpr:g}" for fpr, _ in _compared(call, finished)[0]["tpr_at"]]
    for arguments, columns, rows in (
        (["compare", finished, finished], ["auroc", "difference_low", *rates], 2),
        (account, ["group_size", "noise_multiplier"], 8),
        (["corpus", "stats", corpus], ["records_from", "records_to", "users"], 1),
        (["config", "run", "finetune"], ["name", "allowed", "default", "meaning"], 34),
        (["power", "--users", 100, "--auroc", 0.7], ["largest.one_run", "no_leak_found.users_needed"], 1),
        (["power", "--users", 100, "--auroc", 0.7, "--claim", "epsilon=1,delta=1e-5"], ["claims.in_reach"], 1),
        (["account", finished / "plan.json"], ["epsilon"], 1),
    ):
        code, out, err = call(*arguments, "--csv")
        assert code == 0, err
        read = list(csv.DictReader(out.splitlines()))
        assert len(read) == rows, arguments
        assert set(columns) <= set(read[0])
        code, out, err = call(*arguments, "--csv", "--json")
        assert (code, out) == (2, "")


def _compared(call, folder):
    return json.loads(call("compare", folder, folder, "--json")[1])["runs"]


def test_nested_cells_are_dotted_lists_are_one_cell_and_nothing_is_empty():
    assert csv_text([{"a": {"b": 1, "c": [1, 2]}, "d": float("nan")}, {"e": 'x,"y"', "d": True}]) == (
        'a.b,a.c,d,e\n1,1; 2,,\n,,true,"x,""y"""\n'
    )
