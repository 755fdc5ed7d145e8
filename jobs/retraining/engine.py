"""Independent trainings: train a small job many times; a coin decides whether each training has a worst-case user.

trainings.json  ledger/key  plan.json  runs/00000.json ...  scores.csv  record.json

Each training runs the config's whole defense with the real trainer under a separate key, and gives one number. Because
trainings are independent, Clopper-Pearson intervals are valid (docs/theory.md#independent-trainings). The price is many
trainings.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heldin.audit.preregistration import COINS, Preregistration
from heldin.audit.results import Results
from heldin.audit.trainings import SCORE, TrainingScores, results_of_trainings
from heldin.base.artefacts import INDEX, read_document, require_not_purged, write_artefact, write_document
from heldin.base.coins import KEY_BYTES, new_key
from heldin.base.errors import InputError, TooFewUsers
from heldin.base.files import kept_text, one_process_at_a_time, private_directory, text_sha256
from heldin.base.kinds import origins_in
from heldin.base.progress import Reporter, logged
from heldin.bounds.plan_claims import claims_of
from heldin.bounds.trainings import forecast, reach_line
from heldin.bounds.verdict import Claim, stated_claim
from heldin.defenses.plan_file import read_plan, write_plan
from heldin.jobs.retraining import OPTIONS
from heldin.jobs.retraining.job import TrainingsAudit, training_job
from heldin.jobs.retraining.runs import Trainer, Training, TrainingJob, read_results, run_trainings, train_one
from heldin.models.loading import LanguageModel
from heldin.record.document import Body, Record, masked, without_names, write_new_record
from heldin.record.facts import ModelFacts, Overlaps, ScoredTexts, SplitFacts, TrainingFacts
from heldin.record.overlaps import NOT_KNOWN, measured
from heldin.record.plan_fit import PlanFit
from heldin.stages.environment import environment
from heldin.stages.measures.measure import model_facts, named_model
from heldin.stages.measures.scores import scoring_rule
from heldin.stages.run_config import RunConfig, parse_config
from heldin.stages.run_folder import take_new_folder
from heldin.stages.sides.corpus import CorpusData, corpus_facts, read_corpus
from heldin.stages.train.models import base_model
from heldin.stages.train.plan import fit_lines, plan_fit
from heldin.stages.train.training_facts import promise_facts
from heldin.words.guarantee import ModelText
from heldin.words.split import SplitReason

_REMEDY = "restore this file from a backup, or start in a new folder"


def audit_trainings(
    audit: TrainingsAudit,
    out: Path,
    reporter: Reporter,
    *,
    command: str,
    processes: int | None = None,
    trainer: Trainer = train_one,
) -> Record:
    """Complete the audit in ``out``, write ``record.json``, and return the record.

    Args:
        audit: the audit; the same as in an earlier, unfinished call with ``out``.
        reporter: receives the progress; the first line states the best certificate that this many trainings can give.
        processes: number of parallel trainings; None: one per core.

    Raises:
        InputError: ``out`` contains other files, or the input is unusable.
        ResumableError: a training failed; the message gives its number.
    """
    # First of all: whoever reads that so few trainings can certify little need not wait for them.
    reporter.say(reach_line(audit.runs))
    # A config that cannot be run is refused before a folder is taken for it.
    audit.trained()
    # The cores that this process may use, which may be fewer than the machine has.
    workers = processes or len(os.sched_getaffinity(0))
    # Two calls would draw a key each, both train, and remove each other's work folder.
    with one_process_at_a_time(out):
        key = _take_folder(audit, out)
        with logged(reporter, out, command=without_names(command)) as kept:
            body, seconds = _stages(audit, key, out, kept, processes=workers, trainer=trainer)
            return write_new_record(
                body, environment(seconds), out, name=audit.config.name, command=without_names(command)
            )


def _stages(
    audit: TrainingsAudit, key: bytes, out: Path, reporter: Reporter, *, processes: int, trainer: Trainer
) -> tuple[Body, dict[str, float]]:
    """Train, score and judge. Return the body of the record, and the seconds of each stage."""
    seconds: dict[str, float] = {}
    started = time.monotonic()
    ready = _prepare(audit, key, reporter)
    # Before the first training: what is claimed cannot follow from what was found.
    write_plan(ready.job.mechanism, out / "plan.json")
    reporter.say(f"mechanism: {ready.job.mechanism.guarantee().label}")
    if fit := _fit(audit.trained(), ready.job):
        for line in fit_lines(ready.job.mechanism, fit):
            reporter.say(line)
    # From the coins, which are fixed by now, and not from any score.
    try:
        lines = forecast(ready.job.coins(audit.runs), audit.threshold, ready.delta, ready.claims)
    except TooFewUsers:
        # If nothing was trained, no coin was used, and the folder is free for another number of trainings.
        if not (out / "runs").exists():
            shutil.rmtree(out / "ledger")
            for name in (OPTIONS, "plan.json", INDEX):
                (out / name).unlink()
        raise
    for line in lines:
        reporter.say(line)
    seconds["preparation"] = time.monotonic() - started
    started = time.monotonic()
    with reporter.track("independent trainings", audit.runs, "trainings") as advance:
        trainings = run_trainings(ready.job, audit.runs, out, processes=processes, trainer=trainer, advance=advance)
    seconds["trainings"] = time.monotonic() - started
    started = time.monotonic()
    reporter.say("statistics: threshold, Clopper-Pearson, bands")
    # Owner-only: coins and scores together say which training had the user.
    write_artefact(out / "scores.csv", scores_text(trainings))
    body = _body(audit, ready, trainings)
    seconds["statistics"] = time.monotonic() - started
    return body, seconds


def body_again(out: Path, reporter: Reporter) -> Body:
    """Recompute the body of a finished audit's record from the folder's files.

    Raises:
        InputError: there is no such audit, or a training's result is missing, damaged or from another audit.
    """
    audit, plan = read_audit(out), read_plan(out / "plan.json")
    # The folder's own options, so that taking it changes nothing and returns the key.
    ready = _prepare(audit, _take_folder(audit, out), reporter)
    if plan != ready.job.mechanism:
        raise InputError(
            f"'{out / 'plan.json'}' is not the plan of the training runs in this folder: restore this file"
        )
    finished = read_results(ready.job, audit.runs, out)
    missing = next((number for number in range(audit.runs) if number not in finished), None)
    if missing is not None:
        raise InputError(
            f"'{out}' has no result of training {missing}, so the audit is not finished: run the audit command again"
        )
    trainings = [finished[number] for number in range(audit.runs)]
    scores = out / "scores.csv"
    # Compared as text: ``scores_text`` writes every bit of a score.
    if kept_text(scores) != scores_text(trainings):
        raise InputError(f"'{scores}' is missing or lacks the scores of the training runs: restore this file")
    return _body(audit, ready, trainings)


def read_audit(folder: Path) -> TrainingsAudit:
    """Return the audit in ``folder``. Raises InputError if there is none."""
    content = read_document(folder / OPTIONS, "name the folder of an audit by independent training runs")
    options = content["options"]
    claims = tuple((epsilon, delta) for epsilon, delta in options["claims"])
    return TrainingsAudit(
        config=parse_config(content["config"], str(folder / OPTIONS)), **{**options, "claims": claims}
    )


@dataclass(frozen=True)
class _Ready:
    """The values that heldin fixes before the first training. The bounds use the first claim's delta."""

    corpus: CorpusData
    base: LanguageModel
    job: TrainingJob
    claims: Sequence[Claim]
    delta: float


