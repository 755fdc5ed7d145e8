"""Results of measures from other packages. The report shows the results from the record, and imports no such
package."""

from pydantic import ValidationError

from heldin.record.document import MEASURES, Record
from heldin.record.facts import MeasuredTable
from heldin.reports.blocks import Block, FactList, Paragraph, Table

_WORDS = "heldin did not check what this measure computes."


def show_measures(record: Record) -> list[Block]:
    """Return, for each measure of another package, the measure's table, or else the measure's facts by name."""
    blocks: list[Block] = []
    for name in sorted(record.measures.keys() - MEASURES.keys()):
        facts = record.measures[name]
        table = _table(facts.get("table"))
        single = [(key, str(value)) for key, value in facts.items() if isinstance(value, str | int | float | bool)]
        blocks.append(Paragraph(_WORDS, lead=name))
        blocks += [FactList(single)] if single else []
        blocks += [table] if table else []
    return blocks


def _table(kept: object) -> Table | None:
    """Return the table of a measure; None if there is no table, or the table's form differs from ``MeasuredTable``."""
    try:
        table = MeasuredTable.model_validate(kept)
    except ValidationError:
        return None
    numeric = [i for i in range(len(table.head)) if table.rows and all(_is_number(row[i]) for row in table.rows)]
    return Table(table.head, table.rows, table.note, numeric=numeric)


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "").removesuffix("%"))
    except ValueError:
        return False
    return True
