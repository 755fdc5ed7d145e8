"""What was tested in a cell of a sweep, and how well: what the annex of its report is made of."""

from heldin.audit.extraction import ExtractionFacts
from heldin.audit.marks import MarkFacts
from heldin.base.section import Facts
from heldin.record.document import Record


class CellTests(Facts):
    """The tests of one cell, as its record has them.

    Attributes:
        texts: number of scored texts.
        scores: number of scores that were judged.
        attacks: number of attacks.
        sides: who decided who is held in, in words.
        certifiable: whether statements on these sides may be certified.
        false_alarms: probability at most of a false "leaks"; null where nothing bounds it.
        baselines: number of blind baselines.
        separating: those of them that separated the groups.
        extraction: what sampling would emit of training texts; null if it was not measured.
        marks: exposure of canary users' marks; null if it was not measured.
    """

    texts: int
    scores: int
    attacks: int
    sides: str
    certifiable: bool
    false_alarms: float | None
    baselines: int
    separating: list[str]
    extraction: ExtractionFacts | None
    marks: MarkFacts | None


def tests_of(record: Record) -> CellTests:
    """The tests of a cell's record."""
    facts, by = record.decision, record.decision.by
    return CellTests(
        texts=record.attacker_texts,
        scores=facts.scores,
        attacks=len({attack.attack for attack in record.attacks}),
        sides=record.split.standing_reason,
        certifiable=record.split.certifiable,
        false_alarms=by.auroc_level + by.tpr_level if facts.decision.exact else None,
        baselines=len(record.blind),
        separating=[rule.name for rule in record.blind if rule.separates],
        extraction=record.extraction,
        marks=record.marks,
    )
