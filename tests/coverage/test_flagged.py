"""Limits of the share of flagged people cover the truth, with the threshold and the attack chosen from the same people.

The truth is what the chosen threshold of the chosen attack would flag of all people of a group. Members and non-members
have normal scores; attacks share a part of each person's score, as attacks on one model do.
"""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from heldin.audit.coarse import grouped
from heldin.audit.flagged import AttackChoice, CountedAttack, best_of, flagged_by

FPR = 0.05
SHARED = 0.7  # of the variance of a score, with the other attacks
MEMBERS, AUROCS = (10, 20, 50, 200), (0.5, 0.7, 0.95)
MISS = 0.05


def _most(games):
    """Number of misses in so many games that a nominal rate exceeds with probability 1e-6."""
    return int(stats.binom.ppf(1 - 1e-6, games, MISS))


def _threshold(groups, flagged):
    """The score between the last group that is flagged and the next."""
    ends = np.flatnonzero(
        (np.cumsum(groups.held_in) == flagged.members) & (np.cumsum(groups.held_out) == flagged.others)
    )
    return groups.edges[groups.held_in.size - 1 - int(ends[0])]


def _primary(attacks):
    return flagged_by(attacks[0], FPR, AttackChoice.PRIMARY)


def _deciding(attacks):
    """The attack with the most members beyond its non-members, as if it had passed the test of all attacks."""
    best = best_of(attacks, FPR)
    return best and flagged_by(attacks[int(best.attack)], FPR, AttackChoice.DECIDING, len(attacks))


def _unpaid(attacks):
    """The same attack with limits that forget that it was chosen."""
    return flagged_by(attacks[int(best_of(attacks, FPR).attack)], FPR, AttackChoice.PRIMARY)


def misses(choose, members, auroc, attacks, games, *, step=None, seed=0, shared=SHARED):
    """How often the limits of either group miss the truth: (members, non-members).

    Args:
        step: scores are rounded to multiples of it; None: they are not.
        shared: share of a score's variance that all attacks have in common.
    """
    shift = np.sqrt(2) * stats.norm.ppf(auroc)
    rng = np.random.default_rng([seed, members, attacks, round(100 * auroc)])
    missed = [0, 0]
    for _ in range(games):
        sides = [
            np.sqrt(shared) * rng.standard_normal(members)
            + np.sqrt(1 - shared) * rng.standard_normal((attacks, members))
            + mean
            for mean in (shift, 0.0)
        ]
        if step is not None:
            sides = [step * np.round(side / step) for side in sides]
        counted = [
            CountedAttack(str(k), "mean", None, grouped(*pair)) for k, pair in enumerate(zip(*sides, strict=True))
        ]
        flagged = choose(counted)
        if flagged is None:
            continue  # so few people, and so many equal scores, that nobody is counted
        threshold = _threshold(counted[int(flagged.attack)].groups, flagged)
        if step is not None:
            # A rounded score is above the threshold if the score itself is above the middle of the step below.
            threshold = step * (np.floor(threshold / step) + 0.5)
        for side, (limits, mean) in enumerate(((flagged.members_limits, shift), (flagged.others_limits, 0.0))):
            truth = stats.norm.sf(threshold - mean)
            missed[side] += not limits[0] <= truth <= limits[1]
    return missed


@pytest.mark.parametrize(("members", "auroc"), [(10, 0.5), (20, 0.95), (50, 0.7), (200, 0.5)])
def test_limits_of_the_primary_attack_cover_95_percent(members, auroc):
    games = 200
    assert max(misses(_primary, members, auroc, 1, games)) <= _most(games)


def test_limits_of_the_best_of_fifteen_attacks_cover_95_percent():
    games = 40
    assert max(misses(_deciding, 20, 0.5, 15, games)) <= _most(games)


@pytest.mark.slow
def test_limits_that_forget_the_choice_among_attacks_would_be_noticed():
    """Of many attacks the best flags many members by chance."""
    games = 300
    members, _ = misses(_unpaid, 200, 0.5, 60, games, shared=0.0)
    assert members > _most(games)


@pytest.mark.slow
@pytest.mark.parametrize("step", [None, 0.25], ids=["all scores differ", "ties"])
@pytest.mark.parametrize(("choose", "attacks"), [(_primary, 1), (_deciding, 15)], ids=["primary", "best of 15"])
@pytest.mark.parametrize("auroc", AUROCS)
@pytest.mark.parametrize("members", MEMBERS)
def test_the_whole_procedure_covers_95_percent(members, auroc, choose, attacks, step):
    games = 2000 if attacks == 1 else 400
    measure = partial(misses, choose, members, auroc, attacks, games, step=step, seed=1)
    assert max(measure()) <= _most(games)
