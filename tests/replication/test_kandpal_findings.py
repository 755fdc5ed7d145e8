"""How a trial's interval becomes a verdict on a finding of the paper."""

import numpy as np
import pytest

from heldin.record.facts import GradientNorms
from replication.findings import alike
from replication.kandpal_findings import nearly_there, norms_apart, planted
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


def test_gradient_norms_are_alike_or_not_by_their_logarithms():
    rng = np.random.default_rng(3)
    edges = np.geomspace(0.1, 100, 41)

    def norms(apart):
        drawn = (np.exp(mean + 0.4 * rng.standard_normal(1000)) for mean in (1.0 + apart, 1.0))
        canaries, real = (np.histogram(its, edges)[0].tolist() for its in drawn)
        return GradientNorms(edges=edges.tolist(), canaries=canaries, real=real)

    same, larger = norms_apart(norms(0.0)), norms_apart(norms(0.3))
    assert alike(same) == "confirmed"
    assert larger[0] == pytest.approx(0.3, abs=0.1)
    assert larger[1] < larger[0] < larger[2]
    assert alike(larger) == "not confirmed"


def test_the_step_from_which_on_the_auroc_stays_near_its_last_value():
    assert nearly_there([(10, 0.5), (20, 0.77), (30, 0.7), (40, 0.76), (50, 0.8)]) == 40
    assert nearly_there([(10, 0.79), (20, 0.8)]) == 10
