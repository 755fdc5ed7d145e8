"""How a trial's interval becomes a verdict on a finding of the paper."""

import pytest

from replication.kandpal_findings import planted
from tests.made_facts import canary_facts


def test_canary_groups_weigh_alike_and_their_mean_has_the_limits_of_a_mean(finished):
    from heldin.audit.results import CanaryGroup
    from heldin.record.document import read_record

    record = read_record(finished / "record.json")

    def group(length, value, lower, upper):
        area = record.primary().auroc.model_copy(update={"value": value, "lower": lower, "upper": upper})
        return CanaryGroup(kind="substring", length=length, documents=None, held_in=5, held_out=5, auroc=area)

    facts = canary_facts([group(1, 0.6, 0.57, 0.64), group(25, 1.0, 0.96, 1.0)])
    with_canaries = record.model_copy(update={"canaries": facts})
    assert planted(with_canaries) == pytest.approx((0.8, 0.775, 0.82))
    assert planted(with_canaries, lambda n: n == 25) == (1.0, 0.96, 1.0)
