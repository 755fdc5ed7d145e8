"""Deduplication keeps the first of several equal or similar texts."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field

from heldin.base.section import Few
from heldin.defenses.choices import DataStep
from heldin.defenses.data_side.contract import DataSideDefense, StepInput, TrainingRecord, by_user
from heldin.defenses.texts.near_duplicates import first_of_similar
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement


class Deduplicate(DataSideDefense):
    """Keep the first text of each set of similar texts."""

    kind: Literal["deduplicate"] = "deduplicate"
    scope: Literal["user", "corpus"] = "user"
    """Texts to compare with each other. user: texts by the same user. corpus: all texts, which voids a user-level
    epsilon."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Two texts count as similar if the estimated Jaccard similarity of their n-grams is at least this number. 1:
    only equal texts."""
    ngram: Few = 5
    """Number of words in an n-gram."""

    def name(self) -> Statement:
        """Return the step's name in a plan and a record."""
        within = DataStepText.DEDUPLICATED_USERS if self.scope == "user" else DataStepText.DEDUPLICATED_CORPUS
        similar = DataStepText.SIMILAR(ngram=self.ngram, threshold=self.threshold)
        return within(alike=DataStepText.EQUAL() if self.threshold == 1.0 else similar)

    def declared(self) -> DataStep:
        """Return the declared step. The step is not record-local: if a record is missing, the step keeps a copy of the
        record."""
        # Across users the first of two copies stays: whether one user's does depends on who else is there.
        return DataStep(name=self.name(), user_local=self.scope == "user", record_local=False)

    def apply(self, records: Sequence[TrainingRecord], given: StepInput) -> list[TrainingRecord]:
        """Return the first record of each set of copies."""
        groups = by_user(records).values() if self.scope == "user" else [list(records)]
        first = _first_of_equal if self.threshold == 1.0 else self._first_of_similar
        return [record for group in groups for record in first(group)]

    def _first_of_similar(self, records: Sequence[TrainingRecord]) -> Iterable[TrainingRecord]:
        sets = (shingles(record.document.counted, self.ngram) for record in records)
        stays = first_of_similar(sets, self.threshold)
        return [record for record, it_stays in zip(records, stays, strict=True) if it_stays]


def _first_of_equal(records: Sequence[TrainingRecord]) -> Iterable[TrainingRecord]:
    seen: set[bytes] = set()
    for record in records:
        digest = hashlib.blake2b(record.document.counted.encode(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield record


def shingles(text: str, ngram: int) -> list[str]:
    """Return the word n-grams of a text; the whole text if the text has fewer words."""
    words = text.split()
    return [" ".join(words[i : i + ngram]) for i in range(max(1, len(words) - ngram + 1))]
