"""The measures of an audit, and the body of its record, computed from the folder and both files of texts."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from heldin.attacks.access import Access
from heldin.attacks.protocol import Dial
from heldin.attacks.scoring import AttackTexts
from heldin.audit.coarse import coarse_percentiles
from heldin.audit.panels import judge_users
from heldin.audit.preregistration import Preregistration, Sides
from heldin.base.coins import seed_key
from heldin.base.files import text_sha256
from heldin.base.kinds import origins_in
from heldin.base.progress import Reporter
from heldin.bounds.design import Assignment
from heldin.corpus.chat.opening import TEXTS, RowReading
from heldin.jobs.checkpoint.job import CheckpointAudit, Groups, counted_turns, training_records
from heldin.models.score_cache import ScoredModel
from heldin.record.document import Body
from heldin.record.facts import (
    LARGEST_DRIFT,
    CorpusFacts,
    ModelFacts,
    Overlaps,
    ScoredTexts,
    SkippedRows,
    SplitFacts,
    TrainingFile,
)
from heldin.record.overlaps import NOT_KNOWN, measured, skipped_alike, texts_in, training_flaws
from heldin.stages.measures.asked import measures_asked
from heldin.stages.measures.keys import MeasureKeys
from heldin.stages.measures.measure import Fingerprinted, Measure, MeasuredUsers, MeasureFolder
from heldin.stages.measures.precision import PrecisionShift
from heldin.stages.measures.scores import (
    Setting,
    TextScores,
    answer_settings,
    left_out,
    scored_part,
    scoring_rule,
    turn_facts,
)
from heldin.words.answer import ComparisonFlaw
from heldin.words.split import AtEndpoint, SplitReason
from heldin.words.statement import Statement

if TYPE_CHECKING:
    from heldin.jobs.checkpoint.endpoint import Remote

_REASONS = {
    Assignment.UNKNOWN: SplitReason.ASSERTED_BY_FILES,
    Assignment.FIXED: SplitReason.ASSERTED_NO_COINS,
    Assignment.COIN: SplitReason.ASSERTED_COINS,
}


@dataclass(frozen=True)
class AuditMeasures:
    """The measures of an audit.

    Attributes:
        load: function that loads a further reference by name.
        in_full: function that loads target and primary reference in float32.
    """

    job: CheckpointAudit
    groups: Groups
    models: tuple[Fingerprinted, Fingerprinted]
    load: Callable[[str, Reporter], ScoredModel]
    in_full: Callable[[], tuple[ScoredModel, ScoredModel]]

    def scores(self) -> TextScores:
        """Return the measure that scores every attack.

        Each further reference adds a setting of the primary attack. The simultaneous test over all scores corrects for
        this setting.
        """
        job, texts = self.job, scored_texts(self.job, self.groups)
        settings = [Setting(Dial("reference", name), texts, functools.partial(self.load, name)) for name in job.others]
        return TextScores(job.attack, texts, self.models, [*answer_settings(texts), *settings], job.others)

    def others(self) -> list[Measure[Any]]:
        """Return the measures other than the scores."""
        job, measures = self.job, list[Measure[Any]]()
        if job.attack.precision != "fp32":
            texts = scored_texts(job, self.groups)
            reason = job.precision_reason
            measures.append(PrecisionShift(job.attack, texts, self.models, self.in_full, job.seed, reason))
        subjects = subjects_of_audit(job, self.groups)
        return [*measures, *measures_asked(job.measures, subjects, self.models)]

    def all(self) -> list[Measure[Any]]:
        """Return all measures."""
        return [self.scores(), *self.others()]


def scored_texts(job: CheckpointAudit, groups: Groups) -> AttackTexts:
    """Return the scored texts of each user."""
    return AttackTexts(groups.texts, job.attack.max_characters)


def subjects_of_audit(job: CheckpointAudit, groups: Groups) -> MeasuredUsers:
    """Return the users in the form for measures; random draws use the public seed."""
    return MeasuredUsers(
        scored_texts(job, groups),
        lambda limit: {user: texts[:limit] for user, texts in groups.texts.items()},
        seed_key(job.seed),
        training=None if job.training is None else lambda: _training(job),
    )


def _training(job: CheckpointAudit) -> Iterator[tuple[set[str], str]]:
    return (({user}, text) for user, text in training_records(job))


def rule_at_endpoint(remote: "Remote | None", *, by_text: bool = False) -> Statement | None:
    """Return the sentence that the record adds to its scoring rule for models behind an endpoint.

    Args:
        by_text: whether the attacks continue texts instead of scoring them.
    """
    if remote is None:
        return None
    if by_text:
        return AtEndpoint.CONTINUED()
    return (AtEndpoint.SHORTER_WINDOWS if remote.tokenizer else AtEndpoint.TEXTS_AS_THEY_ARE)()


def drift_flaws(models: Sequence[ModelFacts]) -> list[Statement]:
    """Return a flaw for each model that changed during its audit, because its scores describe neither version."""
    served = [(model.name, model.endpoint) for model in models if model.endpoint is not None]
    moved = [(name, at.drift) for name, at in served if at.drift > LARGEST_DRIFT]
    changed = [name for name, at in served if at.answers is not None and at.answers.changed]
    return [
        *(ComparisonFlaw.MODEL_CHANGED(model=name, drift=drift) for name, drift in moved),
        *(ComparisonFlaw.ANSWERS_CHANGED(model=name) for name in changed),
    ]


def audit_body(
    measures: AuditMeasures, models: tuple[ModelFacts, ModelFacts], folder: MeasureFolder, *, per_text: bool
) -> Body:
    """Return the body of the record. Runs and judges each measure, or reads measurements from the folder.

    Args:
        models: facts about target and primary reference.
        per_text: whether target and reference may have different tokenizers.
    """
    job, groups = measures.job, measures.groups
    # Not witnessed, even if coins are declared: two files assert who was held in, and nothing is certified.
    sides = Sides(job.assignment, witnessed=False)
    flaws = drift_flaws(models)
    # Without a training file nothing is known about overlaps, which is no flaw: the record says "not known".
    if groups.seen is not None:
        flaws += training_flaws(groups.member, groups.seen, groups.number(False))
    statistics = folder.values_of(measures.scores())
    facts = folder.facts_of(measures.others(), lambda: groups.member)
    released = None if job.release is None else job.release.access
    fixed = Preregistration(job.attack, job.audit, job.decision, sides, job.claims, job.seed).by_level(released)
    with folder.timed("statistics"):
        results, _ = judge_users(
            statistics, scored_texts(job, groups).whole(), groups.member, fixed, folder.reporter, flaws=flaws
        )
    return Body(
        **dict(results),
        config=job.recorded(),
        corpus=_corpus_facts(groups, job.reading or TEXTS),
        split=_split_facts(groups, job.assignment),
        target=models[0],
        reference=models[1],
        training=None,
        primary_attack=fixed.attack.primary,
        attacker_texts=sum(map(len, groups.texts.values())),
        scored_texts=_scored_texts(job, groups),
        scoring_rule=scoring_rule(
            job.attack.max_characters,
            scored_part(job.reading or TEXTS, groups.stores.values()),
            chats=job.reading is not None and job.reading.template is not None,
            endpoint=rule_at_endpoint(job.remote, by_text=Access.LOG_PROBABILITIES not in job.attack.access),
        ),
        per_text=per_text,
        left_out=left_out(
            (*job.attack.names, *job.left_out),
            per_text=per_text,
            served=job.remote is not None,
            pairs=(job.reading or TEXTS).format.has_pairs,
        ),
        resamples=job.audit.resamples,
        measures=facts,
        kinds=[*origins_in(job.attack), *origins_in(MeasureKeys(measures=dict(job.measures)))],
    )


def _corpus_facts(groups: Groups, reading: RowReading) -> CorpusFacts:
    stores = groups.stores
    counts = [int(n) for store in stores.values() for n in store.counts]
    audited = [store.count(user) for store in stores.values() for user in store.users if user in groups.member]
    sides: tuple[Literal["held-in", "held-out"], ...] = ("held-in", "held-out")
    skipped = [
        SkippedRows.of(side, stores[side].report.skipped, users=len(stores[side].users), records=len(stores[side]))
        for side in sides
    ]
    return CorpusFacts(
        # Held-in first: the files exchanged are another audit.
        fingerprint=text_sha256(*(store.fingerprint for store in stores.values())),
        users=len(counts),
        records=sum(counts),
        skipped=skipped,
        skipped_alike=skipped_alike(skipped[0], skipped[1]),
        records_per_audited_user=coarse_percentiles(audited),
        # The maker of the two files decides who is in them; a limit draws from these.
        dropped_by_pattern=0,
        dropped_by_minimum=0,
        dropped_by_maximum=0,
        dropped_by_sampling=len(counts) - len(audited),
        public_users=0,
        public_records=0,
        turns=turn_facts(reading),
    )


def _split_facts(groups: Groups, assignment: Assignment) -> SplitFacts:
    return SplitFacts(
        assignment=assignment.value,
        known_by="not known" if assignment is Assignment.UNKNOWN else "declared",
        # Whatever is declared: heldin drew no coin and holds no key to check one against.
        certifiable=False,
        reason=_REASONS[assignment](),
        held_in=sum(groups.member.values()),
        held_out=len(groups.member) - sum(groups.member.values()),
        always_in=0,
        records_by_part={"scored": sum(map(len, groups.texts.values()))},
        key_commitment=None,
        ledger_commitment=None,
        overlaps=_overlaps(groups),
        training_file=_training_file(groups),
    )


def _training_file(groups: Groups) -> TrainingFile | None:
    if groups.seen is None:
        return None
    seen = groups.seen[True]
    return TrainingFile(texts=groups.number(True), texts_there=seen.anywhere, members_there=len(seen.users))


def _overlaps(groups: Groups) -> Overlaps:
    """Return the texts that are in both groups; overlaps with training only if the audit has a training file."""
    seen = groups.seen_turns
    scored = (parts for texts in groups.of_side(False, counted_turns).values() for parts in texts)
    documents = (document for _, chunk in groups.stores["held-in"].document_chunks() for document in chunk)
    both = [seen[True], seen[False]] if seen is not None else []
    return Overlaps(
        scored_texts_in_same_users_training=measured(sum(s.own for s in both)) if both else NOT_KNOWN,
        scored_texts_in_other_users_training=measured(sum(s.others for s in both)) if both else NOT_KNOWN,
        held_out_texts_in_training=NOT_KNOWN if seen is None else measured(seen[False].anywhere),
        held_out_users_in_training=NOT_KNOWN if seen is None else measured(len(seen[False].users)),
        held_out_texts_in_held_in=measured(texts_in(scored, chain.from_iterable(map(counted_turns, documents)))),
        audited_texts_in_public=NOT_KNOWN,
    )


def _scored_texts(job: CheckpointAudit, groups: Groups) -> ScoredTexts:
    """Return whether the scored texts were in training. A measurement takes precedence over the user's declaration."""
    if groups.seen is not None:
        scored = groups.number(True)
        trained_on = groups.seen[True].anywhere
        kind: Literal["fresh", "training", "mixed"] = "mixed"
        # Held-in users' texts only: held-out users' texts were not trained on if the files are right.
        kind = "fresh" if trained_on == 0 else "training" if trained_on == scored else kind
        return ScoredTexts(kind=kind, known_by="measured")
    if job.texts is not None:
        return ScoredTexts(kind=job.texts, known_by="declared")
    return ScoredTexts(kind="not known", known_by="not known")
