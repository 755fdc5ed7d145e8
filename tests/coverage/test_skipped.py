"""The warning that one group lost rows more often: seldom by chance, and nearly always where it is so."""

import functools

import numpy as np
import pytest

from heldin.record.facts import SkippedRows
from heldin.record.overlaps import skipped_alike

DRAWS, LEVEL = 1000, 0.01


def _group(name, users, with_skipped, lost=0):
    counts = {"users": users, "users_with": int(with_skipped), "users_lost": lost}
    return SkippedRows(group=name, rows=10 * users, without_text=int(with_skipped), unusable=0, **counts)


@functools.cache
def _warned(members, others, with_in, with_out):
    return skipped_alike(_group("held-in", members, with_in), _group("held-out", others, with_out)) < LEVEL


def _warnings(members, others, rates, rng):
    drawn = zip(rng.binomial(members, rates[0], DRAWS), rng.binomial(others, rates[1], DRAWS), strict=True)
    return sum(_warned(members, others, int(a), int(b)) for a, b in drawn)


@pytest.mark.parametrize(("members", "others"), [(10, 10), (50, 200), (300, 300)])
@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_equal_shares_are_seldom_called_uneven(members, others, rate):
    # At most 10 are expected; 30 or more have a probability below 1e-6.
    assert _warnings(members, others, (rate, rate), np.random.default_rng(members)) < 30


@pytest.mark.parametrize(("members", "others", "rates"), [(100, 100, (0.4, 0.05)), (500, 500, (0.12, 0.01))])
def test_uneven_shares_are_seen_from_either_side(members, others, rates):
    rng = np.random.default_rng(1)
    assert _warnings(members, others, rates, rng) > 0.95 * DRAWS
    assert _warnings(members, others, rates[::-1], rng) > 0.95 * DRAWS


def test_no_users_at_all_are_no_warning():
    assert skipped_alike(_group("held-in", 5, 0), _group("held-out", 7, 0)) == 1.0


def test_users_who_lost_all_are_compared_too():
    """As many have skipped rows on either side, and only members lost their last text."""
    alike = skipped_alike(_group("held-in", 107, 43), _group("held-out", 93, 34))
    assert alike > 0.5
    assert skipped_alike(_group("held-in", 107, 43, 9), _group("held-out", 93, 34)) == pytest.approx(0.0078, abs=1e-3)
