"""One model's record against limits: met or broken by confidence limits of all attacks; and what is not measured."""

import numpy as np
import pytest

from heldin.audit.requirement import Requirement
from heldin.audit.utility import Utility
from heldin.record.document import read_record
from heldin.record.requirements import LimitStatus, epsilon_per_entity, epsilon_per_user, held_against, held_for_no_leak
from tests.made_facts import changed_record


@pytest.fixture(scope="module")
def record(finished):
    return read_record(finished / "record.json")


def _reaching(record, value, lower, upper, **changes):
    """The record with the largest AUROC of all attacks, and those that the audit shows and rules out."""
    areas = {"largest_auroc": value, "shown_auroc": lower, "excluded_auroc": upper, "answer": "inconclusive"}
    decision = {**record.decision.model_dump()["decision"], **areas, **changes}
    return changed_record(record, decision={**record.decision.model_dump(), "decision": decision})


def _by_points(lower, upper, limit):
    """Met if every AUROC between the limits keeps the limit, broken if none does."""
    right = np.linspace(lower, upper, 50) <= limit
    return "met" if right.all() else "not_shown" if right.any() else "broken"


def test_the_confidence_limits_of_the_answer_decide_on_an_auroc(record):
    """One-sided for "met", simultaneous for "broken", and of all attacks and dials, as the answer's own thresholds."""
    draws = np.random.default_rng(3)
    seen = set()
    for _ in range(60):
        lower, value, upper = sorted(draws.uniform(0.4, 0.9, 3))
        made, limit = _reaching(record, value, lower, upper), float(draws.uniform(0.4, 0.9))
        (held,) = held_against(made, [Requirement("auroc", at_most=limit)])
        assert held.status == _by_points(lower, upper, limit)
        assert (held.value, held.reach) == (value, lower if held.status is LimitStatus.BROKEN else upper)
        seen.add(held.status)
        # What a limit that anything meets would have to allow.
        (any_limit,) = held_against(made, [Requirement("auroc", at_most=np.inf)])
        assert any_limit.reach == upper
    assert len(seen) == 3


def test_no_leak_found_and_its_limits_never_disagree(record):
    """Also where a limit was rounded to the threshold: the answer was decided before."""
    by = record.decision.by
    for answer, statuses in (("no leak found", ["met"] * 2), ("inconclusive", ["not_shown"] * 2)):
        made = _reaching(record, 0.55, 0.5, by.auroc, answer=answer, largest_tpr=0.06, excluded_tpr=by.tpr)
        assert [held.status for held in held_for_no_leak(made)] == statuses
    below = _reaching(record, 0.55, 0.5, by.auroc - 0.01, largest_tpr=0.06, excluded_tpr=by.tpr - 0.01)
    assert [held.status for held in held_for_no_leak(below)] == ["met", "met"]
    few = _reaching(record, 0.8, by.auroc + 0.01, 0.9, answer="leaks", largest_tpr=None, excluded_tpr=None)
    assert [held.status for held in held_for_no_leak(few)] == ["broken", "not_measured"]
    void = _reaching(record, 0.8, 0.7, 0.9, answer="not valid")
    assert [held.status for held in held_for_no_leak(void)] == ["not_measured"] * 2
    (own,) = held_against(void, [Requirement("auroc", at_most=0.99)])
    assert own.status is LimitStatus.NOT_MEASURED


def test_what_does_not_speak_of_real_people_is_not_measured(record):
    canaries = record.split.model_copy(update={"audited": "canaries"})
    (held,) = held_against(changed_record(record, split=canaries.model_dump()), [Requirement("auroc", at_most=0.99)])
    assert (held.status, held.value, held.reach) == ("not_measured", None, None)
    (held,) = held_against(changed_record(record, utility=None), [Requirement("loss", at_most=99.0)])
    assert held.status == "not_measured"


def test_epsilon_is_the_plan_s_and_its_absence_keeps_no_limit(record):
    asked = [Requirement("epsilon_per_user", at_most=8.0)]
    private = record.training.model_copy(update={"unit": "user", "epsilon": 8.0, "delta": 1e-5})
    assert held_against(changed_record(record, training=private.model_dump()), asked)[0].status == "met"
    more = private.model_copy(update={"epsilon": 8.01})
    assert held_against(changed_record(record, training=more.model_dump()), asked)[0].status == "broken"
    example = private.model_copy(update={"unit": "example"})
    assert held_against(changed_record(record, training=example.model_dump()), asked)[0].status == "broken"
    assert held_against(record, asked)[0].status == "broken"
    assert held_against(changed_record(record, training=None), asked)[0].status == "not_measured"


@pytest.mark.parametrize(
    ("counted", "caps", "user", "entity"),
    [("records", (16, 4), 5.0, 1.0), ("records", (None, None), None, None), ("holders", (None, None), 0.5, None)],
)
def test_under_user_entity_dp_a_user_has_the_epsilon_of_a_user_alone(record, counted, caps, user, entity):
    curve = [{"exposed": m, "epsilon": its} for m, its in ((0, 0.5), (4, 1.0), (16, 5.0), (20, 8.0))]
    by = {"counted": counted, "exposed": 20, "curve": curve, "group_size": caps[0], "entity_cap": caps[1]}
    promised = {"unit": "user-entity", "epsilon": 8.0, "delta": 1e-5, "by_exposure": by}
    its = changed_record(record, training={**record.training.model_dump(), **promised})
    assert (epsilon_per_user(its.training), epsilon_per_entity(its.training)) == (user, entity)
    (held,) = held_against(its, [Requirement("epsilon_per_user", at_most=5.0)])
    assert held.status == ("broken" if user is None else "met")
    # A claim that is no guarantee gives nobody an epsilon.
    none = changed_record(its, training={**its.training.model_dump(), "epsilon": None})
    assert (epsilon_per_user(none.training), epsilon_per_entity(none.training)) == (None, None)


def test_losses_by_the_gain_s_interval(record):
    gain = {"value": 0.3, "lower": 0.2, "upper": 0.4}
    utility = Utility.model_validate(
        {
            "users": 20,
            "texts": 40,
            "loss": 2.7,
            "base_loss": 3.0,
            "perplexity": 15.0,
            "base_perplexity": 20.0,
            "gain": gain,
        }
    )
    its = changed_record(record, utility=utility.model_dump())
    outcomes = {
        (of, which, limit): held_against(its, [Requirement(of, **{which: limit})])[0].status
        for of, which, limit in (
            ("loss_gain_over_base", "at_least", 0.15),
            ("loss_gain_over_base", "at_least", 0.3),
            ("loss_gain_over_base", "at_least", 0.5),
            ("loss", "at_most", 2.85),
            ("loss", "at_most", 2.7),
            ("loss", "at_most", 2.5),
        )
    }
    assert list(outcomes.values()) == ["met", "not_shown", "broken"] * 2
