"""Example-level DP: heldin samples, clips and protects each record separately."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from heldin.base.errors import InputError
from heldin.defenses.choices import Unit
from heldin.defenses.mechanisms.contract import Given, Level
from heldin.defenses.mechanisms.settings import ShuffledDefense
from heldin.words.guarantee import GuaranteeCondition
from heldin.words.statement import Statement


class ExampleDefense(ShuffledDefense):
    """Example-level DP. The guarantee covers single records."""

    kind: Literal["example"]

    @property
    def worst_case_documents(self) -> int:
        """The number 1, because the guarantee covers a single document."""
        return 1

    def plan(self, given: Given) -> dict[str, Any]:
        """Return the plan's fields: records are sampled and protected."""
        return {**super().plan(given), "unit": "example", "sampled": "example"}


class ExampleLevel(Level):
    """The level of single records."""

    unit: ClassVar[Unit | Literal["none"]] = "example"
    method: ClassVar[str] = "example"
    protects_records: ClassVar[bool] = True

    def check(self) -> None:
        """Raise InputError for sampled users and for groups."""
        plan = self.mechanism
        if plan.samples_users:
            raise InputError("sampled users have no example-level accountant: set unit to user, or sample examples")
        super().check()
        if plan.group_size != 1:
            raise InputError(
                f"group size {plan.group_size} needs unit user, because a group is the records of a user: set unit to"
                " user, or group size to 1"
            )

    def conditions(self, refilling: Sequence[Statement]) -> Sequence[Statement]:
        """Return conditions: the guarantee is about the data after preprocessing, and not about users."""
        after = [GuaranteeCondition.AFTER_PREPROCESSING(steps=list(refilling))] if refilling else []
        return [*after, GuaranteeCondition.NOT_OF_USERS()]
