"""The body of the record of a planted audit, from the planted folder, scores, log and signature."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from heldin.base.files import text_digest
from heldin.base.kinds import origins_in
from heldin.base.progress import Reporter
from heldin.corpus.split import Part, Role
from heldin.models.fingerprints import Fingerprint, tokens_of
from heldin.planting.condition_checks import PlantedEvidence
from heldin.planting.given_rows import PlantedRow, count_given
from heldin.planting.looks import Look
from heldin.planting.plant_config import PlantConfig
from heldin.planting.plant_folder import Manifest
from heldin.planting.training_log import DamagedLogError, history_of, read_log
from heldin.record.condition_words import unmet_flaws
from heldin.record.document import Body, masked
from heldin.record.facts import ModelFacts, ScoredTexts, SplitFacts
from heldin.record.planted_facts import Condition, PlantedFacts, Reason, TrainingCounts
from heldin.stages.measures.scores import left_out, scoring_rule
from heldin.stages.sides.corpus import corpus_facts
from heldin.stages.sides.data import RunData, writers
from heldin.stages.sides.panels import JudgedRun, canaries_alone
from heldin.stages.sides.split_facts import split_facts
from heldin.words.split import SplitReason
from heldin.words.statement import Statement

_ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Described:
    """The models of an audit, as the record describes them.

    Attributes:
        reference: the primary reference model.
        per_text: whether the models have different tokens, so the audit compares whole texts.
        added: sentence that the scoring rule adds for a model behind an endpoint.
    """

    target: ModelFacts
    reference: ModelFacts
    per_text: bool
    added: Statement | None = None


def planted_body(
    asked: Mapping[str, object],
    config: PlantConfig,
    data: RunData,
    models: Described,
    judged: JudgedRun,
    facts: PlantedFacts,
    measures: dict[str, dict[str, Any]],
) -> Body:
    """Return the body of the record, with all results of the audit.

    Args:
        asked: the part of the call that the record stores.
        judged: results from scores and coins.
        facts: facts about the training set and the conditions of certified statements.
        measures: facts of each measure, by name.
    """
    return Body(
        **dict(judged.results),
        config={**asked, **masked(config.model_dump(mode="json"))},
        corpus=corpus_facts(data.corpus).model_copy(update={"skipped": [facts.skipped]}),
        split=_split(config, data, facts),
        target=models.target,
        reference=models.reference,
        training=None,
        primary_attack=judged.results.attacks[0].attack,
        attacker_texts=judged.texts,
        # Fresh ones were set aside before the coins; that they were not trained on all the same is declared.
        scored_texts=ScoredTexts(kind=config.attack.documents[0], known_by="declared"),
        scoring_rule=scoring_rule(config.attack.max_characters, config.scored_part, endpoint=models.added),
        per_text=models.per_text,
        left_out=left_out(config.attack.names, per_text=models.per_text, served=models.target.endpoint is not None),
        resamples=config.audit.resamples,
        planted=facts,
        measures=measures,
        kinds=origins_in(config),
    )


def planted_facts(
    manifest: Manifest, look: Look, declared_by: str | None, conditions: Sequence[Condition], evidence: PlantedEvidence
) -> PlantedFacts:
    """Return the record's facts about the training set and the conditions of certified statements.

    Args:
        declared_by: name of the person who declares the facts that heldin cannot observe; None: nobody declares these
            facts.
        conditions: the conditions of certified statements.
    """
    return PlantedFacts(
        planted=manifest.created,
        plan=manifest.plan,
        training_set=manifest.sha256,
        rows=manifest.rows,
        skipped=manifest.skipped,
        look=look.number,
        looks=manifest.looks,
        evidence=manifest.evidence,
        declared_by=declared_by,
        conditions=list(conditions),
        training=evidence.training,
        control=evidence.control,
        form=evidence.form,
    )


def _split(config: PlantConfig, data: RunData, facts: PlantedFacts) -> SplitFacts:
    ledger, missing = data.ledger, unmet_flaws(facts)
    split = split_facts(config.run_config(Path("records")), data)
    # Also those who could not be audited; nothing is set aside of whoever stays in.
    always = [user for user in data.store.users if ledger.roles.get(user, Role.ALWAYS_IN) is Role.ALWAYS_IN]
    audited = data.real(ledger.scored_users())
    parts = {part.value: sum(len(ledger.parts[user][part]) for user in audited) for part in Part}
    parts[Part.TRAIN.value] += sum(len(data.store.rows(user)) for user in always)
    parts["trained on"] = len(data.training_rows)
    split = split.model_copy(update={"always_in": len(always), "records_by_part": parts})
    if canaries_alone(data):
        sides = [ledger.count()[role] for role in (Role.HELD_IN, Role.HELD_OUT)]
        coins = SplitReason.CANARY_COINS()
        split = split.model_copy(
            update={"audited": "canaries", "held_in": sides[0], "held_out": sides[1], "reason": coins}
        )
    drawn = SplitReason.DRAWN_BEFORE(coins=split.reason, planted=facts.planted)
    if not missing:
        return split.model_copy(update={"reason": drawn})
    reason = SplitReason.CONDITIONS_NOT_MET(flaws=list(missing), drawn=drawn)
    return split.model_copy(update={"certifiable": False, "reason": reason})


def counts_of_log(
    log: Path,
    model: Fingerprint | None,
    manifest: Manifest,
    data: RunData,
    tokenizer: PreTrainedTokenizerBase,
    late: frozenset[str],
    length: int,
    reporter: Reporter,
) -> tuple[TrainingCounts | None, Reason | None]:
    """Compare the sequences in the log with the rows of the planted set.

    Args:
        model: the audited model; None if its weights are not on this machine.
        tokenizer: tokenizer of the reference model.
        late: digests of texts with scored tokens that training need not read.
        length: number of tokens of a row that training must read.

    Returns:
        The counts, and None; or None, and the reason why no log is usable.
    """
    try:
        starts = read_log(log)
        if starts is None:
            return None, Reason.LOG_ABSENT
        history = Reason.LOG_OF_OTHER_MODEL if model is None else history_of(starts, model, tokens_of(tokenizer), log)
    except DamagedLogError as error:
        reporter.say(f"training log: {error}")
        return None, Reason.LOG_DAMAGED
    if isinstance(history, Reason):
        return None, history
    if history.training_sets != {manifest.sha256}:
        return None, Reason.LOG_OF_OTHER_SET
    with reporter.track("comparing the training log", data.training_rows.size, "rows") as advance:

        def rows() -> Iterator[PlantedRow]:
            for block in _rows(data, tokenizer, late):
                yield from block
                advance(len(block))

        return count_given(history, rows(), length), None


def _rows(data: RunData, tokenizer: PreTrainedTokenizerBase, late: frozenset[str]) -> Iterator[list[PlantedRow]]:
    wrote = writers(data.store, data.training_rows)
    for first in range(0, data.training_rows.size, _ROWS_AT_ONCE):
        numbers = data.training_rows[first : first + _ROWS_AT_ONCE]
        texts = data.store.texts_at(numbers)
        users = [wrote.names[place] for place in wrote.places[first : first + _ROWS_AT_ONCE]]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        yield [
            PlantedRow(tokens, user, text_digest(text) not in late, user in data.canaries)
            for user, text, tokens in zip(users, texts, encoded, strict=True)
        ]
