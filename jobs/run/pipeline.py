"""One run, from corpus to record. Each stage leaves a named file in the run folder and is not repeated.

config.yaml  ledger/  plan.json  checkpoints/  scores.parquet  record.json  seconds.json  log.txt
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from heldin.audit.exposure import PEOPLE, write_people
from heldin.audit.preregistration import Preregistration
from heldin.base.files import cache_directory, one_process_at_a_time, private_directory
from heldin.base.log_file import logged
from heldin.base.progress import LineReporter, Reporter
from heldin.bounds.power import forecast
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.loop import TrainingResult
from heldin.finetune.ranks import first_process_first, joined, rank, require_like_devices, require_shared_folder
from heldin.jobs.config import RunConfig
from heldin.jobs.environment import environment
from heldin.jobs.run.body import run_body
from heldin.jobs.run.corpus import read_corpus
from heldin.jobs.run.data import RunData, prepare_data
from heldin.jobs.run.extraction import measure_extraction, require_windows
from heldin.jobs.run.folder import for_any_config_without_coins, take_folder
from heldin.jobs.run.gradient_norms import canary_gradient_norms
from heldin.jobs.run.models import Models, base_model, require_arithmetic, scored_base, target_and_reference
from heldin.jobs.run.plan import require_mechanism, settle_plan
from heldin.jobs.run.references import check_references, train_reference, trained_references
from heldin.jobs.run.scoring import score
from heldin.jobs.run.scoring_precision import measured_shift
from heldin.jobs.run.stage_seconds import StageSeconds
from heldin.jobs.run.statistics import preregistered, run_results
from heldin.jobs.run.texts import Scoring, texts_under_attack
from heldin.jobs.run.training import finetune, measured_clip_norm
from heldin.jobs.run.utility import measure_losses
from heldin.models.loading import load_language_model
from heldin.record.document import Body, Record, write_new_record
from heldin.record.facts import GradientNorms
from heldin.record.masking import without_names


def run(config: RunConfig, out: Path, reporter: Reporter, *, command: str) -> Record | None:
    """Do what is not yet done of the run in ``out``, and return its record.

    Under ``torchrun`` every process calls it: the first prepares and writes, all train, and the first one finishes.

    Args:
        config: config of the run; the same as that of an earlier, unfinished run in ``out``.

    Returns:
        The record; None if a filter halted training (a result, without a model), and in all processes but the first.

    Raises:
        InputError: ``out`` holds a run of another config, another process works in it, or the input cannot be used.
        ResumableError: training diverged.
    """
    # Before the folder: a mechanism that cannot be leaves nothing behind.
    require_mechanism(config)
    require_arithmetic(config)
    taken = StageSeconds()
    with ExitStack() as until_the_end:
        with joined():
            # One process speaks and logs.
            reporter = reporter if rank() == 0 else LineReporter(lambda _: None)
            reporter = _begin(config, out, reporter, command, taken, until_the_end)
            trained = _train(config, out, reporter, taken)
            # The rest is the first process's alone: no call that waits for the others follows. Asked in here: outside,
            # each process is the only one.
            if rank() > 0:
                return None
        if trained.result.halted:
            reporter.say(
                f"halted after {trained.result.steps} steps: the users' gradients are not within tau of each other;"
                " this is a result, and no model is released"
            )
            return None
        body = _measure(config, trained, out, reporter, taken)
        # Last: a folder with a record has every other file.
        return write_new_record(
            body,
            environment(taken.seconds),
            out,
            name=config.name,
            command=without_names(command),
            gradient_norms=trained.norms,
        )


@dataclass(frozen=True)
class _Trained:
    """What a training leaves to those who measure.

    Attributes:
        data: corpus and ledger.
        mechanism: that was run.
        fixed: what was fixed before any score.
        result: of the training.
        base_name: hub name or folder of the model it began with.
        norms: of canary users' gradients at that model; None without them, and in all processes but the first.
    """

    data: RunData
    mechanism: Mechanism
    fixed: Preregistration
    result: TrainingResult
    base_name: str
    norms: GradientNorms | None


def _begin(
    config: RunConfig, out: Path, reporter: Reporter, command: str, taken: StageSeconds, until_the_end: ExitStack
) -> Reporter:
    """Take the folder, in every process; returns the reporter, which writes the folder's log as well."""
    with first_process_first():
        take_folder(config, out)
        if rank() == 0:
            # Held until the record is written: the block of ``torchrun`` ends before scoring.
            until_the_end.enter_context(one_process_at_a_time(out))
            until_the_end.enter_context(for_any_config_without_coins(out))
            taken.keep_in(out)
            reporter = until_the_end.enter_context(logged(reporter, out, command=without_names(command)))
            if (out / "record.json").is_file():
                reporter.say("finished before: what is missing is made, and a record that says the same stays")
    require_shared_folder(out)
    require_shared_folder(private_directory(cache_directory()))
    require_like_devices()
    return reporter


