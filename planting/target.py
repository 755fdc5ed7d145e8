"""The model that a planted audit examines: a folder, a hub name, or a model name at an endpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from heldin.attacks.access import Access
from heldin.attacks.scoring import AttackTexts
from heldin.base.errors import InputError
from heldin.base.progress import LineReporter, Reporter
from heldin.bounds.plan_claims import parse_claim_of
from heldin.jobs.checkpoint.audit_config import AT_ENDPOINT
from heldin.jobs.checkpoint.endpoint import Remote, attacks_at_endpoint, reached
from heldin.models.adapter_bases import base_of, is_adapter
from heldin.models.endpoint import EndpointModel, probe_now
from heldin.models.endpoint_client import Connection
from heldin.models.lifted_endpoint import open_scoring_model
from heldin.models.loading import LanguageModel, stored_weights
from heldin.models.model_config import PrecisionChoice, ScoringPrecision
from heldin.models.model_names import fingerprint_of, require_model
from heldin.models.opening import load_language_model, load_target_and_reference
from heldin.models.score_cache import ScoredModel
from heldin.planting.looks import Look, note_served, served_models
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_data import run_of
from heldin.record.facts import LARGEST_DRIFT, ModelFacts
from heldin.stages.measures.measure import model_facts, named_model
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData, texts_under_attack


@dataclass(frozen=True)
class PlantedAudit:
    """An audit of one model.

    Attributes:
        planted: the folder that ``heldin plant`` wrote.
        model: folder or hub name of the model, or a LoRA adapter's folder; with ``remote``, the model's name at the
            endpoint.
        claims: claims as text, such as "epsilon=8,delta=1e-6,unit=user".
        declared_by: name of the person who declares that the model was trained on the planted set; None: nobody
            declares this.
        remote: connection to a model behind an endpoint; None: the model is loaded on this machine.
        precision: precision in which models are loaded; auto: the precision of the stored model; None: the plan's
            precision.
        adapter_base: base model of an adapter, in place of the base in its config.
    """

    planted: Path
    model: str
    claims: tuple[str, ...] = ()
    declared_by: str | None = None
    remote: Remote | None = None
    precision: PrecisionChoice | None = None
    adapter_base: str | None = None

    def check(self) -> None:
        """Raise InputError for a claim that cannot be read, an empty declaration, or a model that does not exist."""
        for text in self.claims:
            parse_claim_of(text)
        if self.declared_by is not None and not self.declared_by.strip():
            raise InputError(
                "--declared-by is empty: give the name of the person who declares, or leave --declared-by out"
            )
        if self.remote is None:
            require_model(self.model, self.adapter_base)
            if self.adapter_base is not None and not is_adapter(Path(self.model)):
                raise InputError(
                    f"--adapter-base '{self.adapter_base}': '{self.model}' is not an adapter's folder. Leave"
                    " --adapter-base out"
                )

    def recorded(self) -> dict[str, object]:
        """Return the part of the audit's settings that the record stores."""

        def absolute(name: str) -> str:
            return str(Path(name).resolve()) if self.remote is None and Path(name).is_dir() else name

        return {
            "planted": str(self.planted.resolve()),
            "model": absolute(self.model),
            "adapter_base": None if self.adapter_base is None else absolute(self.adapter_base),
            "claims": list(self.claims),
            "declared_by": self.declared_by,
            "endpoint": None if self.remote is None else self.remote.config(),
            "precision": self.precision,
        }


def with_precision(job: PlantedAudit, config: PlantConfig) -> PlantedAudit:
    """Return the audit with "auto" replaced by the model's own precision; at an endpoint, by the reference's precision.

    Raises InputError for weights that this machine cannot load.
    """
    if job.precision != "auto":
        return job
    name, revision = (job.model, None) if job.remote is None else (config.reference, config.revision)
    return replace(job, precision=stored_weights(name, job.adapter_base, revision)[1].own)


