"""Counts of people against plain loops in fractions; limits of shares against scipy's exact ones."""

import math

import numpy as np
import pytest
from scipy import stats

from heldin.attacks.extraction import ExtractionConfig, TextProbabilities, least_logprob
from heldin.audit.coarse import share_limits
from heldin.audit.extraction import extraction_facts
from tests.oracles.continuations import people

ASKED = ExtractionConfig(queries=(1, 3, 100), probability=0.4)


def made(rng, users, texts):
    """Texts of random users with random probabilities, some of them 0, 1, or not measured."""
    owners = [users[i] for i in rng.integers(0, len(users), texts)]
    p = rng.uniform(0, 1, texts) ** 8
    p[rng.random(texts) < 0.1] = 0.0
    p[rng.random(texts) < 0.05] = 1.0
    p[rng.random(texts) < 0.2] = np.nan
    with np.errstate(divide="ignore"):
        return owners, np.log(p)


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_plain_loops(seed):
    rng = np.random.default_rng(seed)
    users = [f"user {i}" for i in range(60)]
    owners, target = made(rng, users, 200)
    reference = np.where(np.isnan(target), np.nan, np.log(rng.uniform(0.001, 1, 200)))
    others, public = rng.random(200) < 0.3, rng.random(200) < 0.2
    member = {user: bool(rng.random() < 0.5) for user in users}
    canaries = users[:15]
    facts = extraction_facts(TextProbabilities(owners, target, reference, others, public), member, canaries, ASKED)
    # Sides of real users, then sides of canary users.
    assert [(its.group.startswith("canary"), its.group.endswith("held in")) for its in facts.groups] == [
        (False, True),
        (False, False),
        (True, True),
        (True, False),
    ]
    for group in facts.groups:
        side, planted = group.group.endswith("held in"), group.group.startswith("canary")
        of = {user for user in users if member[user] is side and (user in canaries) is planted}
        rows = [(user, None if np.isnan(its) else math.exp(its)) for user, its in zip(owners, target, strict=True)]
        own = [row for row, a, b in zip(rows, others, public, strict=True) if not (a or b)]
        under = [(user, None if np.isnan(its) else math.exp(its)) for user, its in zip(owners, reference, strict=True)]
        mine = [i for i, user in enumerate(owners) if user in of]
        long = [i for i in mine if not np.isnan(target[i])]
        assert (group.users, group.measured) == (len(of), len({owners[i] for i in long}))
        assert (group.texts, group.too_short) == (len(long), len(mine) - len(long))
        assert (group.in_others, group.in_public) == (sum(others[long]), sum(public[long]))
        for its in group.emitted:
            assert its.users == people(rows, of, its.queries, 0.4)
            assert its.only_theirs == people(own, of, its.queries, 0.4)
            assert its.reference == people(under, of, its.queries, 0.4)
            exact = stats.binomtest(its.users, group.measured).proportion_ci(0.95, "exact")
            assert (its.lower, its.upper) == pytest.approx((exact.low, exact.high), rel=0.06)


def test_a_text_counts_from_the_stated_probability_on():
    asked = ASKED.model_copy(update={"probability": 0.5, "queries": (1, 2)})
    at, below = math.log(0.5), math.log(0.5) - 1e-9
    texts = TextProbabilities(["a", "b"], np.array([at, below]), None, None, None)
    once, twice = extraction_facts(texts, {"a": True, "b": True}, (), asked).groups[0].emitted
    assert (once.users, twice.users) == (1, 2)
    # 1 - (1 - p)^n = 1/2 at n = 2: p = 1 - sqrt(1/2)
    assert least_logprob(2, 0.5) == pytest.approx(math.log(1 - math.sqrt(0.5)))
    assert least_logprob(10**9, 0.5) == pytest.approx(math.log(math.log(2)) - 9 * math.log(10), abs=1e-6)


def test_what_is_not_known_is_null_and_nobody_is_left_out():
    texts = TextProbabilities(["a", "a", "b"], np.array([-0.1, np.nan, np.nan]), None, None, None)
    facts = extraction_facts(texts, {"a": False, "b": False, "c": False}, (), ASKED)
    (group,) = facts.groups
    assert (group.group, group.users, group.measured, group.texts, group.too_short) == ("held out", 3, 1, 1, 2)
    assert (group.in_others, group.in_public) == (None, None)
    assert {(its.reference, its.only_theirs, its.users) for its in group.emitted} == {(None, None, 1)}
    nobody = extraction_facts(TextProbabilities(["b"], np.array([np.nan]), None, None, None), {"b": True}, (), ASKED)
    assert {(its.users, its.lower, its.upper) for its in nobody.groups[0].emitted} == {(0, None, None)}


def test_limits_cover_at_their_level_and_not_at_a_smaller_one():
    for n, p in ((12, 0.05), (40, 0.3), (200, 0.01)):
        weights = stats.binom.pmf(np.arange(n + 1), n, p)
        inside = [share_limits(k, n)[0] <= p <= share_limits(k, n)[1] for k in range(n + 1)]
        assert weights[inside].sum() >= 0.95
    assert share_limits(0, 20)[0] == 0.0
    assert share_limits(20, 20)[1] == 1.0
    assert share_limits(7, 500) == (0.0056, 0.0287)
    # All of a thousand: not every person.
    assert share_limits(1000, 1000) == (0.9963, 1.0)
