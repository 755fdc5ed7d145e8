"""The answer as statements: one headline for PDF, terminal, record and exit line, and the notes to read first.

The answer is a pure function of evidence and decision. This module computes no numbers; ``words.answer`` has the
sentences.
"""

from collections.abc import Sequence
from typing import Any

from heldin.audit.coarse import brief
from heldin.audit.decision import (
    Answer,
    AnswerEvidence,
    Decision,
    DecisionConfig,
    ScoreEvidence,
    disagreement,
    passes,
    strongest,
)
from heldin.base.wording import MANY
from heldin.words.answer import (
    AurocInterval,
    Headline,
    IndicativeReason,
    LeakFound,
    Left,
    Note,
    Scores,
    Violation,
)
from heldin.words.people import USERS, Wording
from heldin.words.statement import Statement

LENGTH_DROWNS = 0.5  # a score whose rank correlation with the length of texts is at least this ...
LESS_BY = 0.2  # ... while that of a score that passes is lower by this: length explains the disagreement


def headline(evidence: AnswerEvidence, decision: Decision, by: DecisionConfig, wording: Wording = USERS) -> Statement:
    """Return the answer, one of four, as a statement.

    Args:
        decision: the decision that the evidence led to.
        wording: the words for the people or trainings that the scores separate.
    """
    match decision.answer:
        case Answer.LEAKS:
            return _leaks(evidence, decision, by, wording)
        case Answer.NO_LEAK:
            # ``decide`` gives this answer only where the rate could be shown.
            assert decision.excluded_tpr is not None
            return Headline.NO_LEAK(
                auroc=brief(decision.excluded_auroc),
                percent=100 * brief(decision.excluded_tpr),
                fpr_percent=100 * by.fpr,
                scores=_these(evidence),
                audited=wording.audited,
            )
        case Answer.INCONCLUSIVE:
            return _inconclusive(evidence, decision, by, wording)
        case Answer.NOT_VALID:
            return Headline.NOT_VALID(flaws=list(decision.flaws))


def notes(
    evidence: AnswerEvidence, by: DecisionConfig, length_correlations: Sequence[float | None], wording: Wording = USERS
) -> list[Statement]:
    """Return the notes to read first: a contradicted guarantee, and attacks that disagree, with the reason if known.

    Args:
        length_correlations: rank correlation of each score with the length of texts; None if unknown.
        wording: the words for the people or trainings that the scores separate.
    """
    remarks = []
    if evidence.contradicted and evidence.contradicted_by and any(passes(score, by) for score in evidence.scores):
        broken = Note.PROMISE_BROKEN if evidence.contradicted == "certified" else Note.PROMISE_SEEMS_BROKEN
        remarks.append(broken(violation=_violation(evidence)))
    if disagreement(evidence, by):
        remarks.append(_disagreement(evidence, by, length_correlations, wording))
    return remarks


def _leaks(evidence: AnswerEvidence, decision: Decision, by: DecisionConfig, wording: Wording) -> Statement:
    assert decision.strongest is not None
    score = evidence.scores[decision.strongest]
    standing = None
    if not decision.exact:
        standing = (IndicativeReason.CONDITION_UNMET if evidence.unmet else IndicativeReason.SIDES_ASSERTED)()
    return Headline.LEAKS(
        standing=standing,
        finding=_leak_found(score, evidence, by, wording),
    )


def _leak_found(score: ScoreEvidence, evidence: AnswerEvidence, by: DecisionConfig, wording: Wording) -> Statement:
    values: dict[str, Any] = {"score": score.name, "interval": _interval(score, evidence), "audited": wording.audited}
    # The contradicted claim is the finding; the score is only what it was measured by.
    if not passes(score, by):
        return LeakFound.BY_CLAIM(violation=_violation(evidence), **values)
    # It passes by its rates alone: its AUROC is shown, but is not what tells of the leak.
    return (LeakFound.BY_RATES if score.adjusted_p > by.auroc_level else LeakFound.BY_AUROC)(**values)


