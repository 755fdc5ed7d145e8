"""One model's record against limits: kept or broken by whole intervals, of every attack; and what is not measured."""

import numpy as np
import pytest

from heldin.audit.attack_results import DialSetting
from heldin.audit.requirement import Requirement
from heldin.audit.utility import Utility
from heldin.record.document import read_record
from heldin.record.requirements import epsilon_per_entity, epsilon_per_user, held_against
from tests.made_facts import attack_result, changed_record, estimate


@pytest.fixture(scope="module")
def record(finished):
    return read_record(finished / "record.json")


def _attacks(*ranges):
    return [
        attack_result((low + high) / 2, low, high, attack=f"a{i}").model_dump() for i, (low, high) in enumerate(ranges)
    ]


def _by_points(ranges, limit, *, upper):
    """Kept if every point of every interval keeps the limit, broken if no point of some interval does."""
    right = [[point <= limit if upper else point >= limit for point in np.linspace(*its, 50)] for its in ranges]
    if all(map(all, right)):
        return "kept"
    return "broken" if any(not any(its) for its in right) else "not shown"


def test_every_attack_counts_by_the_whole_of_its_interval(record):
    draws = np.random.default_rng(3)
    seen = set()
    for _ in range(60):
        ranges = [tuple(sorted(draws.uniform(0.4, 0.9, 2))) for _ in range(draws.integers(1, 4))]
        its = changed_record(record, attacks=_attacks(*ranges), dials=[], primary_attack="a0")
        for upper in (True, False):
            limit = float(draws.uniform(0.4, 0.9))
            asked = Requirement("auroc", at_most=limit) if upper else Requirement("auroc", at_least=limit)
            (held,) = held_against(its, [asked])
            assert held.outcome == _by_points(ranges, limit, upper=upper)
            if held.outcome == "broken":
                # The attack that is beyond the limit as a whole, by its near end.
                near, value = (
                    max((low, (low + high) / 2) for low, high in ranges)
                    if upper
                    else (min((high, (low + high) / 2) for low, high in ranges))
                )
                assert (held.reach, held.value) == (near, pytest.approx(value))
                assert (near > limit) if upper else (near < limit)
            else:
                assert held.reach == (max(r[1] for r in ranges) if upper else min(r[0] for r in ranges))
            seen.add((upper, held.outcome))
            # What a limit that anything keeps would have to allow: the end that reaches farthest.
            (any_limit,) = held_against(
                its, [Requirement("auroc", at_most=np.inf) if upper else Requirement("auroc", at_least=-np.inf)]
            )
            assert any_limit.reach == (max(r[1] for r in ranges) if upper else min(r[0] for r in ranges))
    assert len(seen) == 6


def test_a_stronger_setting_of_a_dial_breaks_a_limit_that_the_attacks_keep(record):
    asked = [Requirement("auroc", at_most=0.6)]
    weak = changed_record(record, attacks=_attacks((0.45, 0.55)), dials=[], primary_attack="a0")
    assert held_against(weak, asked)[0].outcome == "kept"
    dial = DialSetting(
        dial="shadow models",
        setting="4",
        leads=False,
        auroc=estimate(0.9, 0.85, 0.95),
        difference=None,
        adjusted_p=0.01,
    )
    strong = changed_record(weak, dials=[dial.model_dump()])
    assert held_against(strong, asked)[0].outcome == "broken"
    assert held_against(strong, asked)[0].value == 0.9


def test_what_does_not_speak_of_real_people_is_not_measured(record):
    canaries = record.split.model_copy(update={"audited": "canaries"})
    (held,) = held_against(changed_record(record, split=canaries.model_dump()), [Requirement("auroc", at_most=0.99)])
    assert (held.outcome, held.value, held.reach) == ("not measured", None, None)
    (held,) = held_against(changed_record(record, utility=None), [Requirement("loss", at_most=99.0)])
    assert held.outcome == "not measured"


def test_epsilon_is_the_plan_s_and_its_absence_keeps_no_limit(record):
    asked = [Requirement("epsilon_per_user", at_most=8.0)]
    private = record.training.model_copy(update={"unit": "user", "epsilon": 8.0, "delta": 1e-5})
    assert held_against(changed_record(record, training=private.model_dump()), asked)[0].outcome == "kept"
    more = private.model_copy(update={"epsilon": 8.01})
    assert held_against(changed_record(record, training=more.model_dump()), asked)[0].outcome == "broken"
    example = private.model_copy(update={"unit": "example"})
    assert held_against(changed_record(record, training=example.model_dump()), asked)[0].outcome == "broken"
    assert held_against(record, asked)[0].outcome == "broken"
    assert held_against(changed_record(record, training=None), asked)[0].outcome == "not measured"


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
    assert held.outcome == ("broken" if user is None else "kept")
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
        (of, which, limit): held_against(its, [Requirement(of, **{which: limit})])[0].outcome
        for of, which, limit in (
            ("loss_gain_over_base", "at_least", 0.15),
            ("loss_gain_over_base", "at_least", 0.3),
            ("loss_gain_over_base", "at_least", 0.5),
            ("loss", "at_most", 2.85),
            ("loss", "at_most", 2.7),
            ("loss", "at_most", 2.5),
        )
    }
    assert list(outcomes.values()) == ["kept", "not shown", "broken"] * 2
