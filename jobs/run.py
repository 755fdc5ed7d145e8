"""One run, from corpus to record. Each stage writes a file to the run folder, and runs only once.

config.yaml  ledger/  plan.json  previous.json  checkpoints/  scores.parquet  record.json  seconds.json  log.txt
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from heldin.audit.exposed_users import PEOPLE, write_people
from heldin.audit.preregistration import Preregistration
from heldin.base.errors import InputError
from heldin.base.files import cache_directory, one_process_at_a_time, private_directory
from heldin.base.kinds import origins_in
from heldin.base.progress import LineReporter, Reporter, logged
from heldin.base.wording import counted
from heldin.bounds.power import forecast
from heldin.defenses.mechanism import Mechanism
from heldin.defenses.plan_file import read_plan
from heldin.finetune.checkpoints import ADAPTER
from heldin.finetune.loop import TrainingResult
from heldin.finetune.ranks import first_process_first, joined, rank, require_like_devices, require_shared_folder
from heldin.models.adapters import require_losses_of
from heldin.models.loading import LanguageModel
from heldin.models.model_names import fingerprint_in
from heldin.models.opening import load_language_model
from heldin.models.tokens import as_read, same_tokens
from heldin.record.document import Body, Record, masked, read_record, without_names, write_new_record
from heldin.record.facts import GradientNorms, ScoredTexts
from heldin.stages.environment import environment
from heldin.stages.measures.measure import MeasureFolder, model_facts, named_model
from heldin.stages.measures.scores import left_out, scored_part, scoring_rule
from heldin.stages.run_config import RunConfig
from heldin.stages.run_folder import StageSeconds, for_any_config_without_coins, take_folder
from heldin.stages.run_measures import RunModels, measures_of_run, scores_of_run
from heldin.stages.sides.corpus import corpus_facts, read_corpus
from heldin.stages.sides.data import RunData, check_measures, needs_base, prepare_data
from heldin.stages.sides.panels import judge_run, preregistered
from heldin.stages.sides.split_facts import split_facts
from heldin.stages.train.models import (
    base_model,
    check_references,
    require_arithmetic,
    scored_base,
    target_and_reference,
    train_references,
    trained_references,
)
from heldin.stages.train.plan import configured_mechanism, read_run_config, require_mechanism, settle_plan
from heldin.stages.train.previous import keep_previous, require_previous
from heldin.stages.train.tracking import is_reported, live_log, require_trackers, run_trackers
from heldin.stages.train.training import (
    finetune,
    finished_training,
    measured_clip_norm,
    require_model_of_training,
    require_trained_under,
)
from heldin.stages.train.training_facts import canary_gradient_norms, effort_facts, training_facts
from heldin.words.guarantee import ModelText

_RECORDS_OF_ADAPTER = 8


def run(config: RunConfig, out: Path, reporter: Reporter, *, command: str) -> Record | None:
    """Complete the run in ``out``, and return the record.

    Under ``torchrun`` every process calls this function. The first process prepares the run, all processes train, and
    the first process writes the results.

    Args:
        config: config of the run; the same as in an earlier, unfinished run in ``out``.

    Returns:
        The record. None if a filter halted training (this is a result, without a model). None also in all processes
        except the first.

    Raises:
        InputError: ``out`` contains a run of another config, another process works in it, or the input is unusable.
        ResumableError: training diverged.
    """
    # Before the folder: a mechanism that cannot be leaves nothing behind.
    require_mechanism(config)
    require_arithmetic(config)
    require_previous(config, out)
    require_trackers(config)
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
                f"halted after {trained.result.steps} steps, because the users' gradients are not within tau of"
                " each other. This is a result; heldin releases no model"
            )
            return None
        body = _body(config, trained, MeasureFolder(out, reporter, timed=taken.timed))
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
    """The trained model, and the data that the measures need.

    Attributes:
        data: corpus and ledger.
        mechanism: mechanism of the training.
        fixed: choices that were fixed before heldin saw any score.
        base_name: hub name or folder of the model with which training began.
        norms: gradient norms of canary users at the base model; None without canary users, and in all processes except
            the first.
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
    """Take the folder, in every process. Return a reporter that also writes the folder's log."""
    with first_process_first():
        take_folder(config, out)
        if rank() == 0:
            # Held until the record is written: the block of ``torchrun`` ends before scoring.
            until_the_end.enter_context(one_process_at_a_time(out))
            until_the_end.enter_context(for_any_config_without_coins(out))
            taken.keep_in(out)
            reporter = until_the_end.enter_context(logged(reporter, out, command=without_names(command)))
            if (out / "record.json").is_file():
                reporter.say("already finished: heldin makes only missing files, and keeps an unchanged record")
    require_shared_folder(out)
    require_shared_folder(private_directory(cache_directory()))
    require_like_devices()
    return reporter


