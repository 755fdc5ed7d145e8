"""The body of a run's record: what follows from its folder, built here both for the run and for ``heldin verify``."""

from heldin.audit.utility import utility_of
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.loop import TrainingResult
from heldin.models.loading import LanguageModel, same_tokens
from heldin.record.document import Body
from heldin.record.facts import Ceiling, ScoredTexts, TrainingFacts
from heldin.record.masking import masked
from heldin.stages.config import RunConfig
from heldin.stages.measures.scoring import scoring_rule
from heldin.stages.measures.statistics import RunResults, claims_on
from heldin.stages.sides.corpus import corpus_facts
from heldin.stages.sides.data import RunData
from heldin.stages.sides.split_facts import split_facts
from heldin.stages.train.models import Models, model_facts
from heldin.stages.train.training_facts import effort_facts, training_facts

PRETRAINED_HERE = "the base model, pre-trained here"


def run_body(
    config: RunConfig, data: RunData, mechanism: Mechanism, training: TrainingResult, models: Models, found: RunResults
) -> Body:
    """Everything that a run found.

    Args:
        mechanism: the plan.
        training: how training ended.
    """
    base = config.model.base
    assert isinstance(models.target, LanguageModel)  # a run's own is loaded here
    # The folder of a base model that was pre-trained here is a path of this machine: not for the record.
    target = f"{models.base_name} fine-tuned in this run" if base else "fine-tuned in this run"
    return Body(
        **dict(found.results),
        config=masked(config.model_dump(mode="json")),
        corpus=corpus_facts(data.corpus),
        split=split_facts(config, data),
        target=model_facts(models.target, target),
        reference=model_facts(models.reference, config.attack.reference or base or PRETRAINED_HERE),
        training=_training(config, data, mechanism, training),
        primary_attack=config.attack.primary,
        attacker_texts=found.texts,
        # Measured: heldin set the fresh texts aside itself, before the coins.
        scored_texts=ScoredTexts(kind=config.attack.documents[0], known_by="measured"),
        scoring_rule=scoring_rule(config.attack.max_characters),
        per_text=not same_tokens(models.target.tokenizer, models.reference.tokenizer),
        resamples=config.audit.resamples,
        utility=utility_of(found.losses),
        cell=data.cell,
        effort=effort_facts(training),
        precision=found.precision,
        extraction=found.extraction,
    )


def _training(config: RunConfig, data: RunData, mechanism: Mechanism, training: TrainingResult) -> TrainingFacts:
    facts = training_facts(config, data, mechanism, training)
    if not data.ledger.entities:
        return facts
    claims = claims_on(mechanism, data)
    return facts.model_copy(update={"ceiling_of_entities": Ceiling.of(claims[0].ceiling) if claims else None})
