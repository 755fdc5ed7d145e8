"""Exposed canary users by kind, length and side: counts, medians of ten and more, and nothing about one of them."""

import numpy as np
import pytest

from heldin.attacks.marks import MarkRanks
from heldin.canaries.users import Canary
from heldin.stages.measures.marks import mark_groups


def canary(user, kind="rare_phrase", length=None, documents=5):
    return Canary(user, kind, length, documents, None, "mark")


def found(ranks, reference=None, candidates=1000, users=None):
    names = users or [f"u{i}" for i in range(len(ranks))]
    size = len(names)
    return MarkRanks(
        names,
        np.full(size, candidates),
        np.array(ranks),
        np.array(reference if reference is not None else [500] * size),
    )


def test_sides_are_counted_by_kind_and_length_whatever_the_documents():
    ranks = [1, 1, 2, 10, 11, 700] * 4
    canaries = {
        f"u{i}": canary(f"u{i}", *(("substring", 5 if i < 12 else 10) if i % 2 else ("rare_phrase", None)), i % 3)
        for i in range(24)
    }
    member = {f"u{i}": i % 4 < 2 for i in range(24)}
    groups = mark_groups(found(ranks, [3] * 24), member, canaries)
    assert [(g.kind, g.length) for g in groups] == [("rare_phrase", None), ("substring", 5), ("substring", 10)]
    for group in groups:
        mine = [
            i for i in range(24) if (canaries[f"u{i}"].kind, canaries[f"u{i}"].length) == (group.kind, group.length)
        ]
        for side, its in ((True, group.held_in), (False, group.held_out)):
            of = [ranks[i] for i in mine if member[f"u{i}"] is side]
            assert its.users == len(of)
            assert its.target.highest == of.count(1)
            assert its.target.first_percent == sum(rank <= 10 for rank in of)
            assert its.reference.first_percent == len(of)
            assert its.reference.highest == 0


def test_a_median_needs_ten_canary_users():
    for users, stated in ((9, None), (10, 8.8), (11, 9.0)):
        ranks = [1] * 5 + [2] * (users - 5) if users < 11 else [1] * 5 + [2] * 6
        member = {f"u{i}": True for i in range(users)}
        (group,) = mark_groups(found(ranks), member, {u: canary(u) for u in member})
        expected = None if stated is None else float(np.median(np.log2(1001) - np.log2(ranks)))
        assert group.held_in.target.median == (None if expected is None else pytest.approx(expected, abs=0.051))
        assert group.held_out.users == 0
        assert (group.held_out.lower, group.held_out.target.median) == (None, None)


def test_among_few_or_no_candidates_nobody_is_exposed():
    member = {f"u{i}": True for i in range(12)}
    canaries = {u: canary(u) for u in member}
    (none,) = mark_groups(found([1] * 12, candidates=0), member, canaries)
    assert (none.candidates, none.held_in.target.highest, none.held_in.target.median) == (0, 0, None)
    # The first of 51 is no first hundredth.
    (few,) = mark_groups(found([1] * 12, candidates=50), member, canaries)
    assert (few.held_in.target.highest, few.held_in.target.first_percent) == (12, 0)
    (just,) = mark_groups(found([1] * 12, candidates=99), member, canaries)
    assert just.held_in.target.first_percent == 12
