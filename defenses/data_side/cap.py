"""A cap on the records of each user."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from heldin.base.coins import seed_key
from heldin.base.section import Count
from heldin.defenses.choices import DataStep
from heldin.defenses.data_side.contract import DataSideDefense, StepInput, TrainingRecord, by_user
from heldin.defenses.data_side.selection import select_records
from heldin.words.data_steps import DataStepText
from heldin.words.statement import Statement

CapSelection: TypeAlias = Literal["random", "longest", "shortest", "highest_perplexity", "lowest_perplexity"]


class Cap(DataSideDefense):
    """Use only a limited number of records per user for training."""

    kind: Literal["cap"] = "cap"
    records: Count
    """Maximum number of records kept per user."""
    selection: CapSelection = "random"
    """Rule that chooses the records to keep. The base model computes the perplexity for rules that need it."""

    def name(self) -> Statement:
        """Return the step's name in a plan and a record."""
        return DataStepText.CAPPED(records=self.records, selection=self.selection)

    def declared(self) -> DataStep:
        """Return the declared step.

        The step is not record-local: if a record is missing, the step keeps another record in its place.
        """
        by_slots = not self.ranks_by_base  # by id; every other rule ranks a user's texts
        return DataStep(name=self.name(), user_local=True, record_local=False, slots_only=by_slots)

    @property
    def most_records(self) -> int:
        """Return the cap."""
        return self.records

    @property
    def ranks_by_base(self) -> bool:
        """Return True unless the choice is random, because lengths are in tokens and perplexity needs the model."""
        return self.selection != "random"

    def apply(self, records: Sequence[TrainingRecord], given: StepInput) -> list[TrainingRecord]:
        """Return at most ``records`` records of each user."""
        kept = []
        for user, own in by_user(records).items():
            if len(own) <= self.records:
                kept += own
                continue
            documents = [record.document for record in own]
            perplexity = self.selection in ("highest_perplexity", "lowest_perplexity")
            ranked = self.selection in ("longest", "shortest")
            chosen = select_records(
                self.selection,
                self.records,
                ids=[record.id for record in own],
                # They take a tokenizer or a model, so they are computed only for the rules that rank by them.
                lengths=[int(n) for n in given.lengths(documents)] if ranked else [0] * len(own),
                # A public seed and a purpose of the user's own: the choice looks at nobody else, and needs no secret.
                key=seed_key(given.seed),
                purpose=f"cap of {user}",
                losses=given.losses(documents) if perplexity else None,
            )
            kept += [own[i] for i in chosen[: self.records]]
        return kept