def _train(config: RunConfig, out: Path, reporter: Reporter, taken: StageSeconds) -> _Trained:
    """Run the stages that all processes share, from corpus to trained model, and return the result."""
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
        check_measures(config, data, base)
    with taken.timed("fine-tuning"):
        # Before ``finetune``, which changes the base model's weights in place.
        alone = rank() == 0 and config.finetune.shard is None
        norms = canary_gradient_norms(config, data, base) if alone else None
        # Not inside the block below: it trains, and all processes take part.
        clip_norm = measured_clip_norm(config, data, base, out, reporter)
        with first_process_first():
            # The plan is on disk before the first step: nothing that training shows can change what is claimed.
            mechanism = settle_plan(config, data, out, clip_norm=clip_norm)
            keep_previous(config, out, reporter.say)
            fixed = preregistered(config, data, mechanism)
            # What the audit could find at best, before training is paid for.
            real, wording = len(data.real(data.ledger.scored_users())), fixed.wording
            for line in forecast(
                real, fixed.audit.delta, fixed.claims, units=wording.unit, unit=wording.singular, sharing=fixed.judged
            ):
                reporter.say(line)
        if rank() == 0 and not is_reported(config, out):
            with run_trackers(config, out, reporter.say) as trackers:
                log = live_log(config, mechanism, trackers)
                result = finetune(config, data, base, mechanism, out, reporter, log)
        else:
            result = finetune(config, data, base, mechanism, out, reporter)
    if not result.halted and trained_references(config):
        with taken.timed("reference models"):
            # Not in the scoring stage, which is the first process's alone.
            train_references(config, corpus, base_name, reporter)
    # ``base`` ends here: trained in place, it is no reference any more, and leaves its device to what is scored.
    return _Trained(data, mechanism, fixed, result, base_name, norms)


def run_again(folder: Path, reporter: Reporter) -> Body:
    """Return the body of a finished run's record, recomputed from the folder's files without running a model.

    Raises:
        InputError: a file is missing or damaged, or belongs to another run.
    """
    config = read_run_config(folder)
    # Without this a lost ledger would be drawn anew, under a new key, in the folder that is to be checked.
    if not (folder / "ledger" / "ledger.json").is_file():
        raise InputError(f"'{folder}' has no ledger, so members are unknown: restore it from a backup")
    corpus = read_corpus(config, reporter)
    # Loaded early only if canary users or a ranked cap need it: otherwise a folder that fails below fails fast.
    early = base_model(config, corpus, reporter) if needs_base(config) else None
    data = prepare_data(config, folder, reporter, corpus, early[1] if early else None)
    plan = read_plan(folder / "plan.json")
    mechanism = configured_mechanism(config, plan, config.finetune.steps(len(data.training_rows)))
    if plan != mechanism:
        changed = [name for name in Mechanism.model_fields if getattr(plan, name) != getattr(mechanism, name)]
        raise InputError(
            f"'{folder / 'plan.json'}' differs from the plan of config.yaml ({', '.join(changed)}): restore this file"
        )
    require_trained_under(folder, plan)
    require_model_of_training(folder)
    base_name = early[0] if early else config.model.base or base_model(config, corpus, reporter)[0]
    if config.model.pretrain is not None and config.attack.reference is None:
        recorded = read_record(folder / "record.json", checked=False).reference.fingerprint
        if fingerprint_in(base_name, None, config.attack.precision) != recorded:
            raise InputError(
                f"'{folder}': the base model in '{base_name}' differs from the record's base model, because"
                " pre-training on another machine can change last digits. Copy the base model's folder from the"
                " cache of the machine that made the run"
            )
    training = finished_training(folder, config)
    trained = _Trained(data, plan, preregistered(config, data, plan), training, base_name, None)
    return _body(config, trained, MeasureFolder(folder, reporter, read_only=True))


