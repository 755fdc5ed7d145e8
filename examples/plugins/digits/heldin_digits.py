"""A defense that replaces every digit of a training text by 0."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from heldin.defenses.data_side.contract import DataSideDefense, StepInput, TrainingRecord


class Digits(DataSideDefense):
    """Replace digits, so the model does not learn numbers."""

    rewrites: ClassVar[bool] = True
    user_local: ClassVar[bool | None] = True
    record_local: ClassVar[bool | None] = True

    def apply(self, records: Sequence[TrainingRecord], given: StepInput) -> list[TrainingRecord]:
        """Return all records with changed texts. The same parts count, because no character is added or removed."""
        return [
            replace(record, document=replace(record.document, text=re.sub(r"\d", "0", record.text)))
            for record in records
        ]
