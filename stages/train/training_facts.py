"""The record's facts about a run's training: what was trained, what it took, and what it promises."""

from dataclasses import asdict
from typing import Any

import numpy as np

from heldin.audit.coarse import brief
from heldin.base.files import finite
from heldin.defenses.accounting.ceiling import ceiling_of
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.loop import TrainingResult
from heldin.record.document import EffortFacts
from heldin.record.facts import ByExposure, Ceiling, CurvePoint, ExposedShare, RemovalFacts, TrainingFacts
from heldin.stages.config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.stages.sides.panels import claims_on
from heldin.stages.sides.rows import writers
from heldin.stages.train.exposed import exposed_shares
from heldin.stages.train.validation import gap_auroc_correlation


def training_facts(config: RunConfig, data: RunData, mechanism: Mechanism, result: TrainingResult) -> TrainingFacts:
    """Return the record's facts about training and its guarantee.

    Args:
        result: how training ended.
    """
    claims = claims_on(mechanism, data) if data.ledger.entities else []
    return TrainingFacts(
        defense=config.defense.kind,
        **promise_facts(mechanism),
        removals=[RemovalFacts(**asdict(removal)) for removal in data.removals],
        records=data.training_rows.size,
        users=np.unique(writers(data.store, data.training_rows).places).size,
        steps=result.steps,
        chosen_step=result.chosen_step,
        selection=config.finetune.select.value,
        # Four decimals: further ones would be about single users' texts (``audit.coarse``).
        curve=[
            CurvePoint(step=int(p["step"]), **{k: brief(v, 4) for k, v in p.items() if k != "step"})
            for p in result.history
        ],
        gap_auroc_spearman=gap_auroc_correlation(result.history),
        seconds=round(result.seconds, 2),
        exposed=_exposed(mechanism, data),
        gradients=result.gradients,
        ceiling_of_entities=Ceiling.of(claims[0].ceiling) if claims else None,
    )


def effort_facts(result: TrainingResult) -> EffortFacts:
    """What training took, for the record."""
    effort = result.effort
    seconds = effort.step_seconds

    def pace(count: int) -> float | None:
        return round(count / seconds, 1) if seconds > 0 else None

    return EffortFacts(
        precisions=effort.precisions,
        devices=effort.devices,
        processes=effort.processes,
        tokens=effort.tokens,
        step_seconds=round(seconds, 2),
        tokens_per_second=pace(effort.tokens),
        gradients_per_second=pace(result.gradients),
        peak_memory=effort.peak_memory or None,
        ways=effort.ways,
        notices=effort.notices,
    )


def _exposed(mechanism: Mechanism, data: RunData) -> list[ExposedShare]:
    # Counts of records say something about text sampling alone, and only where it promises anything.
    if data.slots is None or mechanism.two_level is not None or mechanism.reasons():
        return []
    return exposed_shares(mechanism, data.slots, data.training_rows)


def promise_facts(mechanism: Mechanism) -> dict[str, Any]:
    """The record's facts about the guarantee, by field: a function of the plan alone."""
    promise = mechanism.guarantee()
    holds = promise if isinstance(promise, Guarantee) else None
    ceiling = None
    # A ceiling is about attacks on users; that of an example bounds attacks on single records.
    if holds and mechanism.user_event is not None:
        ceiling = Ceiling.of(ceiling_of(mechanism.user_event, mechanism.steps, holds.delta))
    return {
        "promise": promise.statement,
        "unit": mechanism.unit,
        "epsilon": holds.epsilon if holds else None,
        "delta": mechanism.delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "cautions": list(holds.cautions) if holds else [],
        "ceiling": ceiling,
        "by_exposure": _by_exposure(promise),
    }


def _by_exposure(promise: Guarantee | NoGuarantee) -> ByExposure | None:
    """What holds, by exposure: of the guarantee, or of what is left of it without the paper's claim."""
    held = promise if isinstance(promise, Guarantee) else promise.fallback
    if held is None or held.exposure is None:
        return None
    claimed = None if isinstance(promise, Guarantee) else promise.assumed_epsilon
    return ByExposure(**finite(asdict(held.exposure)), claimed=claimed)