def _body(config: RunConfig, trained: _Trained, folder: MeasureFolder) -> Body:
    """Return the body of the record. Measures and judges the trained model, or reads its measurements."""
    data, mechanism = trained.data, trained.mechanism
    with folder.timed("scoring"):
        models = _models(config, trained)
        if config.finetune.lora is not None and not folder.read_only:
            _check_adapter(config, trained, models, folder.reporter)
    scores = scores_of_run(config, data, models, mechanism, folder.path)
    statistics = folder.values_of(scores)
    facts = folder.facts_of(measures_of_run(config, data, models), data.ledger.membership)
    with folder.timed("statistics"):
        judged = judge_run(data, scores.texts.whole(), statistics, trained.fixed, folder.reporter)
    if not folder.read_only:
        write_people(judged.people, folder.path / PEOPLE)
    assert isinstance(models.target, LanguageModel)  # a run's own is loaded here
    # The folder of a base model that was pre-trained here is a path of this machine: not for the record.
    base = config.model.base
    per_text = not same_tokens(models.target.tokenizer, models.reference.tokenizer)
    return Body(
        **dict(judged.results),
        config=masked(config.model_dump(mode="json")),
        corpus=corpus_facts(data.corpus),
        split=split_facts(config, data),
        target=model_facts(models.target, ModelText.FINE_TUNED_FROM(base=base) if base else ModelText.FINE_TUNED()),
        reference=model_facts(models.reference, named_model(config.attack.reference or base)),
        training=training_facts(config, data, mechanism, trained.result, folder.path),
        primary_attack=judged.results.attacks[0].attack,
        attacker_texts=judged.texts,
        # Measured: heldin set the fresh texts aside itself, before the coins.
        scored_texts=ScoredTexts(kind=config.attack.documents[0], known_by="measured"),
        scoring_rule=scoring_rule(
            config.attack.max_characters,
            scored_part(data.corpus.reading, [data.store]),
            chats=data.corpus.reading.template is not None,
        ),
        per_text=per_text,
        left_out=left_out(config.attack.names, per_text=per_text, pairs=data.corpus.reading.format.has_pairs),
        resamples=config.audit.resamples,
        cell=data.cell,
        effort=effort_facts(trained.result),
        measures=facts,
        kinds=origins_in(config),
    )


def _check_adapter(config: RunConfig, trained: _Trained, models: RunModels, reporter: Reporter) -> None:
    """Load the adapter in the way of its users, and check that its losses on a few records match the trained
    model's."""
    assert isinstance(models.target, LanguageModel)
    rows = trained.data.training_rows[:_RECORDS_OF_ADAPTER]
    documents = trained.data.corpus.bearing_loss(trained.data.store.documents_at(rows))
    texts = [as_read(document.cut(config.attack.max_characters)) for document in documents]
    precision = config.attack.precision
    base = load_language_model(trained.base_name, revision=config.model.revision, precision=precision)
    apart = require_losses_of(models.target, trained.result.folder / ADAPTER, base, texts, precision)
    reporter.say(
        "adapter: on its base model, the adapter has the losses of the trained model on"
        f" {counted(len(texts), 'record')}, to {apart:.1g} nats per token"
    )


def _models(config: RunConfig, trained: _Trained) -> RunModels:
    """Load the measured models from disk: training changed the base model in memory, and scores must use released
    files.

    The primary reference is the model before fine-tuning, unless the config names another model.
    """
    name = trained.base_name
    target, reference = target_and_reference(config, trained.result.folder, name)
    in_full = config.model_copy(update={"attack": config.attack.model_copy(update={"precision": "fp32"})})
    return RunModels(
        target,
        reference,
        scored_base(config, name) if config.attack.reference else reference,
        name,
        lambda: target_and_reference(in_full, trained.result.folder, name),
        lambda: load_language_model(name, revision=config.model.revision),
    )