def _prepare(audit: TrainingsAudit, key: bytes, reporter: Reporter) -> _Ready:
    config = audit.trained()
    stated = [stated_claim(epsilon, delta) for epsilon, delta in audit.claims]
    corpus = read_corpus(config, reporter)
    name, base = base_model(config, corpus, reporter)
    job = training_job(audit, corpus, name, base, key, reporter)
    # The plan's own curve first: its delta is that of the bounds.
    claims = [*claims_of(job.mechanism), *stated]
    return _Ready(corpus, base, job, claims, claims[0].delta if claims else config.audit.delta)


def _body(audit: TrainingsAudit, ready: _Ready, trainings: Sequence[Training]) -> Body:
    config, job = audit.trained(), ready.job
    return Body(
        **dict(trainings_results(audit, job, trainings, ready.claims)),
        # The config as it was given, with ``target`` beside it: a control's record says what was left out.
        config=masked({**audit.config.model_dump(mode="json"), "trainings": audit.options()}),
        corpus=corpus_facts(ready.corpus),
        split=split_facts(job, trainings, ready.corpus),
        target=ModelFacts(
            name=ModelText.OF_TRAININGS(trainings=audit.runs),
            parameters=ready.base.parameters(),
            fingerprint=job.identity,
            architecture=type(ready.base.model).__name__,
        ),
        reference=model_facts(ready.base, named_model(config.model.base)),
        training=training_facts(config, job, trainings),
        primary_attack=SCORE,
        attacker_texts=len(job.texts),
        # By design: DP covers texts of training too, and they leak more (docs/theory.md#conditions-of-one-run, 4).
        scored_texts=ScoredTexts(kind="training", known_by="measured"),
        scoring_rule=scoring_rule(max(map(len, job.texts))),
        per_text=False,
        resamples=config.audit.resamples,
        kinds=origins_in(config),
    )


