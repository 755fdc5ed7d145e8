"""The models of an audit: loaded here, or opened behind an endpoint if the audit names one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from heldin.attacks.scoring import AttackTexts
from heldin.base.errors import InputError
from heldin.base.progress import Reporter
from heldin.jobs.checkpoint.config import AT_ENDPOINT
from heldin.jobs.checkpoint.job import CheckpointAudit
from heldin.models.loading import load_language_model, load_target_and_reference
from heldin.models.model_config import ScoringPrecision
from heldin.models.score_cache import ScoredModel
from heldin.record.facts import ModelFacts
from heldin.stages.measures.measure import loaded_here, model_facts


@dataclass(frozen=True)
class OpenedModels:
    """How the models of an audit are loaded.

    Attributes:
        context: most tokens of a pass of a model that is loaded here; None: as many as it states.
    """

    context: int | None

    def load(self, name: str, precision: ScoringPrecision) -> ScoredModel:
        """Return the model with this name, in this precision."""
        return load_language_model(name, precision=precision, context=self.context)

    def pair(self, target: str, reference: str, precision: ScoringPrecision) -> tuple[ScoredModel, ScoredModel]:
        """Return target and reference, from one copy of the base if the target is an adapter on the reference."""
        return load_target_and_reference(target, reference, precision=precision, context=self.context)

    def facts_of(self, model: ScoredModel, name: str) -> ModelFacts:
        """Return the record's facts about a model, once scoring has ended."""
        return model_facts(loaded_here(model), name)


@contextmanager
def opened_models(job: CheckpointAudit, texts: AttackTexts, reporter: Reporter) -> Iterator[OpenedModels]:
    """Open the models behind an endpoint, if the audit names one, for the time of scoring.

    Args:
        texts: the texts that each model scores.
        reporter: receives what an endpoint will cost.

    Raises:
        InputError: a reference is behind an endpoint and none is named, or an endpoint gives no log-probabilities.
    """
    if job.remote is None:
        served = next((name for name in job.models() if name.startswith(AT_ENDPOINT)), None)
        if served is not None:
            raise InputError(f"'{served}' is behind an endpoint: give --endpoint")
        yield OpenedModels(job.context)
        return
    # Endpoints are no part of an audit of two files.
    from heldin.jobs.checkpoint.endpoint import reached

    with reached(job.remote, job.models(), texts, reporter, context=job.context) as there:
        yield there
