"""The record's facts about a run's training: trained records, effort, guarantee, exposure, gradient norms."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from heldin.audit.coarse import brief, significant
from heldin.base.coins import keyed_order, seed_key
from heldin.base.files import finite
from heldin.corpus.split import Part
from heldin.defenses.accounting.guarantees import ceiling_of
from heldin.defenses.data_side.apply import as_trained
from heldin.defenses.guarantee import Guarantee, NoGuarantee
from heldin.defenses.mechanism import Mechanism
from heldin.finetune.gradient_norms import gradient_norms
from heldin.finetune.loop import TrainingResult
from heldin.models.loading import LanguageModel
from heldin.models.tokens import Tokens
from heldin.record.document import EffortFacts
from heldin.record.facts import (
    ByExposure,
    Ceiling,
    CurvePoint,
    DeclaredFacts,
    ExposedShare,
    GradientNorms,
    PreferenceFacts,
    RemovalFacts,
    TrainingFacts,
)
from heldin.stages.run_config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.stages.sides.panels import claims_on
from heldin.stages.train.layers import picked_layers
from heldin.stages.train.objectives import as_trained_on, preference_of
from heldin.stages.train.plan import plan_fit
from heldin.stages.train.previous import earlier_facts
from heldin.stages.train.validation import gap_auroc_correlation

if TYPE_CHECKING:
    from heldin.stages.sides.slots import Slots

OF_NO_USE = 1000.0  # epsilon beyond which it is not computed any more
RECORDS = 256  # of each group
BINS = 24


def training_facts(
    config: RunConfig, data: RunData, mechanism: Mechanism, result: TrainingResult, out: Path
) -> TrainingFacts:
    """Return the record's facts about training and the guarantee.

    Args:
        result: result of the training.
        out: the run's folder.
    """
    claims = claims_on(mechanism, data) if data.ledger.entities else []
    counts = data.records_of_users()
    return TrainingFacts(
        defense=config.defense.kind,
        **promise_facts(mechanism),
        removals=[RemovalFacts(**asdict(removal)) for removal in data.removals],
        records=data.training_rows.size,
        users=counts.size,
        uncounted=result.uncounted,
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
        fit=plan_fit(config, mechanism, counts, gradients=round(result.gradients / max(1, result.steps), 1)),
        earlier=earlier_facts(config, mechanism, out),
        preference=_preference_facts(config, data),
        picked=picked_layers(config, out),
    )


def _preference_facts(config: RunConfig, data: RunData) -> PreferenceFacts | None:
    if not data.corpus.reading.format.has_pairs:
        return None
    objective = preference_of(config.finetune)
    return PreferenceFacts(
        objective=objective.name,
        beta=objective.beta,
        label_smoothing=objective.label_smoothing,
        reference=objective.needs_reference,
    )


def effort_facts(result: TrainingResult) -> EffortFacts:
    """Return the effort of training, for the record."""
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
    """Return the record's facts about the guarantee, by field. The facts depend only on the plan."""
    promise = mechanism.guarantee()
    holds = promise if isinstance(promise, Guarantee) else None
    ceiling = None
    # A ceiling is about attacks on users; that of an example bounds attacks on single records.
    if holds and mechanism.user_event is not None:
        ceiling = Ceiling.of(ceiling_of(mechanism.user_event, mechanism.rounds, holds.delta))
    return {
        "promise": promise.statement,
        "unit": mechanism.unit,
        "epsilon": holds.epsilon if holds else None,
        "delta": mechanism.delta,
        "noise_multiplier": mechanism.noise_multiplier,
        "cautions": list(holds.cautions) if holds else [],
        "ceiling": ceiling,
        "by_exposure": _by_exposure(promise),
        "declared_by": _declared_by(mechanism),
    }


def _declared_by(mechanism: Mechanism) -> DeclaredFacts | None:
    declared = mechanism.declared
    if declared is None:
        return None
    return DeclaredFacts(**declared.model_dump(include={"package", "version", "sha256", "audit"}))


def _by_exposure(promise: Guarantee | NoGuarantee) -> ByExposure | None:
    """Return epsilon by exposure: of the guarantee, or of the guarantee that remains without the paper's claim."""
    held = promise if isinstance(promise, Guarantee) else promise.fallback
    if held is None or held.exposure is None:
        return None
    claimed = None if isinstance(promise, Guarantee) else promise.assumed_epsilon
    return ByExposure(**finite(asdict(held.exposure)), claimed=claimed)


def exposed_shares(mechanism: Mechanism, slots: "Slots", rows: npt.NDArray[np.integer]) -> list[ExposedShare]:
    """Return shares of users and entities by their number of training records, at each point of the plan's curve and
    above.

    Args:
        mechanism: the plan, which uses text sampling.
        slots: slots of the run.
    """
    assert mechanism.delta is not None
    users, entities = slots.exposed(rows)
    most = max(int(counts.max(initial=1)) for counts in (users, entities) if counts is not None)
    marks = mechanism.exposure_marks()
    # Powers of two, until everybody is below: somebody named in every record is told that person's epsilon too.
    while marks[-1] < most:
        marks.append(2 ** marks[-1].bit_length())
    spent: dict[int, float | None] = {}
    last = 0.0
    for mark in marks:
        # It grows with the number of records, and so does the time that it takes.
        last = mechanism.epsilon_at(mark) if last <= OF_NO_USE else math.inf
        spent[mark] = finite(last)
    return [
        ExposedShare(
            exposed=mark,
            epsilon=spent[mark],
            users=brief(float(np.mean(users <= mark))) if users.size else 1.0,
            entities=None if entities is None else brief(float(np.mean(entities <= mark))) if entities.size else 1.0,
        )
        for mark in marks
    ]


def canary_gradient_norms(config: RunConfig, data: RunData, base: LanguageModel) -> GradientNorms | None:
    """Return gradient norms of canary and real users' training records at the base model; None without canary users.

    The norms cover all users whose membership a coin decides, members or not.
    """
    if not data.canaries:
        return None
    users = data.ledger.scored_users()  # of both sides: a norm depends on the record, not on who was trained on
    planted = [user for user in users if user in data.canaries]
    groups = [_sequences(config, data, base, group) for group in (planted, data.real(users))]
    # Each record is a unit of its own here.
    of_canaries, of_real = (np.array(gradient_norms(base, [[s] for s in sequences])) for sequences in groups)
    together = np.concatenate([of_canaries, of_real])
    # a tenth beyond either end, and short: the outer edges are no record's own norm
    edges = np.geomspace(significant(0.9 * together.min()), significant(1.1 * together.max()), BINS + 1)
    return GradientNorms(
        edges=edges.tolist(),
        canaries=np.histogram(of_canaries, edges)[0].tolist(),
        real=np.histogram(of_real, edges)[0].tolist(),
    )


def _sequences(config: RunConfig, data: RunData, base: LanguageModel, users: Sequence[str]) -> Sequence[Tokens]:
    by_id = {data.store.id(row): row for user in users for row in data.ledger.parts[user][Part.TRAIN]}
    chosen = keyed_order(seed_key(config.seed), "gradient norms", list(by_id))[:RECORDS]
    # As training would see them, also those of users who are held out.
    stored = {id_: data.store.document(by_id[id_]) for id_ in chosen}
    documents = data.corpus.bearing_loss(as_trained(config.data_defenses, stored))
    return as_trained_on(base, documents, config.finetune, data.corpus.reading.format)
