"""Blind baselines: silent under coins, loud where the texts tell the groups apart."""

import numpy as np
import pytest
from scipy import stats

from heldin.audit.blind import bag_of_words, reference_alone

WORDS = [f"word{i}" for i in range(60)]


def _users(generator, favoured):
    """60 users a side; those held in use the favoured words three times as often if ``favoured``."""
    texts, member = {}, {}
    for i in range(120):
        held_in = i % 2 == 0
        weights = np.ones(60)
        if held_in and favoured:
            weights[:10] = 3
        texts[f"u{i}"] = [" ".join(generator.choice(WORDS, 40, p=weights / weights.sum())) for _ in range(2)]
        member[f"u{i}"] = held_in
    return texts, member


def test_the_bag_of_words_finds_groups_that_differ_by_their_words():
    found = bag_of_words(*_users(np.random.default_rng(0), favoured=True), seed=0)
    assert found.auroc > 0.8
    assert found.p_value < 1e-4


@pytest.mark.slow
def test_the_bag_of_words_raises_false_alarms_no_more_often_than_its_level():
    generator = np.random.default_rng(1)
    p_values = [bag_of_words(*_users(generator, favoured=False), seed=s).p_value for s in range(150)]
    assert sum(p < 0.05 for p in p_values) <= stats.binom.ppf(1 - 1e-6, 150, 0.05)
    areas = [bag_of_words(*_users(generator, favoured=False), seed=s).auroc for s in range(20)]
    assert abs(np.mean(areas) - 0.5) < 0.1


def test_too_few_users_to_cut_in_half_give_none():
    texts, member = _users(np.random.default_rng(0), favoured=True)
    few = dict(list(texts.items())[:7])
    assert bag_of_words(few, member, seed=0) is None


def test_the_reference_alone_is_the_mann_whitney_test():
    a, b = np.array([3.0, 4.0, 5.0]), np.array([1.0, 2.0, 3.5])
    found = reference_alone(a, b)
    assert found.auroc == pytest.approx(8 / 9, abs=5e-4)
    assert found.p_value == pytest.approx(stats.mannwhitneyu(a, b).pvalue, rel=0.05)
