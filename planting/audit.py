"""``heldin audit-planted``: score a model that was trained on a planted training set, and compare scores with coins."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heldin.attacks.protocol import TextStatistic
from heldin.audit.canary_groups import kinds_of
from heldin.audit.exposed_users import PEOPLE, write_people
from heldin.audit.preregistration import Preregistration, Sides
from heldin.audit.results import Results
from heldin.base.artefacts import artefact_folder
from heldin.base.errors import InputError
from heldin.base.files import one_process_at_a_time, private_directory
from heldin.base.progress import Reporter, logged
from heldin.bounds.design import Assignment
from heldin.bounds.plan_claims import UnitClaim, parse_claim_of
from heldin.bounds.verdict import Claim
from heldin.jobs.checkpoint.body import rule_at_endpoint
from heldin.jobs.checkpoint.endpoint import remote_of
from heldin.models.fingerprints import fingerprint_in_folder
from heldin.models.loading import LanguageModel, say_how_loaded
from heldin.models.opening import load_language_model
from heldin.models.score_cache import ScoredModel
from heldin.models.tokens import same_tokens
from heldin.planting.body import Described, counts_of_log, planted_body, planted_facts
from heldin.planting.condition_checks import LOG_FAULTS, PlantedEvidence, as_seen, conditions_of, found_changed
from heldin.planting.control import Control, ControlSample, read_unseen
from heldin.planting.looks import Look, look_at, note_change, write_look
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_data import drawn_data
from heldin.planting.plant_folder import (
    Manifest,
    fingerprints,
    planned_noticing,
    read_form,
    read_planted,
    require_models,
    unseen_hash,
)
from heldin.planting.positive_control import not_measured
from heldin.planting.records import copied
from heldin.planting.target import (
    PlantedAudit,
    audited_run,
    has_other_base,
    models_here,
    models_in_full,
    opened,
    precision_beside,
    weights_of,
    window_of,
    with_precision,
)
from heldin.record.condition_words import condition_lines, unmet_flaws, unshown_flaws
from heldin.record.document import Body, Record, read_record, without_names, write_new_record
from heldin.record.facts import ModelFacts
from heldin.record.planted_facts import ControlFacts, ControlOutcome, PlantedFacts, Reason, TrainingCounts
from heldin.record.planted_files import AUDITS, LOG, home_of
from heldin.stages.config_files import first_difference
from heldin.stages.environment import environment
from heldin.stages.measures.measure import MeasureFolder, loaded, model_facts, named_model
from heldin.stages.measures.scores import TextScores
from heldin.stages.run_config import RunConfig
from heldin.stages.run_folder import StageSeconds
from heldin.stages.run_measures import RunModels, measures_of_run, precision_of_run, scores_of_run
from heldin.stages.sides.data import RunData, texts_under_attack
from heldin.stages.sides.panels import (
    JudgedRun,
    canaries_alone,
    example_panels,
    judge_run,
    kind_panels,
    users_of_kind,
)
from heldin.words.answer import ComparisonFlaw
from heldin.words.people import AUDITED, USERS
from heldin.words.statement import Statement

_LOOKED_AT = ("model", "adapter_base", "claims", "endpoint", "precision")
_MOST = 0.9  # of the tokens: a few bear no loss where rows are packed or end


def audit_planted(job: PlantedAudit, out: Path | None, reporter: Reporter, *, command: str) -> tuple[Record, Path]:
    """Score every audited user and canary user, record the look, and write the scores and the record.

    Args:
        out: folder for the results; None: ``audits/LOOK`` in the planted folder.

    Returns:
        The record, and its folder.

    Raises:
        InputError: the folder was changed, the training file or the model is unusable, or ``out`` contains another
            audit.
    """
    job.check()
    config, manifest = read_planted(job.planted)
    job = with_precision(job, config)
    asked = _Asked(job, config, manifest, audited_run(job, config, reporter))
    with one_process_at_a_time(job.planted):
        require_models(job.planted, fingerprints(config))
        reporter.say("models: loading target and reference")
        target, reference = models_here(job, config, asked.run.attack.precision)
        say_how_loaded(target, reporter.say)
        look = look_at(job.planted, weights_of(job, target), job.claims, precision_beside(job, asked.run))
        folder = out or job.planted / AUDITS / str(look.number)
        _take_folder(job, config, folder, planted_facts(manifest, look, job.declared_by, (), PlantedEvidence()))
        with logged(reporter, folder, command=without_names(command)) as kept:
            body, seconds = _audited(asked, look, (target, reference), folder, kept)
            name, hidden = config.name, without_names(command)
            return write_new_record(body, environment(seconds), folder, name=name, command=hidden), folder


@dataclass(frozen=True)
class _Asked:
    """A requested audit with its planted set, which is read only once.

    Attributes:
        run: the config of a run with the audit's attacks and precision.
    """

    job: PlantedAudit
    config: PlantConfig
    manifest: Manifest
    run: RunConfig

    def data(self, reference: LanguageModel, reporter: Reporter) -> RunData:
        """Return the users, canary users and coins."""
        # Canary users are found by the fingerprint in float32, with which they were made.
        base = replace(reference, fingerprint=self.manifest.reference)
        return drawn_data(self.config, self.manifest, self.job.planted, reporter, base)

    def models(self, target: ScoredModel | ModelFacts, reference: LanguageModel) -> RunModels:
        """Return the models, with functions that load further models."""
        job, config = self.job, self.config
        return RunModels(
            target,
            reference,
            # Nothing else is known of what the target was before its training.
            reference,
            config.reference,
            lambda: models_in_full(job, config, loaded(target)),
            lambda: load_language_model(config.reference, revision=config.revision),
        )


@dataclass(frozen=True)
class _Audit:
    """The state of an audit during its measurements.

    Attributes:
        models: target and reference, with functions that load further models.
    """

    asked: _Asked
    look: Look
    data: RunData
    models: RunModels

    def scores(self, out: Path) -> TextScores:
        """Return the measure that scores every attack."""
        return scores_of_run(self.asked.run, self.data, self.models, None, out)

    def control(self) -> Control | None:
        """Return the positive control; None if there are no canary users, or if the target is behind an endpoint."""
        if not (self.data.canaries and isinstance(self.models.target, LanguageModel)):
            return None
        planted = self.asked.job.planted
        unseen = read_unseen(planted / "ledger", unseen_hash(planted))
        sample = ControlSample(self.data, copied(planted / "ledger").late, unseen)
        both = (self.models.target, self.models.reference)
        return Control(sample, both, self.asked.config.sequence_length, planned_noticing(planted))


def _audited(
    asked: _Asked, look: Look, local: tuple[LanguageModel | None, LanguageModel], out: Path, reporter: Reporter
) -> tuple[Body, dict[str, float]]:
    """Measure, record the look, and judge. Return the body of the record, and the seconds of each stage.

    Args:
        local: the target (None if it is behind an endpoint) and the reference.
    """
    job, seconds = asked.job, StageSeconds()
    target_here, reference = local
    with seconds.timed("corpus"):
        data = asked.data(reference, reporter)
    folder = MeasureFolder(out, reporter, timed=seconds.timed)
    with opened(look, job, target_here, asked.run, data, reporter) as (target, facts_of_target):
        models = asked.models(target, reference.within(window_of(target)))
        audit = _Audit(asked, look, data, models)
        folder.values_of(audit.scores(out))
        for precision in precision_of_run(asked.run, data, models):
            folder.values_of(precision)
    # Before anything meets the coins, also the losses of who is held out: a look that was taken is paid for.
    write_look(look, job.planted)
    described = Described(
        facts_of_target(),
        model_facts(models.reference, named_model(asked.config.reference)),
        per_text=not same_tokens(target.tokenizer, models.reference.tokenizer),
        added=rule_at_endpoint(job.remote),
    )
    return _body(audit, described, folder, job.planted / LOG, None), seconds.seconds


def planted_again(folder: Path, record: Record, reporter: Reporter) -> Body:
    """Return the body of a planted audit's record, recomputed from tables, the planted folder and model files.

    No model runs.

    Raises:
        InputError: the planted folder, the training file or a model is missing or was changed.
    """
    kept, facts = record.config, record.planted
    assert facts is not None
    job = PlantedAudit(
        home_of(folder, kept["planted"]),
        kept["model"],
        tuple(kept["claims"]),
        kept["declared_by"],
        None if kept["endpoint"] is None else remote_of(kept["endpoint"]),
        kept["precision"],
        kept["adapter_base"],
    )
    config, manifest = read_planted(job.planted)
    asked = _Asked(job, config, manifest, audited_run(job, config))
    require_models(job.planted, fingerprints(config))
    # Loaded for fingerprints and sizes, and never run; what an endpoint serves cannot be audited again.
    target, reference = models_here(job, config, asked.run.attack.precision)
    data = asked.data(reference, reporter)
    if target is not None:
        look = look_at(job.planted, target.fingerprint, job.claims)
        described = Described(
            model_facts(target, named_model(kept["model"])),
            model_facts(reference, named_model(config.reference)),
            per_text=not same_tokens(target.tokenizer, reference.tokenizer),
        )
    else:
        look = Look(facts.look, record.target.fingerprint, job.claims)
        assert record.target.endpoint is not None
        reference = reference.within(record.target.endpoint.window)
        described = Described(
            record.target,
            model_facts(reference, named_model(config.reference)),
            record.per_text,
            rule_at_endpoint(job.remote),
        )
    audit = _Audit(asked, look, data, asked.models(target or record.target, reference))
    body = _body(audit, described, MeasureFolder(folder, reporter, read_only=True), folder / LOG, facts)
    return body.model_copy(update={"config": {**body.config, "planted": kept["planted"], "model": kept["model"]}})


def _body(audit: _Audit, described: Described, folder: MeasureFolder, log: Path, before: PlantedFacts | None) -> Body:
    """Judge the measurements, and return the body of the record. Reads measurements from files if they exist.

    Args:
        before: facts in the existing record, for a verification; None if there is no record yet.
    """
    asked, data, reporter = audit.asked, audit.data, folder.reporter
    job, config, manifest = asked.job, asked.config, asked.manifest
    statistics = folder.values_of(audit.scores(folder.path))
    measures = folder.facts_of(measures_of_run(asked.run, data, audit.models), data.ledger.membership)
    with folder.timed("statistics"):
        evidence = _evidence(audit, folder, log, before)
        now = conditions_of(job.planted, manifest, audit.look, job.declared_by, evidence, described.target.endpoint)
        conditions = now if before is None else as_seen(before.conditions, now)
        facts = planted_facts(manifest, audit.look, job.declared_by, conditions, evidence)
        if before is None:
            _say_of_log(evidence.training, config, reporter)
            _keep_log(log, folder.path / LOG, kept=evidence.fault in (None, Reason.LOG_DAMAGED))
            if found_changed(conditions):
                note_change(audit.look, job.planted)
            for line in condition_lines(facts):
                reporter.say(line)
        judged = _judged(audit, statistics, facts, reporter)
        if before is None:
            write_people(judged.people, folder.path / PEOPLE)
    return planted_body(job.recorded(), config, data, described, judged, facts, measures)


def _evidence(audit: _Audit, folder: MeasureFolder, log: Path, before: PlantedFacts | None) -> PlantedEvidence:
    """Return the audit's evidence about how the model was trained.

    Raises:
        InputError: the record is based on a log that is missing or damaged.
    """
    asked, reporter = audit.asked, folder.reporter
    job, config, manifest = asked.job, asked.config, asked.manifest
    here = isinstance(audit.models.target, LanguageModel) and Path(job.model).is_dir()
    training, fault = counts_of_log(
        log,
        fingerprint_in_folder(Path(job.model), job.adapter_base) if here else None,
        manifest,
        audit.data,
        audit.models.reference.tokenizer,
        copied(job.planted / "ledger").late,
        config.sequence_length,
        reporter,
    )
    if before is not None and training is None:
        if before.training is not None:
            raise InputError(f"'{log}' is missing or damaged, but the record is based on this log: restore this file")
        # The log in the planted folder may have been another one since.
        fault = next((c.reasons[0] for c in before.conditions if c.reasons[0] in LOG_FAULTS), fault)
    control = audit.control()
    facts = None if control is None else control.facts(folder.values_of(control), {})
    if facts is None and audit.data.canaries:
        held_in = sum(audit.data.canary_membership().values())
        facts = not_measured(held_in=held_in, held_out=len(audit.data.canaries) - held_in)
    other_base = here and has_other_base(job, manifest.reference)
    return PlantedEvidence(training, fault, facts, read_form(job.planted), other_base)


def _judged(audit: _Audit, statistics: Sequence[TextStatistic], facts: PlantedFacts, reporter: Reporter) -> JudgedRun:
    """Join scores with coins, and judge the claims with this look's share of the error probability.

    Args:
        facts: conditions for certified statements, and the positive control.
    """
    data, asked, control = audit.data, audit.asked, facts.control
    run = asked.run
    fixed = judged_as(asked.job, asked.config, run, data, unmet_flaws(facts), unshown_flaws(facts))
    texts = texts_under_attack(run, data).whole()
    flaws = [ComparisonFlaw.NO_EFFECT()] if control is not None and control.outcome is ControlOutcome.NO_EFFECT else []
    judged = judge_run(data, texts, statistics, fixed, reporter, flaws)
    # An attack on fresh texts may find less: it is not given the rows whose losses the control looks at.
    if control is not None and "training" in run.attack.documents and _misses(judged.results, control, data):
        judged = judge_run(data, texts, statistics, fixed, reporter, [*flaws, ComparisonFlaw.ATTACK_MISSES()])
    return judged


def _misses(results: Results, control: ControlFacts, data: RunData) -> bool:
    """Return whether the attack finds canary users clearly less well than the loss of the users' rows does."""
    groups = [] if results.canaries is None else results.canaries.groups
    aurocs = [results.attacks[0].auroc] if canaries_alone(data) else [group.auroc for group in groups]
    limits = [auroc.upper for auroc in aurocs if auroc is not None]
    return bool(limits) and control.canary_lower is not None and max(limits) < control.canary_lower


