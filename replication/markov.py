"""Users whose texts are Markov chains of tokens: a corpus in which every probability is known.

Source: Kandpal et al., "User Inference Attacks on Large Language Models", equation (1): D_task = sum_u alpha_u D_u.
Here D_u is a chain of order 1 over V words, run for L tokens. So log D_u(x) is a sum, and any divergence between users
can be computed.

Axes: n users, V words, L tokens per sequence, B sequences.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldin.base.errors import InputError
from heldin.corpus.made_up.synthetic import check_parameters

Array = NDArray[np.float64]
Tokens = NDArray[np.int64]

_CONCENTRATION = 0.5  # of the Dirichlet law of a row: a few words make up most of it
_UNIFORM = 0.01  # of every row, so that no sequence is impossible and every divergence is finite
_SPREAD = 0.75  # standard deviation of a user's log share, as in the synthetic corpus
_SHARED, _OWN, _SHARE = range(100, 103)  # purposes of the random streams, none of them the synthetic corpus's


@dataclass(frozen=True)
class MarkovCorpus:
    """Public parameters of Markov users. Equal parameters give equal chains with equal versions of NumPy.

    A row of a user's chain is (1 - d) times the row that all users share, plus d times a row of the user's own. Here d
    is ``distinctiveness``; at 0, a text does not depend on its user. As in the synthetic corpus, ``users`` changes
    nothing about a single user except the share alpha_u. A user has on average ``mean_records`` records of ``length``
    words, and at least ``min_records``.

    Raises:
        InputError: a parameter is out of range.
    """

    users: int = 240
    vocabulary: int = 64
    length: int = 32
    mean_records: float = 30.0
    min_records: int = 12
    distinctiveness: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        at_least = {
            "users": (self.users, 1),
            "vocabulary": (self.vocabulary, 2),
            "length": (self.length, 1),
            "min_records": (self.min_records, 1),
            "seed": (self.seed, 0),
        }
        check_parameters("markov", at_least, self.mean_records, self.min_records, self.distinctiveness)


@dataclass(frozen=True, eq=False)
class Chain:
    """A user's D_u: probabilities of the first word, (V,), and of each next word after each word, (V, V)."""

    initial: Array
    transitions: Array


def chain_of(spec: MarkovCorpus, user: int) -> Chain:
    """Return the chain of the user with this index, from 0. Raises InputError if the corpus has no such user."""
    if not 0 <= user < spec.users:
        raise InputError(f"markov corpus: there is no user {user}. Choose one from 0 to {spec.users - 1}")
    shared, own = _rows(spec.vocabulary, spec.seed, _SHARED, 0), _rows(spec.vocabulary, spec.seed, _OWN, user)
    # A mixture of two distributions is one: every row still sums to one.
    rows = (1 - spec.distinctiveness) * shared + spec.distinctiveness * own
    # (1 + V, V) -> (V,) and (V, V)
    return Chain(rows[0], rows[1:])


def user_weights(spec: MarkovCorpus) -> Array:
    """Return the weights alpha_u of equation (1): users' shares of the expected records, shape (users,), sum 1."""
    expected = np.array([_expected_records(spec, user) for user in range(spec.users)])
    return np.asarray(expected / expected.sum(), dtype=np.float64)


def draw(chain: Chain, count: int, length: int, rng: np.random.Generator) -> Tokens:
    """Draw independent sequences, shape (count, length).

    Args:
        chain: chain of the user who writes.
        count: number of sequences.
        length: number of words per sequence.
        rng: random generator.
    """
    size = chain.initial.size
    # All rows in one sorted array, row i shifted by i, so that one search serves every state.
    ends = (np.cumsum(chain.transitions, axis=1) + np.arange(size)[:, None]).ravel()
    tokens = np.empty((count, length), dtype=np.int64)
    tokens[:, 0] = np.minimum(np.searchsorted(np.cumsum(chain.initial), rng.random(count), side="right"), size - 1)
    for t in range(1, length):
        last = tokens[:, t - 1]
        # A number in row ``last`` of the array, minus the places of the rows before it, is the next word.
        words = np.searchsorted(ends, last + rng.random(count), side="right") - last * size
        tokens[:, t] = np.clip(words, 0, size - 1)  # a row's sum may be an ulp off one
    return tokens


def log_probability(chain: Chain, tokens: Tokens) -> Array:
    """Return log D_u(x) of each sequence in nats. For tokens (B, L), the shape is (B,)."""
    # (B, L) -> (B, L - 1): the log-probability of every word but the first
    steps = np.log(chain.transitions)[tokens[:, :-1], tokens[:, 1:]]
    return np.asarray(np.log(chain.initial)[tokens[:, 0]] + steps.sum(axis=1), dtype=np.float64)


# Every user's chain asks for the shared rows; without the cache they would be drawn once for each user.
@functools.lru_cache(maxsize=8)
def _rows(vocabulary: int, seed: int, purpose: int, user: int) -> Array:
    """Return the row of the first word and the rows of transitions, (1 + V, V)."""
    drawn = _rng(seed, purpose, user).dirichlet(np.full(vocabulary, _CONCENTRATION), size=1 + vocabulary)
    return np.asarray((1 - _UNIFORM) * drawn + _UNIFORM / vocabulary, dtype=np.float64)


def _expected_records(spec: MarkovCorpus, user: int) -> float:
    """Return ``min_records`` plus a log-normal number with mean ``mean_records - min_records``."""
    normal = _rng(spec.seed, _SHARE, user).standard_normal()
    # exp(s z) has mean exp(s^2 / 2) for a standard normal z; the second term divides by it.
    return spec.min_records + (spec.mean_records - spec.min_records) * math.exp(_SPREAD * normal - _SPREAD**2 / 2)


def _rng(seed: int, purpose: int, user: int) -> np.random.Generator:
    # A stream for each purpose and user, so that one user more, or one draw more of one purpose, moves no other draw.
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose, user))))
