"""The kinds of ``canaries``."""

from typing import Annotated, TypeAlias

from heldin.base.kinds import Family, OfKind
from heldin.canaries.contract import CanaryConfig

CANARIES = Family[CanaryConfig](
    "canaries",
    CanaryConfig,
    {
        "unseen_token": "heldin.canaries.unseen_token:UnseenTokenCanaries",
        "high_temperature": "heldin.canaries.high_temperature:HighTemperatureCanaries",
        "rare_phrase": "heldin.canaries.rare_phrase:RarePhraseCanaries",
        "named_person": "heldin.canaries.named_person:NamedPersonCanaries",
        "substring": "heldin.canaries.substring:SubstringCanaries",
        "real_rows": "heldin.canaries.real_rows:RealRowCanaries",
    },
)
CanarySpec: TypeAlias = Annotated[CanaryConfig, OfKind(CANARIES)]