def judged_as(
    job: PlantedAudit,
    config: PlantConfig,
    run: RunConfig,
    data: RunData,
    unmet: tuple[Statement, ...] = (),
    unshown: tuple[Statement, ...] = (),
) -> Preregistration:
    """Return the hypotheses and the share of the error probability of each hypothesis, as fixed before heldin joined
    scores with coins.

    Args:
        run: the config of a run with the audit's attacks.
        unmet: reasons why no statement is certified; empty if all conditions are met.
        unshown: reasons why heldin certifies no "not contradicted" by canary users; empty if the control shows that
            canary rows had an effect.
    """
    claims = [parse_claim_of(text) for text in job.claims]
    of_users = [claim.claim for claim in claims if not claim.of_examples]
    of_examples = [claim.claim for claim in claims if claim.of_examples]
    kinds = {
        kind: [*of_users, *_of_groups(claims, data, users_of_kind(data, kind))] for kind in kinds_of(data.canaries)
    }
    panels = [*kind_panels(data, kinds), *example_panels(data, of_examples)]
    people = data.real(data.ledger.scored_users()) or data.canaries
    fixed = Preregistration(
        run.attack,
        run.audit,
        run.decision,
        Sides(Assignment.COIN, witnessed=True, unmet=unmet, unshown=unshown),
        [*of_users, *_of_groups(claims, data, people)],
        config.seed,
        # Panels and looks share the level.
        config.looks * (1 + len(panels)),
        AUDITED["canaries"] if canaries_alone(data) else USERS,
        panels,
    )
    return fixed.by_level(None if run.release is None else run.release.access)


