"""The answer in words: one headline, the same in PDF, terminal, record and exit line, and notes to read before it.

A pure function of evidence and decision. No number is computed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heldin.audit.coarse import brief
from heldin.audit.decision import (
    Answer,
    Decision,
    DecisionConfig,
    Evidence,
    Promise,
    ScoreEvidence,
    disagreement,
    passes,
    strongest,
)
from heldin.base.wording import at_most_counted
from heldin.bounds.design import REAL_USERS

LENGTH_DROWNS = 0.5  # a score whose rank correlation with the length of texts is at least this ...
LESS_BY = 0.2  # ... while that of a score that passes is lower by this: length explains the disagreement


@dataclass(frozen=True)
class Wording:
    """Words for what is separated: two sides of users, of entities, or of trainings.

    Attributes:
        sides: the two sides, as in "tells held-in from held-out users".
        member: the held-in side.
        other: the held-out side.
        unit: the statistical unit, plural.
        one: one of them.
        of_one: the same as an owner ("a user's texts").
        subjects: the people of a verdict.
    """

    sides: str = "held-in from held-out users"
    member: str = "held-in users"
    other: str = "held-out users"
    unit: str = "users"
    one: str = "user"
    of_one: str = "a user's"
    subjects: str = REAL_USERS


def _audited(unit: str, one: str, of_one: str) -> Wording:
    return Wording(f"held-in from held-out {unit}", f"held-in {unit}", f"held-out {unit}", unit, one, of_one, unit)


USERS = Wording()
# By ``split.audited``.
AUDITED = {
    "users": USERS,
    "entities": _audited("entities", "entity", "an entity's"),
    "both": _audited("users and entities", "user or entity", "a user's or an entity's"),
}
CANARIES = Wording(
    "canary users that were held in from those that were not",
    "held-in canary users",
    "held-out canary users",
    "canary users",
    "canary user",
    "a canary user's",
)
AUDITED["canaries"] = replace(CANARIES, subjects=CANARIES.unit)  # where no real user is audited
TRAININGS = Wording(
    "trainings with the user from those without",
    "trainings with the user",
    "trainings without",
    "trainings",
    "training",
    "a training's",
)

PROMISES = {
    None: "",
    Promise.WITHIN: ", by the estimate within the promise",
    Promise.ABOVE: ", by the estimate more than was promised, which is not certified",
    Promise.BEYOND: ", beyond what was promised",
}


def headline(evidence: Evidence, decision: Decision, by: DecisionConfig, what: Wording = USERS) -> str:
    """The answer in one or two sentences, beginning with one of the four answers.

    Args:
        evidence: the scores and their tests.
        decision: the answer that they gave.
        by: the thresholds.
        what: words for what is separated.
    """
    match decision.answer:
        case Answer.LEAKS:
            return _leaks(evidence, decision, by, what)
        case Answer.NO_LEAK:
            # ``decide`` gives this answer only where the rate could be shown.
            assert decision.excluded_tpr is not None
            area, share = brief(decision.excluded_auroc), 100 * brief(decision.excluded_tpr)
            return (
                f"No leak found, and more than AUROC {area:.2f} is excluded, as is naming more than"
                f" {share:.0f} % of {what.member} at {_percent(by.fpr)} false positives"
                f" (estimates at 95 %, for {_these(evidence)} only)."
            )
        case Answer.INCONCLUSIVE:
            return _inconclusive(evidence, decision, by, what)
        case Answer.NOT_VALID:
            return f"The comparison is not valid: {'; '.join(decision.flaws)}."


def notes(
    evidence: Evidence, by: DecisionConfig, length_correlations: Sequence[float | None], what: Wording = USERS
) -> list[str]:
    """What a reader must know first: a broken promise, and attacks that disagree, with the reason if it is known.

    Args:
        evidence: the scores and their tests.
        by: the thresholds.
        length_correlations: rank correlation of each score with the length of texts; None where unknown.
        what: words for what is separated.
    """
    said = []
    if evidence.violated and evidence.violated_by and any(passes(score, by) for score in evidence.scores):
        is_broken = "is broken" if evidence.violated == "certified" else "seems broken"
        said.append(f"A promise {is_broken}: {_violation(evidence)}.")
    if disagreement(evidence, by):
        said.append(_disagreement(evidence, by, length_correlations, what))
    return said


def _leaks(evidence: Evidence, decision: Decision, by: DecisionConfig, what: Wording) -> str:
    assert decision.strongest is not None
    score = evidence.scores[decision.strongest]
    promise = PROMISES[decision.promise]
    why = "a condition is not met" if evidence.unmet else "the sides are asserted"
    standing = "" if decision.exact else f" (indicative only: {why})"
    # Said once: ``standing`` has it already where it stands.
    if decision.promise is Promise.BEYOND and evidence.violated != "certified" and not standing:
        promise += " (indicative)"
    how = f"tells {what.sides} with AUROC {_interval(score, evidence)}"
    # The violated claim is the finding; the score is only what it was measured by.
    if not passes(score, by):
        return (
            f"Leaks{promise}{standing}: {_violation(evidence)}. The AUROC of {score.name} on {what.unit} is"
            f" {_interval(score, evidence)}."
        )
    # It passes by its rates alone: its AUROC is shown, but is not what tells of the leak.
    if score.adjusted_p > by.auroc_level:
        how = (
            f"names more {what.member} at low false-positive rates than chance allows; its AUROC is"
            f" {_interval(score, evidence)}"
        )
    named = ""
    if decision.named is not None:
        n = decision.named
        named = (
            f" Of 1,000 {what.member} it would name about {n.of_1000:.0f} ({n.lower:.0f} to {n.upper:.0f}) at"
            f" {_percent(n.fpr)} false positives."
        )
    return f"Leaks{promise}{standing}: {score.name} {how}.{named}"


def _violation(evidence: Evidence) -> str:
    whose = f"the scores of {evidence.violated_by}" if evidence.violated_by else "the scores"
    if evidence.violated == "certified":
        return f"{whose} certify more than was claimed"
    return f"{whose} point to more than was claimed, which nothing certifies"


def _inconclusive(evidence: Evidence, decision: Decision, by: DecisionConfig, what: Wording) -> str:
    # First of all reasons: with the sides swapped, every limit below would be about the wrong direction.
    if decision.reversed:
        lowest = min(evidence.scores, key=lambda score: score.auroc)
        return (
            f"Inconclusive: {lowest.name} tells {what.sides} the wrong way round (AUROC {lowest.auroc:.2f}):"
            " the groups may be swapped, or the model made its users' texts less likely."
        )
    open_: list[str] = []
    if decision.excluded_auroc >= by.auroc:
        open_.append(f"an AUROC of up to {brief(decision.excluded_auroc):.2f}")
    if decision.excluded_tpr is not None and decision.excluded_tpr >= by.tpr:
        open_.append(
            f"naming up to {100 * brief(decision.excluded_tpr):.0f} % of {what.member} at {_percent(by.fpr)} false"
            " positives"
        )
    left = [f"{' and '.join(open_)} {'is' if len(open_) == 1 else 'are'} not excluded"] if open_ else []
    if decision.excluded_tpr is None:
        left.append(
            f"whether many {what.member} can be named at {_percent(by.fpr)} false positives cannot be seen with so few"
        )
    needed = (
        f"{at_most_counted(decision.users_needed, before='about ')} {what.unit} would settle it,"
        f" {evidence.users:,} were there"
        # ``users_needed`` holds in four of five audits at chance: this may be one of the others.
        if evidence.users < decision.users_needed
        else f"{evidence.users:,} {what.unit} settle it in most audits, but did not here: more would"
    )
    return f"Inconclusive: no leak was found, but {', and '.join(left)}; {needed}."


def _disagreement(
    evidence: Evidence, by: DecisionConfig, length_correlations: Sequence[float | None], what: Wording
) -> str:
    leading, best = evidence.scores[0], strongest(evidence, by)
    its = evidence.scores[best]
    by_auroc = its.adjusted_p <= by.auroc_level
    how = f"adjusted p = {its.adjusted_p if by_auroc else its.tpr_p:.2g}"
    how += "" if by_auroc else " of its true-positive rates"
    said = (
        f"The attacks disagree: {its.name} tells {what.sides} ({how}), the leading attack, {leading.name}, does not"
        f" (AUROC {leading.auroc:.2f})."
    )
    # Only if the leading score goes with length and the passing one clearly less: a guess at the reason otherwise.
    mine, other = length_correlations[0], length_correlations[best]
    if mine is not None and other is not None and abs(mine) >= LENGTH_DROWNS and abs(other) <= abs(mine) - LESS_BY:
        said += (
            f" The leading score goes with the length of a user's texts (rank correlation {mine:+.2f}; {other:+.2f} in"
            " the other): length drowns what membership adds."
        )
    return said


def _interval(score: ScoreEvidence, evidence: Evidence) -> str:
    how = f"simultaneous over {len(evidence.scores)} scores" if len(evidence.scores) > 1 else "95 % interval"
    return f"{score.auroc:.2f} ({score.lower:.2f} to {score.upper:.2f}, {how})"


def _these(evidence: Evidence) -> str:
    return f"these {len(evidence.scores)} scores" if len(evidence.scores) > 1 else "this score"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