def audited_run(job: PlantedAudit, config: PlantConfig, reporter: Reporter | None = None) -> RunConfig:
    """Return the config of a run with the audit's attacks and precision. At an endpoint, only its possible attacks
    remain.

    Args:
        reporter: receives a line about attacks that are left out; None: no line is written.

    Raises:
        InputError: the endpoint does not return the numbers that the attack or the scored part of a text needs, or
            ``run_of`` raises.
    """
    run = run_of(config, job.planted)
    if job.precision is not None:
        run = run.model_copy(update={"attack": run.attack.model_copy(update={"precision": job.precision})})
    if job.remote is None:
        return run
    if config.scored_part is not None and job.remote.tokenizer is None:
        raise InputError(
            f"heldin scores only {config.scored_part}, and needs a tokenizer to find this part: give --tokenizer"
        )
    if run.attack.access != (Access.LOG_PROBABILITIES,):
        # The positive control and the name of a look both read losses, which a server of text does not give.
        raise InputError(
            f"attack.access is {' and '.join(run.attack.access)}, but a planted audit of an endpoint supports only"
            " log-probabilities: audit the weights (--model), or set attack.access to log-probabilities only and"
            " plant again"
        )
    # Which are left out depends on the endpoint alone, and on no coin.
    reporter = reporter or LineReporter(lambda line: None)
    attack = attacks_at_endpoint(run.attack, job.remote.tokenizer, reporter)
    kept = {name: options for name, options in run.measures.items() if not options.needs_weights}
    for name in run.measures.keys() - kept.keys():
        reporter.say(f"left out: {name}, because no endpoint gives the whole vocabulary's probabilities")
    return run.model_copy(update={"attack": attack, "measures": kept})


def require_distinct(jobs: Sequence[PlantedAudit], config: PlantConfig) -> None:
    """Raise InputError if two audited models are equal, or a model equals the reference. Compares only their files.

    Args:
        jobs: audits of one planted folder; models at endpoints are compared by name.
    """
    seen = {fingerprint_of(config.reference, revision=config.revision): ""}
    for job in jobs:
        fingerprint = job.model
        if job.remote is None:
            fingerprint = fingerprint_of(job.model, adapter_base=job.adapter_base)
        if fingerprint in seen:
            _refuse(job.model, seen[fingerprint])
        seen[fingerprint] = job.model


def has_other_base(job: PlantedAudit, reference: str) -> bool:
    """Return whether the model is an adapter on a base other than the model with this fingerprint in float32."""
    if job.remote is not None or not is_adapter(Path(job.model)):
        return False
    base = base_of(Path(job.model), job.adapter_base)
    return fingerprint_of(base.name, revision=base.revision, adapter_base=job.adapter_base) != reference


def _refuse(model: str, other: str) -> NoReturn:
    if other:
        raise InputError(f"'{model}' is the same model as '{other}': give each model once")
    raise InputError(f"'{model}' is the reference model itself: give the fine-tuned model")


def models_here(
    job: PlantedAudit, config: PlantConfig, precision: ScoringPrecision
) -> tuple[LanguageModel | None, LanguageModel]:
    """Return the audited model (None if it is behind an endpoint) and the primary reference.

    Raises:
        InputError: the two models are the same, or one of them cannot be loaded.
    """
    if job.remote is not None:
        return None, load_language_model(config.reference, revision=config.revision, precision=precision)
    target, reference = load_target_and_reference(
        job.model,
        config.reference,
        precision=precision,
        revision=config.revision,
        adapter_base=job.adapter_base,
    )
    if target.fingerprint == reference.fingerprint:
        _refuse(job.model, "")
    return target, reference


def models_in_full(job: PlantedAudit, config: PlantConfig, scored: ScoredModel) -> tuple[ScoredModel, LanguageModel]:
    """Return both models in float32, to measure the effect of another precision. A model at an endpoint stays
    unchanged.

    Args:
        scored: the audited model in its scoring precision.
    """
    target, reference = models_here(job, config, "fp32")
    return target or scored, reference.within(window_of(scored))


