"""``heldin audit --planted``: scores of a model that was trained on a planted training set meet the coins."""

import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heldin.attacks.protocol import TextStatistic
from heldin.audit.canary_groups import kinds_of
from heldin.audit.control import ControlFacts, ControlOutcome
from heldin.audit.exposure import PEOPLE, write_people
from heldin.audit.preregistration import Preregistration, Sides
from heldin.audit.results import Results
from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time, private_directory, text_sha256, whole_directory
from heldin.base.log_file import logged
from heldin.base.progress import Reporter
from heldin.bounds.claims import UnitClaim, parse_claim_of
from heldin.bounds.design import Assignment
from heldin.bounds.verdict import Claim
from heldin.canaries.kinds import Kind
from heldin.jobs.checkpoint.endpoint import remote_of, rule_at_endpoint
from heldin.jobs.config_files import first_difference
from heldin.jobs.environment import environment
from heldin.jobs.planted.body import Described, planted_body, planted_facts
from heldin.jobs.planted.conditions import LOG_FAULTS, Evidence, as_seen, conditions_of, found_changed
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.control import control_of
from heldin.jobs.planted.data import drawn_data
from heldin.jobs.planted.folder import AUDITS, CONTROL, home_of, read_form, read_planted, require_models, unseen_hash
from heldin.jobs.planted.log_counts import counts_of_log
from heldin.jobs.planted.looks import Look, look_at, note_change, write_look
from heldin.jobs.planted.plant import fingerprints
from heldin.jobs.planted.records import copied
from heldin.jobs.planted.target import (
    PlantedAudit,
    audited_run,
    models_here,
    models_in_full,
    opened,
    precision_beside,
    weights_of,
    window_of,
)
from heldin.jobs.planted.unseen import read_unseen
from heldin.jobs.run.data import RunData
from heldin.jobs.run.extraction import kept_extraction, measure_extraction
from heldin.jobs.run.models import Models, model_facts
from heldin.jobs.run.score_file import SCORES, read_scores
from heldin.jobs.run.scoring import score
from heldin.jobs.run.scoring_precision import measured_shift
from heldin.jobs.run.statistics import RunResults, canaries_alone, groups_judged, run_results
from heldin.jobs.run.texts import Scoring, scores_name, texts_under_attack
from heldin.jobs.run.utility import kept_losses, measure_losses
from heldin.models.loading import LanguageModel, load_language_model, same_tokens
from heldin.record.condition_words import condition_lines, unmet_flaws
from heldin.record.document import Body, Record, read_record, write_new_record
from heldin.record.masking import without_names
from heldin.record.planted import PlantedFacts, Reason, TrainingCounts
from heldin.watch.planted_files import LOG
from heldin.watch.training_log import hashes_in_folder
from heldin.words import Statement
from heldin.words.answer import ComparisonFlaw
from heldin.words.people import AUDITED, USERS

_LOOKED_AT = ("model", "claims", "endpoint", "precision")
_MOST = 0.9  # of the tokens: a few bear no loss where rows are packed or end


@dataclass(frozen=True)
class _Looking:
    """A look that is about to be taken: the audit, its number, and the models that are loaded here."""

    job: PlantedAudit
    look: Look
    reference: LanguageModel
    target: LanguageModel | None


def audit_planted(job: PlantedAudit, out: Path | None, reporter: Reporter, *, command: str) -> tuple[Record, Path]:
    """Score every audited user and canary user, note the look, and write scores and record.

    Args:
        out: folder for the results; None: ``audits/LOOK`` in the planted folder.

    Returns:
        The record, and the folder in which it is.

    Raises:
        InputError: the folder was changed, the training file or the model cannot be used, or ``out`` holds another
            audit.
    """
    job.check()
    config, manifest = read_planted(job.planted)
    run = audited_run(job, config, reporter)
    with one_process_at_a_time(job.planted):
        require_models(job.planted, fingerprints(config))
        reporter.say("models: loading target and reference")
        target, reference = models_here(job, config, run.attack.precision)
        look = look_at(job.planted, weights_of(job, target), job.claims, precision_beside(job, run))
        folder = out or job.planted / AUDITS / str(look.number)
        _take_folder(job, config, folder, planted_facts(manifest, look, job.declared_by, (), Evidence()))
        with logged(reporter, folder, command=without_names(command)) as kept:
            return _audited(_Looking(job, look, reference, target), folder, kept, command), folder


