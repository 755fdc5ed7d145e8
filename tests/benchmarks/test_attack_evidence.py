"""The rule of which attack leads: eight sets on all corpora and both kinds of documents, and a limit of the mean."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.refusals import names

SPEC = importlib.util.spec_from_file_location(
    "attack_evidence", Path(__file__).parents[2] / "benchmarks" / "attack_evidence.py"
)


@pytest.fixture(scope="module")
def evidence():
    module = importlib.util.module_from_spec(SPEC)
    # Found by name, as dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, SPEC.name, module)
        SPEC.loader.exec_module(module)
        yield module


def _results(evidence, gain, *, sets=8, worse_on=None):
    """Every statistic at the default's AUROC, and ``centred`` above it by ``gain`` of each set."""
    found = []
    for corpus in evidence.CORPORA:
        for coins in range(sets):
            row = {"corpus": corpus, "coins": coins}
            for which in evidence.DOCUMENTS:
                areas = dict.fromkeys(evidence.ATTACKS, 0.7)
                areas["centred"] += -0.02 if (corpus, which) == worse_on else gain[coins]
                row[which] = {name: {"auroc": area, "tpr": 0.2} for name, area in areas.items()}
            found.append(row)
    return found


def test_the_limit_is_students_over_sets(evidence):
    values = [0.02, -0.01, 0.03, 0.0, 0.01, 0.02, 0.01, 0.04]
    found = evidence.gain_of(values)
    low = stats.ttest_1samp(values, 0).confidence_interval(0.9).low
    assert (found.sets, found.mean, found.lower) == (8, pytest.approx(np.mean(values)), pytest.approx(low))
    assert evidence.gain_of([0.5]).lower == -np.inf


@pytest.mark.parametrize(
    ("gain", "options", "met"),
    [
        ([0.02, 0.01] * 4, {}, "centred"),
        ([0.02, 0.01] * 4, {"sets": 7}, "none"),
        ([0.02, 0.01] * 4, {"worse_on": ("enron", "training")}, "none"),
        ([0.02, 0.01] * 4, {"worse_on": ("plays", "fresh")}, "none"),
        ([-0.001, -0.002] * 4, {}, "none"),
        ([0.10, -0.09] * 4, {}, "none"),
    ],
)
def test_who_leads_must_gain_everywhere_with_all_sets(evidence, gain, options, met):
    said = evidence.table(_results(evidence, gain, **options)).splitlines()
    assert names(said[-1].partition(";")[0], met)
    assert sum(line.startswith("| ") for line in said) == 1 + 3 * len(evidence.ATTACKS)


def test_a_row_has_both_kinds_of_documents_and_the_limit_where_there_is_one(evidence):
    lines = evidence.table(_results(evidence, [0.02, 0.01] * 4)).splitlines()
    assert "| plays | centred | 8 | 0.715 | +0.015 (+0.011) | 0.200 | 0.715 | +0.015 (+0.011) | 0.200 |" in lines
    one = evidence.table(_results(evidence, [0.02], sets=1)).splitlines()
    assert "| plays | centred | 1 | 0.720 | +0.020 | 0.200 | 0.720 | +0.020 | 0.200 |" in one
    assert "| plays | likelihood-ratio | 1 | 0.700 |  | 0.200 | 0.700 |  | 0.200 |" in one


def test_without_a_result_nothing_leads(evidence):
    assert names(evidence.table([]).splitlines()[-1].partition(";")[0], "none")
