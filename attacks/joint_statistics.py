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
    """Mean over each text's tokens of d, minus the average d of other users' tokens with the same id, shape (m,).

    If fine-tuning changed a word for everybody, the change is not evidence about one user (the population term of
    InfoRMIA, arXiv 2510.05582, per token and without its user). The mean of the id is shrunk, with the weight of
    ``SHRINKAGE`` tokens, towards a second mean over tokens that the reference finds equally hard. The second mean is
    shrunk towards the mean of all tokens. Every mean leaves out the user's own tokens. Centring uses no coin, because
    members and non-members together centre every user.

    Raises InputError if there is only one user, because no other user can centre the values.
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
    """Mean of d over all of a user's tokens, shape (n,), so the weight of a text is its length.

    This is the likelihood ratio of Kandpal et al. (2024), equation 4, per token, with the user's texts joined to one
    text.
    """

    uses: ClassVar[Uses] = Uses.MODEL

    def values(self, tokens: TokenTable) -> Array:
        """One value of each user."""
        return _means(tokens.ratios, tokens.owner_of, tokens.users)


class Weighted(JointAttack):
    """Random-effects log-likelihood ratio of a user's pooled mean y_u, up to a common factor, shape (n,).

    y_u is normal around its group's mean with variance tau^2 + sigma^2 / n_u. tau^2 is the variance between users, and
    sigma^2 / n_u is the variance of a mean over n_u tokens. With fair coins, the midpoint of the two groups' means is
    the mean of all users, mu. The logarithm of the ratio of the two densities is then proportional to (y_u - mu) /
    (tau^2 + sigma^2 / n_u), so no coin is needed. The texts of a user estimate sigma, and moments estimate tau
    (DerSimonian and Laird 1986). Because the groups are unknown, tau contains half of their distance. The statistic is
    meant for users with very unequal amounts of text.
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
    """Ratio of the sum of positive d to the size of the sum of negative d, over a user's mispredicted tokens.

    A token is mispredicted if it is not the target's first choice. The result has one value per user, shape (n,).

    The statistic is the EZ score of EZ-MIA (arXiv 2601.12104), with a user's tokens pooled before the ratio is taken.
    As in the authors' code, the score is 0 with fewer than two mispredicted tokens. heldin differs from that code in
    two ways. The first token of a text counts, because heldin gives it a context. If the sum of negative d is smaller
    than ``LEAST_FALL``, the ratio uses ``LEAST_FALL``: a score of 0 would rank the clearest member last. The statistic
    is meant for the exact training documents.
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
    """Share of sliding windows with a larger loss under the reference than under the target, shape (n,).

    The share is averaged over window sizes. The statistic is WBC (arXiv 2601.02751, with the window sizes of its code),
    and counts the windows of a user's texts together. As in the authors' code, a tie is no vote, and a text shorter
    than the window size is one window. The statistic is meant for the exact training documents: on fresh texts, it
    ignores the few tokens with the most evidence.
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
    """Return the mean value of each group, shape (groups,); NaN for an empty group."""
    with np.errstate(invalid="ignore"):
        return np.bincount(group_of, values, minlength=groups) / np.bincount(group_of, minlength=groups)


def _of_others(tokens: TokenTable, group: NDArray[np.integer]) -> tuple[Array, Array]:
    """Return, for each token, the sum of d and the number of other users' tokens in its group; shape (t,) each."""
    # Pairs of a user and a group that occur, and no table of users by groups.
    pairs, pair_of = np.unique(tokens.owner_of * (int(group.max()) + 1) + group, return_inverse=True)
    own, count = (np.bincount(pair_of, weights, minlength=pairs.size)[pair_of] for weights in (tokens.ratios, None))
    total, number = (np.bincount(group, weights)[group] for weights in (tokens.ratios, None))
    others = np.asarray(number - count, dtype=np.float64)
    # Exactly 0 where nobody else has the group, not what rounding leaves of a difference.
    return np.where(others > 0, total - own, 0.0), others


def _within(tokens: TokenTable, means: Array) -> float:
    """Return sigma^2, the variance per token within users, from the spread of texts around their user's mean."""
    lengths = np.bincount(tokens.text_of, minlength=tokens.user_of.size)
    freedom = tokens.user_of.size - tokens.users
    if freedom:
        of_texts = _means(tokens.ratios, tokens.text_of, tokens.user_of.size)
        return float((lengths * (of_texts - means[tokens.user_of]) ** 2).sum()) / freedom
    # One text of every user: tokens take the place of texts.
    left = tokens.ratios - means[tokens.owner_of]
    return float(left @ left) / max(1, tokens.ratios.size - tokens.users)
