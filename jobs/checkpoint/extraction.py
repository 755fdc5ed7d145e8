"""Extraction in the audit of a checkpoint: its two files' texts, at offsets that follow from its public seed."""

from pathlib import Path

from heldin.attacks.windows import Windows, windows_of
from heldin.audit.extraction import ExtractionFacts, extraction_facts
from heldin.base.coins import seed_key
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.jobs.checkpoint.groups import Groups, training_records
from heldin.jobs.checkpoint.job import CheckpointAudit
from heldin.models.continuations import require_context
from heldin.models.loading import LanguageModel
from heldin.models.score_cache import ScoredModel
from heldin.stages.measures.extraction import Among, probabilities, probabilities_name
from heldin.stages.measures.extraction_file import FILE, kept_probabilities, write_probabilities


def windows_asked(job: CheckpointAudit, groups: Groups, target: ScoredModel) -> Windows | None:
    """One window of each text, before anything is scored; None if extraction is not asked for.

    Raises:
        InputError: the model is behind an endpoint, its context is too short, or no text is long enough.
    """
    if job.extraction is None:
        return None
    lm = _loaded(target)
    require_context(lm, job.extraction.length)
    return windows_of(_texts(job, groups), lm.tokenizer, job.extraction, seed_key(job.seed))


def audit_extraction(
    job: CheckpointAudit,
    groups: Groups,
    windows: Windows | None,
    models: tuple[ScoredModel, ScoredModel],
    out: Path,
    reporter: Reporter,
) -> ExtractionFacts | None:
    """Measure what was asked for, and leave ``extraction.parquet`` in the audit's folder.

    Args:
        windows: of ``windows_asked``.
        models: target and leading reference.
    """
    if job.extraction is None or windows is None:
        return None
    target, reference = map(_loaded, models)
    training = None if job.training is None else (({user}, text) for user, text in training_records(job))
    found = probabilities(windows, job.extraction, (target, reference), Among(training), reporter)
    of = probabilities_name(job.extraction, _texts(job, groups), target.fingerprint, reference.fingerprint)
    write_probabilities(found, out / FILE, of=of)
    return extraction_facts(found, groups.member, (), job.extraction)


def kept_audit_extraction(
    job: CheckpointAudit, groups: Groups, folder: Path, *, target: str, reference: str
) -> ExtractionFacts | None:
    """The counts again, from the file in the folder; None if extraction was not asked for.

    Raises:
        InputError: the file is missing or damaged, or of other models or texts.
    """
    if job.extraction is None:
        return None
    of = probabilities_name(job.extraction, _texts(job, groups), target, reference)
    return extraction_facts(kept_probabilities(folder, of=of), groups.member, (), job.extraction)


def _texts(job: CheckpointAudit, groups: Groups) -> dict[str, list[str]]:
    most = None if job.extraction is None else job.extraction.texts_per_user
    return {user: list(its[:most]) for user, its in groups.texts.items()}


def _loaded(model: ScoredModel) -> LanguageModel:
    if not isinstance(model, LanguageModel):
        raise InputError(f"extraction: '{model.name}' is behind an endpoint: name models that are loaded here")
    return model
