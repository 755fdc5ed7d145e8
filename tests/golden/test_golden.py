"""A run that was made and judged before: its scores still give the numbers of its record.

``run`` is a run of 30 users and 12 canary users under ULS at epsilon 6, without its checkpoints. Another machine would
train to other weights, but the statistics of these scores are the same anywhere.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from heldin.audit.results import Results
from heldin.base.progress import LineReporter
from heldin.defenses.plan_file import read_plan
from heldin.record.differences import compared
from heldin.record.document import read_record
from heldin.stages.measures.measure import MeasureFolder
from heldin.stages.measures.scores import TextScores
from heldin.stages.sides.corpus import read_corpus
from heldin.stages.sides.data import prepare_data, texts_under_attack
from heldin.stages.sides.panels import judge_run, preregistered
from heldin.stages.train.plan import read_run_config

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
    scores = TextScores(config.attack, texts, (record.target, record.reference))
    statistics = MeasureFolder(folder, QUIET, read_only=True).values_of(scores)
    fixed = preregistered(config, data, read_plan(folder / "plan.json"))
    return judge_run(data, texts.whole(), statistics, fixed, QUIET).results


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