def _audited(its: _Looking, out: Path, reporter: Reporter, command: str) -> Record:
    job, look, reference = its.job, its.look, its.reference
    config, manifest = read_planted(job.planted)
    run = audited_run(job, config)
    seconds: dict[str, float] = {}
    started = time.monotonic()
    # Canary users are found by the fingerprint in float32, with which they were made.
    base = replace(reference, fingerprint=manifest.reference)
    data = drawn_data(config, manifest, job.planted, reporter, base)
    seconds["corpus"] = time.monotonic() - started
    started = time.monotonic()
    with opened(look, job, its.target, run, data, reporter) as (target, facts_of_target):
        reference = reference.within(window_of(target))
        models = Models(target, reference, config.reference)
        texts = texts_under_attack(run, data)
        statistics = score(Scoring(run, data, models, None, texts), out, reporter)
        precision = measured_shift(
            run.attack, texts, (target, reference), lambda: models_in_full(job, config, target), run.seed, reporter
        )
    # Before anything meets the coins, also the losses of who is held out: a look that was taken is paid for.
    write_look(look, job.planted)
    # Not behind an endpoint: it would be told whose test texts are asked for, which are those held out.
    losses = measure_losses(run, data, its.target, reference, out, reporter) if its.target else {}
    extraction = None
    if its.target:
        extraction = measure_extraction(
            run,
            data,
            (its.target, reference),
            lambda: load_language_model(config.reference, revision=config.revision),
            out,
            reporter,
        )
    seconds["scoring"] = time.monotonic() - started
    started = time.monotonic()
    described = Described(
        facts_of_target(),
        model_facts(reference, config.reference),
        per_text=not same_tokens(target.tokenizer, reference.tokenizer),
        added=rule_at_endpoint(job.remote),
    )
    late = copied(job.planted / "ledger").late
    tensors = () if job.remote or not Path(job.model).is_dir() else hashes_in_folder(Path(job.model))
    length = config.sequence_length
    training, fault = counts_of_log(
        job.planted / LOG, tensors, manifest, data, reference.tokenizer, late, length, reporter
    )
    _say_of_log(training, config, reporter)
    _keep_log(job.planted / LOG, out / LOG, kept=fault in (None, Reason.LOG_DAMAGED))
    loaded = None if its.target is None else (its.target, reference)
    unseen = read_unseen(job.planted / "ledger", unseen_hash(job.planted))
    control = control_of(data, late, unseen, loaded, out, reporter, length=length, of=_both(its.target, reference))
    evidence = Evidence(training, fault, control, read_form(job.planted))
    conditions = conditions_of(job.planted, manifest, look, job.declared_by, evidence, described.target.endpoint)
    if found_changed(conditions):
        note_change(look, job.planted)
    facts = planted_facts(manifest, look, job.declared_by, conditions, evidence)
    for line in condition_lines(facts):
        reporter.say(line)
    found = planted_results(job, config, data, statistics, facts, reporter)
    found = replace(found, losses=losses, precision=precision, extraction=extraction)
    write_people(found.people, out / PEOPLE)
    seconds["statistics"] = time.monotonic() - started
    body = planted_body(job.recorded(), config, data, described, found, facts)
    return write_new_record(body, environment(seconds), out, name=config.name, command=without_names(command))


def planted_results(
    job: PlantedAudit,
    config: PlantConfig,
    data: RunData,
    statistics: Sequence[TextStatistic],
    facts: PlantedFacts,
    reporter: Reporter,
) -> RunResults:
    """Join scores with coins and judge, at the share of this look.

    Args:
        facts: conditions of certified statements, and the positive control.
    """
    run, fixed = audited_run(job, config), judged_as(job, config, data, unmet_flaws(facts))
    texts, control = texts_under_attack(run, data), facts.control
    flaws = [ComparisonFlaw.NO_EFFECT()] if control is not None and control.outcome is ControlOutcome.NO_EFFECT else []
    found = run_results(data, texts.texts, statistics, fixed, reporter, flaws)
    # An attack on fresh texts may find less: it is not given the rows whose losses the control looks at.
    if control is not None and "training" in run.attack.documents and _misses(found.results, control, data):
        found = run_results(data, texts.texts, statistics, fixed, reporter, [*flaws, ComparisonFlaw.ATTACK_MISSES()])
    return found


