"""Marks: exposure of canary users' marks among marks that were never planted, under target and reference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heldin.attacks.marks import MarkScores, ranks
from heldin.audit.marks import mark_groups
from heldin.audit.results import MarkFacts
from heldin.base.files import text_sha256
from heldin.base.progress import Reporter
from heldin.canaries.kinds import Canary
from heldin.stages.measures.measure import Fingerprinted, Measure, loaded_here

if TYPE_CHECKING:
    from heldin.models.loading import LanguageModel

# By recipe, names of its canary users, and marks that were drawn and not planted.
Drawn = dict[str, tuple[list[str], list[str]]]


@dataclass(frozen=True)
class Marks(Measure[MarkScores]):
    """The log-probability of every mark.

    Attributes:
        canaries: how each canary user was made.
        models: the audited model and the reference.
        drawn: draws marks that might have been planted; a function of no coin.
        drawn_from: what these follow from, for the name of the table.
    """

    name = "marks"
    file = "marks.parquet"
    stage = "extraction"

    canaries: Mapping[str, Canary]
    models: tuple[Fingerprinted, Fingerprinted]
    drawn: Callable[[], Drawn]
    drawn_from: Sequence[str]

    def made_from(self) -> str:
        """Return a hash of the models and of what the marks follow from."""
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
        """Return one row for each mark."""
        return {
            "recipe": pa.array(list(values.recipes), pa.string()),
            "user": pa.array(list(values.users), pa.string()),
            "planted": pa.array(values.planted, pa.bool_()),
            "target": pa.array(values.target, pa.float64()),
            "reference": pa.array(values.reference, pa.float64()),
        }

    def values(self, table: pa.Table) -> MarkScores:
        """Return the scores of a table."""
        columns = {name: np.asarray(table[name]) for name in ("planted", "target", "reference")}
        return MarkScores(table["recipe"].to_pylist(), table["user"].to_pylist(), **columns)

    def facts(self, values: MarkScores, member: Mapping[str, bool]) -> MarkFacts:
        """Return counts of canary users by kind and side."""
        sides = {user: member[user] for user in sorted(self.canaries)}
        return MarkFacts(groups=mark_groups(ranks(values), sides, self.canaries))


def _logprobs(model: "LanguageModel", texts: Sequence[str], advance: Callable[[int], object]) -> NDArray[np.float64]:
    """Return the log-probability of each text after a start token, nats, shape (n,)."""
    from heldin.models.logprobs import score_texts

    totals = np.array([scores.total for scores in score_texts(model, texts)], dtype=np.float64)
    advance(len(texts))
    return totals
