"""Who is at risk, for the record: groups of ten or more users (Kandpal et al. 2024, section 4.1, Figure 2).

Sorted by score, a row about one user identifies that user to anyone who holds the scores, whatever is rounded or left
out: single users are in an owner-only file alone (``audit.exposed_users``).
"""

from dataclasses import dataclass

from heldin.base.section import Facts


@dataclass(frozen=True)
class ExposureGroup:
    """Means over a group of users with neighbouring scores; the properties are those of ``Exposed``.

    Attributes:
        above: mean share of held-out users with a lower score.
        share: mean share of the training records.
        reference_loss: mean loss under the reference model, nats per token.
        reference_divergence: mean over the users who have one, nats per token; None where they are fewer than ten.
        word_divergence: mean KL divergence of words, nats.
        near_duplicates: mean number of near-duplicate training records.
    """

    users: int
    above: float
    share: float
    reference_loss: float
    reference_divergence: float | None
    word_divergence: float
    near_duplicates: float


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of a property with the score over held-in users.

    Attributes:
        rho: the correlation; null where property or scores do not vary, or fewer than ten users have the property.
        p_value: p-value of the hypothesis of no correlation; null in the same cases.
    """

    name: str
    rho: float | None
    p_value: float | None


class ExposureFacts(Facts):
    """Correlates of exposure over all held-in users.

    Attributes:
        users: number of held-in users who are in the groups.
        of: number of held-in users, where those in the groups are a sample; null where they are all.
        groups: groups of ten or more users, most exposed first.
        correlations: correlation of each property with the score.
    """

    users: int
    of: int | None
    groups: list[ExposureGroup]
    correlations: list[Correlation]
