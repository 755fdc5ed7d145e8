"""A run that an earlier heldin made and judged: its record is still read, and its scores still say the same.

``run`` is a run of 30 users and 12 canary users under ULS at epsilon 6, trained and judged at record schema 3, without
its checkpoints. Another machine would train to other weights, but the statistics of these scores are the same anywhere.
"""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from heldin.audit.results import Results
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter
from heldin.defenses.choices import BatchClip
from heldin.defenses.plan_file import read_plan
from heldin.jobs.run.corpus import read_corpus
from heldin.jobs.run.data import prepare_data
from heldin.jobs.run.plan import read_run_config
from heldin.jobs.run.score_file import read_scores
from heldin.jobs.run.statistics import preregistered, run_results
from heldin.jobs.run.texts import scores_name, texts_under_attack
from heldin.jobs.verify import without_p_values
from heldin.record.differences import compared
from heldin.record.document import SCHEMA_VERSION, read_record, write_record
from tests.made_mechanisms import uls

GOLDEN = Path(__file__).parent / "run"
QUIET = LineReporter(lambda line: None)


@pytest.fixture(scope="module")
def recomputed(tmp_path_factory):
    """What the golden run's scores say today."""
    folder = tmp_path_factory.mktemp("golden") / "run"
    shutil.copytree(GOLDEN, folder)
    config, record = read_run_config(folder), read_record(folder / "record.json")
    base = SimpleNamespace(
        fingerprint=record.reference.fingerprint
    )  # canary users stand in the ledger: none is crafted
    data = prepare_data(config, folder, QUIET, read_corpus(config, QUIET), base)
    texts = texts_under_attack(config, data)
    of = scores_name(config, texts, record.target.fingerprint, record.reference.fingerprint)
    statistics = read_scores(folder / "scores.parquet", of=of)
    fixed = preregistered(config, data, read_plan(folder / "plan.json"))
    results = run_results(data, texts.texts, statistics, fixed, QUIET).results
    return results.model_copy(update={"judgement": without_p_values(results.judgement)})


def test_the_statistics_of_a_golden_run_are_those_that_it_was_published_with(recomputed):
    record = read_record(GOLDEN / "record.json")
    count, differing = 0, []
    for name in Results.model_fields:
        some, found = compared(name, getattr(record, name), getattr(recomputed, name))
        count += some
        differing += found
    assert differing == []
    assert count > 400


def test_another_number_in_the_golden_record_would_be_seen(recomputed, tmp_path):
    record = read_record(GOLDEN / "record.json")
    bounds = record.judgement.as_dict()["bounds"]
    assert compared("bounds", bounds, recomputed.judgement.as_dict()["bounds"])[1] == []
    bounds[0]["epsilon_lower"] += 1e-6
    assert [its.where for its in compared("bounds", bounds, recomputed.judgement.as_dict()["bounds"])[1]] == [
        "bounds[0].epsilon_lower"
    ]


def test_a_record_of_schema_3_is_brought_up_to_date_and_loses_no_number(tmp_path):
    old = json.loads((GOLDEN / "record.json").read_text(encoding="utf-8"))
    assert old["schema_version"] == 3 != SCHEMA_VERSION
    write_record(read_record(GOLDEN / "record.json"), tmp_path / "record.json")
    new = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert new["schema_version"] == SCHEMA_VERSION
    assert list(new)[:3] == ["schema_version", "notice", "kind"]
    renamed = {"trials", "judgement", "schema_version", "documents"}
    assert new["scored_texts"] == old["documents"]
    assert new["corpus"].pop("text_unit") == "record", "what records were before they could be sentences"
    assert new["split"].pop("audited") == "users", "who was audited before entities could be"
    assert new["training"].pop("ceiling_of_entities") is None, "which are not audited"
    assert (new["training"].pop("by_exposure"), new["training"].pop("exposed")) == (None, [])
    assert (new["training"].pop("gradients"), new["environment"].pop("peak_memory")) == (None, None), "not counted"
    assert (new["utility"], new["cell"]) == (None, None)
    decisions = (new["decision"], new["canaries"]["decision"])
    assert [its["by"].pop("require") for its in decisions] == [[], []], "limits, which came later"
    before = [its.pop("headline") for its in (old["decision"], old["canaries"]["decision"])]
    assert all(said.count("a rate so few cannot show is not excluded") == 1 for said in before)
    assert [its.pop("headline") for its in decisions] == [
        "Inconclusive: no leak was found, but an AUROC of up to 0.92 is not excluded, and whether many held-in users"
        " can be named at 5 % false positives cannot be seen with so few; about 411 users would settle it, 30 were"
        " there.",
        "Inconclusive: no leak was found, but an AUROC of up to 1.00 is not excluded, and whether many held-in canary"
        " users can be named at 5 % false positives cannot be seen with so few; about 375 canary users would settle"
        " it, 12 were there.",
    ]
    assert old["training"].pop("guarantee").startswith("not a DP guarantee: the checkpoint is chosen by validation")
    assert new["training"].pop("guarantee") == (
        "no DP guarantee: the checkpoint is chosen by validation on protected users;"
        " preprocessing looks across users (sample of max_users users)"
    )
    assert {k: v for k, v in new.items() if k in old.keys() - renamed} == {
        k: v for k, v in old.items() if k not in renamed
    }
    assert [b["epsilon_lower"] for b in new["judgement"]["bounds"]] == [
        b["epsilon_lower"] for b in old["judgement"]["bounds"]
    ]
    assert [v["subjects"] for v in new["judgement"]["verdicts"]] == [
        v["population"] for v in old["judgement"]["verdicts"]
    ]
    assert new["judgement"]["users"] == 42


