"""Audit a model that someone else trained: two files of users' texts, a target, a reference, no training at all."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from heldin.attacks.config import AttackConfig
from heldin.attacks.protocol import Dial, TextStatistic
from heldin.attacks.scoring import AttackTexts
from heldin.audit.assessment import parts_of, results_of
from heldin.audit.family import variants_of
from heldin.audit.preregistration import Preregistration, Sides
from heldin.audit.results import Results
from heldin.audit.scored_users import scored_users
from heldin.base.errors import InputError
from heldin.base.files import text_sha256, write_text
from heldin.base.log_file import logged
from heldin.base.progress import Reporter
from heldin.corpus.names import missing_names_line
from heldin.jobs.checkpoint.body import audit_body
from heldin.jobs.checkpoint.config import AT_ENDPOINT
from heldin.jobs.checkpoint.endpoint import (
    attacks_at_endpoint,
    drift_flaws,
    facts_of,
    reached,
)
from heldin.jobs.checkpoint.extraction import audit_extraction, windows_asked
from heldin.jobs.checkpoint.groups import Groups, read_groups
from heldin.jobs.checkpoint.job import CheckpointAudit
from heldin.jobs.config_files import first_difference
from heldin.jobs.environment import environment
from heldin.jobs.run.folder import take_new_folder
from heldin.jobs.run.score_file import SCORES, write_scores
from heldin.jobs.run.scoring import score_users_texts, score_with_dial
from heldin.jobs.run.scoring_precision import measured_shift
from heldin.models.loading import same_tokens
from heldin.models.model_names import require_model
from heldin.record.document import Record, read_record, write_new_record
from heldin.record.facts import ModelFacts
from heldin.record.masking import without_names
from heldin.record.overlaps import training_flaws


def audit_checkpoint(job: CheckpointAudit, out: Path, reporter: Reporter, *, command: str) -> Record:
    """Score both groups, and write ``scores.parquet`` and ``record.json`` to ``out``.

    The standing is indicative, since heldin did not draw who is held in.

    Raises:
        InputError: a user or a record id in both files, fewer than two users on a side, or unusable input.
    """
    # Before the folder is taken: a mistyped name leaves nothing behind.
    _check_models(job)
    if job.remote is not None:
        job = replace(job, attack=attacks_at_endpoint(job.attack, job.remote.tokenizer, reporter))
    _take_folder(job, out)
    with logged(reporter, out, command=without_names(command)) as kept:
        return _audited(job, out, kept, command)


def _audited(job: CheckpointAudit, out: Path, reporter: Reporter, command: str) -> Record:
    seconds: dict[str, float] = {}
    started = time.monotonic()
    groups = read_groups(job, reporter.say)
    mixed = groups.texts
    if line := missing_names_line(mixed):
        reporter.say(line)
    seconds["corpus"] = time.monotonic() - started
    started = time.monotonic()
    texts = AttackTexts(mixed, job.attack.max_characters)
    with reached(job.remote, job.models(), texts, reporter, context=job.context) as there:
        reporter.say("models: loading target and reference")
        first, second, precision = *job.models()[:2], job.attack.precision
        target, reference = there.pair(first, second, precision)
        # By fingerprint: two names may lead to one model.
        if target.fingerprint == reference.fingerprint:
            raise InputError(
                "target and reference are the same model: the likelihood ratio of every text would be zero"
            )
        windows = windows_asked(job, groups, target)
        statistics = score_users_texts(job.attack, texts, target, reference, reporter)
        for name in job.others:
            other = there.load(name, precision)
            if other.fingerprint == target.fingerprint:
                raise InputError(f"target and reference '{name}' are the same model: its ratios would all be zero")
            # Each further reference adds a setting of the primary attack to the family,
            # which pays for it in the test of all scores.
            statistics += score_with_dial(job.attack, Dial("reference", name), texts, target, other, reporter)
        shift = measured_shift(
            job.attack, texts, (target, reference), lambda: there.pair(first, second, "fp32"), job.seed, reporter
        )
    seconds["scoring"] = time.monotonic() - started
    # After the block above: only its end has measured how far models behind the endpoint moved.
    models = [
        facts_of(target, job.model, job.remote, there.drifts),
        facts_of(reference, job.reference, job.remote, there.drifts),
    ]
    started = time.monotonic()
    results = audit_results(job, statistics, groups, models, reporter)
    seconds["statistics"] = time.monotonic() - started
    # files are written from here on, so that the folder of an interrupted audit is empty and can be used again
    started = time.monotonic()
    extraction = audit_extraction(job, groups, windows, (target, reference), out, reporter)
    seconds["extraction"] = time.monotonic() - started
    of = audit_scores_name(target.fingerprint, reference.fingerprint, job.others, job.attack)
    write_scores(statistics, out / SCORES, of=of)
    # A copy, so that the audit can be verified where the plan that was given is gone or has changed.
    if job.plan is not None:
        write_text(out / "plan.json", job.plan.read_text(encoding="utf-8"))
    per_text = not same_tokens(target.tokenizer, reference.tokenizer)
    body = audit_body(job, groups, (models[0], models[1]), results, per_text=per_text, extraction=extraction)
    body = body.model_copy(update={"precision": shift})
    return write_new_record(body, environment(seconds), out, name=job.name, command=command)


def _check_models(job: CheckpointAudit) -> None:
    """Before anything is scored: no reference is given twice, and every model not behind the endpoint exists."""
    # Twice the same reference would give two equal scores, and every score pays for the others.
    references = (job.reference, *job.others)
    twice = next((name for i, name in enumerate(references) if name in references[:i]), None)
    if twice is not None:
        raise InputError(f"--reference {twice} is given twice: name each reference once")
    for name in job.models():
        if not name.startswith(AT_ENDPOINT):
            require_model(name)


def audit_results(
    job: CheckpointAudit,
    statistics: Sequence[TextStatistic],
    groups: Groups,
    models: Sequence[ModelFacts],
    reporter: Reporter,
) -> Results:
    """What the scores of an audit say, given sides that are asserted, not drawn by heldin.

    Args:
        statistics: every attack's score of every text.
    """
    # Not witnessed, even if coins are declared: two files assert who was held in, and nothing is certified.
    table, sides = scored_users(statistics, groups.member), Sides(job.assignment, witnessed=False)
    flaws = drift_flaws(models)
    # Without a training file nothing is known about overlaps, which is no flaw: the record says "not known".
    if groups.seen is not None:
        flaws += training_flaws(groups.member, groups.seen, sum(map(len, groups.of_side(False).values())))
    with reporter.track("statistics", parts_of(len(variants_of(table.attacks, job.attack))), "parts") as advance:
        return results_of(
            table,
            groups.texts,
            Preregistration(job.attack, job.audit, job.decision, sides, job.claims, job.seed),
            flaws=flaws,
            advance=advance,
        )


def audit_scores_name(target: str, reference: str, others: Sequence[str], attack: AttackConfig) -> str:
    """The name in an audit's ``scores.parquet`` of what it holds; other scores have another name.

    Args:
        others: names of further references.
    """
    # The attack's dials are part of the name: scores of other attacks or lengths of text do not pass for these.
    return text_sha256(target, reference, attack.model_dump_json(), *others)


def _take_folder(job: CheckpointAudit, out: Path) -> None:
    """Take a new folder, or one that holds exactly this audit."""
    if (out / "record.json").is_file() and not (out / "config.yaml").exists():
        record = read_record(out / "record.json")
        # The job takes the way through JSON, as the record did: a tuple does not equal a list.
        asked = json.loads(json.dumps(job.recorded()))
        if record.kind == "audit" and record.config == asked:
            return
        if record.kind == "audit":
            changed = first_difference(record.config, asked) or "option"
            # As its user calls it.
            changed = {"stated_claims": "claims", "others": "reference"}.get(changed, changed)
            raise InputError(f"'{out}' holds an audit with another '{changed}': give the same, or choose another --out")
    take_new_folder(out, "audit")
