"""The Markov users: their texts have the law that is known of it."""

import dataclasses
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from replication.markov import (
    MarkovCorpus,
    chain_of,
    draw,
    log_probability,
    user_weights,
)
from tests.oracles.proposition import naive_probability
from tests.refusals import refused

SMALL = MarkovCorpus(users=4, vocabulary=3, length=4, distinctiveness=0.8, seed=5)
SEQUENCES = np.array(list(itertools.product(range(3), repeat=4)))


def test_probabilities_are_products_and_sum_to_one():
    for user in range(SMALL.users):
        found = log_probability(chain_of(SMALL, user), SEQUENCES)
        np.testing.assert_allclose(found, [math.log(naive_probability(chain_of(SMALL, user), x)) for x in SEQUENCES])
        assert math.fsum(np.exp(found)) == pytest.approx(1, abs=1e-12)


def _p_value(tokens, chain):
    """Of the hypothesis that these sequences are the chain's."""
    seen = Counter(map(tuple, tokens.tolist()))
    expected = len(tokens) * np.exp(log_probability(chain, SEQUENCES))
    return stats.chisquare([seen[tuple(x)] for x in SEQUENCES.tolist()], expected, sum_check=False).pvalue


def test_draws_have_their_chains_law_and_no_others():
    tokens = draw(chain_of(SMALL, 1), 100_000, SMALL.length, np.random.default_rng(0))
    assert _p_value(tokens, chain_of(SMALL, 1)) > 1e-6
    assert _p_value(tokens, chain_of(dataclasses.replace(SMALL, distinctiveness=0.77), 1)) < 1e-6


def test_the_dial_goes_from_one_chain_for_all_to_nothing_shared():
    alike, own = (dataclasses.replace(SMALL, distinctiveness=dial) for dial in (0.0, 1.0))
    np.testing.assert_array_equal(chain_of(alike, 0).transitions, chain_of(alike, 3).transitions)
    halfway = chain_of(dataclasses.replace(SMALL, distinctiveness=0.5), 2).transitions
    ends = (chain_of(alike, 2).transitions + chain_of(own, 2).transitions) / 2
    np.testing.assert_allclose(halfway, ends)
    for chain in (chain_of(alike, 0), chain_of(own, 0)):
        np.testing.assert_allclose(chain.transitions.sum(axis=1), 1)
        assert chain.transitions.min() >= 0.01 / SMALL.vocabulary


def test_more_users_leave_the_first_ones_as_they_were_and_weights_sum_to_one():
    more = dataclasses.replace(SMALL, users=7)
    for user in range(SMALL.users):
        np.testing.assert_array_equal(chain_of(SMALL, user).transitions, chain_of(more, user).transitions)
    few, many = user_weights(SMALL), user_weights(more)
    np.testing.assert_allclose(few, many[:4] / many[:4].sum())
    assert many.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "by", "naming"),
    [
        ({"users": 0}, "check_parameters", ("users", "0", "1")),
        ({"vocabulary": 1}, "check_parameters", ("vocabulary", "1", "2")),
        ({"length": 0}, "check_parameters", ("length", "0")),
        ({"mean_records": 3.0}, "check_parameters", ("mean_records", "3.0", "min_records", "12")),
        ({"distinctiveness": 1.5}, "check_parameters", ("distinctiveness", "1.5", "[0, 1]")),
    ],
)
def test_a_parameter_out_of_range_is_one_clear_line(change, by, naming):
    with refused(by=by, naming=naming):
        MarkovCorpus(**change)


def test_a_user_that_is_not_there():
    with refused(by=chain_of, naming=("4", "0", "3")):
        chain_of(SMALL, 4)
