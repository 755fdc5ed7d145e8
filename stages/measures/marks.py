"""Marks: exposure of canary users' marks among marks that were never planted, under target and reference.

Every number describes at least ten canary users, because a median needs ten
(docs/decisions/0010-nobody-in-a-report.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heldin.attacks.marks import MarkRanks, MarkScores, exposures, ranks
from heldin.audit.coarse import LEAST_IN_GROUP, brief, share_limits
from heldin.audit.results import MarkExposure, MarkFacts, MarkGroup, MarkSide
from heldin.base.errors import InputError
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.users import Canary
from heldin.stages.measures.measure import (
    Drawn,
    Fingerprinted,
    Measure,
    MeasuredUsers,
    MeasureOptions,
    loaded_here,
)

if TYPE_CHECKING:
    from heldin.models.loading import LanguageModel

FIRST_PERCENT = 100


class MarkOptions(MeasureOptions):
    """Exposure: tests whether the model assigns the mark of a canary user a higher probability than marks that
    heldin drew in the same way but never planted. All texts of a canary user contain the user's mark."""

    needs_canaries: ClassVar[bool] = True

    def measure(self, subjects: MeasuredUsers, models: tuple[Fingerprinted, Fingerprinted]) -> "Marks":
        """Return the measure. Raises InputError if no canary user has a mark."""
        require_marks(subjects)
        assert subjects.marks is not None
        return Marks(subjects.canaries, models, subjects.marks, subjects.marks_from)

    def check(self, subjects: MeasuredUsers | None, model: "LanguageModel") -> None:
        """Check that a canary user has a mark. Raises InputError if no canary user has a mark."""
        if subjects is not None:
            require_marks(subjects)

    def described(self) -> str:
        """Return a text about the ranked marks."""
        return "the mark of each canary user, among marks that were never planted"


def require_marks(subjects: MeasuredUsers) -> None:
    """Raise InputError if no canary user has a mark."""
    if not any(canary.mark for canary in subjects.canaries.values()):
        raise InputError(
            "measures.marks needs a canary user whose texts all share a mark, but there is none: plant another kind,"
            " or remove measures.marks"
        )


@dataclass(frozen=True)
class Marks(Measure[MarkScores]):
    """The log-probability of every mark.

    Attributes:
        canaries: how each canary user was made.
        models: the audited model and the reference.
        drawn: function that draws marks that might have been planted; its result does not depend on a coin.
        drawn_from: values that determine the drawn marks; part of the hash of the table.
    """

    stage = "extraction"

    canaries: Mapping[str, Canary]
    models: tuple[Fingerprinted, Fingerprinted]
    drawn: Callable[[], Drawn]
    drawn_from: Sequence[str]

    def made_from(self) -> str:
        """Return a hash of the models and of the values that determine the marks."""
        return text_sha256(*(model.fingerprint for model in self.models), *self.drawn_from)

    def compute(self, reporter: Reporter) -> MarkScores:
        """Draw the marks and score them."""
        drawn = self.drawn()
        planted = {canary.mark for canary in self.canaries.values()}
        rows: list[tuple[str, str | None, str]] = [
            (recipe, user, self.canaries[user].mark) for recipe, (users, _) in drawn.items() for user in users
        ]
        rows += [(recipe, None, text) for recipe, (_, candidates) in drawn.items() for text in candidates]
        # Each text once: the same text in another batch may differ by rounding, and would not tie with itself.
        texts = list(dict.fromkeys(text for _, _, text in rows))
        models = [loaded_here(model) for model in self.models]
        with reporter.track("exposure of marks", len(models) * len(texts), "marks") as advance:
            scores = [_logprobs(model, texts, advance) for model in models]
        number = {text: i for i, text in enumerate(texts)}
        row_of = np.array([number[text] for _, _, text in rows], dtype=np.intp)
        is_planted = np.array([text in planted for _, _, text in rows], dtype=np.bool_)
        users = [user for _, user, _ in rows]
        return MarkScores([recipe for recipe, _, _ in rows], users, is_planted, *(under[row_of] for under in scores))

    def columns(self, values: MarkScores) -> Mapping[str, Any]:
        """Return one row per mark."""
        return {
            "recipe": pa.array(list(values.recipes), pa.string()),
            "user": pa.array(list(values.users), pa.string()),
            "planted": pa.array(values.planted, pa.bool_()),
            "target": pa.array(values.target, pa.float64()),
            "reference": pa.array(values.reference, pa.float64()),
        }

    def values(self, table: pa.Table) -> MarkScores:
        """Return the scores from a table."""
        columns = {name: np.asarray(table[name]) for name in ("planted", "target", "reference")}
        return MarkScores(table["recipe"].to_pylist(), table["user"].to_pylist(), **columns)

    def facts(self, values: MarkScores, member: Mapping[str, bool]) -> MarkFacts:
        """Return numbers of canary users by kind and membership."""
        sides = {user: member[user] for user in sorted(self.canaries)}
        return MarkFacts(groups=mark_groups(ranks(values), sides, self.canaries))


def _logprobs(model: "LanguageModel", texts: Sequence[str], advance: Callable[[int], object]) -> NDArray[np.float64]:
    """Return the log-probability, in nats, of each text after a start token, shape (n,)."""
    from heldin.models.logprobs import score_texts

    totals = np.array([scores.total for scores in score_texts(model, texts)], dtype=np.float64)
    advance(len(texts))
    return totals


def mark_groups(ranks: MarkRanks, member: Mapping[str, bool], canaries: Mapping[str, Canary]) -> list[MarkGroup]:
    """Return groups of canary users by kind and number of documents.

    Args:
        ranks: rank of every canary user's mark.
        member: whether each canary user is a member.
        canaries: how each canary user was made.
    """
    of_group: dict[tuple[str, int], list[int]] = {}
    for row, user in enumerate(ranks.users):
        of_group.setdefault((canaries[user].kind, canaries[user].length or 0), []).append(row)
    groups = []
    for _, members in sorted(of_group.items()):
        rows = np.array(members, dtype=np.intp)
        inside = np.array([member[ranks.users[row]] for row in rows], dtype=np.bool_)
        example = canaries[ranks.users[rows[0]]]
        groups.append(
            MarkGroup(
                kind=example.kind,
                length=example.length,
                candidates=int(ranks.candidates[rows].min()),
                held_in=_side(ranks, rows[inside]),
                held_out=_side(ranks, rows[~inside]),
            )
        )
    return groups


def _side(ranks: MarkRanks, rows: NDArray[np.intp]) -> MarkSide:
    candidates = ranks.candidates[rows]
    target, reference = (_exposed(column[rows], candidates) for column in (ranks.target, ranks.reference))
    lower, upper = share_limits(target.highest, rows.size) if rows.size else (None, None)
    return MarkSide(users=rows.size, target=target, lower=lower, upper=upper, reference=reference)


def _exposed(ranks: NDArray[np.int64], candidates: NDArray[np.int64]) -> MarkExposure:
    # Among no candidates every mark is the first, and says nothing.
    some = candidates > 0
    median = None
    if ranks.size >= LEAST_IN_GROUP and some.all():
        median = brief(float(np.median(exposures(ranks, candidates))), 1)
    return MarkExposure(
        highest=int((some & (ranks == 1)).sum()),
        first_percent=int((some & (ranks * FIRST_PERCENT <= candidates + 1)).sum()),
        median=median,
    )