def _of_groups(claims: Sequence[UnitClaim], data: RunData, users: Iterable[str]) -> list[Claim]:
    """Return claims about examples as claims about these users, for the largest number of examples of any user."""
    most = max(len(data.for_training(user)) for user in users)
    return [group for claim in claims if (group := claim.of_group(most)) is not None]


def _say_of_log(training: TrainingCounts | None, config: PlantConfig, reporter: Reporter) -> None:
    """Report if training counted the loss on other parts of rows than the audit scores."""
    share = None if training is None else training.loss_share_others
    if share is None or (share < _MOST) != (config.score == "all"):
        return
    counted_on = "all tokens" if share >= _MOST else f"{100 * share:.0f} % of the tokens"
    scored = "all of them" if config.score == "all" else f"those of {config.scored_part}"
    reporter.say(f"training log: training counted the loss on {counted_on}, but the audit scores {scored}")


def _keep_log(log: Path, to: Path, *, kept: bool) -> None:
    """Copy the log to the audit's folder, because the next training adds to the log of the planted folder."""
    if kept and log.is_dir():
        with artefact_folder(to) as temporary:
            shutil.copytree(log, temporary, dirs_exist_ok=True)


def _take_folder(job: PlantedAudit, config: PlantConfig, out: Path, facts: PlantedFacts) -> None:
    """Create the folder, or check that it contains this audit.

    Args:
        facts: facts about the look, for the record.
    """
    private_directory(out)
    if not (out / "record.json").is_file():
        return
    record = read_record(out / "record.json")
    # Who declares, and where the folder lies, is no part of what was audited.
    asked, kept = ({name: recorded[name] for name in _LOOKED_AT} for recorded in (job.recorded(), record.config))
    for recorded in (asked, kept):
        recorded["precision"] = recorded["precision"] or config.attack.precision
    changed = first_difference(kept, asked)
    # The weights may be others under the same name, and the coins under the same config.
    if record.planted is None or (record.planted.look, record.planted.planted) != (facts.look, facts.planted):
        changed = changed or "look"
    if changed:
        raise InputError(f"'{out}' contains an audit with another '{changed}': choose another --out")
