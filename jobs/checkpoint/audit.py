"""Audit a model that someone else trained: two files of users' texts, a target, a reference, no training at all."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from heldin.attacks.config import AttackConfig
from heldin.attacks.scoring import AttackTexts
from heldin.attacks.table import TextStatistic
from heldin.audit.assessment import parts_of, results_of
from heldin.audit.coarse import coarse_percentiles
from heldin.audit.config import AuditConfig
from heldin.audit.decision import DecisionConfig
from heldin.audit.family import variants_of
from heldin.audit.preregistration import Preregistration
from heldin.audit.results import Results
from heldin.audit.scored_users import scored_users
from heldin.audit.sides import Sides
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, text_sha256, write_text
from heldin.base.log_file import logged
from heldin.base.progress import Reporter
from heldin.base.wording import counted
from heldin.bounds.verdict import Assignment, Claim
from heldin.corpus.build import build_store
from heldin.corpus.names import missing_names_line
from heldin.corpus.sources.open import open_source
from heldin.corpus.sources.rows import BadRows, Columns
from heldin.corpus.store import CorpusStore, texts_of
from heldin.jobs.checkpoint.endpoint import (
    AT_ENDPOINT,
    Remote,
    attacks_at_endpoint,
    drift_flaws,
    facts_of,
    reached,
    rule_at_endpoint,
)
from heldin.jobs.environment import environment
from heldin.jobs.run.pipeline import take_new_folder
from heldin.jobs.run.score_file import write_scores
from heldin.jobs.run.scoring import beside, score_users_texts, scoring_rule
from heldin.models.loading import require_model, same_tokens
from heldin.record.document import Body, Record, read_record, record_of, write_record
from heldin.record.facts import CorpusFacts, DocumentsFacts, ModelFacts, Overlaps, SplitFacts
from heldin.record.masking import without_names
from heldin.record.overlaps import NOT_KNOWN, Seen, measured, seen_in_training, texts_in, training_flaws


@dataclass(frozen=True)
class CheckpointAudit:
    """What to audit: a model folder (or a LoRA adapter's), its reference, and the texts of both groups.

    Attributes:
        model: folder or hub name; with ``remote`` its name at the endpoint.
        reference: the leading reference model; ``endpoint:NAME`` is one at the same endpoint.
        held_in: file of texts of held-in users.
        held_out: file of texts of held-out users.
        columns: which columns of the files hold what.
        others: further reference models.
        name: name of the audit.
        skip_bad_lines: whether unusable rows are skipped and counted; else the first one is an error.
        assignment: how users came to be held in or out, as declared.
        claims: the claims to test.
        plan: the plan.json among the claims, of which the audit's folder keeps a copy.
        training: file of the model's training data, with the same columns; None: overlaps are not checked.
        documents: whether the scored texts were trained on, as declared; None: not declared.
        max_texts_per_user: maximum number of scored texts per user, the first ones; None: all.
        attack: which attacks.
        audit: how evidence is summed up.
        decision: the thresholds of the answer.
        seed: seed of bootstrap, redraws and halves.
        remote: how models behind an endpoint are reached; None: all models are loaded here.
    """

    model: str
    reference: str
    held_in: Path
    held_out: Path
    columns: Columns
    others: tuple[str, ...] = ()
    name: str = "audit"
    skip_bad_lines: bool = False
    assignment: Assignment = Assignment.UNKNOWN
    claims: tuple[Claim, ...] = ()
    plan: Path | None = None
    training: Path | None = None
    documents: Literal["fresh", "training"] | None = None
    max_texts_per_user: int | None = None
    attack: AttackConfig = field(default_factory=AttackConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    decision: DecisionConfig = field(default_factory=DecisionConfig)
    seed: int = 0
    remote: Remote | None = None

    def models(self) -> tuple[str, ...]:
        """Target, leading reference and the others."""
        return (f"{AT_ENDPOINT if self.remote else ''}{self.model}", self.reference, *self.others)


def audit_checkpoint(job: CheckpointAudit, out: Path, reporter: Reporter, *, command: str) -> Record:
    """Score both groups, and write ``scores.parquet`` and ``record.json`` to ``out``.

    The standing is indicative, since heldin did not draw who is held in.

    Args:
        job: what to audit.
        out: the audit's folder.
        reporter: receives the progress.
        command: the command line, for the record.

    Raises:
        InputError: a user or a record id in both files, fewer than two users on a side, or unusable input.
    """
    _check_models(job)
    if job.remote is not None:
        job = replace(job, attack=attacks_at_endpoint(job.attack, reporter))
    _take_folder(job, out)
    with logged(reporter, out, command=without_names(command)) as kept:
        return _audited(job, out, kept, command)


def _audited(job: CheckpointAudit, out: Path, reporter: Reporter, command: str) -> Record:
    seconds: dict[str, float] = {}
    started = time.monotonic()
    groups = read_groups(job)
    mixed = groups.texts
    if line := missing_names_line(mixed):
        reporter.say(line)
    seconds["corpus"] = time.monotonic() - started
    started = time.monotonic()
    texts = AttackTexts(mixed, job.attack.max_characters)
    with reached(job.remote, job.models(), texts, reporter) as there:
        reporter.say("models: loading target and reference")
        target, reference = map(there.load, job.models()[:2])
        if target.fingerprint == reference.fingerprint:
            raise InputError(
                "target and reference are the same model: the likelihood ratio of every text would be zero"
            )
        statistics = score_users_texts(job.attack, texts, target, reference, reporter)
        for name in job.others:
            other = there.load(name)
            if other.fingerprint == target.fingerprint:
                raise InputError(f"target and reference '{name}' are the same model: its ratios would all be zero")
            statistics += beside(job.attack, "reference", name, texts, target, other, reporter)
    seconds["scoring"] = time.monotonic() - started
    models = [
        facts_of(target, job.model, job.remote, there.drifts),
        facts_of(reference, job.reference, job.remote, there.drifts),
    ]
    started = time.monotonic()
    results = audit_results(job, statistics, groups, models, reporter)
    seconds["statistics"] = time.monotonic() - started
    # written only now, so that the folder of an interrupted audit is empty and can be used again
    of = audit_scores_name(target.fingerprint, reference.fingerprint, job.others, job.attack)
    write_scores(statistics, out / "scores.parquet", of=of)
    if job.plan is not None:
        write_text(out / "plan.json", job.plan.read_text(encoding="utf-8"))
    per_text = not same_tokens(target.tokenizer, reference.tokenizer)
    body = audit_body(job, groups, (models[0], models[1]), results, per_text=per_text)
    record = record_of(body, environment(seconds), kind="audit", name=job.name, command=command)
    write_record(record, out / "record.json")
    return record


def _check_models(job: CheckpointAudit) -> None:
    """Before anything is scored: no reference is given twice, and every model not behind the endpoint exists."""
    references = (job.reference, *job.others)
    twice = next((name for i, name in enumerate(references) if name in references[:i]), None)
    if twice is not None:
        raise InputError(f"--reference {twice} is given twice: name each reference once")
    for name in job.models():
        if not name.startswith(AT_ENDPOINT):
            require_model(name)


@dataclass(frozen=True)
class Groups:
    """The texts of both files.

    Attributes:
        stores: store of each file, by "held-in" and "held-out".
        member: whether each user is held in; sorted by name, so that the order reveals nothing about sides.
        texts: scored texts by user, in the same order.
        seen: what of held-in (True) and held-out (False) users is in the training file; None without one.
    """

    stores: Mapping[str, CorpusStore]
    member: Mapping[str, bool]
    texts: Mapping[str, Sequence[str]]
    seen: Mapping[bool, Seen] | None

    def of_side(self, held_in: bool) -> dict[str, Sequence[str]]:
        """Scored texts of one side's users."""
        return {user: its for user, its in self.texts.items() if self.member[user] is held_in}


def read_groups(job: CheckpointAudit) -> Groups:
    """Read both files, and the training file if there is one."""
    if job.training is not None and next(_training(job), None) is None:
        raise InputError(
            f"no usable record in '{job.training}', the --training file: name the file that the model was trained on,"
            " or leave --training out"
        )
    stores = {
        side: build_store(open_source(path, job.columns), cache_directory(), skip_bad_rows=job.skip_bad_lines)
        for side, path in (("held-in", job.held_in), ("held-out", job.held_out))
    }
    _require_disjoint(stores["held-in"], stores["held-out"], ids_are_given=job.columns.id is not None)
    side_of = {user: side for side, store in stores.items() for user in store.users}
    texts = {
        user: texts_of(stores[side], list(stores[side].rows(user))[: job.max_texts_per_user])
        for user, side in sorted(side_of.items())
    }
    groups = Groups(stores, {user: side_of[user] == "held-in" for user in texts}, texts, None)
    if job.training is None:
        return groups
    return replace(
        groups, seen={side: seen_in_training(groups.of_side(side), _training(job)) for side in (True, False)}
    )


def _training(job: CheckpointAudit) -> Iterator[tuple[str, str]]:
    """(user, text) of every record of the training file."""
    assert job.training is not None
    source = open_source(job.training, Columns(user=job.columns.user, text=job.columns.text))
    for batch in source.batches(BadRows(skip=job.skip_bad_lines)):
        yield from zip(batch.column("user").to_pylist(), batch.column("text").to_pylist(), strict=True)


def audit_results(
    job: CheckpointAudit,
    statistics: Sequence[TextStatistic],
    groups: Groups,
    models: Sequence[ModelFacts],
    reporter: Reporter,
) -> Results:
    """What the scores of an audit say, given sides that are asserted, not drawn by heldin.

    Args:
        job: what is audited.
        statistics: every attack's score of every text.
        groups: texts and membership.
        models: target and reference.
        reporter: receives the progress.
    """
    table = scored_users(statistics, groups.member)
    flaws = drift_flaws(models)
    if groups.seen is not None:
        flaws += training_flaws(groups.member, groups.seen, sum(map(len, groups.of_side(False).values())))
    with reporter.track("statistics", parts_of(len(variants_of(table.attacks, job.attack))), "parts") as advance:
        return results_of(
            table,
            groups.texts,
            Preregistration(job.attack, job.audit, job.decision, job.claims, job.seed),
            sides=Sides(job.assignment, witnessed=False),
            flaws=flaws,
            advance=advance,
        )


def audit_body(
    job: CheckpointAudit, groups: Groups, models: tuple[ModelFacts, ModelFacts], results: Results, *, per_text: bool
) -> Body:
    """Everything that an audit found.

    Args:
        job: what was audited.
        groups: texts and membership.
        models: target and reference.
        results: what the scores say.
        per_text: the models are not known to share a tokenizer.
    """
    return Body(
        **dict(results),
        config=_config(job),
        corpus=_corpus_facts(groups.stores),
        split=_split_facts(groups, job.assignment),
        target=models[0],
        reference=models[1],
        training=None,
        primary_attack=job.attack.primary,
        attacker_texts=sum(map(len, groups.texts.values())),
        documents=_documents(job, groups),
        scoring_rule=scoring_rule(job.attack.max_characters) + rule_at_endpoint(job.remote),
        per_text=per_text,
        resamples=job.audit.resamples,
    )


def audit_scores_name(target: str, reference: str, others: Sequence[str], attack: AttackConfig) -> str:
    """The name in an audit's ``scores.parquet`` of what it holds; other scores have another name.

    Args:
        target: fingerprint of the target.
        reference: fingerprint of the leading reference.
        others: names of further references.
        attack: which attacks.
    """
    return text_sha256(target, reference, attack.model_dump_json(), *others)


def _config(job: CheckpointAudit) -> dict[str, Any]:
    """What the record keeps of the job."""
    return {
        "model": job.model,
        "reference": job.reference,
        "others": list(job.others),
        "held_in": str(job.held_in),
        "held_out": str(job.held_out),
        "training": None if job.training is None else str(job.training),
        "documents": job.documents,
        "max_texts_per_user": job.max_texts_per_user,
        "assignment": job.assignment.value,
        "columns": asdict(job.columns),
        "skip_bad_lines": job.skip_bad_lines,
        "seed": job.seed,
        "stated_claims": [[claim.epsilon, claim.delta] for claim in job.claims if not claim.is_curve],
        "plan": None if job.plan is None else str(job.plan),
        "attack": job.attack.model_dump(mode="json"),
        "audit": job.audit.model_dump(mode="json"),
        "decision": job.decision.model_dump(mode="json"),
        **({} if job.remote is None else {"endpoint": job.remote.config()}),
    }


def _take_folder(job: CheckpointAudit, out: Path) -> None:
    """Take a new folder, or one that holds exactly this audit."""
    if (out / "record.json").is_file() and not (out / "config.yaml").exists():
        record = read_record(out / "record.json")
        if record.kind == "audit" and record.config == json.loads(json.dumps(_config(job))):
            return
    take_new_folder(out, "audit")


_STANDING = {
    Assignment.UNKNOWN: "who was held in is asserted by two files, and how the groups were formed is not known",
    Assignment.FIXED: "who was held in is asserted by two files, and the groups were not formed by coins",
    Assignment.COIN: "who was held in is asserted by two files, and so are the coins that are said to have decided it",
}


def _require_disjoint(held_in: CorpusStore, held_out: CorpusStore, *, ids_are_given: bool) -> None:
    for side, store in (("held-in", held_in), ("held-out", held_out)):
        if len(store.users) < 2:
            raise InputError(
                f"the {side} file has {counted(len(store.users), 'user')}: at least 2 are needed, 100 to say much"
            )
    both = sorted(set(held_in.users) & set(held_out.users))
    if both:
        raise InputError(f"{counted(len(both), 'user')} in both files, such as '{both[0]}': a user is on one side only")
    if ids_are_given:
        ids = {held_in.id(row) for row in range(len(held_in))}
        shared = next((held_out.id(row) for row in range(len(held_out)) if held_out.id(row) in ids), None)
        if shared is not None:
            raise InputError(f"record id '{shared}' stands in both files: a record is on one side only")


def _corpus_facts(stores: Mapping[str, CorpusStore]) -> CorpusFacts:
    counts = [int(n) for store in stores.values() for n in store.counts]
    return CorpusFacts(
        fingerprint=text_sha256(*(store.fingerprint for store in stores.values())),
        users=len(counts),
        records=sum(counts),
        skipped_rows=sum(store.report.skipped for store in stores.values()),
        records_per_audited_user=coarse_percentiles(counts),
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
        certifiable=False,
        standing_reason=_STANDING[assignment],
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
    both = [seen[True], seen[False]] if seen is not None else []
    return Overlaps(
        scored_texts_in_same_users_training=measured(sum(s.own for s in both)) if both else NOT_KNOWN,
        scored_texts_in_other_users_training=measured(sum(s.others for s in both)) if both else NOT_KNOWN,
        held_out_texts_in_training=NOT_KNOWN if seen is None else measured(seen[False].anywhere),
        held_out_users_in_training=NOT_KNOWN if seen is None else measured(len(seen[False].users)),
        held_out_texts_in_held_in=measured(
            texts_in(groups.stores["held-out"].texts(), groups.stores["held-in"].texts())
        ),
        audited_texts_in_public=NOT_KNOWN,
    )


def _documents(job: CheckpointAudit, groups: Groups) -> DocumentsFacts:
    """Whether the scored texts were trained on; what was measured goes before what was declared."""
    if groups.seen is not None:
        scored = sum(map(len, groups.of_side(True).values()))
        trained_on = groups.seen[True].anywhere
        kind: Literal["fresh", "training", "mixed"] = "mixed"
        kind = "fresh" if trained_on == 0 else "training" if trained_on == scored else kind
        return DocumentsFacts(kind=kind, known_by="measured")
    if job.documents is not None:
        return DocumentsFacts(kind=job.documents, known_by="declared")
    return DocumentsFacts(kind="not known", known_by="not known")
