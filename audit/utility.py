"""A model's loss on people outside its training data: loss per user, and the difference from the base model's loss."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from heldin.audit.coarse import LEAST_IN_GROUP
from heldin.audit.limits import AurocDifference
from heldin.audit.scored_users import ScoredUsers
from heldin.base.section import Facts
from heldin.bounds.roc import Scores

DIGITS = 4  # as in the curves of training
_MOST_NATS = 700.0  # e to more is no floating-point number
_RATIO, _RATIO_PER_TOKEN = "likelihood-ratio", "likelihood-ratio-per-token"


@dataclass(frozen=True)
class UserLoss:
    """The loss on one non-member's test texts.

    Attributes:
        texts: number of texts.
        tokens: number of predicted tokens in the texts.
        loss: mean over these tokens under the target, nats per token; for preference pairs, the mean loss of direct
            preference optimisation, nats per pair.
        base_loss: the loss under the base model.
        preferred: share of pairs in which the target has raised the chosen answer relative to the rejected one; None
            for other texts.
    """

    user: str
    texts: int
    tokens: int
    loss: float
    base_loss: float
    preferred: float | None = None


class Utility(Facts):
    """Mean losses over non-members' test texts, which neither the training nor the attack saw.

    Each user counts equally.

    Attributes:
        users: number of non-members.
        texts: number of test texts.
        loss: loss of the target, nats ``per``.
        base_loss: the base model's loss on the same texts, nats ``per``.
        per: unit of the losses: token, or preference pair.
        perplexity: e to the target's mean loss over all tokens of all users; null if it overflows, and for preference
            pairs.
        base_perplexity: perplexity of the base model on the same texts.
        gain: base model's loss minus the target's loss, with a 95 % interval over these users; null if there are too
            few users.
        preferred: share of preference pairs in which the target, relative to the base model, has raised the chosen
            answer against the rejected one. It has a 95 % interval over these users; 0.5 is guessing. null for other
            texts.
    """

    users: int
    texts: int
    loss: float
    base_loss: float
    per: Literal["token", "pair"] = "token"
    perplexity: float | None
    base_perplexity: float | None
    gain: AurocDifference | None
    preferred: AurocDifference | None = None


class Gain(AurocDifference):
    """The increase in log-likelihood of non-members' scored texts, from the reference to the audited model.

    Attributes:
        value: the gain, as a mean over users.
        per: the unit of the gain: nats per token, or per text if the models' tokenizers may differ. For preference
            pairs, the gain is the increase in the margin of the chosen over the rejected answer, nats per pair.
    """

    per: Literal["token", "text", "pair"]


def gain_of(table: ScoredUsers, *, pairs: bool = False) -> Gain | None:
    """Return the gain with its 95 % interval; None for fewer than ten non-members, or without a likelihood ratio.

    Args:
        pairs: whether preference pairs were scored.
    """
    per: Literal["token", "text", "pair"] = "token" if table.has(_RATIO_PER_TOKEN) else "text"
    per = "pair" if pairs else per
    attack = _RATIO_PER_TOKEN if per == "token" else _RATIO
    if int((~table.member).sum()) < LEAST_IN_GROUP or not table.has(attack):
        return None
    ratios = table.scores(attack)[~table.member]
    gain = mean_difference(np.zeros_like(ratios), ratios)
    return None if gain is None else Gain(**gain.brief(DIGITS).model_dump(exclude={"label"}), per=per)


def utility_of(losses: Mapping[str, UserLoss]) -> Utility | None:
    """Summarise the losses; None for fewer than ten users, because the mean would be about single users."""
    if len(losses) < LEAST_IN_GROUP:
        return None
    users = list(losses.values())
    target, base = (np.array(values) for values in ([u.loss for u in users], [u.base_loss for u in users]))
    gain = mean_difference(target, base)
    shares = np.array([u.preferred for u in users if u.preferred is not None])
    preferred = mean_difference(np.zeros_like(shares), shares)
    return Utility(
        users=len(users),
        texts=sum(user.texts for user in users),
        loss=round(float(target.mean()), DIGITS),
        base_loss=round(float(base.mean()), DIGITS),
        per="pair" if shares.size else "token",
        perplexity=None if shares.size else perplexity((u.tokens, u.loss) for u in users),
        base_perplexity=None if shares.size else perplexity((u.tokens, u.base_loss) for u in users),
        gain=gain and gain.brief(DIGITS),
        preferred=preferred and preferred.brief(DIGITS),
    )


def perplexity(losses: Iterable[tuple[int, float]]) -> float | None:
    """Return e to the power of the mean loss over all tokens; None if the result overflows.

    Args:
        losses: pairs (number of tokens, mean loss over these tokens in nats per token), one for each user.
    """
    counts, means = zip(*losses, strict=True)
    mean = float(np.average(means, weights=np.maximum(counts, 1)))
    return round(math.exp(mean), DIGITS) if mean < _MOST_NATS else None


def mean_difference(first: Scores, second: Scores, level: float = 0.95) -> AurocDifference | None:
    """Return the mean of ``second`` minus ``first`` over n pairs, with Student's t interval; None for under two pairs.

    Args:
        first: values of people or blocks, shape (n,).
        second: other values of the same people or blocks, in the same order.
        level: confidence of the two-sided interval.
    """
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if differences.size < 2:
        return None
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / float(np.sqrt(differences.size))
    reach = float(special.stdtrit(differences.size - 1, 0.5 + level / 2)) * error
    return AurocDifference(value=mean, lower=mean - reach, upper=mean + reach)
