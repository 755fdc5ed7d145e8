"""Independent trainings in the record: what was trained, and what their scores say."""

from collections.abc import Sequence

import numpy as np

from heldin.audit.preregistration import COINS, Preregistration
from heldin.audit.results import Results
from heldin.audit.trainings import TrainingScores, results_of_trainings
from heldin.base.files import text_sha256
from heldin.bounds.verdict import Claim
from heldin.jobs.retraining.job import TrainingsAudit
from heldin.jobs.retraining.runs import Training, TrainingJob
from heldin.record.facts import Overlaps, SplitFacts, TrainingFacts
from heldin.record.overlaps import NOT_KNOWN, measured
from heldin.stages.config import RunConfig
from heldin.stages.sides.corpus import CorpusData
from heldin.stages.train.training_facts import promise_facts
from heldin.words.split import SplitReason


def trainings_results(
    audit: TrainingsAudit, job: TrainingJob, trainings: Sequence[Training], claims: Sequence[Claim]
) -> Results:
    """What the trainings' scores say, and nothing else.

    Args:
        audit: the audit, whose config says how to evaluate.
        job: what all trainings share.
        trainings: the trainings in the order of their numbers.
        claims: the claims to test.
    """
    config = audit.config
    scores = TrainingScores(
        np.array([training.score for training in trainings]),
        np.array([training.held_in for training in trainings], dtype=np.bool_),
        [training.seconds for training in trainings],
        len(job.texts),
        audit.target,
    )
    # ``COINS``: heldin drew every training's coin itself, whatever the config says of users' sides.
    fixed = Preregistration(config.attack, config.audit, config.decision, COINS, claims, config.seed)
    return results_of_trainings(scores, fixed, threshold=audit.threshold)


def split_facts(job: TrainingJob, trainings: Sequence[Training], corpus: CorpusData) -> SplitFacts:
    """The record's facts about which trainings have the worst-case user, and how that was decided."""
    with_user = sum(training.held_in for training in trainings)
    others = len(job.sequences) - len(job.texts)
    return SplitFacts(
        assignment="coin",
        known_by="measured",
        certifiable=True,
        reason=SplitReason.COINS_OF_TRAININGS(),
        held_in=with_user,
        held_out=len(trainings) - with_user,
        always_in=len(corpus.audited.users),
        records_by_part={"trained on in every training": others, "of the worst-case user": len(job.texts)},
        key_commitment=text_sha256("key", job.key.hex()),
        # No ledger: every coin follows from the key, to which the record commits.
        ledger_commitment=None,
        overlaps=Overlaps(
            # The user's texts are scored under every model, and trained on where the user is in.
            scored_texts_in_same_users_training=measured(len(job.texts) * (with_user > 0)),
            scored_texts_in_other_users_training=NOT_KNOWN,
            held_out_texts_in_training=NOT_KNOWN,
            held_out_users_in_training=NOT_KNOWN,
            held_out_texts_in_held_in=NOT_KNOWN,
            audited_texts_in_public=NOT_KNOWN,
        ),
    )


def training_facts(config: RunConfig, job: TrainingJob, trainings: Sequence[Training]) -> TrainingFacts:
    """The record's facts about the mechanism that every training ran."""
    others = len(job.sequences) - len(job.texts)
    return TrainingFacts(
        defense=config.defense.kind,
        **promise_facts(job.mechanism),
        records=others,
        users=len(set(job.records.users[:others])),
        steps=job.mechanism.steps,
        chosen_step=job.mechanism.steps,
        selection=config.finetune.select.value,
        # Nothing is measured during these trainings: it would cost time in each, and no checkpoint is chosen.
        curve=[],
        gap_auroc_spearman=None,
        gradients=None,
        seconds=round(sum(training.seconds for training in trainings), 2),
    )


def scores_text(trainings: Sequence[Training]) -> str:
    """The scores as CSV, for ``heldin bound scores.csv --assignment coin --independent-trainings``."""
    # repr keeps every bit, so that ``heldin bound`` finds no ties that are none.
    rows = [f"{_training_name(training)},{training.score!r},{int(training.held_in)}" for training in trainings]
    return "\n".join(["user,score,member", *rows]) + "\n"


def _training_name(training: Training) -> str:
    return f"training {training.number:05d}"
