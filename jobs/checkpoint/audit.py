"""Audit a model that someone else trained. The audit needs two files of users' texts, a target and a reference."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from heldin.attacks.access import Access
from heldin.base.artefacts import INDEX, write_artefact
from heldin.base.errors import InputError
from heldin.base.progress import Reporter, logged
from heldin.corpus.names import missing_names_line
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT
from heldin.jobs.checkpoint.body import AuditMeasures, audit_body, scored_texts, subjects_of_audit
from heldin.jobs.checkpoint.job import (
    CheckpointAudit,
    audit_job,
    opened_models,
    read_groups,
    say_other_templates,
    with_level,
    with_precision,
    with_reading,
)
from heldin.models.adapter_bases import is_adapter
from heldin.models.loading import LanguageModel, say_how_loaded
from heldin.models.model_names import require_model
from heldin.models.score_cache import ScoredModel
from heldin.models.tokens import same_tokens
from heldin.record.document import Body, Record, read_record, without_names, write_new_record
from heldin.stages.config_files import first_difference
from heldin.stages.environment import environment
from heldin.stages.measures.asked import check_asked
from heldin.stages.measures.measure import MeasureFolder
from heldin.stages.measures.tables import tables_in
from heldin.stages.run_folder import StageSeconds, take_new_folder


def audit_checkpoint(job: CheckpointAudit, out: Path, reporter: Reporter, *, command: str) -> Record:
    """Score both groups, and write ``scores.parquet`` and ``record.json`` to ``out``.

    The evidence is indicative, because somebody other than heldin chose the members.

    Raises:
        InputError: a user or a record id is in both files, a group has fewer than two users, or an input is unusable.
    """
    # Before the folder is taken: a mistyped name leaves nothing behind.
    _check_models(job)
    job = with_level(job, reporter)
    if job.remote is not None:
        attack = job.remote.attacks(job.attack, reporter)
        unanswered = tuple(name for name in job.attack.names if name not in attack.names)
        job = replace(job, attack=attack, left_out=unanswered)
    job = with_reading(with_precision(job, reporter.say))
    for line in () if job.reading is None else job.reading.lines(trains=False):
        reporter.say(f"texts: {line}")
    _take_folder(job, out)
    with logged(reporter, out, command=without_names(command)) as kept:
        return _audited(job, out, kept, command)


def _audited(job: CheckpointAudit, out: Path, reporter: Reporter, command: str) -> Record:
    seconds = StageSeconds()
    with seconds.timed("corpus"):
        groups = read_groups(job, reporter.say)
        if line := missing_names_line(groups.texts):
            reporter.say(line)
    # No config in the folder tells whose tables are there, and a served model has no fingerprint of its weights.
    folder = MeasureFolder(out, reporter, afresh=True, timed=seconds.timed)
    texts = scored_texts(job, groups)
    with opened_models(job, texts, reporter) as there:
        with seconds.timed("scoring"):
            reporter.say("models: loading target and reference")
            first, second, precision = *job.models()[:2], job.attack.precision
            target, reference = there.pair(first, second, precision)
            for model in (target, reference):
                say_how_loaded(model, reporter.say)
            say_other_templates(job, (target, reference), reporter.say)
            # By fingerprint: two names may lead to one model.
            if target.fingerprint == reference.fingerprint:
                raise InputError(
                    "target and reference are the same model, so the likelihood ratio of every text would be zero:"
                    " give another reference"
                )
            for key, options in job.measures.items():
                check_asked({key: options}, subjects_of_audit(job, groups), _loaded_here(target, key))
        measures = AuditMeasures(
            job,
            groups,
            (target, reference),
            lambda name, _: there.load(name, precision),
            lambda: there.pair(first, second, "fp32"),
        )
        # While the endpoint is open.
        for measure in measures.all():
            folder.values_of(measure)
    # After the block above: only its end has measured how far models behind the endpoint moved.
    models = (
        there.facts_of(target, job.model),
        there.facts_of(reference, job.reference),
    )
    by_tokens = Access.LOG_PROBABILITIES in job.attack.access
    per_text = by_tokens and not same_tokens(target.tokenizer, reference.tokenizer)
    body = audit_body(measures, models, folder, per_text=per_text)
    # Files are written from here on, so that the folder of an interrupted audit can be used again.
    folder.write()
    # A copy, so that the audit can be verified if the plan that was given is gone or has changed.
    if job.plan is not None:
        write_artefact(out / "plan.json", job.plan.read_text(encoding="utf-8"))
    return write_new_record(body, environment(seconds.seconds), out, name=job.name, command=command)


def audit_again(folder: Path, record: Record, reporter: Reporter) -> Body:
    """Return the body of an audit's record, recomputed from the tables and both files of texts, without a model.

    Args:
        record: record of the audit; its facts about the models are not checked.

    Raises:
        InputError: a table is missing or damaged, or does not match the record's models or texts.
    """
    job = audit_job(folder, record)
    models = (record.target, record.reference)
    measures = AuditMeasures(job, read_groups(job), models, _not_loaded, _not_loaded)
    return audit_body(measures, models, MeasureFolder(folder, reporter, read_only=True), per_text=record.per_text)


def _not_loaded(*_: object) -> NoReturn:
    raise AssertionError("a verification runs no model")


def _loaded_here(model: ScoredModel, key: str) -> LanguageModel:
    if not isinstance(model, LanguageModel):
        raise InputError(
            f"{key}: '{model.name}' is behind an endpoint. Give only models that heldin can load on this machine"
        )
    return model


def _check_models(job: CheckpointAudit) -> None:
    """Check, before scoring, that no reference is repeated and that every model outside the endpoint exists."""
    # Twice the same reference would give two equal scores, and every score pays for the others.
    references = (job.reference, *job.others)
    twice = next((name for i, name in enumerate(references) if name in references[:i]), None)
    if twice is not None:
        raise InputError(f"--reference {twice} is given twice: give each reference once")
    for name in job.models():
        if not name.startswith(AT_ENDPOINT):
            require_model(name, job.adapter_base)
    if job.adapter_base is not None and not any(is_adapter(Path(name)) for name in job.models()):
        raise InputError(
            f"--adapter-base '{job.adapter_base}': no model of this audit is an adapter. Leave --adapter-base out, or"
            " give the adapter's folder as model"
        )


def _take_folder(job: CheckpointAudit, out: Path) -> None:
    """Create the folder, or accept a folder that already contains exactly this audit."""
    if (out / "record.json").is_file() and not (out / "config.yaml").exists():
        record = read_record(out / "record.json")
        # The job takes the way through JSON, as the record did: a tuple does not equal a list.
        asked = json.loads(json.dumps(job.recorded()))
        if record.kind == "audit" and record.config == asked:
            return
        if record.kind == "audit":
            changed = first_difference(record.config, asked) or "option"
            # As its user calls it.
            changed = {"stated_claims": "claims", "others": "reference", "max_users": "limit"}.get(changed, changed)
            raise InputError(
                f"'{out}' contains an audit with another '{changed}': give the same '{changed}', or choose another"
                " --out"
            )
    leftovers = _leftovers(out)
    take_new_folder(out, "audit", besides=[path.name for path in leftovers])
    for path in leftovers:
        path.unlink()


def _leftovers(out: Path) -> list[Path]:
    """Return the files that a killed audit left behind, if its record was not written."""
    if not out.is_dir():
        return []
    names = (INDEX, "plan.json", *tables_in(out))
    return [path for name in names for path in (out / name, *out.glob(f".{name}.*.tmp")) if path.is_file()]
