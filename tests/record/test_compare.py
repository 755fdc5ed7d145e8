"""Runs side by side: the numbers of their records, and what keeps them from being compared."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from heldin.audit.bootstrap import Estimate, bootstrap
from heldin.bounds.verdict import Outcome, Standing, Verdict, describe_outcome
from heldin.record.compare import compare, difference_of, table
from heldin.record.document import read_record, write_record
from heldin.record.facts import RemovalFacts, ScoredTexts
from heldin.words.data_steps import DataStepText
from heldin.words.evidence import REAL_USERS, Subjects
from tests.made_facts import stated
from tests.refusals import names, refused


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
    assert [f for f, _ in rows[0].tpr_at] == [t.fpr for t in record.curve().tpr_at]
    assert names(notes[0], "reference models")
    assert [row.difference for row in rows] == [None, None]
    paired = compare([finished, tmp_path], pair=lambda *_: (0.1, 0.0, 0.2)).rows
    assert [row.difference for row in paired] == [None, None]
    assert len(notes) == 3
    assert len({r.training.selection for r in (record, other)}) == 2
    printed = table(compared, 300)
    assert "2 per user" in printed
    assert f"{rows[0].auroc:.3f} ({rows[0].auroc_low:.3f} to {rows[0].auroc_high:.3f})" in printed


def test_runs_that_are_alike_compare(finished):
    notes = compare([finished, finished]).notes
    assert len(notes) == 1
    assert names(notes[0], "coins")


def test_the_command_prints_a_table_or_json(call, finished, tmp_path):
    code, out, _ = call("compare", finished, finished)
    assert code == 0
    # As long as a line of a terminal that has 80 columns, also for many runs with long names.
    assert out.startswith("run ")
    assert max(map(len, out.splitlines())) <= 80
    copies = [tmp_path / f"a-run-of-the-third-series-with-seed-{seed}" for seed in range(9)]
    for copy in copies:
        shutil.copytree(finished, copy)
    code, out, _ = call("compare", *copies, "--over", "finetune.learning_rate")
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("0.003") == out.count("a-run-of-the-") == len(copies)
    code, out, _ = call("compare", finished, finished, "--csv")
    assert (code, len(out.splitlines())) == (0, 3)
    code, out, _ = call("compare", finished, finished, "--json")
    assert json.loads(out)["runs"][0]["defense"] == "none"
    code, _, err = call("compare", finished, tmp_path)
    assert code == 2
    assert names(err, tmp_path.name)


def test_one_run_is_no_comparison(finished):
    with refused(by=compare):
        compare([finished])


def test_differences_are_from_the_first_run_and_both_intervals_count(finished, tmp_path):
    record = read_record(finished / "record.json")
    lead = record.primary()
    old = lead.auroc
    area = old.model_copy(update={"value": old.value + 0.1, "lower": old.value - 0.1, "upper": old.value + 0.15})
    better = [r.model_copy(update={"auroc": area}) if r is lead else r for r in record.attacks]
    write_record(record.model_copy(update={"attacks": better}), tmp_path / "record.json")
    rows = compare([finished, tmp_path]).rows
    assert rows[0].difference is None
    value, low, high = rows[1].difference
    assert value == pytest.approx(0.1)
    assert value - low == pytest.approx(math.hypot(0.2, old.upper - old.value))
    assert high - value == pytest.approx(math.hypot(0.05, old.value - old.lower))


def test_the_interval_of_two_runs_covers_the_truth():
    """1,000 pairs of runs with coins of their own: 95 % cover, and at two thirds of the width far fewer."""
    rng = np.random.default_rng(0)
    missed = narrow = 0
    for _ in range(1000):
        first, second = (
            Estimate.of(bootstrap(rng.normal(gap, 1, 60), rng.normal(0, 1, 60), (), resamples=200).auroc)
            for gap in (0.4, 0.8)
        )
        truth = stats.norm.cdf(0.8 / 2**0.5) - stats.norm.cdf(0.4 / 2**0.5)
        value, low, high = difference_of(first, second)
        missed += not low <= truth <= high
        narrow += abs(truth - value) > (high - value) * 2 / 3
    assert 20 < missed < 100  # within 1e-6 of chance at 5 to 6 %
    assert narrow > 110


@pytest.mark.parametrize(
    ("over", "value"), [("parameters", None), ("users", None), ("records", None), ("finetune.learning_rate", 0.003)]
)
def test_runs_are_set_over_a_key_or_a_fact(finished, over, value):
    record = read_record(finished / "record.json")
    facts = {
        "parameters": record.target.parameters,
        "users": record.split.held_in,
        "records": record.training.records,
    }
    compared = compare([finished, finished], over)
    assert [row.value for row in compared.rows] == [facts.get(over, value)] * 2
    assert over in table(compared, 300)


@pytest.mark.parametrize(
    ("over", "naming"),
    [("finetune.rate", ("--over", "finetune.rate", "small")), ("finetune", ("--over", "finetune", "small"))],
)
def test_a_key_that_is_not_there_is_one_line(finished, over, naming):
    with refused(by="_value", naming=naming):
        compare([finished, finished], over)


def test_fresh_and_training_documents_do_not_compare(finished, tmp_path):
    record = read_record(finished / "record.json")
    write_record(
        record.model_copy(update={"scored_texts": ScoredTexts(kind="training", known_by="measured")}),
        tmp_path / "record.json",
    )
    unlike = [note for note in compare([finished, tmp_path]).notes if note not in compare([finished] * 2).notes]
    assert len(unlike) == 1


def test_defenses_of_the_data_side_and_whom_verdicts_speak_of_are_named(finished, tmp_path):
    """A run with deduplication and a cap is not one without a defense."""
    steps = (
        DataStepText.DEDUPLICATED_USERS(alike=DataStepText.EQUAL()),
        DataStepText.CAPPED(records=5, selection="random"),
    )
    record = read_record(finished / "record.json")
    removals = [RemovalFacts(name=name, before=90, removed=9, users=5) for name in steps]
    claim = {"claim": stated("epsilon 4 at delta 1e-05"), "finding": stated("x"), "max_certifiable_epsilon": 5.0}
    verdicts = [
        Verdict(**claim, outcome=outcome, standing=Standing.CERTIFIED, subjects=subjects)
        for outcome, subjects in (
            (Outcome.CONSISTENT, REAL_USERS),
            (Outcome.INCONCLUSIVE, Subjects.CANARIES_OF_KIND(kind="rare-phrase")),
        )
    ]
    judgement = replace(record.judgement, verdicts=tuple(verdicts))
    training = record.training.model_copy(update={"removals": removals})
    write_record(record.model_copy(update={"training": training, "judgement": judgement}), tmp_path / "record.json")
    row = compare([finished, tmp_path]).rows[1]
    assert row.defense == " + ".join(map(str, steps))
    calm, unseen = (describe_outcome(outcome, "certified") for outcome in ("consistent", "inconclusive"))
    assert row.verdict == f"real users: {calm}, rare-phrase canary users: {unseen}"
    private = training.model_copy(update={"defense": "uls"})
    write_record(record.model_copy(update={"training": private}), tmp_path / "record.json")
    row = compare([finished, tmp_path]).rows[1]
    assert row.defense.endswith(f" + {steps[1]} + uls")
    assert row.verdict is None  # nothing was claimed
    assert row.answer == record.decision.decision.answer
