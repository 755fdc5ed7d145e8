"""What a record says of the audit's results: attacks, bounds, verdicts, dials, exposure, canary users, trainings.

No user name, no text and no secret (see ``record.document``).
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from heldin.audit.decision import Decision, DecisionConfig
from heldin.audit.randomisation import Law

Label = Literal["certified", "indicative", "conditional", "estimate"]
REAL_USERS = "real users"


@dataclass(frozen=True)
class Knowledge:
    """AUROC of attackers with at most ``texts`` random texts of every user: mean, deviation and quantiles over draws.

    Not an interval for the AUROC: users stay the same, only the attacker's texts are drawn.
    """

    texts: int
    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True)
class ExposureGroup:
    """Means over the ``users`` of a group of neighbours by score; those of ``Exposed`` but for name and score."""

    users: int
    above: float
    share: float
    reference_loss: float
    reference_divergence: float | None
    word_divergence: float
    near_duplicates: float


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of a property with the score over held-in users; None where it does not vary."""

    name: str
    rho: float | None
    p_value: float | None


class Facts(BaseModel):
    """A part of a record: frozen, nothing in it that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(Facts):
    """A number with its 95 % interval and what kind of statement it is."""

    value: float
    mean: float
    deviation: float
    lower: float
    upper: float
    method: str
    label: Label = "estimate"


class TprAt(Facts):
    """True-positive rate at a false-positive rate.

    ``estimate`` is null where too few held-out users can resolve it; ``adjusted_p`` where it takes no part in the test.
    """

    fpr: float
    estimate: Estimate | None
    adjusted_p: float | None = None


class Histogram(Facts):
    """Users by score: k + 1 edges, k counts per side; the outer bins hold all beyond them, and none fewer than ten."""

    edges: list[float]
    held_in: list[int]
    held_out: list[int]


class Curve(Facts):
    """One grouping of the users by one score, ten or more in each group (``audit.coarse``).

    ``fpr``, ``tpr``: the ROC curve at the ends of the groups; ``tpr_at``: true-positive rates read off it.
    """

    fpr: list[float]
    tpr: list[float]
    histogram: Histogram
    tpr_at: list[TprAt]


class AttackResult(Facts):
    """One attack under one aggregation.

    ``simultaneous``: interval of the AUROC that holds for the whole family at once; ``adjusted_p``: of the AUROC by the
    randomisation test; both null where the family was not tested. ``length_correlation``: rank correlation of the score
    with the mean length of the user's texts. ``curve``: of the leading attack and of the one that the headline names,
    null for the others: curves of many scores would tell together who was held in.
    """

    attack: str
    aggregation: str
    auroc: Estimate
    simultaneous: tuple[float, float] | None
    adjusted_p: float | None
    length_correlation: float | None
    curve: Curve | None


class DecisionFacts(Facts):
    """The answer: headline and what stands before it, what it was decided by, and the randomisation test behind it.

    ``scores``: how many the family has; ``law``: by which the assignment was redrawn; the p-values are of both families
    and of scores that tell the sides apart the wrong way round.
    """

    headline: str
    notes: list[str]
    decision: Decision
    by: DecisionConfig
    scores: int
    law: Law
    auroc_p: float
    tpr_p: float
    reversed_p: float


class Blind(Facts):
    """A blind baseline; ``separates`` says whether its p-value is below ``level``."""

    name: str
    auroc: float
    p_value: float
    level: float
    separates: bool


class Bound(Facts):
    """A lower bound on epsilon per user, with its nominal level and the lowest coverage that was measured for it."""

    name: str
    epsilon_lower: float
    level: float
    standing: Label
    coverage: float | None
    population: str = REAL_USERS


class RefusedBound(Facts):
    """A bound that this design does not support, and why."""

    name: str
    reason: str
    population: str = REAL_USERS


class VerdictFacts(Facts):
    """What the audit says of one claim, and the largest epsilon that it could have certified."""

    claim: str
    outcome: Literal["violated", "consistent", "inconclusive"]
    standing: Label
    reason: str
    max_certifiable_epsilon: float
    warnings: list[str]
    exit_code: int
    population: str = REAL_USERS


class Judgement(Facts):
    """Bounds and verdicts from the primary attack's scores, each of one population."""

    delta: float
    bounds: list[Bound]
    refused: list[RefusedBound]
    verdicts: list[VerdictFacts]

    @property
    def exit_code(self) -> int:
        """3 if a claim is violated with certainty at its level, 4 if only by indication, else 0."""
        codes = [v.exit_code for v in self.verdicts]
        return 3 if 3 in codes else max(codes, default=0)


class Difference(Facts):
    """Of two AUROCs on the same users, with a 95 % interval (DeLong)."""

    value: float
    lower: float
    upper: float
    label: Label = "estimate"


class DialSetting(Facts):
    """The primary attack with one of the attacker's dials at a setting.

    ``difference`` is null where this one leads, and where no error can be estimated: too few users, the
    same scores, or a setting that tells all apart.
    """

    dial: str
    setting: str
    leads: bool
    auroc: Estimate
    difference: Difference | None
    adjusted_p: float | None = None


class ExposureFacts(Facts):
    """What goes with exposure over all held-in users: groups of ten or more, most exposed first, and correlations."""

    users: int
    groups: list[ExposureGroup]
    correlations: list[Correlation]


class CanaryGroup(Facts):
    """Canary users of one kind, substring length and number of training documents (null: all that they have).

    ``auroc`` is null where the coins left fewer than two users on a side.
    """

    kind: Literal["unseen_token", "high_temperature", "rare_phrase", "substring"]
    length: int | None
    documents: int | None
    held_in: int
    held_out: int
    auroc: Estimate | None


class CanaryFacts(Facts):
    """Canary users: how many, how many real users they replaced, and how well the leading attack did on each group.

    ``decision``: of all canary users together, scores taken from their group's median; null with an empty side.
    ``training_texts``: of those held in, before any defense on the data side; ``trained_on``: what was left of them.
    """

    users: int
    held_in: int
    held_out: int
    replaced: int
    training_texts: int
    trained_on: int
    attacker_texts: int
    groups: list[CanaryGroup]
    blind: list[Blind]
    decision: DecisionFacts | None


class GradientNorms(Facts):
    """Norms of single records' gradients at the base model: bins of equal ratio, and how many records fall in each."""

    edges: list[float]
    canaries: list[int]
    real: list[int]


class TrialsFacts(Facts):
    """Independent trainings with and without one worst-case user, and the test at one threshold of their scores.

    The first ``pilot`` of them picked the threshold and are not tested at it (0: it was fixed beforehand). Counts and
    threshold are null where ROC bands were used. ``epsilon_lower`` is the bound of this test, which was chosen before
    looking; ``reach``: what the tested trainings could have certified at best.
    """

    runs: int
    with_user: int
    documents: int
    target: Literal["defense", "none"]
    pilot: int
    threshold: float | None
    members: int | None
    true_positives: int | None
    non_members: int | None
    false_positives: int | None
    epsilon_lower: float | None
    reach: float | None
    seconds_each: float
