"""The names of the objectives of preference tuning and their default, which a config reads without torch."""

from enum import StrEnum

BETA = 0.1  # as in TRL


class PreferenceName(StrEnum):
    """An objective of preference tuning."""

    DPO = "dpo"
    ORPO = "orpo"
