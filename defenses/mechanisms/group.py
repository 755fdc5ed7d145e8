"""Group privacy (Chua et al., B.3), with exactly G records per user."""

from typing import ClassVar, Literal

from heldin.defenses.mechanisms.els import ElsDefense


class GroupDefense(ElsDefense):
    """Example-level sampling with exactly ``group_size`` records per user; users with fewer records get repeated
    records."""

    repeats_records: ClassVar[bool] = True

    kind: Literal["group"]  # type: ignore[assignment]
