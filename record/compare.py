"""Compare finished runs: the loss that each defense costs, and how well the attack still works (Kandpal, Table 2)."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heldin.audit.bootstrap import Estimate
from heldin.audit.flagged import Flagged
from heldin.audit.limits import AurocDifference, independent_difference
from heldin.base.errors import InputError
from heldin.bounds.verdict import NO_CLAIM, describe_outcome
from heldin.record.document import Record, read_record
from heldin.record.facts import TrainingFacts

_LEAST, _GAP = 16, 2  # characters of a column, and between two columns


@dataclass(frozen=True)
class Row:
    """The results of one run.

    Attributes:
        value: the run's value of the compared key; None without a key.
        defense: the run's defense, as text.
        unit: unit that the guarantee protects: user, example or none.
        epsilon: epsilon of the guarantee; None without a guarantee.
        delta: delta of the guarantee; None without a guarantee.
        noise_multiplier: noise standard deviation divided by clip norm; NaN for a model that heldin did not train.
        held_in_loss: loss on members' validation texts after the last step, in nats per token; None if not measured.
        held_out_loss: loss on non-members' validation texts after the last step, in nats per token; None if not
            measured.
        perplexity: exponential of the chosen checkpoint's mean loss over all tokens of non-members' test texts; None if
            not measured.
        flagged: the counts of flagged people on page one of the run's report, with the attack; None if there are no
            counts.
        highest: largest AUROC of any attack or setting.
        auroc: AUROC of the primary attack.
        auroc_low: lower end of the 95 % interval of ``auroc``.
        auroc_high: upper end of the 95 % interval of ``auroc``.
        difference: AUROC minus the first run's AUROC, with a 95 % interval; None in the first row, and for runs that
            cannot be compared.
        paired: whether both runs have the same members and non-members, so the interval uses paired differences.
        tpr_at: pairs (FPR, TPR); TPR is None if there are too few non-members for this FPR.
        ceiling: the accountant's bound on AUROC; None without a bound.
        verdict: text about the verdicts on the claims; None without claims.
    """

    name: str
    value: Any
    defense: str
    unit: str
    epsilon: float | None
    delta: float | None
    noise_multiplier: float
    held_in_loss: float | None
    held_out_loss: float | None
    perplexity: float | None
    flagged: Flagged | None
    highest: float
    auroc: float
    auroc_low: float
    auroc_high: float
    difference: tuple[float, float, float] | None
    paired: bool
    tpr_at: tuple[tuple[float, float | None], ...]
    ceiling: float | None
    answer: str
    verdict: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {**dataclasses.asdict(self), "flagged": self.flagged and self.flagged.model_dump(mode="json")}


@dataclass(frozen=True)
class Comparison:
    """A comparison of several runs.

    Attributes:
        notes: sentences about differences that make the rows less comparable.
        over: the config key whose values are compared; None without a key.
    """

    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    over: str | None


Pair = Callable[[Path, Path], AurocDifference | None]


def compare(folders: Sequence[Path], over: str | None = None, pair: Pair | None = None) -> Comparison:
    """Read the records of the runs, and compare the runs.

    Args:
        folders: folders of finished runs; each run is compared with the first.
        over: dotted key of the runs' configs (``finetune.learning_rate``), or ``parameters`` (of the model), ``users``
            (members), or ``records`` (trained records).
        pair: function that returns the paired difference of two runs' AUROCs if their ledgers agree, else None. All
            other differences treat the runs as independent samples (MOVER).

    Raises:
        InputError: a folder has no record, there are fewer than two folders, or a config lacks the key.
    """
    # Before any record is read: every row after the first is held against the first.
    if len(folders) < 2:
        raise InputError("a comparison needs two runs: give the folders of at least two finished runs")
    records = [read_record(folder / "record.json") for folder in folders]
    rows = [_row(folder, record, records[0], over) for folder, record in zip(folders, records, strict=True)]
    # A difference of numbers that do not compare, as ``_notes`` says, would be read all the same.
    compared_by = [[condition for _, condition in _same(record)] for record in records]
    alike = [conditions == compared_by[0] for conditions in compared_by]
    rows = [row if same else dataclasses.replace(row, difference=None) for row, same in zip(rows, alike, strict=True)]
    if pair is not None:
        rows = [_with_pair(row, pair, folders, records, i) if alike[i] else row for i, row in enumerate(rows)]
    # The first row would differ from itself by 0 with an interval that means nothing.
    first = dataclasses.replace(rows[0], difference=None)
    return Comparison(tuple(records), (first, *rows[1:]), tuple(_notes(records, rows)), over)


def table(compared: Comparison, width: int) -> str:
    """Return the comparison as plain text, in lines of at most ``width`` characters, with the notes at the end."""
    rows, over = compared.rows, compared.over
    fprs = [fpr for fpr, _ in rows[0].tpr_at]
    head = ["run", *([over] if over else []), "defense", "epsilon", "validation loss", "perplexity"]
    head += ["flagged of 100 / wrongly, by", "highest AUROC", "AUROC of the primary attack (95 %)"]
    head += ["minus the first run's", *(f"TPR at {f:.2g}" for f in fprs), "bound on AUROC", "answer", "verdict"]
    cells = []
    for row in rows:
        tprs = dict(row.tpr_at)
        cells.append(
            [
                row.name,
                *([str(row.value)] if over else []),
                row.defense,
                "-" if row.epsilon is None else f"{row.epsilon:.3g} per {row.unit}",
                _number(row.held_out_loss),
                _number(row.perplexity, 2),
                _people(row.flagged),
                _number(row.highest),
                f"{row.auroc:.3f} ({row.auroc_low:.3f} to {row.auroc_high:.3f})",
                "-" if row.difference is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*row.difference),
                *(_number(tprs.get(f)) for f in fprs),
                _number(row.ceiling),
                row.answer,
                row.verdict or "-",
            ]
        )
    notes = [
        textwrap.fill(f"note: {note}", width, subsequent_indent="      ", break_on_hyphens=False)
        for note in compared.notes
    ]
    return "\n".join([*fitted(head, cells, width), *notes])


def _people(flagged: Flagged | None) -> str:
    if flagged is None:
        return "-"
    shares = f"{100 * flagged.members_share:.0f} / {100 * flagged.others_share:.0f}"
    return f"{shares}, {flagged.choice.value}: {flagged.label}"


def _row(folder: Path, record: Record, first: Record, over: str | None) -> Row:
    primary, training = record.primary(), record.training
    # Losses after the last step, also where an earlier checkpoint was kept:
    # ``_notes`` says so when runs differ in that.
    last = training.curve[-1] if training and training.curve else None
    # Canary users have verdicts of their own: a verdict is only ambiguous where there are both.
    several = len({v.subjects for v in record.judgement.verdicts}) > 1
    verdicts = [
        f"{f'{v.subjects}: ' if several else ''}{describe_outcome(v.outcome, v.standing)}"
        for v in record.judgement.verdicts
        # A record without claims still holds one verdict, which states what could have been certified.
        if v.claim != NO_CLAIM
    ]
    return Row(
        name=folder.name,
        value=None if over is None else _value(folder, record, over),
        defense=_defense(training),
        unit=training.protected if training else "none",
        epsilon=training.epsilon if training else None,
        delta=training.delta if training else None,
        noise_multiplier=training.noise_multiplier if training else math.nan,  # null in JSON: unknown, and not 0
        held_in_loss=last.held_in_loss if last else None,
        held_out_loss=last.held_out_loss if last else None,
        perplexity=record.utility.perplexity if record.utility else None,
        flagged=record.flagged(),
        highest=record.decision.decision.largest_auroc,
        auroc=primary.auroc.value,
        auroc_low=primary.auroc.lower,
        auroc_high=primary.auroc.upper,
        difference=difference_of(first.primary().auroc, primary.auroc),
        paired=False,
        # None where too few held-out users resolve the rate: a 0 would read as an attack that fails.
        tpr_at=tuple((t.fpr, t.estimate.value if t.estimate else None) for t in record.curve().tpr_at),
        ceiling=ceiling.auroc if (ceiling := record.ceiling()) else None,
        answer=record.decision.decision.answer.value,
        verdict=", ".join(verdicts) or None,
    )


def _with_pair(row: Row, pair: Pair, folders: Sequence[Path], records: Sequence[Record], i: int) -> Row:
    """Return the row with the paired difference, if the run and the first run have equal members and attacks."""
    first, record = records[0], records[i]
    same = (
        first.split.ledger_commitment is not None
        and first.split.ledger_commitment == record.split.ledger_commitment
        and first.config.get("attack") == record.config.get("attack")
    )
    paired = pair(folders[0], folders[i]) if i and same else None
    if paired is None:
        return row
    return dataclasses.replace(row, difference=(paired.value, paired.lower, paired.upper), paired=True)


def _value(folder: Path, record: Record, over: str) -> Any:
    match over:
        case "parameters":
            return record.target.parameters
        case "users":
            # For independent trainings this is the number of trainings with the
            # worst-case user (``SplitFacts.held_in``).
            return record.split.held_in
        case "records":
            return record.training.records if record.training else 0
    # The record's config, not the folder's file, so that audits without a config.yaml compare too. Patterns of user
    # names are masked in it, and compare as their number.
    value: Any = record.config
    for part in over.split("."):
        if not isinstance(value, dict) or part not in value:
            raise InputError(
                f"--over {over}: the config of '{folder}' has no such key. Give one such as finetune.learning_rate,"
                " or parameters, users or records"
            )
        value = value[part]
    # A mapping has no place on the figure's axis and would fill the table's column.
    if isinstance(value, dict | list):
        raise InputError(
            f"--over {over}: this key of the config of '{folder}' is a section or a list. Give the key of a single"
            " value"
        )
    return value


def difference_of(first: Estimate, other: Estimate) -> tuple[float, float, float]:
    """Return ``other`` minus ``first``, with the limits of its interval."""
    # each run drew its own coins, so both intervals count: the samples are independent
    first_interval, two = ((e.value, e.lower, e.upper) for e in (first, other))
    return independent_difference(first_interval, two)


def _defense(training: TrainingFacts | None) -> str:
    """Return the defenses of the run: first the names of data-side defenses, then the defense of training."""
    if training is None:
        return "not trained here"
    parts = [str(removal.name) for removal in training.removals]
    parts += [] if training.is_plain else [training.defense]
    return " + ".join(parts) or "none"


def _same(record: Record) -> tuple[tuple[str, Hashable], ...]:
    """Return the properties that comparable runs share. If they differ, a difference of results may not come from the
    defense."""
    return (
        ("corpora", record.corpus.fingerprint),
        ("reference models", record.reference.fingerprint),
        ("primary attacks", f"{record.primary_attack} {record.primary().aggregation}"),
        # The table takes its columns from the first row: another row's rates would silently read "-".
        ("false-positive rates", tuple(t.fpr for t in record.curve().tpr_at)),
        ("scored texts (fresh, or training texts)", record.scored_texts.kind),
        ("scoring rules", str(record.scoring_rule)),
    )


def _notes(records: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    """Return notes about differences that runs should not have. Only runs of one repetition need the same members."""
    notes = []
    of_all = [dict(_same(record)) for record in records]
    notes += [
        f"the runs have different {quantity}: their numbers are not comparable"
        for quantity in of_all[0]
        if len({run[quantity] for run in of_all}) > 1
    ]
    # The choice of checkpoint changes the attacked model, and not the losses of this table.
    chosen = {r.training.selection for r in records if r.training}
    if len(chosen) > 1:
        notes.append("some runs keep the best checkpoint and others the last; all losses are from the last step")
    # Audits of one corpus share their users, so that the interval for independent
    # samples (``difference_of``) is too wide.
    if len({r.corpus.fingerprint for r in records if r.kind == "audit"}) < sum(r.kind == "audit" for r in records):
        notes.append("some audits have the same users: the intervals of their differences are wider than necessary")
    paired = [row.name for row in rows if row.paired]
    if paired:
        whose = "same members and non-members as in the first run"
        notes.append(f"{whose}, so differences are paired by user: {', '.join(paired)}")
    drew = sum(record.kind != "audit" for record in records) > 1
    if drew and any(r.kind != "audit" and not row.paired for r, row in list(zip(records, rows, strict=True))[1:]):
        notes.append("every run drew its own coins, so rows also differ by chance; the intervals cover this")
    return notes


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def fitted(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table as lines that fit the width. If rows do not fit, they become columns.

    Args:
        head: names of the cells; the first cell names the row.
        rows: cells of each row; "-" is an unknown value.
        width: maximum number of characters per line. If the columns do not fit, they are split into several tables.
    """
    lines = in_rows(head, rows)
    if max(map(len, lines)) <= width:
        return lines
    kept = [i for i in range(len(head)) if i == 0 or any(row[i] != "-" for row in rows)]
    label = min(max(len(head[i]) for i in kept), width // 3)
    most = max(1, (width - label) // (_LEAST + _GAP))
    # As many tables as are needed, with about equally many columns of equal width.
    side_by_side = math.ceil(len(rows) / math.ceil(len(rows) / most))
    column = (width - label) // side_by_side - _GAP
    lines = []
    for start in range(0, len(rows), side_by_side):
        part = rows[start : start + side_by_side]
        lines += [""] if start else []
        for i in kept:
            lines += wrapped([head[i], *(row[i] for row in part)], [label, *[column] * len(part)])
    return lines


def in_rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one line per row, of any length."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [_aligned(row, widths) for row in (head, *rows)]


def wrapped(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of a row. Each cell is wrapped at the width of its column."""
    parts = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    deep = max(map(len, parts))
    filled = zip(*(part + [""] * (deep - len(part)) for part in parts), strict=True)
    return [_aligned(line, widths) for line in filled]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