def _violation(evidence: AnswerEvidence) -> Statement:
    certified = evidence.contradicted == "certified"
    if evidence.contradicted_by is None:
        return (Violation.CERTIFIED if certified else Violation.INDICATED)()
    return (Violation.CERTIFIED_BY if certified else Violation.INDICATED_BY)(subjects=evidence.contradicted_by)


def _inconclusive(evidence: AnswerEvidence, decision: Decision, by: DecisionConfig, wording: Wording) -> Statement:
    # First of all reasons: with the sides swapped, every limit below would be about the wrong direction.
    if decision.reversed:
        lowest = min(evidence.scores, key=lambda score: score.auroc)
        return Headline.REVERSED(score=lowest.name, auroc=brief(lowest.auroc, 2), audited=wording.audited)
    if decision.unlearned:
        return Headline.UNLEARNED()
    if decision.weaker:
        return Headline.WEAKER()
    return Headline.INCONCLUSIVE(left=_left(decision, by, wording), needed=_needed(evidence, decision, wording))


def _left(decision: Decision, by: DecisionConfig, wording: Wording) -> Statement:
    """Return the statement of the leak that the audit does not rule out."""
    auroc: dict[str, Any] = {"auroc": brief(decision.excluded_auroc)} if decision.excluded_auroc >= by.auroc else {}
    rate: dict[str, Any] = {"fpr_percent": 100 * by.fpr, "audited": wording.audited}
    if decision.excluded_tpr is None:
        few = Left.TOO_FEW_FOR_RATE(**rate)
        return Left.AND_TOO_FEW(left=Left.AUROC(**auroc), few=few) if auroc else few
    if decision.excluded_tpr < by.tpr:
        return Left.AUROC(**auroc)
    rate["percent"] = 100 * brief(decision.excluded_tpr)
    return (Left.BOTH if auroc else Left.RATE)(**auroc, **rate)


def _needed(evidence: AnswerEvidence, decision: Decision, wording: Wording) -> Statement:
    # ``users_needed`` holds in four of five audits at chance: this may be one of the others.
    if evidence.users >= decision.users_needed:
        return Left.SETTLES_MOSTLY(users=evidence.users, audited=wording.audited)
    if decision.users_needed > MANY:
        return Left.NEEDED_MORE_THAN(most=MANY, users=evidence.users, audited=wording.audited)
    return Left.NEEDED(needed=decision.users_needed, users=evidence.users, audited=wording.audited)


def _disagreement(
    evidence: AnswerEvidence, by: DecisionConfig, length_correlations: Sequence[float | None], wording: Wording
) -> Statement:
    leading, best = evidence.scores[0], strongest(evidence, by)
    score = evidence.scores[best]
    by_auroc = score.adjusted_p <= by.auroc_level
    # Only if the leading score correlates with length and the passing one clearly less: a guess otherwise.
    mine, other = length_correlations[0], length_correlations[best]
    length = None
    if mine is not None and other is not None and abs(mine) >= LENGTH_DROWNS and abs(other) <= abs(mine) - LESS_BY:
        length = Note.LENGTH_DROWNS(leading=brief(mine, 2), other=brief(other, 2))
    return (Note.DISAGREE if by_auroc else Note.DISAGREE_BY_RATES)(
        score=score.name,
        p=float(f"{score.adjusted_p if by_auroc else score.tpr_p:.2g}"),
        leading=leading.name,
        auroc=brief(leading.auroc, 2),
        length=length,
        audited=wording.audited,
    )


def _interval(score: ScoreEvidence, evidence: AnswerEvidence) -> Statement:
    values: dict[str, Any] = {name: brief(getattr(score, name), 2) for name in ("auroc", "lower", "upper")}
    if len(evidence.scores) == 1:
        return AurocInterval.ALONE(**values)
    return AurocInterval.SIMULTANEOUS(**values, scores=len(evidence.scores))


def _these(evidence: AnswerEvidence) -> Statement:
    return Scores.SEVERAL(count=len(evidence.scores)) if len(evidence.scores) > 1 else Scores.ONE()