def _misses(results: Results, control: ControlFacts, data: RunData) -> bool:
    """Return whether the attack plainly tells canary users less well than the losses of their rows do."""
    groups = [] if results.canaries is None else results.canaries.groups
    found = [results.attacks[0].auroc] if canaries_alone(data) else [group.auroc for group in groups]
    limits = [auroc.upper for auroc in found if auroc is not None]
    return bool(limits) and control.canary_lower is not None and max(limits) < control.canary_lower


def judged_as(
    job: PlantedAudit, config: PlantConfig, data: RunData, unmet: tuple[Statement, ...] = ()
) -> Preregistration:
    """What is judged and at which share of the error probability, all of it fixed before scores met coins.

    Args:
        unmet: why nothing is certified; empty if every condition is met.
    """
    run, claims = audited_run(job, config), [parse_claim_of(text) for text in job.claims]
    of_users = [its.claim for its in claims if its.unit == "user"]
    of_examples = [its.claim for its in claims if its.unit == "example"]
    people = data.real(data.ledger.scored_users()) or data.canaries
    return Preregistration(
        run.attack,
        run.audit,
        run.decision,
        Sides(Assignment.COIN, witnessed=True, unmet=unmet),
        [*of_users, *_of_groups(claims, data, people)],
        config.seed,
        # Groups of people and looks share the level; a claim about examples is tested on each group once more.
        config.looks * groups_judged(data) * (2 if of_examples else 1),
        {
            kind.value: [*of_users, *_of_groups(claims, data, _of_kind(data, kind))]
            for kind in kinds_of(data.canaries)
            if any(its.event for its in claims)
        },
        wording=AUDITED["canaries"] if canaries_alone(data) else USERS,
        example_claims=of_examples,
    )


def _of_groups(claims: Sequence[UnitClaim], data: RunData, users: Iterable[str]) -> list[Claim]:
    """What claims about examples promise these users, by the largest number of examples that one of them has."""
    most = max(len(data.for_training(user)) for user in users)
    return [claim for its in claims if (claim := its.of_group(most)) is not None]


def _of_kind(data: RunData, kind: Kind) -> list[str]:
    return [user for user, its in data.canaries.items() if its.kind is kind]


