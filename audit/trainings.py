"""The answer, bounds and verdicts from the scores of many independent trainings with or without a worst-case user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heldin.attacks.kinds import DEFAULT_ATTACKS
from heldin.audit.answer import decision_facts
from heldin.audit.attack_results import attack_results
from heldin.audit.family import ScoreVariant, evaluate_family
from heldin.audit.preregistration import Preregistration
from heldin.audit.results import Results, TrainingsFacts
from heldin.base.errors import ConstantScores, TooFewUsers
from heldin.bounds.judgement import Judgement, nothing_judged
from heldin.bounds.trainings import ThresholdTest, certify
from heldin.bounds.verdict import NO_CLAIM, Outcome
from heldin.words.answer import Headline, TrainingsCertify
from heldin.words.evidence import Subjects
from heldin.words.people import TRAININGS
from heldin.words.statement import Statement

SCORE = DEFAULT_ATTACKS[0]


@dataclass(frozen=True, eq=False)
class TrainingScores:
    """n trainings in the order of their numbers.

    Attributes:
        scores: scores of the trainings, shape (n,); higher means more likely with the worst-case user.
        member: whether each training includes the user, decided by an independent fair coin, shape (n,).
        seconds: duration of each training, in seconds, shape (n,).
        documents: number of documents of the worst-case user.
        target: the defense of the trainings: the config's defense, or none.
    """

    scores: NDArray[np.float64]
    member: NDArray[np.bool_]
    seconds: Sequence[float]
    documents: int
    target: Literal["defense", "none"]

    @property
    def is_control(self) -> bool:
        """Whether the models were trained without the config's defense."""
        return self.target != "defense"


def results_of_trainings(trainings: TrainingScores, fixed: Preregistration, *, threshold: float | None) -> Results:
    """Test the trainings' scores, judge the claims, and decide.

    Args:
        threshold: score threshold fixed before looking; None: the first quarter of the trainings chooses the threshold.
    """
    # Trainings are not people: curves may be cut at every score, with one training in a group.
    family = evaluate_family({ScoreVariant(SCORE, "mean"): trainings.scores}, trainings.member, fixed, least=1)
    test: ThresholdTest | None = None
    try:
        test = certify(trainings.scores, trainings.member, threshold=threshold, delta=fixed.delta, claims=fixed.claims)
        judgement = test.judgement
    except (TooFewUsers, ConstantScores) as error:  # a finding, not a failure
        judgement = nothing_judged(trainings.member.size, fixed.delta, error.statement, Subjects.WORST_CASE_USER())
    decision = decision_facts(family, fixed, judgements=[judgement], wording=TRAININGS)
    certified = _certified(trainings, test, judgement)
    return Results(
        decision=decision.model_copy(
            update={"statement": Headline.WITH_TRAININGS(headline=decision.statement, certified=certified)}
        ),
        attacks=attack_results(family, fixed.audit.fprs, shown={0}),
        blind=[],
        judgement=judgement,
        trainings=_facts(trainings, test),
    )


def _facts(trainings: TrainingScores, test: ThresholdTest | None) -> TrainingsFacts:
    counts = test.counts if test else None
    return TrainingsFacts(
        runs=trainings.scores.size,
        with_user=int(trainings.member.sum()),
        documents=trainings.documents,
        target=trainings.target,
        pilot=test.pilot if test else 0,
        threshold=test.threshold if test else None,
        members=counts.members if counts else None,
        true_positives=counts.true_positives if counts else None,
        non_members=counts.non_members if counts else None,
        false_positives=counts.false_positives if counts else None,
        epsilon_lower=test.epsilon if test else None,
        reach=test.reach if test else None,
        seconds_each=round(float(np.median(trainings.seconds)), 2),
    )


def _certified(trainings: TrainingScores, test: ThresholdTest | None, judgement: Judgement) -> Statement:
    """Return the bound that was chosen before looking, with its meaning for the claims.

    It need not be the highest bound.
    """
    least = round(test.epsilon, 2) if test else 0.0
    threshold = None
    if test is not None:
        # Bounds at other thresholds, picked after looking, may be higher.
        threshold = TrainingsCertify.PICKED_BY(pilot=test.pilot) if test.pilot else TrainingsCertify.FIXED_BEFORE()
    # The verdict without a claim is no outcome of a test.
    outcomes = {v.outcome for v in judgement.verdicts if v.claim != NO_CLAIM}
    if not outcomes:
        claims = TrainingsCertify.NO_CLAIM()
    elif Outcome.CONTRADICTED in outcomes:
        claims = TrainingsCertify.CONTRADICTED()
    elif outcomes == {Outcome.CONSISTENT}:
        claims = TrainingsCertify.CONSISTENT()
    else:
        claims = TrainingsCertify.INCONCLUSIVE()
    return TrainingsCertify.WHOLE(
        trainings=trainings.scores.size,
        # Trained without the config's defense: the reader must not take the number for one about it.
        target=TrainingsCertify.WITHOUT_DEFENSE() if trainings.is_control else None,
        least=(TrainingsCertify.AT_LEAST(epsilon=least) if least > 0 else TrainingsCertify.NOTHING()),
        threshold=threshold,
        claims=claims,
    )
