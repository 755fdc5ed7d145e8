"""Statistics of all users' tokens, from a ``TokenTable``; d is a token's log-ratio, in nats."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.joint import Array, JointAttack, TokenTable
from heldin.attacks.protocol import Uses
from heldin.base.errors import InputError

# Fixed before any result was seen. In tokens: how many of the wider group's a mean is mixed with.
SHRINKAGE = 10.0
DIFFICULTY_BINS = 20
LEAST_ERRORS = 2
# nats: less than one token's ordinary shift
LEAST_FALL = 1e-3
# As in the authors' configuration; their paper's formula gives slightly others.
WINDOW_SIZES = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)


class Centred(JointAttack):
    """Mean over each text's tokens of d less what other users' tokens of the same id have on average, shape (m,).

    What fine-tuning did to a word for everybody says nothing about one user (the population term of InfoRMIA,
    arXiv 2510.05582, per token and without its user). The mean of the id is mixed with ``SHRINKAGE`` tokens' worth of
    the mean over tokens that the reference finds as hard, and that one with the mean of all; each without the user's
    own tokens. No coin is used: users of both sides are centred by users of both sides.

    Raises InputError if there is only one user, whom nobody centres.
    """

    uses: ClassVar[Uses] = Uses.OTHER_TEXTS
    needs_ids: ClassVar[bool] = True
    of_users: ClassVar[bool] = False

    def values(self, tokens: TokenTable) -> Array:
        """One value of each text."""
        if tokens.users < 2:
            raise InputError(
                "attack 'centred' compares each user with the other users: give texts of at least two users"
            )
        edges = np.unique(np.quantile(tokens.reference, np.linspace(0, 1, DIFFICULTY_BINS + 1)[1:-1]))
        total, count = _of_others(tokens, np.zeros_like(tokens.text_of))
        expected = total / count
        for group in (np.searchsorted(edges, tokens.reference, "right"), tokens.ids):
            total, count = _of_others(tokens, group)
            expected = (total + SHRINKAGE * expected) / (count + SHRINKAGE)
        return _means(tokens.ratios - expected, tokens.text_of, tokens.user_of.size)


class Pooled(JointAttack):
    """Mean of d over all of a user's tokens, shape (n,): long texts count as much as they are long.

    The likelihood ratio of Kandpal et al. (2024), equation 4, of all of the user's texts as one, per token.
    """

    uses: ClassVar[Uses] = Uses.MODEL

    def values(self, tokens: TokenTable) -> Array:
        """One value of each user."""
        return _means(tokens.ratios, tokens.owner_of, tokens.users)


class Weighted(JointAttack):
    """Random-effects log-likelihood ratio of a user's pooled mean y_u, up to a common factor, shape (n,).

    y_u is normal around its side's mean with variance tau^2 + sigma^2 / n_u: users differ by tau, and n_u tokens leave
    sigma^2 / n_u. With fair coins the middle of the two sides' means is the mean of all, mu, so that the logarithm of
    the ratio of the two densities is proportional to (y_u - mu) / (tau^2 + sigma^2 / n_u): no coin is needed. Texts
    of a user tell sigma, and moments tell tau (DerSimonian and Laird 1986). As sides are unknown, tau contains half of
    their distance. Meant for users of very unequal text.
    """

    uses: ClassVar[Uses] = Uses.OTHER_TEXTS

    def values(self, tokens: TokenTable) -> Array:
        """One value of each user."""
        owner, users = tokens.owner_of, tokens.users
        counts = np.bincount(owner, minlength=users).astype(np.float64)
        y = _means(tokens.ratios, tokens.owner_of, tokens.users)
        within = _within(tokens, y)
        if within == 0:  # every text of a user says the same: all users count alike
            return np.asarray(y - y.mean())
        precision = counts / within
        mean = float(np.average(y, weights=precision))
        freedom = precision.sum() - (precision**2).sum() / precision.sum()
        spread = float(precision @ (y - mean) ** 2) - (users - 1)
        between = max(0.0, spread / freedom) if freedom > 0 else 0.0
        weight = 1 / (between + within / counts)
        return np.asarray((y - np.average(y, weights=weight)) * weight)


class ErrorZone(JointAttack):
    """Sum of positive d over the size of the sum of negative d, over tokens that are not the target's first choice.

    One value of each user, shape (n,).
    The EZ score of EZ-MIA (arXiv 2601.12104), with a user's tokens pooled before the ratio is taken. As in the authors'
    code it is 0 with fewer than two such tokens. Two departures: the first token of a text counts, as heldin gives it a
    context; and where hardly any token fell (``LEAST_FALL``) the ratio is taken to that, not set to 0, which would put
    the surest member last. Meant for the very documents of training.
    """

    uses: ClassVar[Uses] = Uses.MODEL
    needs_ranks: ClassVar[bool] = True
    of_training_texts: ClassVar[bool] = True

    def values(self, tokens: TokenTable) -> Array:
        """One value of each user."""
        wrong = np.where(tokens.ranks > 0, tokens.ratios, 0.0)
        rise, fall, errors = (
            np.bincount(tokens.owner_of, values, minlength=tokens.users)
            for values in (np.maximum(wrong, 0), np.maximum(-wrong, 0), tokens.ranks > 0)
        )
        return np.where(errors < LEAST_ERRORS, 0.0, rise / np.maximum(fall, LEAST_FALL))


class SlidingWindows(JointAttack):
    """Share of sliding windows in which the reference's loss exceeds the target's, mean over window sizes, shape (n,).

    WBC (arXiv 2601.02751, window sizes of its code), with the windows of a user's texts counted together. As in the
    authors' code a tie is no vote, and a text that is shorter than the size is one window. Meant for the very documents
    of training: on fresh texts it drops the few tokens that say most.
    """

    uses: ClassVar[Uses] = Uses.MODEL
    of_training_texts: ClassVar[bool] = True

    def values(self, tokens: TokenTable) -> Array:
        """One value of each user."""
        starts = np.flatnonzero(np.diff(tokens.text_of, prepend=-1))
        votes, counts = np.zeros((2, len(WINDOW_SIZES), tokens.users))
        for text, ratios in zip(tokens.text_of[starts], np.split(tokens.ratios, starts[1:]), strict=True):
            user = tokens.user_of[text]
            for row, size in enumerate(WINDOW_SIZES):
                # Summed anew in each window: differences of running sums would break ties by rounding.
                sums = np.lib.stride_tricks.sliding_window_view(ratios, min(size, ratios.size)).sum(axis=1)
                votes[row, user] += np.count_nonzero(sums > 0)
                counts[row, user] += sums.size
        return np.asarray((votes / counts).mean(axis=0))


def _means(values: Array, group_of: NDArray[np.intp], groups: int) -> Array:
    """Mean of values of each group, shape (groups,); not a number for a group without any."""
    with np.errstate(invalid="ignore"):
        return np.bincount(group_of, values, minlength=groups) / np.bincount(group_of, minlength=groups)


def _of_others(tokens: TokenTable, group: NDArray[np.integer]) -> tuple[Array, Array]:
    """For each token the sum of d, and the number, of other users' tokens of its group; shape (t,) each."""
    # Pairs of a user and a group that occur, and no table of users by groups.
    pairs, pair_of = np.unique(tokens.owner_of * (int(group.max()) + 1) + group, return_inverse=True)
    own, count = (np.bincount(pair_of, weights, minlength=pairs.size)[pair_of] for weights in (tokens.ratios, None))
    total, number = (np.bincount(group, weights)[group] for weights in (tokens.ratios, None))
    others = np.asarray(number - count, dtype=np.float64)
    # Exactly 0 where nobody else has the group, not what rounding leaves of a difference.
    return np.where(others > 0, total - own, 0.0), others


def _within(tokens: TokenTable, means: Array) -> float:
    """sigma^2: the variance within users, per token, from how far a user's texts are from the user's mean."""
    lengths = np.bincount(tokens.text_of, minlength=tokens.user_of.size)
    freedom = tokens.user_of.size - tokens.users
    if freedom:
        of_texts = _means(tokens.ratios, tokens.text_of, tokens.user_of.size)
        return float((lengths * (of_texts - means[tokens.user_of]) ** 2).sum()) / freedom
    # One text of every user: tokens take the place of texts.
    left = tokens.ratios - means[tokens.owner_of]
    return float(left @ left) / max(1, tokens.ratios.size - tokens.users)