def planted_again(folder: Path, record: Record, reporter: Reporter) -> Body:
    """The body of a planted audit's record, from its scores, the planted folder and the models; no model is run.

    Args:
        record: its record.

    Raises:
        InputError: the planted folder, the training file or a model is gone or was changed.
    """
    asked, facts = record.config, record.planted
    assert facts is not None
    job = PlantedAudit(
        home_of(folder, asked["planted"]),
        asked["model"],
        tuple(asked["claims"]),
        asked["declared_by"],
        None if asked["endpoint"] is None else remote_of(asked["endpoint"]),
        asked["precision"],
    )
    config, manifest = read_planted(job.planted)
    run = audited_run(job, config)
    require_models(job.planted, fingerprints(config))
    # Loaded for fingerprints and sizes, and never run; what an endpoint serves cannot be looked at again.
    target, reference = models_here(job, config, run.attack.precision)
    described = Described(record.target, model_facts(reference, config.reference), record.per_text)
    if target is not None:
        per_text = not same_tokens(target.tokenizer, reference.tokenizer)
        described = replace(described, target=model_facts(target, asked["model"]), per_text=per_text)
        look = look_at(job.planted, target.fingerprint, job.claims)
    else:
        described = replace(described, added=rule_at_endpoint(job.remote))
        look = Look(facts.look, described.target.fingerprint, job.claims)
    data = drawn_data(config, manifest, job.planted, reporter, replace(reference, fingerprint=manifest.reference))
    if described.target.endpoint is not None:
        reference = reference.within(described.target.endpoint.window)
        described = replace(described, reference=model_facts(reference, config.reference))
    of = scores_name(run, texts_under_attack(run, data), described.target.fingerprint, reference.fingerprint)
    statistics = read_scores(folder / SCORES, of=of)
    if statistics is None:
        raise InputError(
            f"'{folder / 'scores.parquet'}' is missing, damaged, or of other models or texts than the record names"
        )
    late = copied(job.planted / "ledger").late
    tensors = () if target is None or not Path(job.model).is_dir() else hashes_in_folder(Path(job.model))
    length = config.sequence_length
    training, fault = counts_of_log(folder / LOG, tensors, manifest, data, reference.tokenizer, late, length, reporter)
    if training is None and facts.training is not None:
        raise InputError(f"'{folder / LOG}' is gone or damaged, and the record rests on it: restore it")
    if training is None:
        # The log in the planted folder may have been another one since.
        fault = next((c.reasons[0] for c in facts.conditions if c.reasons[0] in LOG_FAULTS), fault)
    unseen = read_unseen(job.planted / "ledger", unseen_hash(job.planted))
    control = control_of(data, late, unseen, None, folder, reporter, length=length, of=_both(target, reference))
    if control is None and facts.control is not None:
        raise InputError(f"'{folder / CONTROL}' is gone or damaged, and the record rests on it: restore it")
    evidence = Evidence(training, fault, control, read_form(job.planted))
    now = conditions_of(job.planted, manifest, look, job.declared_by, evidence, described.target.endpoint)
    conditions = as_seen(facts.conditions, now)
    again = planted_facts(manifest, look, job.declared_by, conditions, evidence)
    losses = {}
    if target is not None:
        losses = kept_losses(run, data, folder, target=target.fingerprint, base=reference.fingerprint)
    extraction = kept_extraction(
        run, data, folder, target=described.target.fingerprint, reference=reference.fingerprint
    )
    found = planted_results(job, config, data, statistics, again, reporter)
    found = replace(found, losses=losses, precision=record.precision, extraction=extraction)
    named = {**job.recorded(), "planted": asked["planted"], "model": asked["model"]}
    return planted_body(named, config, data, described, found, again)


def _say_of_log(training: TrainingCounts | None, config: PlantConfig, reporter: Reporter) -> None:
    """Say where training counted the loss on another part of a row than the audit scores."""
    share = None if training is None else training.loss_share_others
    if share is None or (share < _MOST) != (config.score == "all"):
        return
    counted_on = "all tokens" if share >= _MOST else f"{100 * share:.0f} % of the tokens"
    scored = "all of them" if config.score == "all" else f"those of {config.scored_part}"
    reporter.say(f"training log: training counted the loss on {counted_on}, and the audit scores {scored}")


def _keep_log(log: Path, to: Path, *, kept: bool) -> None:
    """Copy the log to the audit's folder: the next training adds to the one in the planted folder."""
    if kept and log.is_dir():
        with whole_directory(to) as temporary:
            shutil.copytree(log, temporary, dirs_exist_ok=True)


def _both(target: LanguageModel | None, reference: LanguageModel) -> str:
    return "" if target is None else text_sha256(target.fingerprint, reference.fingerprint)


def _take_folder(job: PlantedAudit, config: PlantConfig, out: Path, facts: PlantedFacts) -> None:
    """Make the folder, or find in it this audit.

    Args:
        out: the folder.
        facts: what the record will say of the look.
    """
    private_directory(out)
    if not (out / "record.json").is_file():
        return
    found = read_record(out / "record.json")
    # Who declares, and where the folder lies, is no part of what was looked at.
    asked, kept = ({name: its[name] for name in _LOOKED_AT} for its in (job.recorded(), found.config))
    for its in (asked, kept):
        its["precision"] = its["precision"] or config.attack.precision
    changed = first_difference(kept, asked)
    # The weights may be others under the same name, and the coins under the same config.
    if found.planted is None or (found.planted.look, found.planted.planted) != (facts.look, facts.planted):
        changed = changed or "look"
    if changed:
        raise InputError(f"'{out}' holds an audit with another '{changed}': choose another --out")
