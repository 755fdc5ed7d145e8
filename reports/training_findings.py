"""Independent trainings in words: what was trained, how well they are separated, what follows, and what does not."""

from heldin.audit.results import TrainingsFacts
from heldin.base.wording import counted
from heldin.bounds.verdict import NO_CLAIM
from heldin.record.document import Record
from heldin.reports.wording import interval


def audited(record: Record, facts: TrainingsFacts) -> str:
    """What was trained, how often, and with whom."""
    t, target = record.training, record.target
    assert t is not None
    return (
        f"A training, not a model: {facts.runs} times a {target.architecture} of {target.parameters:,} parameters was"
        f" fine-tuned for {t.steps} steps on the same {t.records:,} texts of {counted(t.users, 'user')} (defense:"
        f" {t.defense}; {t.guarantee}), {facts.with_user} times with one more user, made to be found:"
        f" {counted(facts.documents, 'document')} in tokens that nobody else writes. How that was decided:"
        f" {record.split.standing_reason}. Each model was scored and thrown away; a training took"
        f" {facts.seconds_each:.1f} s (median)."
    )


def success(record: Record, facts: TrainingsFacts) -> str:
    """How well scores separate trainings, and how many the tested threshold called "with"."""
    result = record.primary()
    text = (
        f"The score of a training is the mean {result.attack} of that user's own documents under its last model and the"
        f" base model. It tells trainings with the user from those without at an AUROC of {interval(result.auroc)}."
    )
    # The coins may leave fewer than two trainings of a side among those that would pick a threshold
    # (``bounds.trainings.pilot_size``).
    if not record.judgement.bounds:
        return f"{text} No bound could be tested: {'; '.join(refused.reason for refused in record.judgement.refused)}."
    if facts.threshold is None or facts.members is None or facts.non_members is None:
        return f"{text} No single threshold was tested; bands over all thresholds were."
    how = f"picked by the first {facts.pilot} trainings" if facts.pilot else "fixed before looking"
    return (
        f"{text} At the threshold {facts.threshold:.4g}, {how}, it called {facts.true_positives} of {facts.members}"
        f' trainings with the user and {facts.false_positives} of {facts.non_members} without it "with".'
    )


def meaning(record: Record) -> str:
    """What follows from the gravest outcome."""
    outcomes = {v.outcome for v in record.judgement.verdicts if v.claim != NO_CLAIM}
    # The gravest outcome first: several claims may have several.
    if "violated" in outcomes:
        return (
            "The training does not keep what is claimed: a mistake in its code, or a claim for another training. Do not"
            " release its models; check noise, clipping, sampling and keys, in this order."
        )
    # Of every claim: one that no result could have rejected is inconclusive, and says nothing for the training.
    if outcomes == {"consistent"}:
        return "Nothing speaks against the claim; this many trainings, if all were separated, would have."
    return (
        "The bounds are what is known. Where a claim was tested, not even perfect separation of this many trainings"
        " would have falsified it: more trainings, or a white-box audit of the trainer, would say more."
    )


def limits(record: Record) -> str:
    """What the trainings do not say."""
    t, facts = record.training, record.trainings
    assert t is not None
    assert facts is not None
    promised = f"The accountant promises {t.guarantee}. " if t.epsilon is not None else ""
    most = (
        "" if facts.reach is None else f" This many trainings could have certified at most epsilon {facts.reach:.2f}."
    )
    return (
        f"{promised}Bounds are on epsilon per user of this training, from below: another user, a stronger attack or"
        f" more trainings may show more.{most} They are about the training (code, config, the other users' texts), not"
        " about any one model that it released."
    )
