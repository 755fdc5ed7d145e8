"""The record's facts about who is on which side of a run."""

from heldin.corpus.split import Part, Role, SplitRule
from heldin.record.facts import SplitFacts
from heldin.stages.config import RunConfig
from heldin.stages.sides.data import RunData
from heldin.stages.sides.overlaps import overlaps_of
from heldin.words import Statement
from heldin.words.split import SplitReason


def split_facts(config: RunConfig, data: RunData) -> SplitFacts:
    """The record's facts about the split of the real users and entities."""
    ledger, counts = data.ledger, data.ledger.count(data.canaries)
    # Of users alone: an entity's records are theirs.
    users = [user for user in data.real(ledger.parts) if user not in ledger.entities]
    numbers = ledger.parts.numbers(users)
    parts = {part.value: int(ledger.parts.sizes(part)[numbers].sum()) for part in Part}
    return SplitFacts(
        assignment=ledger.assignment.value,
        known_by="measured",
        certifiable=ledger.assignment is SplitRule.COIN,
        reason=_reason(data, config.split.audited.value),
        held_in=counts[Role.HELD_IN],
        held_out=counts[Role.HELD_OUT],
        always_in=counts[Role.ALWAYS_IN],
        records_by_part={**parts, "trained on": len(data.training_rows)},
        key_commitment=ledger.key_commitment(),
        ledger_commitment=ledger.commitment(),
        overlaps=overlaps_of(data),
        audited=config.split.audited.value,
    )


def _reason(data: RunData, audited: str) -> Statement:
    if data.ledger.assignment is not SplitRule.COIN:
        return SplitReason.EXACT_HALF(audited=audited)
    if data.cell is None:
        return SplitReason.FAIR_COINS(audited=audited)
    return SplitReason.FAIR_COINS_OF_BLOCK(audited=audited, block=data.cell.block)
