"""Choices by key: the same however they are computed, every set equally likely."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heldin.base.coins import (
    first_in_keyed_order,
    keyed_digest,
    keyed_digests,
    keyed_order,
    keyed_positions,
    seed_key,
)

KEY = seed_key(3)


@given(st.lists(st.text(max_size=8), unique=True, max_size=40), st.integers(0, 45))
def test_the_first_in_keyed_order_are_those_of_the_whole_order(names, count):
    first = first_in_keyed_order(KEY, "p", names, count)
    assert [names[i] for i in first] == keyed_order(KEY, "p", names)[:count]


def test_digests_of_many_are_those_of_each_and_need_a_whole_key():
    names = ["", "a", "\u00e9\u4e2d", "x" * 500]
    assert keyed_digests(KEY, "set aside", names) == b"".join(keyed_digest(KEY, "set aside", name) for name in names)
    with pytest.raises(ValueError, match=r"\b3 bytes.*\b32\b"):
        keyed_digests(b"abc", "p", names)


def _sets(draw, repeats=20_000):
    """P-value of the hypothesis that all sets of 3 of 6 are equally likely."""
    found = Counter(tuple(draw(f"records {step}")) for step in range(repeats))
    every = list(itertools.combinations(range(6), 3))
    assert set(found) <= set(every)
    return stats.chisquare([found[its] for its in every]).pvalue


def test_every_set_of_positions_is_equally_likely_and_a_biased_choice_is_rejected():
    assert _sets(lambda purpose: keyed_positions(KEY, purpose, "ann", count=3, total=6)) > 1e-6

    def without_the_last(purpose):
        # Floyd's rule with the replaced draw dropped wrongly: the last position too seldom.
        chosen = keyed_positions(KEY, purpose, "ann", count=3, total=6)
        return (
            chosen if 5 not in chosen or keyed_digest(KEY, purpose, "x")[0] > 40 else sorted({0, 1, *chosen[:1], 2})[:3]
        )

    assert _sets(without_the_last) < 1e-6


def test_positions_depend_on_key_purpose_and_identity_alone():
    def choice(**changes):
        its = {"key": KEY, "purpose": "records 1", "identity": "ann", "count": 16, "total": 400, **changes}
        return keyed_positions(its.pop("key"), its.pop("purpose"), its.pop("identity"), **its)

    assert choice() == choice()
    assert len(set(choice())) == 16
    assert choice() == sorted(choice())
    for changed in ({"key": seed_key(4)}, {"purpose": "records 2"}, {"identity": "bob"}):
        assert choice(**changed) != choice()
    assert choice(count=400) == choice(count=500) == list(range(400))