def window_of(model: ScoredModel) -> int | None:
    """Return the maximum tokens that an endpoint, and so the reference, scores per pass; None for a model on this
    machine."""
    return model.window if isinstance(model, EndpointModel) else None


def weights_of(job: PlantedAudit, target: LanguageModel | None) -> str:
    """Return a name that identifies the audited weights.

    The weights of a model behind an endpoint are unknown. The name therefore consists of the address and the score of a
    public text, so another model at the same address counts as another look with separate scores. A model that changed
    during scoring is never recognised again.

    Raises:
        InputError: the endpoint cannot be reached.
    """
    if target is not None:
        return target.fingerprint
    assert job.remote is not None
    with Connection(job.remote.endpoint) as connection:
        served = open_scoring_model(connection, job.model, tokenizer=job.remote.tokenizer, context=job.remote.context)
        return _name_of(served, probe_now(served), job.planted)


def precision_beside(job: PlantedAudit, run: RunConfig) -> ScoringPrecision | None:
    """Return the precision of the reference; None if it is float32, or if the audited weights already determine it.

    Args:
        run: the config of a run with the audit's attacks and precision.
    """
    # Models that are loaded here have it in their fingerprints; behind an endpoint the reference alone has one, and
    # every ratio depends on it.
    return None if job.remote is None or run.attack.precision == "fp32" else run.attack.precision


def _name_of(served: EndpointModel, probe: float, planted: Path) -> str:
    """Return the name of a model from an earlier call with the same score of the public text, or else a new name."""
    known = served_models(planted)
    for name, whole in known.items():
        address, _, rest = name.partition(":")
        if whole and address == served.fingerprint and abs(float(rest) - probe) <= LARGEST_DRIFT:
            return name
    # Scores of a model that changed are in the cache: the next one of the same score is known by further digits.
    name, step = f"{served.fingerprint}:{probe:.6f}", 0
    while name in known:
        step += 1
        name = f"{served.fingerprint}:{probe:.6f}{step:03d}"
    # Before it is scored, so that a call that is killed goes on with what was paid for.
    note_served(name, planted, whole=True)
    return name


@contextmanager
def opened(
    look: Look, job: PlantedAudit, local: LanguageModel | None, run: RunConfig, data: RunData, reporter: Reporter
) -> Iterator[tuple[ScoredModel, Callable[[], ModelFacts]]]:
    """Yield the model for scoring, and a function that returns its facts; call the function after scoring.

    Args:
        look: the current look.
        local: the model, if it was loaded on this machine.
        run: the config of a run with the audit's attacks.
        data: users and coins; only the texts are used.
        reporter: receives the expected cost at an endpoint.
    """
    if job.remote is None:
        assert local is not None
        yield local, lambda: model_facts(local, named_model(str(job.recorded()["model"])))
        return
    name, kept_as = f"{AT_ENDPOINT}{job.model}", look.model

    def known_as(served: EndpointModel) -> EndpointModel:
        if abs(probe_now(served) - float(kept_as.partition(":")[2])) > LARGEST_DRIFT:
            raise InputError(f"the model '{job.model}' changed after this audit began: run the command again")
        # All scores under the name of the look: those of another model at this address are not read.
        return replace(served, fingerprint=kept_as)

    with reached(job.remote, [name], _sent(run, data), reporter, known_as=known_as) as there:
        model = there.load(name, run.attack.precision)
        yield model, lambda: there.facts_of(model, job.model)
    if there.drifts[job.model] > LARGEST_DRIFT:
        note_served(kept_as, job.planted, whole=False)


def _sent(run: RunConfig, data: RunData) -> AttackTexts:
    """Return every text that will be scored, to estimate the cost."""
    by_kind = {which: texts_under_attack(run, data, which).texts for which in run.attack.documents}
    return AttackTexts(
        {f"{which} {user}": texts for which, by_user in by_kind.items() for user, texts in by_user.items()},
        run.attack.max_characters,
    )
