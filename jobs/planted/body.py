"""The body of the record of a planted audit: what follows from the planted folder, the scores and a signature."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from heldin.audit.utility import utility_of
from heldin.corpus.split import Role
from heldin.jobs.config import RunConfig
from heldin.jobs.planted.conditions import unmet
from heldin.jobs.planted.config import PlantConfig
from heldin.jobs.planted.data import run_of
from heldin.jobs.planted.folder import Look, Manifest
from heldin.jobs.run.corpus import corpus_facts
from heldin.jobs.run.data import RunData, split_facts
from heldin.jobs.run.models import Models, model_facts
from heldin.jobs.run.scoring import scoring_rule
from heldin.jobs.run.statistics import RunResults
from heldin.models.loading import same_tokens
from heldin.record.document import Body
from heldin.record.facts import Condition, PlantedFacts, ScoredTexts, SplitFacts
from heldin.record.masking import masked


def planted_body(
    asked: Mapping[str, object],
    config: PlantConfig,
    data: RunData,
    models: Models,
    found: RunResults,
    facts: PlantedFacts,
) -> Body:
    """Everything that the audit found.

    Args:
        asked: what the record keeps of the call.
        config: what was fixed before the coins.
        data: users and coins.
        models: target and reference.
        found: what the scores say.
        facts: about the training set and the conditions.
    """
    return Body(
        **dict(found.results),
        config={**asked, **masked(config.model_dump(mode="json"))},
        corpus=corpus_facts(data.corpus),
        split=_split(run_of(config, Path(str(asked["planted"]))), data, facts),
        target=model_facts(models.target, str(asked["model"])),
        reference=model_facts(models.reference, config.reference),
        training=None,
        primary_attack=config.attack.primary,
        attacker_texts=found.texts,
        # Fresh ones were set aside before the coins; that they were not trained on all the same is declared.
        scored_texts=ScoredTexts(kind=config.attack.documents[0], known_by="declared"),
        scoring_rule=scoring_rule(config.attack.max_characters),
        per_text=not same_tokens(models.target.tokenizer, models.reference.tokenizer),
        resamples=config.audit.resamples,
        utility=utility_of(found.losses),
        planted=facts,
    )


def planted_facts(
    manifest: Manifest, look: Look, declared_by: str | None, conditions: Sequence[Condition]
) -> PlantedFacts:
    """The record's facts about the training set and the conditions.

    Args:
        manifest: of the planted folder.
        look: the number of this look.
        declared_by: who declares what heldin cannot see; None: nobody.
        conditions: of certified statements.
    """
    return PlantedFacts(
        planted=manifest.created,
        plan=manifest.plan,
        training_set=manifest.sha256,
        rows=manifest.rows,
        look=look.number,
        looks=manifest.looks,
        declared_by=declared_by,
        conditions=list(conditions),
    )


def _split(run: RunConfig, data: RunData, facts: PlantedFacts) -> SplitFacts:
    split, missing = split_facts(run, data), unmet(facts.conditions)
    # Also those who could not be audited: they are trained on with all rows.
    always = sum(data.ledger.roles.get(user, Role.ALWAYS_IN) is Role.ALWAYS_IN for user in data.store.users)
    split = split.model_copy(update={"always_in": always})
    drawn = f"{split.standing_reason}, drawn before {facts.planted}"
    if not missing:
        return split.model_copy(update={"standing_reason": drawn})
    return split.model_copy(update={"certifiable": False, "standing_reason": f"{'; '.join(missing)}; {drawn}"})
