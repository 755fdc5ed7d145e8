"""Apply a run's data-side steps in order, and report the effect of each."""

from collections.abc import Mapping, Sequence

from heldin.base.errors import InputError
from heldin.base.progress import Reporter, SilentReporter
from heldin.corpus.document import Document
from heldin.defenses.data_side.contract import DataSideDefense, Measure, Removal, StepInput, TrainingRecord

SILENT = SilentReporter()


def apply_defenses(
    defenses: Sequence[DataSideDefense],
    records: Sequence[TrainingRecord],
    *,
    lengths: Measure,
    losses: Measure,
    seed: int,
    reporter: Reporter = SILENT,
) -> tuple[list[TrainingRecord], list[Removal]]:
    """Return the remaining records, in order, with their texts for training, and the effect of each step.

    Args:
        defenses: the steps, in order.
        records: records of all users; the records of a user are adjacent.
        lengths: function from documents to numbers of counted tokens, for steps that rank by length.
        losses: function from documents to mean losses under the base model, for steps that rank by perplexity.
        seed: public seed of random choices.

    Raises:
        InputError: a step returns records, an order, users or texts that its declaration does not allow.
    """
    given = StepInput(lengths, losses, seed, reporter)
    left, removals = list(records), []
    for defense in defenses:
        kept = defense.apply(left, given)
        _require_records(defense, left, kept)
        removals.append(_difference(defense, left, kept))
        left = kept
    return left, removals


def as_trained(defenses: Sequence[DataSideDefense], documents: Mapping[str, Document]) -> list[Document]:
    """Return the documents with the texts that training would see. Steps change texts, and leave out no document.

    Args:
        defenses: the steps, in order.
        documents: the documents, by record id.
    """
    records = [TrainingRecord(row, "", name, document) for row, (name, document) in enumerate(documents.items())]
    rewriting = [defense for defense in defenses if defense.rewrites]
    # Nothing is ranked: steps that choose records are left out.
    left, _ = apply_defenses(rewriting, records, lengths=_not_there, losses=_not_there, seed=0)
    return [record.document for record in left]


def _not_there(documents: Sequence[Document]) -> list[float]:
    raise ValueError(
        "a step that changes texts asked for lengths or losses, but only steps that choose records may use"
        " lengths or losses"
    )


def _require_records(
    defense: DataSideDefense, before: Sequence[TrainingRecord], after: Sequence[TrainingRecord]
) -> None:
    """Check that a step kept some of the records, in order, and made only the changes that it declares."""
    given = iter(before)
    for record in after:
        same = next((own for own in given if own.row == record.row), None)
        if same is None:
            raise InputError(
                f"data defense '{defense.kind}' returns a record twice, out of order, or an additional record:"
                " return each given record at most once, in order"
            )
        changed = (same.user, same.id) != (record.user, record.id) or (
            not defense.rewrites and same.document != record.document
        )
        if changed:
            raise InputError(
                f"data defense '{defense.kind}' changes a record's user, id or text:"
                f" {'change only the text' if defense.rewrites else 'declare rewrites = True to change texts'}"
            )


def _difference(defense: DataSideDefense, before: Sequence[TrainingRecord], after: Sequence[TrainingRecord]) -> Removal:
    documents = {record.row: record.document for record in after}
    gone = [record for record in before if record.row not in documents]
    changed = [record for record in before if documents.get(record.row, record.document) != record.document]
    users = len({record.user for record in [*gone, *changed]})
    return Removal(defense.name(), len(before), len(gone), users, len(changed) if defense.rewrites else None)
