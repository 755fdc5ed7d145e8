"""How many guesses, and how many of them "in": rules that never see membership, and their cost against hindsight."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldin.bounds import one_run
from heldin.bounds.one_run import Guesses, Try, centre, guess, guessed_out, paid_tries
from heldin.bounds.scores import LabelledScores
from tests import hindsight
from tests.refusals import refused


def slowly_out(ranked, made):
    """Who are the `made` farthest from the centre, one by one from the ends; at a tie who is above it."""
    middle = centre(ranked)
    low, high = 0, len(ranked) - 1
    for _ in range(made):
        if middle - ranked[low] > ranked[high] - middle:
            low += 1
        else:
            high -= 1
    return low


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), users=st.integers(4, 60), skew=st.floats(0.1, 3.0))
def test_the_farthest_from_the_centre_are_guessed(seed, users, skew):
    rng = np.random.default_rng(seed)
    ranked = np.sort(np.exp(skew * rng.standard_normal(users)))
    for made in {1, users // 3 or 1, users}:
        low = guessed_out(ranked, made)
        assert low == slowly_out(ranked, made)
        assert guessed_out(-ranked[::-1], made) == made - low  # no two are equally far
        assert guessed_out(7.0 * ranked + 3.0, made) == low


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), users=st.integers(2, 40), levels=st.integers(2, 6))
def test_neither_rows_nor_labels_decide_how_many_are_in(seed, users, levels):
    """With ties too: a permutation of rows changes who of the tied is guessed, never how many on either side."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, users).astype(float)
    scores[:2] = [0.0, 1.0]
    for made in (1, users // 2, users):
        lows = {guessed_out(np.sort(rng.permutation(scores)), made) for _ in range(3)}
        assert len(lows) == 1
        everybody = guess(LabelledScores(scores, np.arange(users) < 1), made)
        nearly = guess(LabelledScores(scores, np.arange(users) > 0), made)
        low = lows.pop()
        # all but one in, and all but one out: right are those guessed in, and those guessed out, up to that one
        assert abs(nearly.correct - (made - low)) <= 1
        assert abs(everybody.correct - low) <= 1


@pytest.mark.parametrize("inside", [450, 480, 500, 533, 560])
def test_perfect_scores_are_all_guessed_right(inside):
    """However many the coins held in; noise about the two groups, one outlier, or none."""
    member = np.random.default_rng(inside).permutation(np.arange(1000) < inside)
    wild = 1e6 * (np.arange(1000) == 17)
    for scores in (1.0 * member, member + 0.1 * np.sin(np.arange(1000)), member + wild * member - wild * ~member):
        game = guess(LabelledScores(scores, member), 1000)
        assert game == Guesses(1000, 1000, 1000)
        found = one_run.steinke_bound(LabelledScores(scores, member), 1e-5).epsilon
        assert found == pytest.approx(one_run.one_run_epsilon(Guesses(1000, 1000, 1000), 1e-5, 0.01), abs=1e-4)
        assert found > 5.3
    halves = Guesses(1000, 1000, 1000 - abs(inside - 500))
    assert inside == 500 or one_run.one_run_epsilon(halves, 1e-5, 0.05 / 6) < found - 1.0


def test_small_strange_and_huge_scores():
    for scores in ([1.0, 2.0], [0.0, 0.0, 0.0, 0.0, 5.0], [-1e308, 1e308, 1e308, 0.0], [5.0] + [0.0] * 40):
        ranked = np.sort(np.array(scores))
        for made in range(1, ranked.size + 1):
            assert 0 <= guessed_out(ranked, made) <= made
    assert np.isfinite(centre(np.array([-1.7e308, 1.7e308, 1.7e308, 1.7e308])))
    few_high = np.sort(np.append(np.zeros(800), np.arange(1.0, 201.0)))  # the many at the centre are out, not in
    assert guessed_out(few_high, 1000) == 800
    assert guessed_out(np.sort(-few_high), 1000) == 200


@pytest.mark.parametrize("by", [3.0, 6.0])
def test_where_only_some_members_are_exposed_most_guesses_are_in(by):
    rng = np.random.default_rng(2)
    member = rng.random(1000) < 0.5
    scores = rng.standard_normal(1000) + by * (member & (rng.random(1000) < 0.5))
    assert guessed_out(np.sort(scores), 149) < 20
    labelled = LabelledScores(scores, member)
    assert one_run.steinke_bound(labelled, 1e-5).epsilon > 1.8
    turned = LabelledScores(-scores, ~member)
    assert one_run.steinke_bound(turned, 1e-5).epsilon == one_run.steinke_bound(labelled, 1e-5).epsilon


def test_numbers_of_guesses_are_paid_for():
    assert [its.made for its in paid_tries(1000)] == [149, 500, 1000]
    assert [its.level for its in paid_tries(1000)] == pytest.approx([0.035, 0.005, 0.01])
    assert [its.made for its in paid_tries(100)] == [27, 50, 100]
    assert paid_tries(5) == (Try(5, 0.05),)
    assert [its.made for its in paid_tries(12)] == [5, 12]
    assert paid_tries(1000, made=77) == (Try(77, 0.05),)
    for users in (5, 6, 7, 9, 15, 30, 71, 500, 12_345):
        for attacks in (1, 7):
            if 0.5**users <= 0.05 / attacks:
                tries = paid_tries(users, attacks=attacks)
                assert sum(its.level for its in tries) == pytest.approx(0.05 / attacks)
                assert all(0.5**its.made <= its.level for its in tries)
    tries = paid_tries(1000, attacks=5)
    assert [its.made for its in tries] == [149, 500, 1000]
    assert [its.level for its in tries] == pytest.approx([0.007, 0.001, 0.002])


def test_too_few_for_any_statement():
    with refused(by=paid_tries, naming=("4", "0.05", "5")):
        paid_tries(4)
    with refused(by=paid_tries, naming=("3", "0.05")):
        paid_tries(1000, made=3)
    with refused(by=paid_tries, naming=("2000", "1000")):
        paid_tries(1000, made=2000)
    with refused(by=guess, naming=("7", "6", "1")):
        guess(LabelledScores(np.arange(6.0), np.arange(6) < 3), 7)


def test_guessing_is_fast():
    rng = np.random.default_rng(0)
    ranked = np.sort(rng.standard_normal(1_000_000))
    began = time.perf_counter()
    guessed_out(ranked, 1_000_000)
    assert time.perf_counter() - began < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("auroc", [0.6, 0.75, 0.9])
def test_loss_against_hindsight(auroc):
    """The best number of guesses and share of "in" for the attacker, unpaid, give at most 12 % more at m = 1,000."""
    best, old, new = hindsight.losses(auroc, 1000, 1000)
    small = hindsight.losses(auroc, 100, 2000)
    print(f"AUROC {auroc}: m = 1000: {best:.3f}, six halves {old:.3f}, now {new:.3f}; m = 100: {np.round(small, 3)}")
    assert new >= 0.88 * best
    assert new > old
    assert small[2] >= small[1]


@pytest.mark.slow
def test_the_middle_half_against_other_rules():
    """As good as a fit of two Gaussians where these are true, better where only some members are exposed."""
    fitted, ours = [], []
    for draw, much in ((hindsight.gaussian_attacker(0.75), 0.97), (hindsight.gaussian_attacker(1.0), 0.97)):
        drawn = list(hindsight.ranked_runs(draw, 1000, 200, seed=3))
        ours.append(np.median([hindsight.new_bound(s, m) for s, m in drawn]))
        fitted.append(np.median([hindsight.new_bound(s, m, hindsight.two_gaussians) for s, m in drawn]))
        assert ours[-1] >= much * fitted[-1]

    def exposed(member, rng):
        return rng.standard_normal(member.size) + 6.0 * (member & (rng.random(member.size) < 0.5))

    drawn = list(hindsight.ranked_runs(exposed, 1000, 100, seed=3))
    medians = [
        np.median([hindsight.new_bound(s, m, rule) for s, m in drawn])
        for rule in (one_run.guessed_out, hindsight.two_gaussians, hindsight.halves)
    ]
    assert medians[0] > 2.0 * max(medians[1:])
