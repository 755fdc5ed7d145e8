"""The loaded models of an audit."""

from dataclasses import dataclass

from heldin.models.model_config import ScoringPrecision
from heldin.models.opening import load_language_model, load_target_and_reference
from heldin.models.score_cache import ScoredModel
from heldin.record.facts import ModelFacts
from heldin.stages.measures.measure import loaded_here, model_facts, named_model


@dataclass(frozen=True)
class OpenedModels:
    """The models of an audit, and how to load them.

    Attributes:
        context: maximum number of tokens per pass of a model on this machine; None: the model's own limit.
        adapter_base: base of every adapter, in place of the base in the adapter's config.
    """

    context: int | None
    adapter_base: str | None

    def load(self, name: str, precision: ScoringPrecision) -> ScoredModel:
        """Return the model with this name, in this precision."""
        return load_language_model(name, precision=precision, context=self.context, adapter_base=self.adapter_base)

    def pair(self, target: str, reference: str, precision: ScoringPrecision) -> tuple[ScoredModel, ScoredModel]:
        """Return target and reference. If the target is an adapter on the reference, they share one copy of the
        base."""
        return load_target_and_reference(
            target, reference, precision=precision, context=self.context, adapter_base=self.adapter_base
        )

    def facts_of(self, model: ScoredModel, name: str) -> ModelFacts:
        """Return the record's facts about a model; call it after scoring."""
        return model_facts(loaded_here(model), named_model(name))
