"""The input of ``heldin bound``: scores from any tool, in a CSV file with the columns user, score and member."""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from heldin.base.arguments import number_in
from heldin.base.errors import InputError
from heldin.bounds.design import Design
from heldin.bounds.judgement import Judgement, evaluate
from heldin.bounds.scores import LabelledScores
from heldin.bounds.verdict import Claim
from heldin.corpus.names import missing_names
from heldin.words.evidence import Caution
from heldin.words.statement import Statement

COLUMNS = ("user", "score", "member")
REVERSED = 1e-3  # p-value of scores that speak for the other side below which there is a warning
ORIENTATIONS = {"member": 1.0, "non-member": -1.0}
_YES, _NO = ("1", "true", "yes", "in", "member", "held_in"), ("0", "false", "no", "out", "non-member", "held_out")


def bound_scores(
    scores: LabelledScores,
    design: Design,
    *,
    higher_is: str = "member",
    delta: float | None = None,
    claims: Sequence[Claim] = (),
) -> Judgement:
    """Return bounds and verdicts from scores of another tool.

    Args:
        scores: scores as the tool gives them, in either orientation.
        design: how the scores were obtained; its thresholds have the units of the scores.
        higher_is: the group that a higher score indicates, "member" or "non-member".
        delta: delta of the bounds, in (0, 1); None: delta of the first claim.

    Raises:
        InputError: ``higher_is`` is neither "member" nor "non-member", or ``evaluate`` refuses the input.
    """
    if higher_is not in ORIENTATIONS:
        raise InputError(f"--higher-is '{higher_is}': choose member or non-member")
    sign = ORIENTATIONS[higher_is]
    # Reversed scores turn the rule "score <= t" into "-score >= -t".
    turned = replace(design, thresholds=tuple(sign * t for t in design.thresholds))
    oriented = LabelledScores(sign * scores.scores, scores.member, scores.users)
    judgement = evaluate(oriented, turned, delta=delta, claims=claims)
    # Names such as "unknown" may stand for many people, and the unit would not be one person.
    missing = missing_names(scores.users or ())
    cautions = [Caution.MISSING_NAMES(names=", ".join(map(repr, missing)))] if missing else []
    cautions += _wrong_way_round(oriented, higher_is)
    return replace(judgement, verdicts=tuple(replace(v, cautions=(*v.cautions, *cautions)) for v in judgement.verdicts))


def _wrong_way_round(scores: LabelledScores, higher_is: str) -> list[Statement]:
    """Return a warning if the scores indicate the other group, for example because they are losses."""
    if not scores.held_in.size or not scores.held_out.size:
        return []
    test = stats.mannwhitneyu(scores.held_in, scores.held_out, alternative="less", method="asymptotic")
    if not test.pvalue < REVERSED:
        return []
    other = next(orientation for orientation in ORIENTATIONS if orientation != higher_is)
    area = test.statistic / (scores.held_in.size * scores.held_out.size)
    return [Caution.WRONG_WAY_ROUND(auroc=float(area), other=other)]


def read_scores(path: Path) -> LabelledScores:
    """Read the columns user, score and member, sorted by user, so the result does not depend on the row order.

    Raises InputError, one line with file and row, if the file cannot be read or lacks a column. Also raises InputError
    if a user has a score without membership or the reverse, occurs twice, or has a score that is not a finite number.
    """
    try:
        # Spreadsheets begin a file with a byte-order mark, which would become part of the first column's name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True, strict=True)
            reader.fieldnames = _header(path, reader.fieldnames or ())
            rows = _rows(path, reader)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give a file that you can read") from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not UTF-8 text: save the file as UTF-8 CSV with the columns {', '.join(COLUMNS)}"
        ) from None
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file ({error}): save the scores as a CSV file") from None
    if not rows:
        raise InputError(f"{path} has no rows: give one row per user")
    # By name: where scores are tied, guesses go by place, and the file's order would decide.
    users = tuple(sorted(rows))
    try:
        return LabelledScores(
            np.array([rows[user][0] for user in users], dtype=np.float64),
            np.array([rows[user][1] for user in users], dtype=np.bool_),
            users,
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _header(path: Path, names: Sequence[str]) -> list[str]:
    """Return the names of the columns. Raises InputError if a column is missing or occurs twice."""
    header = [str(name).strip() for name in names]
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        columns = ", ".join(header) or "none"
        raise InputError(
            f"{path}: no column '{missing[0]}' (columns: {columns}). Give the columns {', '.join(COLUMNS)}"
        )
    # ``DictReader`` would keep the last of two columns without a word.
    twice = next((column for column in COLUMNS if header.count(column) > 1), None)
    if twice:
        raise InputError(f"{path}: the column '{twice}' appears twice. Rename one of the two columns")
    return header


def _rows(path: Path, reader: "csv.DictReader[str]") -> dict[str, tuple[float, bool]]:
    """Return score and membership by user. Raises InputError, with the row, if a row cannot be used."""
    rows: dict[str, tuple[float, bool]] = {}
    for row in reader:
        # Where ``DictReader`` puts what has no column, for example after a comma inside a name without quotes.
        if None in row:
            raise InputError(
                f"{path}, row {reader.line_num}: the row has more fields than the header. Quote a field that"
                " contains a comma, or remove the additional fields"
            )
        user, score, member = _row(path, reader.line_num, row)
        if user in rows and rows[user][1] != member:
            raise InputError(f"{path}, row {reader.line_num}: this user is in both groups. Keep one row per user")
        if user in rows:
            raise InputError(f"{path}, row {reader.line_num}: this user has two scores. Keep one row per user")
        rows[user] = (score, member)
    return rows


def _row(path: Path, number: int, row: dict[str, Any]) -> tuple[str, float, bool]:
    where = f"{path}, row {number}"
    # A row with too few fields has None in the rest: an empty field.
    user, score, member = (str(row.get(column) or "").strip() for column in COLUMNS)
    if not user:
        raise InputError(f"{where}: the user is empty. Name the user")
    if "\n" in user:
        raise InputError(
            f"{where}: the name of the user has several lines. Look for a stray quotation mark before this row"
        )
    if not member:
        raise InputError(f"{where}: the row has a score but no membership. Give 1 (member) or 0 (non-member)")
    if not score:
        raise InputError(f"{where}: the row has a membership but no score. Score every user")
    if member.lower() not in _YES + _NO:
        raise InputError(f"{where}: the membership is neither 1 (member) nor 0 (non-member). Give 1 or 0")
    try:
        value = number_in(score)
    except ValueError:
        raise InputError(f"{where}: the score is not a number. Give a number") from None
    if not math.isfinite(value):
        raise InputError(f"{where}: the score is {value}, not a finite number. Score this user again")
    return user, value, member.lower() in _YES
