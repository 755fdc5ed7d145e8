"""Ranks of marks against plain loops; what they are worth where nobody was trained on."""

import numpy as np
import pytest
from scipy import stats

from heldin.attacks.marks import MarkScores, exposures, ranks
from tests.oracles import marks as oracle

RARE = 1e-6


def made(rng, users, candidates, recipes=("a", "b"), *, planted=0.0, coarse=False):
    """Scores of marks and candidates from one distribution; ``coarse`` ones tie."""
    rows = [(recipe, f"{recipe}{i}") for recipe in recipes for i in range(users)]
    rows += [(recipe, None) for recipe in recipes for _ in range(candidates)]
    order = rng.permutation(len(rows))
    names, whose = [rows[i][0] for i in order], [rows[i][1] for i in order]
    values = rng.normal(size=(2, len(rows)))
    if coarse:
        values = np.round(values)
    hit = np.array([user is not None or rng.random() < planted for user in whose])
    return MarkScores(names, whose, hit, values[0], values[1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("coarse", [False, True])
def test_ranks_are_those_of_plain_loops(seed, coarse):
    scores = made(np.random.default_rng(seed), 12, 40, planted=0.1, coarse=coarse)
    found = ranks(scores)
    assert sorted(found.users) == sorted(user for user in scores.users if user is not None)
    assert set(found.candidates) == {40}
    bits = [exposures(its, found.candidates) for its in (found.target, found.reference)]
    for i, user in enumerate(found.users):
        row = list(scores.users).index(user)
        for values, rank, exposure in zip(
            (scores.target, scores.reference), (found.target, found.reference), bits, strict=True
        ):
            others = [
                (values[j], scores.planted[j])
                for j in range(len(scores.users))
                if scores.users[j] is None and scores.recipes[j] == scores.recipes[row]
            ]
            assert rank[i] == oracle.rank(values[row], others)
            assert exposure[i] == pytest.approx(oracle.exposure(values[row], others), abs=1e-9)


def test_a_tie_and_a_planted_candidate_count_against_the_mark():
    scores = MarkScores(
        ["a"] * 5,
        ["u", None, None, None, None],
        np.array([True, False, False, True, False]),
        np.array([-1.0, -1.0, -2.0, -9.0, -3.0]),
        np.array([0.0, -1.0, -2.0, -9.0, -3.0]),
    )
    found = ranks(scores)
    # One ties, one is planted: two before it. Under the reference the planted one alone.
    assert (found.target.tolist(), found.reference.tolist()) == ([3], [2])
    assert exposures(np.array([1, 3, 1001]), np.array([1000, 1000, 1000])) == pytest.approx(
        [9.967, 8.382, 0.0], abs=1e-3
    )


@pytest.mark.slow
def test_marks_never_planted_are_exposed_by_x_bits_with_a_probability_of_two_to_minus_x():
    """Each mark with candidates of its own, so that ranks are independent: uniform on 1 to 21."""
    rng = np.random.default_rng(7)
    scores = made(rng, 1, 20, recipes=tuple(f"recipe {i}" for i in range(4000)))
    found = ranks(scores)
    assert stats.chisquare(np.bincount(found.target, minlength=22)[1:]).pvalue > RARE
    bits = exposures(found.target, found.candidates)
    for x in (1.0, 2.0, 4.0, 21**0.5):
        assert (bits >= x).sum() <= stats.binom.ppf(1 - RARE, bits.size, 2.0**-x)
    # What was memorised a little is no longer uniform: the test would see it.
    raised = MarkScores(
        scores.recipes,
        scores.users,
        scores.planted,
        scores.target + 0.3 * np.array([user is not None for user in scores.users]),
        scores.reference,
    )
    assert stats.chisquare(np.bincount(ranks(raised).target, minlength=22)[1:]).pvalue < RARE


def test_ties_never_make_a_mark_look_exposed():
    rng = np.random.default_rng(3)
    found = ranks(made(rng, 1, 20, recipes=tuple(f"recipe {i}" for i in range(2000)), coarse=True))
    for rank in (1, 2, 5, 10):
        assert (found.target <= rank).sum() <= stats.binom.ppf(1 - RARE, 2000, rank / 21)


def test_the_order_of_marks_changes_nothing():
    scores = made(np.random.default_rng(1), 10, 30, planted=0.1, coarse=True)
    order = np.random.default_rng(2).permutation(len(scores.users))
    moved = MarkScores(
        [scores.recipes[i] for i in order],
        [scores.users[i] for i in order],
        scores.planted[order],
        scores.target[order],
        scores.reference[order],
    )
    one, other = (
        {u: (t, r) for u, t, r in zip(its.users, its.target, its.reference, strict=True)}
        for its in map(ranks, (scores, moved))
    )
    assert one == other


def test_without_candidates_a_mark_is_first_and_says_nothing():
    found = ranks(MarkScores(["a"], ["u"], np.array([True]), np.zeros(1), np.zeros(1)))
    assert (found.target[0], exposures(found.target, found.candidates)[0]) == (1, 0.0)