def _train(config: RunConfig, out: Path, reporter: Reporter, taken: StageSeconds) -> _Trained:
    """The stages in which all processes take part: from corpus to trained models."""
    with first_process_first(), taken.timed("corpus"):
        corpus = read_corpus(config, reporter)
        # Before hours of training: a reference that is missing would otherwise stop the run at its last stage.
        check_references(config, corpus)
    with taken.timed("base model"):
        # Before canary users, some of whom are sampled from it. All processes pre-train it.
        base_name, base = base_model(config, corpus, reporter)
    with first_process_first(), taken.timed("canaries and coins"):
        data = prepare_data(config, out, reporter, corpus, base)
        # Before training: what it would stop at is known by now.
        require_windows(config, data, base)
    with taken.timed("fine-tuning"):
        # Before ``finetune``, which changes the base model's weights in place.
        alone = rank() == 0 and config.finetune.shard is None
        norms = canary_gradient_norms(config, data, base) if alone else None
        # Not inside the block below: it trains, and all processes take part.
        clip_norm = measured_clip_norm(config, data, base, out, reporter)
        with first_process_first():
            # The plan is on disk before the first step: nothing that training shows can change what is claimed.
            mechanism = settle_plan(config, data, out, clip_norm=clip_norm)
            fixed = preregistered(config, data, mechanism)
            # What the audit could find at best, before training is paid for.
            real, what = len(data.real(data.ledger.scored_users())), fixed.wording
            for line in forecast(
                real, fixed.audit.delta, fixed.claims, units=what.unit, unit=what.singular, sharing=fixed.judged
            ):
                reporter.say(line)
        result = finetune(config, data, base, mechanism, out, reporter)
    if not result.halted and trained_references(config):
        with taken.timed("reference models"):
            # Not in the scoring stage, which is the first process's alone.
            for spec in trained_references(config):
                train_reference(spec, config, corpus, base_name, reporter)
    # ``base`` ends here: trained in place, it is no reference any more, and leaves its device to what is scored.
    return _Trained(data, mechanism, fixed, result, base_name, norms)


def _measure(config: RunConfig, trained: _Trained, out: Path, reporter: Reporter, taken: StageSeconds) -> Body:
    """Attack the trained model, and measure what it learned and what it emits."""
    data, base_name = trained.data, trained.base_name
    with taken.timed("scoring"):
        # Both from disk: the base model was trained in place and is no reference any more, and what is scored is what
        # is released.
        target, reference = target_and_reference(config, trained.result.folder, base_name)
        models = Models(target, reference, base_name)
        texts = texts_under_attack(config, data)
        statistics = score(Scoring(config, data, models, trained.mechanism, texts), out, reporter)
        in_full = config.model_copy(update={"attack": config.attack.model_copy(update={"precision": "fp32"})})
        precision = measured_shift(
            config.attack,
            texts,
            (target, reference),
            lambda: target_and_reference(in_full, trained.result.folder, base_name),
            config.seed,
            reporter,
        )
    with taken.timed("utility"):
        # The base model from disk too; it leads as a reference unless another is named.
        start = scored_base(config, base_name) if config.attack.reference else reference
        losses = measure_losses(config, data, target, start, out, reporter)
    with taken.timed("extraction"):
        extraction = measure_extraction(
            config,
            data,
            (target, reference),
            lambda: load_language_model(base_name, revision=config.model.revision),
            out,
            reporter,
        )
    with taken.timed("statistics"):
        found = replace(
            run_results(data, texts.texts, statistics, trained.fixed, reporter),
            losses=losses,
            precision=precision,
            extraction=extraction,
        )
        write_people(found.people, out / PEOPLE)
    return run_body(config, data, trained.mechanism, trained.result, models, found)
