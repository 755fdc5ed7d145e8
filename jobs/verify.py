"""Recompute every number of a record from its scores, ledger and plan, and report which differ.

No model is run: scores are taken as they are, once it is shown that they belong to the models and texts that the record
names. What only training could reproduce (the curves) is compared with the checkpoint's own log.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heldin.attacks.protocol import TextStatistic
from heldin.base.artefacts import State, inspect, require_not_purged
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.jobs.checkpoint.audit import audit_results, audit_scores_name
from heldin.jobs.checkpoint.body import audit_body
from heldin.jobs.checkpoint.extraction import kept_audit_extraction
from heldin.jobs.checkpoint.groups import read_groups
from heldin.jobs.checkpoint.job import audit_job
from heldin.jobs.planted.audit import planted_again
from heldin.jobs.retraining.engine import body_again
from heldin.jobs.run.body import run_body
from heldin.jobs.run.corpus import read_corpus
from heldin.jobs.run.data import needs_base, prepare_data
from heldin.jobs.run.extraction import kept_extraction
from heldin.jobs.run.models import Models, base_model, scored_base, target_and_reference
from heldin.jobs.run.plan import configured_mechanism, read_run_config
from heldin.jobs.run.score_file import SCORES, read_scores
from heldin.jobs.run.statistics import preregistered, run_results
from heldin.jobs.run.texts import scores_name, texts_under_attack
from heldin.jobs.run.training import finished_training, require_model_of_training, require_trained_under
from heldin.jobs.run.utility import kept_losses
from heldin.record.differences import Difference, compared
from heldin.record.document import Body, Record, read_record

NOT_RECOMPUTED = ("the scores themselves (no model is run)", "names, times, command and environment")
OF_EXTRACTION = "the probabilities of extraction, and which texts stand elsewhere (no model is run)"
ALSO_NOT_RECOMPUTED = {
    "run": ("the loss curves, held against the checkpoint's log", "gradient norms of canary users' records"),
    "audit": ("the facts about the models",),
    "planted": (),
    "trainings": (),
}
# An audited model may be gone, or be behind an endpoint that costs money.
_TAKEN_AS_THEY_ARE = {
    "run": (),
    "audit": ("target", "reference", "per_text", "precision"),
    "planted": (),
    "trainings": (),
}


# What a verification draws or computes again, or compares with a hash of its own.
_COVERED = ("config.yaml", "plan.json", "trainings.json", "ledger/", "checkpoints/tokens/", "runs/", "training-log/")


@dataclass(frozen=True)
class Verification:
    """What was compared.

    Attributes:
        compared: number of values compared.
        differences: those that differ.
        by_digest: files that are as they were written, by their digest.
        changed: files that are not.
        not_checked: files that nothing was compared with.
        not_recomputed: what was not recomputed, in words.
    """

    compared: int
    differences: tuple[Difference, ...]
    by_digest: tuple[str, ...]
    changed: tuple[str, ...]
    not_checked: tuple[str, ...]
    not_recomputed: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not (self.differences or self.changed)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        files = {name: list(getattr(self, name)) for name in ("by_digest", "changed", "not_checked", "not_recomputed")}
        differences = [vars(difference) for difference in self.differences]
        return {"agrees": self.agrees, "compared": self.compared, "differences": differences, **files}


def verify(folder: Path, reporter: Reporter) -> Verification:
    """Recompute ``folder``'s record, and compare the other files with their digests.

    Raises:
        InputError: no record, or a file it depends on is missing, damaged, or belongs to another run.
    """
    record = read_record(folder / "record.json", checked=False)
    require_not_purged(folder)
    match record.kind:
        case "run":
            again = _run_again(folder, record, reporter)
        case "audit":
            again = _audit_again(folder, record, reporter)
        case "planted":
            again = planted_again(folder, record, reporter)
        case "trainings":
            again = body_again(folder, reporter)
    # Every field of the body by default: a new one is compared without anybody thinking of it.
    names = [name for name in Body.model_fields if name not in _TAKEN_AS_THEY_ARE[record.kind]]
    parts = [compared(name, getattr(record, name), getattr(again, name)) for name in names]
    states = inspect(folder)
    of_state = {state: tuple(name for name, its in states.items() if its is state) for state in State}
    return Verification(
        sum(count for count, _ in parts),
        tuple(difference for _, found in parts for difference in found),
        of_state[State.WHOLE],
        (*of_state[State.CHANGED], *of_state[State.ABSENT]),
        tuple(name for name in of_state[State.UNLISTED] if not name.startswith(_COVERED)),
        (
            *NOT_RECOMPUTED,
            *ALSO_NOT_RECOMPUTED[record.kind],
            *(() if record.extraction is None else (OF_EXTRACTION,)),
        ),
    )


def table(found: Verification) -> str:
    """What was found, as plain text."""
    lines = [f"{found.compared} values compared, {len(found.differences)} differ"]
    lines += [f"  {difference.line()}" for difference in found.differences]
    lines += [f"changed since it was written: {name}" for name in found.changed]
    if found.by_digest:
        lines.append(f"compared by digest: {', '.join(found.by_digest)}")
    if found.not_checked:
        lines.append(f"not checked: {', '.join(found.not_checked)}")
    return "\n".join([*lines, *(f"not recomputed: {what}" for what in found.not_recomputed)])


def _run_again(folder: Path, record: Record, reporter: Reporter) -> Body:
    config = read_run_config(folder)
    # Without this a lost ledger would be drawn anew, under a new key, in the folder that is to be checked.
    if not (folder / "ledger" / "ledger.json").is_file():
        raise InputError(f"'{folder}' has no ledger, so it is not known who was held in")
    corpus = read_corpus(config, reporter)
    # Loaded early only where canary users or a ranked cap need it: else a folder that fails below fails fast.
    named = base_model(config, corpus, reporter) if needs_base(config) else None
    data = prepare_data(config, folder, reporter, corpus, named[1] if named else None)
    plan = read_plan(folder / "plan.json")
    mechanism = configured_mechanism(config, plan, config.finetune.steps(len(data.training_rows)))
    if plan != mechanism:
        changed = [name for name in Mechanism.model_fields if getattr(plan, name) != getattr(mechanism, name)]
        raise InputError(
            f"'{folder / 'plan.json'}' is not the plan that config.yaml gives ({', '.join(changed)} differ)"
        )
    texts = texts_under_attack(config, data)
    # By the record's fingerprints: scores of any other models or texts have another name, and are not read.
    of = scores_name(config, texts, record.target.fingerprint, record.reference.fingerprint)
    require_trained_under(folder, plan)
    require_model_of_training(folder)
    found = run_results(data, texts.texts, _scores(folder, of), preregistered(config, data, plan), reporter)
    # Loaded for its fingerprint and size, and never run.
    name = (named or base_model(config, corpus, reporter))[0]
    target, reference = target_and_reference(config, folder / "checkpoints" / "final", name)
    start = scored_base(config, name) if config.attack.reference else reference
    losses = kept_losses(config, data, folder, target=target.fingerprint, base=start.fingerprint)
    models = Models(target, reference, name)
    extraction = kept_extraction(config, data, folder, target=target.fingerprint, reference=reference.fingerprint)
    found = replace(found, losses=losses, precision=record.precision, extraction=extraction)
    return run_body(config, data, plan, finished_training(folder, config), models, found)


def _audit_again(folder: Path, record: Record, reporter: Reporter) -> Body:
    job = audit_job(folder, record)
    groups = read_groups(job)
    of = audit_scores_name(record.target.fingerprint, record.reference.fingerprint, job.others, job.attack)
    models = (record.target, record.reference)
    results = audit_results(job, _scores(folder, of), groups, models, reporter)
    extraction = kept_audit_extraction(
        job, groups, folder, target=record.target.fingerprint, reference=record.reference.fingerprint
    )
    return audit_body(job, groups, models, results, per_text=record.per_text, extraction=extraction)


def _scores(folder: Path, of: str) -> list[TextStatistic]:
    statistics = read_scores(folder / SCORES, of=of)
    if statistics is None:
        raise InputError(
            f"'{folder / 'scores.parquet'}' is missing, damaged, or of other models or texts than the record names"
        )
    return statistics