def test_an_older_record_of_independent_trainings_is_read(tmp_path):
    old = json.loads((GOLDEN / "record.json").read_text(encoding="utf-8"))
    trainings = {
        "runs": 30, "with_user": 14, "documents": 2, "target": "none", "pilot": 0, "threshold": 0.5, "members": 14,
        "true_positives": 9, "non_members": 16, "false_positives": 1, "epsilon_lower": 0.4, "reach": 1.5,
        "seconds_each": 0.1,
    }  # fmt: skip
    verdict = {**old["judgement"]["verdicts"][0], "reason": "not rejected; 30 users could have certified at most 1"}
    refused = {"name": "all bounds", "reason": "x", "population": "real users"}
    judgement = {**old["judgement"], "verdicts": [verdict], "refused": [refused]}
    old |= {"kind": "trials", "trials": trainings, "config": {"trials": {"runs": 30}}, "judgement": judgement}
    (tmp_path / "record.json").write_text(json.dumps(old), encoding="utf-8")
    record = read_record(tmp_path / "record.json")
    assert (record.kind, record.trainings.runs, record.config) == ("trainings", 30, {"trainings": {"runs": 30}})
    assert record.judgement.verdicts[0].reason == "not rejected; 30 trainings could have certified at most 1"
    assert {its.subjects for its in (*record.judgement.verdicts, *record.judgement.refused)} == {"worst-case user"}


def test_what_an_older_record_says_of_batch_clipping_is_said_in_today_s_words(tmp_path):
    old = json.loads((GOLDEN / "record.json").read_text(encoding="utf-8"))
    before = "not a DP guarantee: the batch is clipped as one, which bounds no unit's influence"
    old["training"]["guarantee"] = before
    (tmp_path / "record.json").write_text(json.dumps(old), encoding="utf-8")
    reasons = uls(clip=BatchClip(norm=1.0)).reasons()
    assert read_record(tmp_path / "record.json").training.guarantee == f"no DP guarantee: {reasons[0]}"


def test_a_record_of_schema_4_is_read_too(tmp_path):
    new = read_record(GOLDEN / "record.json").model_dump(mode="json")
    old = {**new, "schema_version": 4, "documents": new["scored_texts"]}
    del old["scored_texts"]
    (tmp_path / "record.json").write_text(json.dumps(old), encoding="utf-8")
    assert read_record(tmp_path / "record.json").model_dump(mode="json") == new


def test_an_older_record_of_a_checkpoint_says_texts_where_it_said_documents(tmp_path):
    old = json.loads((GOLDEN / "record.json").read_text(encoding="utf-8"))
    old |= {"kind": "audit", "config": {"documents": "fresh", "seed": 3}}
    (tmp_path / "record.json").write_text(json.dumps(old), encoding="utf-8")
    record = read_record(tmp_path / "record.json")
    assert record.config == {"texts": "fresh", "seed": 3}
    assert record.scored_texts.kind == old["documents"]["kind"]


@pytest.mark.parametrize("damage", [{"split": 5}, {"judgement": {"bounds": [3]}}, {"canaries": {"held_in": "a"}}])
def test_a_damaged_record_of_an_earlier_schema_is_one_line(tmp_path, damage):
    old = json.loads((GOLDEN / "record.json").read_text(encoding="utf-8"))
    (tmp_path / "record.json").write_text(json.dumps({**old, **damage}), encoding="utf-8")
    with pytest.raises(InputError, match="is not a whole record of schema 3: it is damaged"):
        read_record(tmp_path / "record.json")