def _take_folder(audit: TrainingsAudit, out: Path) -> bytes:
    """Create the folder, or accept a folder with exactly this audit. Return the audit's key, which heldin draws only
    once."""
    path, secret = out / OPTIONS, out / "ledger" / "key"
    require_not_purged(out)
    content = {"config": audit.config.model_dump(mode="json"), "options": audit.options()}
    if path.is_file():
        kept = read_document(path, "choose another --out")
        # Another config under the same key would train other models with the same coins
        # (docs/theory.md#keys-and-coins).
        if kept != json.loads(json.dumps(content)):
            raise InputError(
                f"'{out}' has an audit with another config or other options ({_changed(kept, content)} differ): give"
                " the same options, or choose another --out"
            )
    else:
        take_new_folder(out, "audit")
        private_directory(secret.parent)
        # The key before the options, which mark the folder as taken: a folder with options has a key.
        write_artefact(secret, new_key().hex())
        write_document(path, content)
    try:
        key = bytes.fromhex(secret.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{secret}' is missing or damaged: {_REMEDY}") from error
    # A shorter key is no key: coins and noise must not rest on what is left of it.
    if len(key) != KEY_BYTES:
        raise InputError(f"'{secret}' is damaged: {_REMEDY}")
    return key


def _changed(kept: Any, content: Mapping[str, Any]) -> str:
    """Return the names of the options that differ, such as "options.runs, config.defense"."""
    pairs = [
        (f"{section}.{name}", kept.get(section, {}).get(name), value)
        for section, part in json.loads(json.dumps(content)).items()
        for name, value in part.items()
    ]
    return ", ".join(where for where, a, b in pairs if a != b)


def trainings_results(
    audit: TrainingsAudit, job: TrainingJob, trainings: Sequence[Training], claims: Sequence[Claim]
) -> Results:
    """Return the audit's results, computed from the scores of all trainings.

    Args:
        audit: the audit; its config has the settings of the evaluation.
        job: the settings that all trainings share.
        trainings: the trainings in numerical order.
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
    """Return the record's facts about the coins: which trainings include the worst-case user, and how heldin drew the
    coins."""
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
    """Return the record's facts about the privacy mechanism, which all trainings share."""
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
        fit=_fit(config, job),
        seconds=round(sum(training.seconds for training in trainings), 2),
    )


def _fit(config: RunConfig, job: TrainingJob) -> PlanFit | None:
    """Return the plan compared with a training that includes the worst-case user. About half of the trainings do."""
    return plan_fit(config, job.mechanism, np.array([*Counter(job.records.users).values()]))


def scores_text(trainings: Sequence[Training]) -> str:
    """Return the scores as CSV for ``heldin bound scores.csv --assignment coin --independent-trainings``."""
    # repr keeps every bit, so that ``heldin bound`` finds no ties that are none.
    rows = [f"{_training_name(training)},{training.score!r},{int(training.held_in)}" for training in trainings]
    return "\n".join(["user,score,member", *rows]) + "\n"


def _training_name(training: Training) -> str:
    return f"training {training.number:05d}"
