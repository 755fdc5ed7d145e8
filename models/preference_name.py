"""The names of the preference-tuning objectives, and the default name. A config can read them without torch."""

from enum import StrEnum

BETA = 0.1  # as in TRL


class PreferenceName(StrEnum):
    """An objective of preference tuning."""

    DPO = "dpo"
    ORPO = "orpo"
