"""The body of an audit's record: what follows from its folder and its two files of texts."""

from collections.abc import Mapping
from typing import Literal

from heldin.audit.coarse import coarse_percentiles
from heldin.audit.extraction import ExtractionFacts
from heldin.audit.results import Results
from heldin.base.files import text_sha256
from heldin.bounds.design import Assignment
from heldin.corpus.store import CorpusStore
from heldin.jobs.checkpoint.endpoint import rule_at_endpoint
from heldin.jobs.checkpoint.groups import Groups
from heldin.jobs.checkpoint.job import CheckpointAudit
from heldin.record.document import Body
from heldin.record.facts import CorpusFacts, ModelFacts, Overlaps, ScoredTexts, SplitFacts
from heldin.record.overlaps import NOT_KNOWN, measured, texts_in
from heldin.stages.measures.scoring import scoring_rule
from heldin.words.split import SplitReason

_REASONS = {
    Assignment.UNKNOWN: SplitReason.ASSERTED_BY_FILES,
    Assignment.FIXED: SplitReason.ASSERTED_NO_COINS,
    Assignment.COIN: SplitReason.ASSERTED_COINS,
}


def audit_body(
    job: CheckpointAudit,
    groups: Groups,
    models: tuple[ModelFacts, ModelFacts],
    results: Results,
    *,
    per_text: bool,
    extraction: ExtractionFacts | None,
) -> Body:
    """Everything that an audit found.

    Args:
        results: what the scores say.
        per_text: the models are not known to share a tokenizer.
        extraction: what sampling would emit of the texts.
    """
    return Body(
        **dict(results),
        config=job.recorded(),
        corpus=_corpus_facts(groups.stores),
        split=_split_facts(groups, job.assignment),
        target=models[0],
        reference=models[1],
        training=None,
        primary_attack=job.attack.primary,
        attacker_texts=sum(map(len, groups.texts.values())),
        scored_texts=_scored_texts(job, groups),
        scoring_rule=scoring_rule(job.attack.max_characters, endpoint=rule_at_endpoint(job.remote)),
        per_text=per_text,
        resamples=job.audit.resamples,
        extraction=extraction,
    )


def _corpus_facts(stores: Mapping[str, CorpusStore]) -> CorpusFacts:
    counts = [int(n) for store in stores.values() for n in store.counts]
    return CorpusFacts(
        # Held-in first: the files exchanged are another audit.
        fingerprint=text_sha256(*(store.fingerprint for store in stores.values())),
        users=len(counts),
        records=sum(counts),
        skipped_rows=sum(store.report.skipped for store in stores.values()),
        records_per_audited_user=coarse_percentiles(counts),
        # Nobody is dropped here: whoever makes the two files decides who is in them.
        dropped_by_pattern=0,
        dropped_by_minimum=0,
        dropped_by_maximum=0,
        dropped_by_sampling=0,
        public_users=0,
        public_records=0,
    )


def _split_facts(groups: Groups, assignment: Assignment) -> SplitFacts:
    return SplitFacts(
        assignment=assignment.value,
        known_by="not known" if assignment is Assignment.UNKNOWN else "declared",
        # Whatever is declared: heldin drew no coin and holds no key to check one against.
        certifiable=False,
        reason=_REASONS[assignment](),
        held_in=len(groups.stores["held-in"].users),
        held_out=len(groups.stores["held-out"].users),
        always_in=0,
        records_by_part={"scored": sum(map(len, groups.texts.values()))},
        key_commitment=None,
        ledger_commitment=None,
        overlaps=_overlaps(groups),
    )


def _overlaps(groups: Groups) -> Overlaps:
    """Texts on both sides; overlaps with training only if a training file was given."""
    seen = groups.seen
    scored = (text for its in groups.of_side(False).values() for text in its)
    both = [seen[True], seen[False]] if seen is not None else []
    return Overlaps(
        scored_texts_in_same_users_training=measured(sum(s.own for s in both)) if both else NOT_KNOWN,
        scored_texts_in_other_users_training=measured(sum(s.others for s in both)) if both else NOT_KNOWN,
        held_out_texts_in_training=NOT_KNOWN if seen is None else measured(seen[False].anywhere),
        held_out_users_in_training=NOT_KNOWN if seen is None else measured(len(seen[False].users)),
        held_out_texts_in_held_in=measured(texts_in(scored, groups.stores["held-in"].texts())),
        audited_texts_in_public=NOT_KNOWN,
    )


def _scored_texts(job: CheckpointAudit, groups: Groups) -> ScoredTexts:
    """Whether the scored texts were trained on; what was measured goes before what was declared."""
    if groups.seen is not None:
        scored = sum(map(len, groups.of_side(True).values()))
        trained_on = groups.seen[True].anywhere
        kind: Literal["fresh", "training", "mixed"] = "mixed"
        # Held-in users' texts only: held-out users' texts were not trained on if the files are right.
        kind = "fresh" if trained_on == 0 else "training" if trained_on == scored else kind
        return ScoredTexts(kind=kind, known_by="measured")
    if job.texts is not None:
        return ScoredTexts(kind=job.texts, known_by="declared")
    return ScoredTexts(kind="not known", known_by="not known")
