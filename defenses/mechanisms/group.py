"""Group privacy (Chua et al., B.3): draws records, exactly G per user."""

from typing import ClassVar, Literal

from heldin.defenses.mechanisms.els import ElsDefense


class GroupDefense(ElsDefense):
    """Example-level sampling with exactly ``group_size`` records per user, repeated for users who have fewer."""

    repeats_records: ClassVar[bool] = True

    kind: Literal["group"]  # type: ignore[assignment]
