"""The record's facts about who is on which side of a run."""

from heldin.audit.headline import AUDITED
from heldin.corpus.split import Part, Role, SplitRule
from heldin.jobs.config import RunConfig
from heldin.jobs.run.data import RunData
from heldin.jobs.run.overlaps import overlaps_of
from heldin.record.facts import SplitFacts


def split_facts(config: RunConfig, data: RunData) -> SplitFacts:
    """The record's facts about the split of the real users and entities."""
    ledger, counts = data.ledger, data.ledger.count(data.canaries)
    coins, what = ledger.assignment is SplitRule.COIN, AUDITED[config.split.audited.value]
    # Of users alone: an entity's records are theirs.
    users = [user for user in data.real(ledger.parts) if user not in ledger.entities]
    numbers = ledger.parts.numbers(users)
    parts = {part.value: int(ledger.parts.sizes(part)[numbers].sum()) for part in Part}
    return SplitFacts(
        assignment=ledger.assignment.value,
        known_by="measured",
        certifiable=coins,
        standing_reason=(
            f"each audited {what.one} was held in by an independent fair coin under a fresh secret key"
            + ("" if data.cell is None else f", which is that of block {data.cell.block} of a sweep")
            if coins
            else f"an exact half of the {what.unit} was held in: coins that depend on each other certify nothing"
        ),
        held_in=counts[Role.HELD_IN],
        held_out=counts[Role.HELD_OUT],
        always_in=counts[Role.ALWAYS_IN],
        records_by_part={**parts, "trained on": len(data.training_rows)},
        key_commitment=ledger.key_commitment(),
        ledger_commitment=ledger.commitment(),
        overlaps=overlaps_of(data),
        audited=config.split.audited.value,
    )
