"""The answer of a record: its sentences, and the test that decided it."""

from collections.abc import Sequence
from dataclasses import replace

from heldin.audit.coarse import brief
from heldin.audit.decision import Answer, AnswerEvidence, Decision, DecisionConfig, decide
from heldin.audit.family import ScoreFamily
from heldin.audit.flagged import AttackChoice, CountedAttack, Flagged, best_of, flagged_by
from heldin.audit.headline import headline, notes
from heldin.audit.limits import AurocDifference
from heldin.audit.preregistration import Preregistration
from heldin.audit.randomisation import Law
from heldin.base.section import Facts
from heldin.bounds.judgement import Judgement
from heldin.words.people import Wording
from heldin.words.statement import Statement


class DecisionFacts(Facts):
    """The answer, and the test that decided it.

    Attributes:
        statement: the answer, in a sentence or two.
        remarks: notes to read before the answer.
        decision: the answer, and the numbers that decided it.
        by: the config section with the thresholds of the decision.
        flagged: the flagged people on page one, by the deciding attack, or by the primary attack if no attack decides.
            null for fewer than 20 users, and if the comparison is not valid.
        best: the people whom the best attack flags (see ``audit.flagged.best_of``), if no attack passes the joint test;
            null otherwise.
        scores: number of scores in the joint test.
        law: how heldin redrew the members.
        auroc_p: p-value of the family of AUROCs, by the randomisation test.
        tpr_p: p-value of the family of true-positive rates.
        reversed_p: p-value of the test for scores that are higher for non-members.
    """

    statement: Statement
    remarks: list[Statement]
    decision: Decision
    by: DecisionConfig
    flagged: Flagged | None
    best: Flagged | None
    scores: int
    law: Law
    auroc_p: float
    tpr_p: float
    reversed_p: float

    @property
    def headline(self) -> str:
        """The answer in words."""
        return str(self.statement)

    @property
    def notes(self) -> list[str]:
        """The remarks in words."""
        return [str(remark) for remark in self.remarks]


def decision_facts(
    family: ScoreFamily,
    fixed: Preregistration,
    *,
    flaws: Sequence[Statement] = (),
    judgements: Sequence[Judgement] = (),
    beside: Sequence[Statement] = (),
    wording: Wording | None = None,
    gain: AurocDifference | None = None,
) -> DecisionFacts:
    """Decide the audit, and state the answer for the record.

    Args:
        family: the scores, evaluated and tested together.
        fixed: how membership was decided, the thresholds and the claims.
        flaws: reasons why the comparison is not valid; empty if it is valid.
        judgements: verdicts on the claims; the verdicts about the scored users are first.
        beside: notes in addition to the notes that follow from the evidence.
        wording: the words for the canary users or trainings, if the scores separate canary users or trainings; None:
            ``fixed.wording``.
        gain: the model's gain over the reference on non-members; None if it was not measured.
    """
    wording, test, by = wording or fixed.wording, family.test, fixed.decision
    evidence = _evidence(family, fixed, flaws, judgements, gain)
    decided = decide(evidence, by)
    # A record has few digits: more would be about single users (audit.coarse). The answer and its words come before
    # the rounding: a limit just below a threshold may round up to it.
    shown = replace(
        decided,
        largest_auroc=brief(decided.largest_auroc),
        shown_auroc=brief(decided.shown_auroc),
        excluded_auroc=brief(decided.excluded_auroc),
        largest_tpr=None if decided.largest_tpr is None else brief(decided.largest_tpr),
        excluded_tpr=None if decided.excluded_tpr is None else brief(decided.excluded_tpr),
    )
    flagged, best = _people(family, decided, by.fpr)
    lengths = [score.length_correlation for score in family.scores]
    return DecisionFacts(
        statement=headline(evidence, decided, by, wording),
        remarks=[*notes(evidence, by, lengths, wording), *beside],
        decision=shown,
        by=by,
        flagged=flagged,
        best=best,
        scores=len(family.scores),
        law=test.law,
        auroc_p=test.auroc_p,
        tpr_p=test.tpr_p,
        reversed_p=test.reversed_p,
    )


def _evidence(
    family: ScoreFamily,
    fixed: Preregistration,
    flaws: Sequence[Statement],
    judgements: Sequence[Judgement],
    gain: AurocDifference | None,
) -> AnswerEvidence:
    """Collect the evidence that decides the answer; arguments as for ``decision_facts``."""
    test, member = family.test, family.member
    margins = dict(zip(test.fprs, test.tpr_margins, strict=True))
    rejecting = [v for j in judgements for v in j.verdicts if v.exit_code]
    gravest = min(rejecting, key=lambda v: v.exit_code, default=None)  # 3, certified, is graver than 4, indicative
    # The first judgement is about the users whose scores these are: a violation by anybody else must name them.
    scored = judgements[0].verdicts[0].subjects if judgements and judgements[0].verdicts else None
    ceilings = [claim.ceiling for claim in fixed.claims]
    # Only rates that some score can show have a ceiling worth comparing.
    fprs = sorted({rate.fpr for score in family.scores for rate in score.evidence.rates})
    return AnswerEvidence(
        users=int(member.size),
        held_out=int((~member).sum()),
        scores=tuple(score.evidence for score in family.scores),
        auroc_p=test.auroc_p,
        tpr_p=test.tpr_p,
        reversed_p=test.reversed_p,
        auroc_margin=test.auroc_margin,
        # None where the held-out users cannot resolve the decision's FPR.
        tpr_margin=margins.get(fixed.decision.fpr),
        # The p-values are exact only if the redraws have the assignment's own law, which is known where heldin drew it.
        # And only if no more was looked at, and no other text trained on, than was said.
        exact=fixed.sides.witnessed and not fixed.sides.unmet,
        unmet=bool(fixed.sides.unmet),
        learned=None if gain is None else gain.lower > 0.0,
        falls_short=fixed.falls_short,
        flaws=tuple(flaws),
        # All claims are promised at once, so the lowest ceiling is what is allowed.
        ceiling=min((ceiling.auroc for ceiling in ceilings), default=None),
        ceiling_rates=tuple((f, min(ceiling.tpr_at(f) for ceiling in ceilings)) for f in fprs) if ceilings else (),
        contradicted=gravest.standing if gravest else None,
        contradicted_by=gravest.subjects if gravest and gravest.subjects != scored else None,
    )


def _people(family: ScoreFamily, decision: Decision, fpr: float) -> tuple[Flagged | None, Flagged | None]:
    """Return the people whom page one counts, and the people flagged by the best attack if chance explains its result.

    Page one counts the people flagged by the deciding attack, or by the primary attack if no attack passes the joint
    test. The second value is None if an attack passes. Both values are None if the comparison is not valid.
    """
    if decision.answer is Answer.NOT_VALID:
        return None, None
    variants = [(score.variant, score.groups) for score in family.scores]
    attacks = [CountedAttack(by.attack, by.aggregation, by.dial, groups) for by, groups in variants]
    if decision.separates and decision.strongest is not None:
        return flagged_by(attacks[decision.strongest], fpr, AttackChoice.DECIDING, len(attacks)), None
    best = best_of(attacks, fpr) if len(attacks) > 1 else None
    return flagged_by(attacks[0], fpr, AttackChoice.PRIMARY), best


def shown_of(facts: DecisionFacts) -> set[int]:
    """Return the indices of scores whose curves a record may show: the primary score and the headline's score."""
    strongest = facts.decision.strongest
    return {0} if strongest is None else {0, strongest}
