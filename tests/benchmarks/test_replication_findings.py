"""How a trial's interval becomes a verdict on a finding of the paper."""

import importlib.util
from pathlib import Path

import pytest

from tests.made_facts import canary_facts

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "replication_findings.py"


@pytest.fixture(scope="module")
def rules():
    spec = importlib.util.spec_from_file_location("replication_findings", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_canary_groups_weigh_alike_and_their_mean_has_the_limits_of_a_mean(rules, finished):
    from heldin.audit.canary_groups import CanaryGroup
    from heldin.record.document import read_record

    record = read_record(finished / "record.json")

    def group(length, value, lower, upper):
        area = record.primary().auroc.model_copy(update={"value": value, "lower": lower, "upper": upper})
        return CanaryGroup(kind="substring", length=length, documents=None, held_in=5, held_out=5, auroc=area)

    facts = canary_facts([group(1, 0.6, 0.57, 0.64), group(25, 1.0, 0.96, 1.0)])
    with_canaries = record.model_copy(update={"canaries": facts})
    assert rules.planted(with_canaries) == pytest.approx((0.8, 0.775, 0.82))
    assert rules.planted(with_canaries, lambda n: n == 25) == (1.0, 0.96, 1.0)
