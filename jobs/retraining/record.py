"""Independent trainings in the record: what was trained, what its scores certify, as typed facts."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from heldin.attacks.statistics import LikelihoodRatio
from heldin.audit.assessment import decision_facts
from heldin.audit.attack_results import attack_results
from heldin.audit.canary_groups import COINS
from heldin.audit.family import Variant, evaluate_family
from heldin.audit.headline import TRAININGS
from heldin.audit.judge import judgement_of
from heldin.audit.results import Judgement, RefusedBound, TrialsFacts
from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.bounds.verdict import NO_CLAIM, Claim
from heldin.defenses.mechanism import Guarantee
from heldin.jobs.config import RunConfig
from heldin.jobs.retraining.bounds import TrialTest, certify
from heldin.jobs.retraining.runs import Trial, TrialJob
from heldin.jobs.run.data import CorpusData
from heldin.jobs.run.training import CEILING_FPRS
from heldin.record.document import Ceiling, Overlaps, SplitFacts, TrainingFacts
from heldin.record.overlaps import NOT_KNOWN, measured

WORST_CASE_USER = "worst-case user"
SCORE = LikelihoodRatio().name


def evidence_of(
    config: RunConfig,
    trials: Sequence[Trial],
    claims: Sequence[Claim],
    *,
    delta: float,
    threshold: float | None,
    target: Literal["defense", "none"],
    documents: int,
) -> dict[str, Any]:
    """The record's statistical fields (attacks, judgement, trials) from the trainings' scores and nothing else.

    Args:
        config: its audit section sums up.
        trials: in the order of their numbers.
        claims: to test.
        delta: of the bounds.
        threshold: fixed before looking; None: the first quarter picks it.
        target: what was trained.
        documents: of the worst-case user.
    """
    scores = np.array([trial.score for trial in trials])
    member = np.array([trial.held_in for trial in trials], dtype=np.bool_)
    family = evaluate_family(
        [Variant(SCORE, "mean")],
        [scores],
        member,
        sides=COINS,
        audit=config.audit,
        decision=config.decision,
        lengths=None,
        seed=config.seed,
        least=1,
    )
    test: TrialTest | None
    try:
        test = certify(scores, member, threshold=threshold, delta=delta, claims=claims)
        judgement = judgement_of(test.result, WORST_CASE_USER)
    except InputError as error:  # scores that are all the same: a finding, not a failure
        test = None
        refused = RefusedBound(name="all bounds", reason=str(error))
        judgement = Judgement(delta=delta, bounds=[], refused=[refused], verdicts=[])
    decision = decision_facts(
        family, config.decision, sides=COINS, claims=claims, judgements=[judgement], what=TRAININGS
    )
    counts = test.counts if test else None
    facts = TrialsFacts(
        runs=len(trials),
        with_user=int(member.sum()),
        documents=documents,
        target=target,
        pilot=test.pilot if test else 0,
        threshold=test.threshold if test else None,
        members=counts.members if counts else None,
        true_positives=counts.true_positives if counts else None,
        non_members=counts.non_members if counts else None,
        false_positives=counts.false_positives if counts else None,
        epsilon_lower=test.epsilon if test else None,
        reach=test.reach if test else None,
        seconds_each=round(float(np.median([trial.seconds for trial in trials])), 2),
    )
    certified = _certified(len(trials), target, test, judgement)
    decision = decision.model_copy(update={"headline": f"{decision.headline} {certified}"})
    attacks = attack_results(family, config.audit.fprs, shown={0})
    return {"decision": decision, "attacks": attacks, "judgement": judgement, "trials": facts}


def _certified(runs: int, target: str, test: TrialTest | None, judgement: Judgement) -> str:
    """The bound that was chosen before looking, which the highest of several was not, and what it says of claims."""
    least = test.epsilon if test else 0.0
    certify = f"certify an epsilon of at least {least:.2f}" if least > 0 else "certify no epsilon above zero"
    outcomes = [v.outcome for v in judgement.verdicts if v.claim != NO_CLAIM]
    if not outcomes:
        stands = "no claim was tested"
    elif "violated" in outcomes:
        stands = "what is claimed is violated"
    elif set(outcomes) == {"consistent"}:
        stands = "consistent with what is claimed"
    else:
        stands = "inconclusive on what is claimed"
    what = " without any defense" if target == "none" else ""
    return f"{runs} independent trainings{what} {certify}; {stands}."


def split_facts(job: TrialJob, trials: Sequence[Trial], corpus: CorpusData) -> SplitFacts:
    """How it was decided which trainings have the worst-case user."""
    with_user = sum(trial.held_in for trial in trials)
    others = len(job.sequences) - len(job.documents)
    return SplitFacts(
        assignment="coin",
        known_by="measured",
        certifiable=True,
        standing_reason=(
            "each training has the worst-case user by an independent fair coin under a fresh secret key, and draws its"
            " cohorts and noise under a key of its own"
        ),
        held_in=with_user,
        held_out=len(trials) - with_user,
        always_in=len(corpus.audited.users),
        records_by_part={"trained on in every training": others, "of the worst-case user": len(job.documents)},
        key_commitment=text_sha256("key", job.key.hex()),
        ledger_commitment=None,
        overlaps=Overlaps(
            scored_texts_in_same_users_training=measured(len(job.documents) * (with_user > 0)),
            scored_texts_in_other_users_training=NOT_KNOWN,
            held_out_texts_in_training=NOT_KNOWN,
            held_out_users_in_training=NOT_KNOWN,
            held_out_texts_in_held_in=NOT_KNOWN,
            audited_texts_in_public=NOT_KNOWN,
        ),
    )


def training_facts(config: RunConfig, job: TrialJob, trials: Sequence[Trial], claims: Sequence[Claim]) -> TrainingFacts:
    """What the record says of the mechanism that every training ran."""
    promise = job.mechanism.guarantee()
    holds = promise if isinstance(promise, Guarantee) else None
    curve = next((claim.ceiling for claim in claims if claim.is_curve), None)
    others = len(job.sequences) - len(job.documents)
    return TrainingFacts(
        defense=config.defense.kind,
        guarantee=promise.label,
        unit=job.mechanism.unit,
        epsilon=holds.epsilon if holds else None,
        delta=job.mechanism.delta,
        noise_multiplier=job.mechanism.noise_multiplier,
        warnings=list(holds.warnings) if holds else [],
        ceiling=Ceiling(
            auroc=curve.auroc, fpr=CEILING_FPRS.tolist(), tpr=[float(curve.tpr_at(fpr)) for fpr in CEILING_FPRS]
        )
        if curve
        else None,
        records=others,
        users=len(set(job.records.users[:others])),
        steps=job.mechanism.steps,
        chosen_step=job.mechanism.steps,
        selection=config.finetune.select.value,
        curve=[],
        gap_auroc_spearman=None,
        seconds=round(sum(trial.seconds for trial in trials), 2),
    )


def scores_text(trials: Sequence[Trial]) -> str:
    """For `heldin bound scores.csv --assignment coin --independent-trials`."""
    rows = [f"{_trial_name(trial)},{trial.score!r},{int(trial.held_in)}" for trial in trials]
    return "\n".join(["user,score,member", *rows]) + "\n"


def _trial_name(trial: Trial) -> str:
    return f"training {trial.number:05d}"
