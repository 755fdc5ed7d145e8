"""Attacker knowledge against one attacker at a time, and that more texts help as they must."""

import time

import numpy as np
import pytest

from heldin.attacks.protocol import TextStatistic
from heldin.audit.attack_results import attacker_knowledge
from heldin.audit.scored_users import scored_users
from heldin.bounds.roc import auroc


def _statistics(users, texts, gap, seed=0):
    rng = np.random.default_rng(seed)
    member = {f"u{i}": bool(i % 2) for i in range(users)}
    found = []
    for i, (user, its) in enumerate(member.items()):
        count = texts if isinstance(texts, int) else texts[i % len(texts)]
        found += [TextStatistic(user, t, "lr", float(v)) for t, v in enumerate(rng.normal(gap * its, 1, count))]
    return found, member


def test_with_all_texts_it_is_the_attack_itself_without_any_spread():
    statistics, member = _statistics(40, (3, 5, 9), 0.4)
    points = attacker_knowledge(scored_users(statistics, member), attack="lr", draws=20)
    assert [p.texts for p in points] == [1, 2, 4, 8, 9]
    means = {u: np.mean([s.value for s in statistics if s.user == u]) for u in member}
    whole = auroc(*(np.array([means[u] for u in member if member[u] is side]) for side in (True, False)))
    assert points[-1].mean == pytest.approx(whole)
    assert points[-1].deviation == pytest.approx(0, abs=1e-12)


def test_one_text_is_every_choice_of_one_text():
    """Two users of two texts each: four choices, whose AUROCs are 1, 1, 0, 1/2."""
    statistics = [
        TextStatistic("a", 0, "lr", 5.0),
        TextStatistic("a", 1, "lr", 1.0),
        TextStatistic("b", 0, "lr", 2.0),
        TextStatistic("b", 1, "lr", 1.0),
    ]
    points = attacker_knowledge(scored_users(statistics, {"a": True, "b": False}), attack="lr", draws=4000)
    assert points[0].mean == pytest.approx((1 + 1 + 0 + 0.5) / 4, abs=0.04)
    assert points[1].mean == 1.0


def test_more_texts_raise_auroc_and_lower_its_spread():
    statistics, member = _statistics(300, 64, 0.3)
    points = attacker_knowledge(scored_users(statistics, member), attack="lr")
    assert [p.mean for p in points] == sorted(p.mean for p in points)
    assert points[0].deviation > points[-2].deviation > points[-1].deviation
    minimum = attacker_knowledge(scored_users(statistics, member), attack="lr", aggregation="min")
    assert minimum[-1].mean < points[-1].mean
    again = attacker_knowledge(scored_users(statistics, member), attack="lr")
    assert again == points
    assert attacker_knowledge(scored_users(statistics, member), attack="lr", seed=1) != points


@pytest.mark.slow
def test_a_thousand_users_a_hundred_draws_ten_counts_are_fast():
    """The aim is 10 s; the bound here only catches an accident."""
    statistics, member = _statistics(1000, 512, 0.1)
    began = time.process_time()
    points = attacker_knowledge(scored_users(statistics, member), attack="lr")
    assert len(points) == 10
    print(f"{time.process_time() - began:.1f} s")
